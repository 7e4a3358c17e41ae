package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/api"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
)

// modelServer answers like a server of OpenAI's API: in a chat, it repeats its request's body, word by word if it
// is asked for a stream. Between two words of a stream, it waits until next receives a value or is closed.
func modelServer(next <-chan struct{}) http.Handler {
	return pathHandlers{
		"/v1/models": func(rw http.ResponseWriter, _ *http.Request) { http.NotFound(rw, nil) },
		"/v1/chat/completions": func(rw http.ResponseWriter, r *http.Request) {
			text, _ := io.ReadAll(r.Body)
			var in struct{ Stream bool }
			_ = json.Unmarshal(text, &in)
			rw.Header().Set("Seen-Type", r.Header.Get("Content-Type"))
			if !in.Stream {
				content, _ := json.Marshal(string(text))
				rw.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprintf(rw, `{"choices": [{"message": {"content": %s}, "finish_reason": "stop"}]}`, content)
				return
			}
			rw.Header().Set("Content-Type", "text/event-stream")
			for _, word := range strings.Fields("one two three") {
				_, _ = fmt.Fprintf(rw, "data: {\"choices\": [{\"delta\": {\"content\": %q}}]}\n\n", word)
				_ = http.NewResponseController(rw).Flush()
				select {
				case <-next:
				case <-r.Context().Done():
					return
				}
			}
			_, _ = io.WriteString(rw, "data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"stop\"}]}\n\ndata: [DONE]\n\n")
		},
		"/v1/embeddings": func(rw http.ResponseWriter, _ *http.Request) {
			rw.WriteHeader(http.StatusNotImplemented)
			_, _ = io.WriteString(rw, `{"error": {"message": "this model has no embeddings", "type": "server_error"}}`)
		},
	}
}

// model returns a function that serves a model.
func model(name string) function.Function {
	return fn(name, func(f *function.Function) {
		f.Contract, f.Inflight, f.GPUMem = "openai", 4, 1<<30
		f.Annotations = map[string]string{"capabilities": "completion, tools"}
	})
}

// TestOllama checks the answers of Ollama's API that are no streams.
func TestOllama(t *testing.T) {
	w := newWorld(t, modelServer(nil), nil)
	w.apply(model("llama"), fn("plain"))
	image := "iVBORw0KGgo" + strings.Repeat("A", 10000) + "=" // longer than Limits.Buffer
	for _, c := range []struct {
		request, body string
		status        int
		reason, want  string
	}{
		{"GET /api/version", "", 200, "models", `"version":"0.17.4"`},
		{"GET /api/ps", "", 200, "models", `{"models":[]}`},
		{"GET /api/tags", "", 200, "models", `{"models":[{"name":"llama:latest","model":"llama:latest","modified_at":"`},
		{"POST /api/show", `{"model": "llama"}`, 200, "models", `"capabilities":["completion","tools"]`},
		{"POST /api/show", `{"name": "plain:latest"}`, 200, "models", `"capabilities":["completion"]`},
		{"POST /api/chat", `{"model": "llama:latest", "stream": false, "messages": [{"role": "user", "content": "hi"}]}`, 200, "cold", `"message":{"role":"assistant","content":"{\"messages\":[{\"content\":\"hi\",\"role\":\"user\"}],\"model\":\"llama\"}"},"done":true,"done_reason":"stop"`},
		{"POST /api/generate", `{"model": "llama", "stream": false, "prompt": "what?", "images": ["` + image + `"]}`, 200, "warm", `image/png;base64,iVBORw0KGgoAAAA`},
		{"GET /api/ps", "", 200, "models", `{"models":[{"name":"llama:latest","model":"llama:latest","size":`},
		{"POST /api/generate", `{"model": "llama"}`, 200, "warm", `"response":"","done":true,"done_reason":"load"`},
		{"POST /api/embed", `{"model": "llama", "input": "a"}`, 501, "warm", `{"error":"this model has no embeddings"}`},
		{"POST /api/generate", `{"model": "llama", "keep_alive": 0}`, 200, "models", `"done_reason":"unload"`},
		{"POST /api/chat", `{"model": "nothing", "messages": []}`, 404, refusal.NoFunction, `{"error":"no such function: nothing","code":"no-function",`},
		{"POST /api/show", `{"model": "nothing"}`, 404, refusal.NoFunction, `{"error":"no such function: nothing",`},
		{"POST /api/chat", `{`, 400, refusal.BadRequest, `{"error":"invalid request body: unexpected end of JSON input",`},
		{"POST /api/chat", "", 400, refusal.BadRequest, `{"error":"the request has no body",`},
		{"POST /api/show", "[]", 400, refusal.BadRequest, `{"error":"invalid request body: `},
		{"POST /api/chat", strings.Repeat(" ", 1<<20+1), 413, refusal.TooLarge, `{"error":"the request body is too large",`},
		{"GET /api/chat", "", 405, refusal.Method, `{"error":"method GET is not allowed for this path",`},
		{"POST /api/tags", "", 405, refusal.Method, `{"error":"method POST is not allowed for this path",`},
		{"POST /api/pull", `{"model": "llama"}`, 501, refusal.NotImplemented, `{"error":"this gateway does not store models: /api/pull",`},
		{"DELETE /api/delete", `{}`, 501, refusal.NotImplemented, `{"error":"this gateway does not store models: `},
		{"HEAD /api/blobs/sha256:0", "", 501, refusal.NotImplemented, ""},
		{"GET /api/nothing", "", 404, refusal.NoPath, `{"error":"no such path: /api/nothing",`},
		{"HEAD /", "", 200, "", ""},
	} {
		method, path, _ := strings.Cut(c.request, " ")
		a := w.do(method, path, c.body)
		reason, _, _ := strings.Cut(a.reason(), ";")
		if c.reason == "cold" || c.reason == "warm" { // a call
			reason = map[string]string{"cold": "cold", "gpu-warm": "warm"}[a.header.Get("Gfaas-Start")]
		}
		if a.status != c.status || reason != c.reason || !strings.Contains(a.body, c.want) {
			t.Errorf("%s %.200s: got %d, reason %q, start %q, %.500s; want %d, %s, %s", c.request, c.body, a.status, a.reason(), a.header.Get("Gfaas-Start"), a.body, c.status, c.reason, c.want)
		}
		if a.status == 200 && a.body != "" && !json.Valid([]byte(a.body)) {
			t.Errorf("%s: got %.500s, want JSON", c.request, a.body)
		}
	}
	w.until("the unloaded instance has stopped", func() bool { return len(w.startedIDs()) == 0 })
	w.awaitNoCalls()
	w.checkNoMemory()
}

// TestOllamaStream checks that lines of a stream are passed on as they arrive, with the gateway's headers, and that
// a stream is cut off if its instance ends.
func TestOllamaStream(t *testing.T) {
	next := make(chan struct{})
	w := newWorld(t, modelServer(next), nil)
	w.apply(model("llama"))
	begin := func() (*http.Response, *bufio.Scanner) {
		t.Helper()
		r, err := http.Post(w.url("/api/chat"), "application/json", strings.NewReader(`{"model": "llama", "messages": [{"role": "user", "content": "hi"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = r.Body.Close() })
		if r.StatusCode != 200 || r.Header.Get("Content-Type") != "application/x-ndjson" || r.Header.Get("Gfaas-Instance") == "" {
			t.Fatalf("got %d with the header %v, want a stream of an instance", r.StatusCode, r.Header)
		}
		return r, bufio.NewScanner(r.Body)
	}
	_, lines := begin()
	for _, want := range []string{`"content":"one"`, `"content":"two"`, `"content":"three"`, `"done":true,"done_reason":"stop"`} {
		if !lines.Scan() || !strings.Contains(lines.Text(), want) {
			t.Fatalf("got the line %q, %v; want %s", lines.Text(), lines.Err(), want)
		}
		if !strings.Contains(want, "done") {
			next <- struct{}{} // the rest is sent only after the line has arrived
		}
	}
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("got %q, %v; want the end of the answer", lines.Text(), lines.Err())
	}

	_, lines = begin()
	if !lines.Scan() {
		t.Fatal(lines.Err())
	}
	w.runtime.Kill("llama.1", 3)
	for lines.Scan() {
		if strings.Contains(lines.Text(), `"done":true`) {
			t.Errorf("got the line %s of an answer that was cut off", lines.Text())
		}
	}
	if lines.Err() == nil {
		t.Error("the answer of an instance that ended is complete, want it cut off")
	}
	close(next)
	w.awaitNoCalls()
	http.DefaultClient.CloseIdleConnections()
}

// TestOllamaCallerDisconnects checks that a caller that disconnects cancels its call.
func TestOllamaCallerDisconnects(t *testing.T) {
	began, ended := make(chan struct{}), make(chan struct{})
	w := newWorld(t, pathHandlers{"/v1/chat/completions": func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		close(began)
		<-r.Context().Done()
		close(ended)
	}}, nil)
	w.apply(model("llama"))
	ctx, leave := context.WithCancel(t.Context())
	go func() { <-began; leave() }()
	if a, err := w.try(ctx, "POST", "/api/chat", `{"model": "llama", "messages": [{"role": "user", "content": "hi"}]}`); err == nil {
		t.Errorf("got %+v, want an error", a)
	}
	<-ended
	w.awaitNoCalls()
}

// TestOllamaBadAnswer checks that an answer that cannot be translated becomes 502.
func TestOllamaBadAnswer(t *testing.T) {
	w := newWorld(t, pathHandlers{"/v1/chat/completions": func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "hello") }}, nil)
	w.apply(model("llama"))
	a := w.do("POST", "/api/chat", `{"model": "llama", "stream": false, "messages": [{"role": "user", "content": "hi"}]}`)
	if a.status != 502 || a.reason() != refusal.BadAnswer || !strings.HasPrefix(a.body, `{"error":"instance llama.1: the instance's answer is not JSON`) {
		t.Errorf("got %+v, want 502 bad-answer", a)
	}
	w.awaitNoCalls()
}

// TestOllamaKeepAlive checks that keep_alive sets how long an idle instance is kept if the caller may manage the
// gateway, and has no effect otherwise.
func TestOllamaKeepAlive(t *testing.T) {
	var foreign atomic.Bool
	w := newWorld(t, modelServer(nil), func(c *Config) {
		c.peerUser = func(context.Context) (int, error) {
			if foreign.Load() {
				return 4242, nil
			}
			return 0, nil // root
		}
	})
	w.apply(model("llama"))
	idle := func() any { return w.dispatcher.Function("llama").Info().Spec.Idle }
	chat := func(keep string) answer {
		t.Helper()
		a := w.do("POST", "/api/chat", `{"model": "llama", "stream": false, "messages": [{"role": "user", "content": "hi"}], "keep_alive": `+keep+`}`)
		if a.status != 200 {
			t.Fatalf("keep_alive %s: got %+v, want 200", keep, a)
		}
		return a
	}
	foreign.Store(true)
	if chat("0"); fmt.Sprint(idle()) != "5m0s" || len(w.startedIDs()) != 1 {
		t.Errorf("keep_alive of a foreign user: got %v and the instances %v; want 5m0s, and one instance", idle(), w.startedIDs())
	}
	if a := w.do("POST", "/api/generate", `{"model": "llama", "keep_alive": 0}`); a.status != 401 || a.reason() != refusal.Auth || !strings.HasPrefix(a.body, `{"error":"without --auth, `) {
		t.Errorf("unload of a foreign user: got %+v, want 401", a)
	}
	foreign.Store(false)
	for _, c := range []struct{ keep, want string }{{`"30m"`, "30m0s"}, {"-1", "0s"}, {"60", "1m0s"}} {
		chat(c.keep)
		w.until("the idle time is "+c.want, func() bool { return fmt.Sprint(idle()) == c.want })
	}
	if a := w.do("GET", "/api/ps", ""); !strings.Contains(a.body, `"expires_at":"2`) {
		t.Errorf("got %s, want the time when the instance stops", a.body)
	}
	chat("0")
	w.until("the instance has stopped, and scale.idle applies", func() bool { return len(w.startedIDs()) == 0 && fmt.Sprint(idle()) == "5m0s" })
	w.awaitNoCalls()
}

// TestOllamaPassword checks that requests of Ollama's API need the password if calls do, and that HEAD / does not.
func TestOllamaPassword(t *testing.T) {
	w := newWorld(t, modelServer(nil), func(c *Config) { c.Auth, c.AuthFunctions = api.NewCredentials("u", "p"), true })
	w.apply(model("llama"))
	const body = `{"model": "llama", "stream": false, "messages": [{"role": "user", "content": "hi"}], "keep_alive": "1h"}`
	if a := w.do("POST", "/api/chat", body); a.status != 401 || !strings.HasPrefix(a.body, `{"error":"missing or wrong user and password",`) {
		t.Errorf("without the password: got %+v, want 401", a)
	}
	if a := w.do("POST", "/api/chat", body, "Authorization", "Basic dTpw"); a.status != 200 || w.dispatcher.Function("llama").Info().Spec.Idle.Hours() != 1 {
		t.Errorf("with the password: got %+v and an idle time of %v; want 200 and 1h", a, w.dispatcher.Function("llama").Info().Spec.Idle)
	}
	if a := w.do("HEAD", "/", ""); a.status != 200 {
		t.Errorf("HEAD /: got %d, want 200", a.status)
	}
	w.awaitNoCalls()
}

// TestOllamaNames checks aliases, with and without tags, and the name that the server gets.
func TestOllamaNames(t *testing.T) {
	w := newWorld(t, modelServer(nil), nil)
	served, hidden := model("llama"), model("hidden")
	served.Aliases, served.Served = []string{"Org/Model", "qwen3:8b"}, "file.gguf"
	hidden.Unlisted = true
	w.apply(served, hidden, model("plain"))
	var list struct{ Models []struct{ Name string } }
	if err := json.Unmarshal([]byte(w.do("GET", "/api/tags", "").body), &list); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(list.Models); got != "[{llama:latest} {Org/Model:latest} {qwen3:8b} {plain:latest}]" {
		t.Errorf("got the models %s, want those that are listed", got)
	}
	for name, want := range map[string]string{"llama": "file.gguf", "llama:latest": "file.gguf", "Org/Model:latest": "file.gguf", "qwen3:8b": "file.gguf", "plain:latest": "plain", "hidden": "hidden"} {
		a := w.do("POST", "/api/chat", `{"model": "`+name+`", "stream": false, "messages": [{"role": "user", "content": "hi"}]}`)
		if a.status != 200 || !strings.Contains(a.body, `\"model\":\"`+want+`\"`) || !strings.HasPrefix(a.body, `{"model":"`+name+`"`) {
			t.Errorf("%s: got %+v, want an answer of the server to %s", name, a, want)
		}
	}
	if a := w.do("POST", "/api/show", `{"model": "qwen3:8b"}`); a.status != 200 {
		t.Errorf("show: got %+v, want 200", a)
	}
	w.awaitNoCalls()
}
