package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
)

const urlType = "application/x-www-form-urlencoded"

// modelForm returns a form with a file before the model, and its Content-Type.
func modelForm(t *testing.T, model, file string) (body, contentType string) {
	t.Helper()
	var text bytes.Buffer
	form := multipart.NewWriter(&text)
	if err := form.SetBoundary("b"); err != nil {
		t.Fatal(err)
	}
	part, err := form.CreateFormFile("file", "a.wav")
	if err == nil {
		_, err = io.WriteString(part, file)
	}
	if err == nil {
		err = form.WriteField("model", model)
	}
	if err == nil {
		err = form.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return text.String(), form.FormDataContentType()
}

// TestAliases checks that calls reach a function by its aliases, whatever their form, and that the
// model is replaced by served: the function gets the rest of the body as it was, with its length.
func TestAliases(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(
		fn("plain", func(f *function.Function) { f.Aliases = []string{"Qwen/Qwen3-8B", "Caf\u00e9"} }),
		fn("other", func(f *function.Function) {
			f.Aliases, f.Served = []string{"qwen/qwen3-8b", "llama3.2:3b"}, `/m/"x" & y.gguf`
		}),
	)
	long := strings.Repeat("x", 5000) // more than --buffer
	for name, c := range map[string]struct{ path, contentType, body, instance, want string }{
		"an alias":                 {"/v1/chat/completions", "", `{"model":"Qwen/Qwen3-8B"}`, "plain.1", `{"model":"Qwen/Qwen3-8B"}`},
		"an alias in another form": {"/v1/chat/completions", "", `{"model":"Cafe\u0301"}`, "plain.1", `{"model":"Cafe\u0301"}`},
		"a name":                   {"/v1/chat/completions", "", `{"model": "other" }`, "other.2", `{"model": "/m/\"x\" & y.gguf" }`},
		"an alias of other case":   {"/v1/chat/completions", "", `{"x":1,"model":"qwen/qwen3-8b"}`, "other.2", `{"x":1,"model":"/m/\"x\" & y.gguf"}`},
		"after much":               {"/v1/embeddings", "application/json", `{"x":"` + long + `","model":"llama3.2:3b","y":"` + long + `"}`, "other.2", `{"x":"` + long + `","model":"/m/\"x\" & y.gguf","y":"` + long + `"}`},
		"in the kept part":         {"/v1/embeddings", "", `{"model":"other","y":"` + long + `"}`, "other.2", `{"model":"/m/\"x\" & y.gguf","y":"` + long + `"}`},
		"twice":                    {"/v1/completions", "", `{"model":"plain","x":"` + long + `","model":"other"}`, "other.2", `{"model":"/m/\"x\" & y.gguf","x":"` + long + `","model":"/m/\"x\" & y.gguf"}`},
		"pairs":                    {"/v1/completions", urlType, "a=%20&model=llama3.2%3A3b&b=c", "other.2", "a=%20&model=%2Fm%2F%22x%22+%26+y.gguf&b=c"},
		"rerank":                   {"/rerank", "", `{"model":"other"}`, "other.2", `{"model":"/m/\"x\" & y.gguf"}`},
		"infill":                   {"/infill", "", `{"model":"plain"}`, "plain.1", `{"model":"plain"}`},
		"completion":               {"/completion", "", `{"model":"plain"}`, "plain.1", `{"model":"plain"}`},
		"tokenize":                 {"/tokenize", "", `{"model":"plain"}`, "plain.1", `{"model":"plain"}`},
		"props":                    {"/props", "", `{"model":"plain"}`, "plain.1", `{"model":"plain"}`},
	} {
		a := w.do("POST", c.path, c.body, "Content-Type", c.contentType, "Digest", "sha-256=x")
		if a.status != 200 || a.header.Get("Gfaas-Instance")[:5] != c.instance[:5] || a.body != c.want || a.header.Get("Seen-Length") != fmt.Sprint(len(c.want)) || !strings.HasPrefix(a.header.Get("Seen"), "POST "+c.path+" ") {
			t.Errorf("%s: got %d from %s, %.300q with length %s at %s; want 200 from %s, %.300q", name, a.status, a.header.Get("Gfaas-Instance"), a.body, a.header.Get("Seen-Length"), a.header.Get("Seen"), c.instance, c.want)
		}
	}
	form, formType := modelForm(t, "llama3.2:3b", long)
	want, _ := modelForm(t, `/m/"x" & y.gguf`, long)
	if a := w.do("POST", "/v1/audio/transcriptions", form, "Content-Type", formType); a.status != 200 || a.body != want {
		t.Errorf("form: got %d %.200q, want %.200q", a.status, a.body, want)
	}
	for query, seen := range map[string]string{
		"/v1/realtime?x=%zz&model=llama3.2:3b": "/v1/realtime?x=%zz&model=%2Fm%2F%22x%22+%26+y.gguf",
		"/props?model=Qwen%2FQwen3-8B":         "/props?model=Qwen%2FQwen3-8B",
		"/slots/1?a&model=plain":               "/slots/1?a&model=plain",
	} {
		if a := w.do("GET", query, ""); a.status != 200 || !strings.HasPrefix(a.header.Get("Seen"), "GET "+seen+" ") {
			t.Errorf("GET %s: got %d at %q, want %s", query, a.status, a.header.Get("Seen"), seen)
		}
	}
	for _, body := range []string{`{"model":"QWEN/QWEN3-8B"}`, `{"model":""}`, `{"model":"llama3.2"}`} {
		checkModelRefusal(t, w.do("POST", "/v1/chat/completions", body), 404, refusal.NoFunction)
	}
	checkRefusal(t, w.do("GET", "/props", ""), 405, refusal.Method)
	checkRefusal(t, w.do("GET", "/nothing?model=none", ""), 404, refusal.NoFunction)
	checkRefusal(t, w.do("POST", "/nothing", `{"model":"plain"}`), 404, refusal.NoPath)
	w.apply(fn("plain"), fn("other", func(f *function.Function) { f.Aliases = []string{"Qwen/Qwen3-8B"} })) // the alias moves
	if a := w.do("POST", "/v1/chat/completions", `{"model":"Qwen/Qwen3-8B"}`); a.header.Get("Gfaas-Instance") != "other.2" && a.header.Get("Gfaas-Instance") != "other.1" || a.body != `{"model":"Qwen/Qwen3-8B"}` {
		t.Errorf("moved alias: got %+v, want an unchanged body at the running instance of other", a)
	}
	checkModelRefusal(t, w.do("POST", "/v1/chat/completions", `{"model":"llama3.2:3b"}`), 404, refusal.NoFunction)
	w.awaitNoCalls()
}

// TestModelThatNeverComes checks that the gateway limits a body that does not end, whatever it
// contains before the model.
func TestModelThatNeverComes(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.MaxBody = 64 << 10 })
	w.apply(fn("f"))
	endless := func(head, text string) io.Reader {
		return io.MultiReader(strings.NewReader(head), &repeat{text: text})
	}
	for name, c := range map[string]struct {
		contentType string
		body        io.Reader
	}{
		"string": {"", endless(`{"messages":"`, "x")},
		"lists":  {"", endless(`{"messages":`, "[")},
		"keys":   {"", endless(`{`, `"x":1,`)},
		"blanks": {"", endless("", " ")},
		"file":   {"multipart/form-data; boundary=b", endless("--b\r\nContent-Disposition: form-data; name=file; filename=a\r\n\r\n", "x\r\n")},
		"parts":  {"multipart/form-data; boundary=b", endless("", "--b\r\nContent-Disposition: form-data; name=a\r\n\r\nx\r\n")},
		"pairs":  {urlType, endless("", "a=b&")},
	} {
		r, err := http.NewRequest("POST", w.url("/v1/chat/completions"), c.body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", c.contentType)
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_ = answer.Body.Close()
		if answer.StatusCode != 413 {
			t.Errorf("%s: got %d, want 413", name, answer.StatusCode)
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

// repeat reads a text again and again.
type repeat struct {
	text string
	at   int
}

func (r *repeat) Read(p []byte) (n int, err error) {
	n = copy(p, r.text[r.at:])
	r.at = (r.at + n) % len(r.text)
	return n, nil
}

// listed returns the models of /v1/models, by ID.
func (w *world) listed() map[string]map[string]any {
	w.t.Helper()
	var list struct{ Data []map[string]any }
	if err := json.Unmarshal([]byte(w.do("GET", "/v1/models", "").body), &list); err != nil {
		w.t.Fatal(err)
	}
	models := map[string]map[string]any{}
	for _, m := range list.Data {
		models[m["id"].(string)] = m
	}
	return models
}

func statusOf(model map[string]any) any {
	status, _ := model["status"].(map[string]any)
	return status["value"]
}

// TestModels checks the list of models: names and aliases, their status, and the context length that
// the server reports.
func TestModels(t *testing.T) {
	var ready atomic.Bool
	w := newWorld(t, pathHandlers{
		"/health": func(rw http.ResponseWriter, _ *http.Request) {
			if !ready.Load() {
				rw.WriteHeader(503)
			}
		},
		"/v1/models": func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(rw, `{"data":[{"id":"x","meta":{"n_ctx_train":131072}}]}`)
		},
		"/props": func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(rw, `{"default_generation_settings":{"n_ctx":4096}}`)
		},
	}, func(c *Config) { c.AtWork = func() bool { return true } })
	openai := func(f *function.Function) { f.Contract = "openai" }
	w.apply(
		fn("a", openai, func(f *function.Function) { f.Aliases = []string{"Qwen/Qwen3-8B", "q"} }),
		fn("hidden", openai, func(f *function.Function) { f.Unlisted = true }),
		fn("aliased", func(f *function.Function) { f.Aliases = []string{"x y"} }),
		fn("plain"),
	)
	models := w.listed()
	for _, id := range []string{"a", "Qwen/Qwen3-8B", "q", "aliased", "x y"} {
		if m := models[id]; m == nil || statusOf(m) != "unloaded" || m["created"].(float64) < 1e9 || m["context_length"] != nil {
			t.Errorf("%s: got %v, want an unloaded model", id, m)
		}
	}
	if len(models) != 5 {
		t.Errorf("got %d models, want 5: %v", len(models), models)
	}
	if a := w.do("GET", "/models", ""); a.status != 200 || !strings.Contains(a.body, `"id":"q"`) {
		t.Errorf("/models: got %+v, want the list", a)
	}
	for path, id := range map[string]string{
		"/v1/models/Qwen/Qwen3-8B": "Qwen/Qwen3-8B", "/v1/models/Qwen%2FQwen3-8B": "Qwen/Qwen3-8B", "/v1/models/x%20y": "x y", "/v1/models/hidden": "hidden",
	} {
		if a := w.do("GET", path, ""); a.status != 200 || !strings.HasPrefix(a.body, fmt.Sprintf(`{"id":%q,"object":"model",`, id)) {
			t.Errorf("%s: got %+v, want the model %s", path, a, id)
		}
	}
	for _, path := range []string{"/v1/models/plain", "/v1/models/Qwen", "/v1/models/%zz", "/v1/models/qwen/qwen3-8b"} {
		if a := w.do("GET", strings.ReplaceAll(path, "%zz", "%25zz"), ""); a.status != 404 {
			t.Errorf("%s: got %d, want 404", path, a.status)
		}
	}
	done := make(chan answer, 1)
	go func() {
		a, _ := w.try(context.Background(), "POST", "/models/load", `{"model":"Qwen/Qwen3-8B"}`)
		done <- a
	}()
	w.until("the model is loading", func() bool { return statusOf(w.listed()["a"]) == "loading" })
	ready.Store(true)
	if a := <-done; a.status != 200 || strings.TrimSpace(a.body) != `{"success":true}` {
		t.Errorf("load: got %+v, want success", a)
	}
	if m := w.listed()["q"]; statusOf(m) != "loaded" {
		t.Errorf("after the load: got %v, want loaded", m)
	}
	w.until("the context length is known", func() bool {
		m := w.listed()["q"]
		return m["context_length"] == 4096.0 && m["max_model_len"] == 4096.0
	})
	if a := w.do("POST", "/models/load", `{"model":"a"}`); a.status != 200 || len(w.startedIDs()) != 1 {
		t.Errorf("second load: got %+v and the instances %v, want success and one", a, w.startedIDs())
	}
	if a := w.do("POST", "/models/unload", `{"model":"q"}`); a.status != 200 || strings.TrimSpace(a.body) != `{"success":true}` {
		t.Errorf("unload: got %+v, want success", a)
	}
	w.until("the model is unloaded", func() bool { return statusOf(w.listed()["a"]) == "unloaded" && len(w.startedIDs()) == 0 })
	if m := w.listed()["a"]; m["context_length"] != 4096.0 {
		t.Errorf("after the unload: got %v, want the context length", m)
	}
	w.awaitNoCalls()
}

// TestUnload checks which instances stop when models are unloaded, and which requests are refused.
func TestUnload(t *testing.T) {
	release, began := make(chan struct{}), make(chan struct{})
	w := newWorld(t, pathHandlers{"/wait": func(rw http.ResponseWriter, r *http.Request) { close(began); <-release; echo(rw, r) }}, nil)
	w.apply(fn("busy"), fn("idle"), fn("kept", func(f *function.Function) { f.Scale.Min = 1 }), fn("job", func(f *function.Function) { f.Kind = function.Training }))
	done := make(chan answer, 1)
	go func() {
		a, _ := w.try(context.Background(), "POST", "/function/busy/wait", "x")
		done <- a
	}()
	<-began
	w.do("POST", "/function/idle", "x")
	w.until("kept is ready", func() bool { return w.dispatcher.Function("kept").Info().Ready == 1 })
	checkRefusal(t, w.do("POST", "/models/unload", `{"model":"kept"}`), 409, refusal.InUse)
	checkRefusal(t, w.do("POST", "/models/unload", `{"model":"none"}`), 404, refusal.NoFunction)
	checkRefusal(t, w.do("POST", "/models/load", `{"model":"none"}`), 404, refusal.NoFunction)
	checkRefusal(t, w.do("POST", "/models/load", `{}`), 400, refusal.BadRequest)
	checkRefusal(t, w.do("POST", "/models/load", `{`), 400, refusal.BadRequest)
	checkRefusal(t, w.do("POST", "/models/load", `{"model":"job"}`), 405, refusal.NotCallable)
	checkRefusal(t, w.do("GET", "/models/load?model=idle", ""), 405, refusal.Method)
	checkRefusal(t, w.do("POST", "/models/load", `{"model":"idle"}`, "Origin", "http://evil.example"), 403, refusal.Auth)
	if a := w.do("POST", "/models/unload", ""); a.status != 200 {
		t.Errorf("unload all: got %+v, want success", a)
	}
	w.until("only busy and kept have instances", func() bool {
		return fmt.Sprint(len(w.startedIDs()), w.dispatcher.Function("idle").Info().Instances) == "2 0"
	})
	close(release)
	if a := <-done; a.status != 200 || a.body != "x" {
		t.Errorf("call during the unload: got %+v, want its answer", a)
	}
	w.until("the busy instance has stopped", func() bool { return w.dispatcher.Function("busy").Info().Instances == 0 })
	if a := w.do("POST", "/function/busy", "x"); a.status != 200 || a.header.Get("Gfaas-Start") != "cold" {
		t.Errorf("call after the unload: got %+v, want a cold start", a)
	}
	w.awaitNoCalls()
}

// TestDeploymentWithTakenName checks the answer to a deployment whose alias another function has.
func TestDeploymentWithTakenName(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("a", func(f *function.Function) { f.Aliases = []string{"X"} }))
	a := w.do("POST", "/system/functions", `{"service":"b","image":"x","annotations":{"gfaas.aliases":"[X]"}}`)
	checkRefusal(t, a, 409, refusal.NameTaken)
	if !strings.Contains(a.body, "alias \\\"X\\\" of function b is already an alias of function a") {
		t.Errorf("got %s, want both functions", a.body)
	}
	if a := w.do("POST", "/system/functions", `{"service":"b","image":"x","annotations":{"gfaas.aliases":"[Y]"}}`); a.status != 202 {
		t.Errorf("another alias: got %+v, want 202", a)
	}
}
