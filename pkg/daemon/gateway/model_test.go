package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/gfaas/gfaas/pkg/function"
)

// formPart returns a part of a form with the boundary b.
func formPart(head, text string) string {
	return "--b\r\nContent-Disposition: form-data; " + head + "\r\n\r\n" + text + "\r\n"
}

const formType = "multipart/form-data; boundary=b"

// TestModelIn: the last model that a body names is found, wherever it is and however the
// body is read.
func TestModelIn(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	for name, c := range map[string]struct{ contentType, body, want, wrong string }{
		"first":            {body: `{"model":"a","x":1}`, want: "a"},
		"last":             {body: `{"x":[1,{"model":"b"},"]"],"y":{"model":"b"},"z":-1.5e3,"model":"a"}`, want: "a"},
		"spaces":           {body: "\r\n { \"x\" : null , \"model\"\t:\n\"a\" } ", want: "a"},
		"twice":            {body: `{"model":"b","model":"a"}`, want: "a"},
		"escaped key":      {body: `{"mod\u0065l":"a"}`, want: "a"},
		"escaped name":     {body: `{"model":"\u00e4\n\"\\"}`, want: "ä\n\"\\"},
		"other case":       {body: `{"Model":"b","model":"a","MODEL":"c"}`, want: "a"},
		"quotes":           {body: `{"x":"\"model\":\"b\"\\","model":"a"}`, want: "a"},
		"after a long one": {body: `{"x":"` + long + `\\","model":"a"}`, want: "a"},
		"long key":         {body: `{"` + long + `":1,"model":"a"}`, want: "a"},
		"slashes":          {body: `{"x":"` + strings.Repeat(`\\`, 5000) + `","model":"a"}`, want: "a"},
		"slashes, odd":     {body: `{"xy":"` + strings.Repeat(`\\`, 5000) + `\"","model":"a"}`, want: "a"},
		"deep":             {body: `{"x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `,"model":"a"}`, want: "a"},
		"cut behind it":    {body: `{"model":"a","x":`, want: "a"},
		"longest":          {body: `{"model":"` + long[:maxModel] + `"}`, want: long[:maxModel]},
		"too long":         {body: `{"model":"` + long[:maxModel+1] + `"}`, wrong: "no name"},
		"number":           {body: `{"model":"a","model":1}`, wrong: "no name"},
		"object":           {body: `{"model":{"model":"a"}}`, wrong: "no name"},
		"nowhere":          {body: `{"x":{"model":"a"}}`, wrong: `no "model"`},
		"a list":           {body: `[{"model":"a"}]`, wrong: "expected an object"},
		"nothing":          {body: ``, wrong: "expected an object"},
		"cut":              {body: `{"x":[1,`, wrong: "does not end"},
		"no key":           {body: `{1:2}`, wrong: "expected a key"},
		"no colon":         {body: `{"model" "a"}`, wrong: "expected :"},
		"no comma":         {body: `{"x":1 "model":"a"}`, wrong: "expected , or }"},

		"form":               {formType, formPart(`name="model"`, "a") + "--b--\r\n", "a", ""},
		"form, last":         {formType, formPart(`name="file"; filename="a.wav"`, long) + formPart(`name="model"`, "a") + "--b--\r\n", "a", ""},
		"form, twice":        {formType, formPart(`name="model"`, "b") + formPart(`name="x"`, "1") + formPart(`name="model"`, "a") + "--b--\r\n", "a", ""},
		"form, file":         {formType, formPart(`name="model"`, "a") + formPart(`name="model"; filename="model"`, "b") + "--b--\r\n", "a", ""},
		"form, empty file":   {formType, formPart(`name="model"`, "a") + formPart(`name="model"; filename=""`, "b") + "--b--\r\n", "a", ""},
		"form, encoded file": {formType, formPart(`name="model"`, "a") + formPart(`name="model"; filename*=UTF-8''x`, "b") + "--b--\r\n", "a", ""},
		"form, only a file":  {formType, formPart(`name="model"; filename="x"`, "b") + "--b--\r\n", "", `no field "model"`},
		"form, cut":          {formType, formPart(`name="model"`, "a") + formPart(`name="x"`, "1"), "a", ""},
		"form, without":      {formType, formPart(`name="x"`, "a") + "--b--\r\n", "", `no field "model"`},
		"form, too long":     {formType, formPart(`name="model"`, long) + "--b--\r\n", "", "no name"},
		"form, long head":    {formType, formPart(`name="model"`, "a") + formPart(`name="x"; y="`+long+`"`, "1") + "--b--\r\n", "", "head of a part"},
		"form, no boundary":  {"multipart/form-data", formPart(`name="model"`, "a"), "", `no field "model"`},
	} {
		for _, slow := range []bool{false, true} {
			in := iotest.DataErrReader(strings.NewReader(c.body))
			if slow {
				in = iotest.OneByteReader(strings.NewReader(c.body))
			}
			got, err := modelIn(in, c.contentType)
			if c.wrong == "" && (err != nil || got != c.want) || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("%s: %q, %v, want %q or an error with %q", name, got, err, c.want, c.wrong)
			}
		}
	}
}

// FuzzModelInObject compares modelInObject with encoding/json, for what that accepts.
func FuzzModelInObject(f *testing.F) {
	for _, seed := range []string{`{"model":"a"}`, `{"x":[1,{"model":"b"}],"model":"a","model":"\u00e4"}`, `{"a":"\\\"","model":null}`, "{\"\xff\":1,\"model\":\"\xff\"}"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var object map[string]json.RawMessage
		if json.Unmarshal([]byte(text), &object) != nil || object == nil {
			_, _ = modelInObject(strings.NewReader(text)) // it ends
			return
		}
		var want *string
		if raw := object["model"]; raw != nil && json.Unmarshal(raw, &want) == nil && want != nil && len(*want) > maxModel {
			want = nil
		}
		if got, err := modelInObject(strings.NewReader(text)); (err == nil) != (want != nil) || err == nil && got != *want {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	})
}

// TestLongModel: calls of /v1/ reach the function that they name anywhere within
// --max-body, unchanged, again if their instance ends, and leave no files.
func TestLongModel(t *testing.T) {
	var broken bool
	w := newWorld(t, mixed{"/v1/breaks": func(rw http.ResponseWriter, r *http.Request) {
		if broken = !broken; broken {
			hangUp(rw, r)
			return
		}
		echo(rw, r)
	}}, nil)
	w.apply(fn("a"), fn("b", func(f *function.Function) { f.Contract = "openai" }))
	long := strings.Repeat("long", 50_000)
	forms := formPart(`name="file"; filename="a.wav"`, long) + formPart(`name="model"`, "a") + "--b--\r\n"
	for name, c := range map[string]struct{ path, contentType, body, instance string }{
		"object":           {"/v1/chat/completions", "application/json", `{"messages":"` + long + `","model":"a"}`, "a.1"},
		"first, and last":  {"/v1/chat/completions", "application/json", `{"model":"b","messages":"` + long + `","model":"a"}`, "a.1"},
		"first":            {"/v1/chat/completions", "application/json", `{"model":"a","messages":"` + long + `"}`, "a.1"},
		"form":             {"/v1/audio/transcriptions", formType, forms, "a.1"},
		"sent again":       {"/v1/breaks", formType, forms, "a.1"},
		"beside the query": {"/v1/chat/completions?model=b", formType, forms, "a.1"},
	} {
		for _, framing := range []string{fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(c.body), c.body), "Transfer-Encoding: chunked\r\n\r\n" + chunked(c.body)} {
			a := said(t, w.dial("POST "+c.path+" HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Type: "+c.contentType+"\r\n"+framing))
			if a.status != 200 || a.body != c.body || a.header.Get("Gfaas-Instance") != c.instance {
				t.Errorf("%s: %d %.300s %v, want its own body from %s", name, a.status, a.body, a.header, c.instance)
			}
		}
	}
	w.settled()
	w.until("the space is free", func() bool { return w.spills.used.Load() == 0 && w.spills.files.Load() == 0 })
	if left, err := os.ReadDir(w.cfg.SpillDir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if a := w.do("GET", "/v1/realtime?model=b&model=a&x=1", ""); a.status != 200 || a.header.Get("Gfaas-Instance") != "a.1" || !strings.HasPrefix(a.header.Get("Seen"), "GET /v1/realtime?model=b&model=a&x=1 ") {
		t.Errorf("%+v", a)
	}
	own(t, w.do("GET", "/v1/realtime?model=none", ""), 404, codeNoFunction)
	own(t, w.do("GET", "/v1/realtime", ""), 405, codeMethod)
}

// TestSpill: the files of long bodies are bounded in size and number, one host cannot take
// all of that, and what a call took is free when it is over, however it ended.
func TestSpill(t *testing.T) {
	long := func(n int) string { return fmt.Sprintf(`{"x":"%s","model":"f"}`, strings.Repeat("x", n)) }
	for name, c := range map[string]struct {
		change func(*Config)
		held   int // bodies of 500 KB but for their last byte
		body   string
		status int
		code   string
	}{
		"free":              {nil, 0, long(900_000), 200, ""},
		"full":              {func(c *Config) { c.Spill = 1_000_000 }, 1, long(900_000), 503, codeBusy},
		"short":             {func(c *Config) { c.Spill = 1_000_000 }, 1, long(500), 200, ""},
		"one host's share":  {func(c *Config) { c.Spill = 2_000_000 }, 3, long(500_000), 503, codeBusy},
		"no more files":     {func(c *Config) { c.files = 40 }, 5, long(2000), 503, codeBusy},
		"none":              {func(c *Config) { c.Spill = 0 }, 0, long(2000), 413, codeTooLarge},
		"no folder":         {func(c *Config) { c.SpillDir = "/dev/null/spill" }, 0, long(2000), 503, codeBusy},
		"larger than it is": {func(c *Config) { c.Spill = 800_000 }, 0, long(900_000), 503, codeBusy},
		"not found":         {nil, 0, strings.Replace(long(2000), `"f"`, `"g"`, 1), 404, codeNoFunction},
		"malformed":         {nil, 0, strings.Replace(long(2000), ",", ";", 1), 400, codeBadRequest},
	} {
		for _, framing := range []string{fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(c.body), c.body), "Transfer-Encoding: chunked\r\n\r\n" + chunked(c.body)} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, http.HandlerFunc(echo), c.change)
				w.apply(fn("f"))
				for range c.held {
					w.dial(fmt.Sprintf("POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n%s", long(499_900)[:499_000]))
				}
				w.until("they are kept", func() bool { return w.spills.files.Load() == int64(c.held) })
				a := said(t, w.dialFrom("127.0.0.1", "POST /v1/x HTTP/1.1\r\nHost: x\r\n"+framing))
				if a.status != c.status || c.code != "" && a.reason() != c.code {
					t.Errorf("%d %.300s, want %d %s", a.status, a.body, c.status, c.code)
				}
				if name == "one host's share" {
					if a := said(t, w.dialFrom("127.0.0.9", "POST /v1/x HTTP/1.1\r\nHost: x\r\n"+framing)); a.status != 200 {
						t.Errorf("another host: %d %.300s, want 200", a.status, a.body)
					}
				}
				w.until("the space is free", func() bool { return w.spills.files.Load() == int64(c.held) })
				if used, want := w.spills.used.Load(), int64(c.held)*(500_000-w.cfg.Buffer); used != want {
					t.Errorf("%d bytes are used, want %d", used, want)
				}
			})
		}
	}
}
