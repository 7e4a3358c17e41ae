package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
)

// TestModelAnywhereInBody checks that a call of /v1/ reaches the function that it names
// anywhere in the first --max-body bytes. The body arrives unchanged, also at a second
// instance if the first one ends. No files remain.
func TestModelAnywhereInBody(t *testing.T) {
	var broken bool
	w := newWorld(t, pathHandlers{"/v1/breaks": func(rw http.ResponseWriter, r *http.Request) {
		if broken = !broken; broken {
			hangUp(rw, r)
			return
		}
		echo(rw, r)
	}}, nil)
	w.apply(fn("a"), fn("b", func(f *function.Function) { f.Contract = "openai" }))
	long := strings.Repeat("long", 50_000)
	var form bytes.Buffer
	parts := multipart.NewWriter(&form)
	file, err := parts.CreateFormFile("file", "a.wav")
	if err == nil {
		_, err = io.WriteString(file, long)
	}
	if err := errors.Join(err, parts.WriteField("model", "a"), parts.Close()); err != nil {
		t.Fatal(err)
	}
	formType := parts.FormDataContentType()
	for name, c := range map[string]struct{ path, contentType, body, instance string }{
		"object":           {"/v1/chat/completions", "application/json", `{"messages":"` + long + `","model":"a"}`, "a.1"},
		"first, and last":  {"/v1/chat/completions", "application/json", `{"model":"b","messages":"` + long + `","model":"a"}`, "a.1"},
		"first":            {"/v1/chat/completions", "application/json", `{"model":"a","messages":"` + long + `"}`, "a.1"},
		"form":             {"/v1/audio/transcriptions", formType, form.String(), "a.1"},
		"sent again":       {"/v1/breaks", formType, form.String(), "a.1"},
		"beside the query": {"/v1/chat/completions?model=b", formType, form.String(), "a.1"},
	} {
		for _, framing := range []string{fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(c.body), c.body), "Transfer-Encoding: chunked\r\n\r\n" + chunked(c.body)} {
			a := readAnswer(t, w.dial("POST "+c.path+" HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Type: "+c.contentType+"\r\n"+framing))
			if a.status != 200 || a.body != c.body || a.header.Get("Gfaas-Instance") != c.instance {
				t.Errorf("%s: %d %.300s %v, want its own body from %s", name, a.status, a.body, a.header, c.instance)
			}
		}
	}
	w.awaitNoCalls()
	w.until("no body uses a file", func() bool { return w.intake.Usage().Spilled == 0 && w.intake.Usage().SpilledBodies == 0 })
	if remaining, err := os.ReadDir(w.cfg.SpillDir); err != nil || len(remaining) > 0 {
		t.Errorf("files of bodies at the end: got %v, %v; want none", remaining, err)
	}
	if a := w.do("GET", "/v1/realtime?model=b&model=a&x=1", ""); a.status != 200 || a.header.Get("Gfaas-Instance") != "a.1" || !strings.HasPrefix(a.header.Get("Seen"), "GET /v1/realtime?model=b&model=a&x=1 ") {
		t.Errorf("got %+v; want status 200 and the unchanged request at a.1", a)
	}
	checkModelRefusal(t, w.do("GET", "/v1/realtime?model=none", ""), 404, refusal.NoFunction)
	checkModelRefusal(t, w.do("GET", "/v1/realtime", ""), 405, refusal.Method)
}

// TestSpillFilesAreBounded checks that the files of long bodies are limited in size and
// number, and one host cannot use the whole limit. When a call ends, its share is
// released, however it ended.
func TestSpillFilesAreBounded(t *testing.T) {
	t.Parallel()
	long := func(n int) string { return fmt.Sprintf(`{"x":"%s","model":"f"}`, strings.Repeat("x", n)) }
	for name, c := range map[string]struct {
		change func(*Config)
		held   int // bodies of 500 KB without their last byte
		body   string
		status int
		code   string
	}{
		"free":              {nil, 0, long(900_000), 200, ""},
		"full":              {func(c *Config) { c.Spill = 1_000_000 }, 1, long(900_000), 503, refusal.Busy},
		"short":             {func(c *Config) { c.Spill = 1_000_000 }, 1, long(500), 200, ""},
		"one host's share":  {func(c *Config) { c.Spill = 2_000_000 }, 3, long(500_000), 503, refusal.Busy},
		"no more files":     {func(c *Config) { c.Files = 40 }, 5, long(2000), 503, refusal.Busy},
		"none":              {func(c *Config) { c.Spill = 0 }, 0, long(2000), 413, refusal.TooLarge},
		"no folder":         {func(c *Config) { c.SpillDir = "/dev/null/spill" }, 0, long(2000), 503, refusal.Busy},
		"larger than it is": {func(c *Config) { c.Spill = 800_000 }, 0, long(900_000), 503, refusal.Busy},
		"not found":         {nil, 0, strings.Replace(long(2000), `"f"`, `"g"`, 1), 404, refusal.NoFunction},
		"malformed":         {nil, 0, strings.Replace(long(2000), ",", ";", 1), 400, refusal.BadRequest},
	} {
		for _, framing := range []string{fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(c.body), c.body), "Transfer-Encoding: chunked\r\n\r\n" + chunked(c.body)} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, http.HandlerFunc(echo), c.change)
				w.apply(fn("f"))
				for range c.held {
					w.dial(fmt.Sprintf("POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n%s", long(499_900)[:499_000]))
				}
				w.until("the held bodies are in files", func() bool { return w.intake.Usage().SpilledBodies == int64(c.held) })
				a := readAnswer(t, w.dialFrom("127.0.0.1", "POST /v1/x HTTP/1.1\r\nHost: x\r\n"+framing))
				if a.status != c.status || c.code != "" && a.reason() != c.code {
					t.Errorf("%d %.300s, want %d %s", a.status, a.body, c.status, c.code)
				}
				if name == "one host's share" {
					if a := readAnswer(t, w.dialFrom("127.0.0.9", "POST /v1/x HTTP/1.1\r\nHost: x\r\n"+framing)); a.status != 200 {
						t.Errorf("another host: %d %.300s, want 200", a.status, a.body)
					}
				}
				w.until("only the held bodies are in files", func() bool { return w.intake.Usage().SpilledBodies == int64(c.held) })
				if used, want := w.intake.Usage().Spilled, int64(c.held)*(500_000-w.cfg.Buffer); used != want {
					t.Errorf("%d bytes are used, want %d", used, want)
				}
			})
		}
	}
}
