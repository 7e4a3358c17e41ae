package gateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
)

// TestLoadingComments checks what a caller that waits for a start gets under loading: comment: comments
// if it waits for a stream, and then the answer, or the error, as events.
func TestLoadingComments(t *testing.T) {
	const (
		stream  = `{"model":"Q/f","stream":true}`
		loading = ": waiting for f, 15 s\n\n: waiting for f, 30 s\n\n"
		events  = "text/event-stream"
	)
	with := func(takes time.Duration, fails bool) map[string]behavior {
		return map[string]behavior{"f 1": {takes: takes, fails: fails}}
	}
	for name, c := range map[string]struct {
		behaviors map[string]behavior
		off       bool // loading: none
		request   string
		body      string
		headers   []string
		status    int
		want      string // the body of the answer
		kind      string // its Content-Type
	}{
		"events": {with(40*time.Second, false), false, "POST /v1/chat/completions", stream, []string{"X-Type", events, "X-Text", "data: a\n\ndata: [DONE]\n\n"}, 200, loading + "data: a\n\ndata: [DONE]\n\n", events},
		"events after a long wait at the instance": {with(time.Second, false), false, "POST /v1/chat/completions", stream, []string{"X-Takes", "31s", "X-Type", events, "X-Text", "data: a\n\n"}, 200, loading + "data: a\n\n", events},
		"a short wait":                   {with(14*time.Second, false), false, "POST /v1/chat/completions", stream, []string{"X-Type", events, "X-Text", "data: a\n\n"}, 200, "data: a\n\n", events},
		"a short wait, an error":         {with(14*time.Second, false), false, "POST /v1/chat/completions", stream, []string{"X-Type", "text/plain", "X-Status", "418", "X-Text", "no"}, 418, "no", "text/plain"},
		"by function, with Accept":       {with(40*time.Second, false), false, "GET /function/f/events", "", []string{"Accept", events, "X-Type", events, "X-Text", "data: a\n\n"}, 200, loading + "data: a\n\n", events},
		"by function, with stream":       {with(40*time.Second, false), false, "POST /function/f/v1/completions", `{"stream":true}`, []string{"X-Type", events, "X-Text", "data: a\n\n"}, 200, loading + "data: a\n\n", events},
		"no stream":                      {with(40*time.Second, false), false, "POST /v1/chat/completions", `{"model":"f","stream":false}`, []string{"X-Text", "{}"}, 200, "{}", ""},
		"several types accepted":         {with(40*time.Second, false), false, "POST /v1/chat/completions", `{"model":"f"}`, []string{"Accept", "application/json, " + events, "X-Text", "{}"}, 200, "{}", ""},
		"loading: none":                  {with(40*time.Second, false), true, "POST /v1/chat/completions", stream, []string{"X-Type", events, "X-Text", "data: a\n\n"}, 200, "data: a\n\n", events},
		"no events":                      {with(40*time.Second, false), false, "POST /v1/chat/completions", stream, []string{"X-Type", "application/json", "X-Text", "{\n}"}, 200, loading + "data: {\ndata: }\n\n", events},
		"an error of the server":         {with(40*time.Second, false), false, "POST /v1/chat/completions", stream, []string{"X-Type", "application/json", "X-Status", "400", "X-Text", "{\n\"error\": {\"message\":\"too long\"} }"}, 200, loading + `data: {"error":{"message":"too long"}}` + "\n\n", events},
		"an error to Anthropic's client": {with(40*time.Second, false), false, "POST /v1/messages", stream, []string{"X-Type", "application/json", "X-Status", "529", "X-Text", `{"type":"error","error":{}}`}, 200, loading + "event: error\n" + `data: {"type":"error","error":{}}` + "\n\n", events},
		"another error":                  {with(40*time.Second, false), false, "POST /function/f/v1/completions", stream, []string{"X-Status", "500", "X-Text", "a <b>\nc"}, 200, loading + `data: {"error":{"code":"bad-answer","message":"instance f.1: it answered 500: a \u003cb\u003e c","hint":""}}` + "\n\n", events},
		"a failed start":                 {with(12*time.Second, true), false, "POST /function/f/v1/completions", stream, nil, 200, loading + `data: {"error":{"code":"start-failed","message":"cannot start an instance of function f: instance f.3: exited with status 3","hint":""}}` + "\n\n", events},
	} {
		inVirtualTime(t, name, func(t *testing.T) {
			l := newLab(t, c.behaviors, nil)
			l.apply(ver("f", "1", func(f *function.Function) { f.LoadingComments, f.Aliases = true, []string{"Q/f"} }))
			if c.off {
				l.apply(ver("f", "1", func(f *function.Function) { f.Aliases = []string{"Q/f"} }))
			}
			method, path, _ := strings.Cut(c.request, " ")
			r := httptest.NewRequest(method, path, strings.NewReader(c.body))
			for i := 0; i < len(c.headers); i += 2 {
				r.Header.Set(c.headers[i], c.headers[i+1])
			}
			w := httptest.NewRecorder()
			l.api.ServeHTTP(w, r)
			if w.Code != c.status || w.Body.String() != c.want || w.Result().Header.Get("Content-Type") != c.kind {
				t.Errorf("got %d %q of type %q, want %d %q of type %q", w.Code, w.Body, w.Result().Header.Get("Content-Type"), c.status, c.want, c.kind)
			}
			if got := w.Result().Header.Get("X-Accel-Buffering"); (got == "no") != (c.kind == events) {
				t.Errorf("X-Accel-Buffering: got %q for an answer of type %q", got, c.kind)
			}
			if w.Result().Header.Get("X-Call-Id") == "" {
				t.Error("got no X-Call-Id")
			}
		})
	}
}

// TestLoadingCommentsAreCounted checks that the metrics count the status of a function's error, whatever its body, although
// the caller gets the error as an event.
func TestLoadingCommentsAreCounted(t *testing.T) {
	for _, text := range []string{`{"error":{}}`, "no"} {
		inVirtualTime(t, text, func(t *testing.T) {
			l := newLab(t, map[string]behavior{"f 1": {takes: 40 * time.Second}}, nil)
			l.apply(ver("f", "1", func(f *function.Function) { f.LoadingComments = true }))
			r := httptest.NewRequest("POST", "/function/f", strings.NewReader(`{"stream":true}`))
			r.Header.Set("X-Status", "422")
			r.Header.Set("X-Text", text)
			l.api.ServeHTTP(httptest.NewRecorder(), r)
			families, err := l.metrics.Registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			var codes []string
			for _, family := range families {
				if family.GetName() == "gfaas_requests_total" {
					for _, m := range family.GetMetric() {
						codes = append(codes, m.GetLabel()[0].GetValue())
					}
				}
			}
			if got := strings.Join(codes, " "); got != "422" {
				t.Errorf("counted the status %q, want 422", got)
			}
		})
	}
}

// TestLoadingCommentsInQueue checks that a caller gets comments while its call waits in the queue, and
// the end of the wait as an event.
func TestLoadingCommentsInQueue(t *testing.T) {
	inVirtualTime(t, "", func(t *testing.T) {
		l := newLab(t, nil, func(c *Config) { c.QueueTimeout = 40 * time.Second })
		l.apply(ver("f", "1", func(f *function.Function) { f.LoadingComments, f.Scale.Max = true, 1 }))
		first := l.call("f", time.Minute)
		r := httptest.NewRequest("POST", "/function/f/v1/completions", strings.NewReader(`{"stream":true}`))
		w := httptest.NewRecorder()
		l.api.ServeHTTP(w, r)
		want := ": waiting for f, 15 s\n\n: waiting for f, 30 s\n\ndata: {\"error\":{\"code\":\"queue-timeout\","
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Body.String(), want) || !strings.HasSuffix(w.Body.String(), "}}\n\n") {
			t.Errorf("got %d %q, want 200 %q …", w.Code, w.Body, want)
		}
		l.calls.Wait()
		l.want(first, "f 1", time.Minute)
	})
}

// TestEventsAreNotBuffered checks that answers with events tell proxies not to buffer them.
func TestEventsAreNotBuffered(t *testing.T) {
	w := newWorld(t, pathHandlers{
		"/events": func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		},
		"/own": func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header()["Content-Type"], rw.Header()["X-Accel-Buffering"] = []string{"text/event-stream"}, []string{"yes"}
		},
	}, nil)
	w.apply(fn("f"))
	for path, want := range map[string]string{"/events": "no", "/own": "yes", "/": ""} {
		if a := w.do("GET", "/function/f"+path, ""); a.status != 200 || a.header.Get("X-Accel-Buffering") != want {
			t.Errorf("%s: got %d with X-Accel-Buffering %q, want %q", path, a.status, a.header.Get("X-Accel-Buffering"), want)
		}
	}
}

// connect opens a connection to the gateway in virtual time. held is the number of writes of the gateway that
// are in transit, as in the buffers of sockets, before the gateway waits for its caller to read.
func (l *lab) connect(held int) net.Conn {
	near, across := net.Pipe()
	inward, far := net.Pipe()
	l.calls.Go(func() { // requests
		_, _ = io.Copy(inward, across)
		_ = inward.Close()
	})
	transit := make(chan []byte, held)
	l.calls.Go(func() {
		defer close(transit)
		for {
			p := make([]byte, 4096)
			n, err := inward.Read(p)
			if err != nil {
				return
			}
			transit <- p[:n]
		}
	})
	l.calls.Go(func() {
		for p := range transit {
			_, _ = across.Write(p)
		}
		_ = across.Close()
	})
	server := http.Server{Handler: l.api}
	l.intake.Serve(&server)
	listener := make(oneConn, 1)
	listener <- l.intake.Admit(far)
	close(listener)
	l.calls.Go(func() { _ = server.Serve(listener) })
	return near
}

// oneConn is a listener with one connection.
type oneConn chan net.Conn

func (l oneConn) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (oneConn) Close() error   { return nil }
func (oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// TestLoadingCommentsUnread checks that a caller that does not read its comments loses its call and its
// connection as soon as the buffers on the way are full, and that other callers do not wait for it. A caller
// that reads one byte a second gets all of its answer.
func TestLoadingCommentsUnread(t *testing.T) {
	const body = `{"stream":true}`
	request := fmt.Sprintf("POST /function/f/v1/completions HTTP/1.1\r\nHost: x\r\nX-Type: text/event-stream\r\nX-Text: data: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	start := func(t *testing.T, takes time.Duration) *lab {
		l := newLab(t, map[string]behavior{"f 1": {takes: takes}}, func(c *Config) { c.QueueTimeout = time.Hour })
		l.apply(ver("f", "1", func(f *function.Function) { f.LoadingComments, f.Scale.Max = true, 1 }))
		return l
	}
	inVirtualTime(t, "never", func(t *testing.T) {
		l := start(t, 0)
		first, began := l.call("f", 10*time.Minute), time.Now()
		conn := l.connect(1)
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		last := l.call("f", 0)
		queued := func() int { return *l.dispatcher.Status().Functions[0].Waiting }
		for queued() == 2 && time.Since(began) < 10*time.Minute {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		// Three comments are in transit. The fourth, after a minute, has 10 s.
		if took := time.Since(began); took < time.Minute || took > 71*time.Second || queued() != 1 {
			t.Errorf("the call left the queue after %v, and %d calls remain; want 60 to 71 s, and 1", took, queued())
		}
		text, err := io.ReadAll(conn)
		if got := string(text); err != nil || !strings.HasSuffix(got, ": waiting for f, 45 s\n\n\r\n") {
			t.Errorf("got %q, %v; want comments up to 45 s, and the end of the connection", got, err)
		}
		l.calls.Wait()
		l.want(first, "f 1", 10*time.Minute)
		l.want(last, "f 1", 10*time.Minute)
	})
	inVirtualTime(t, "slowly", func(t *testing.T) {
		l := start(t, 40*time.Second)
		conn, began := l.connect(1), time.Now()
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		var text []byte
		for p := make([]byte, 1); ; time.Sleep(time.Second) {
			if _, err := conn.Read(p); err != nil {
				break
			}
			text = append(text, p[0])
		}
		answer, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(text)), nil)
		if err != nil {
			t.Fatalf("got %q, %v", text, err)
		}
		got, err := io.ReadAll(answer.Body)
		if want := ": waiting for f, 15 s\n\n: waiting for f, 30 s\n\ndata: a"; err != nil || answer.StatusCode != 200 || string(got) != want {
			t.Errorf("got %d %q, %v; want 200 %q", answer.StatusCode, got, err, want)
		}
		if took := time.Since(began); took < time.Duration(len(text))*time.Second {
			t.Errorf("got the answer after %v, want a byte a second", took)
		}
	})
}
