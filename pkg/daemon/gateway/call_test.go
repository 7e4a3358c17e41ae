package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// mixed does what the path says.
type mixed map[string]http.HandlerFunc

func (m mixed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := m[r.URL.Path]; h != nil {
		h(w, r)
		return
	}
	echo(w, r)
}

// hangUp closes the connection of a request without an answer.
func hangUp(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

// TestUnchanged: what a caller sends an instance gets, and who sent it.
func TestUnchanged(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f"), fn("k", func(f *function.Function) { f.Contract = "kserve-v2" }))
	a := w.do("PUT", "/function/f//a/../b%2Fc/?x=%zz;y&z=1", "text", "X-Own", "1", "X-Own", "2", "Connection", "X-Hop", "X-Hop", "x",
		"X-Forwarded-For", "10.1.1.1", "X-Call-Id", "mine")
	for name, want := range map[string]string{
		"Seen": "PUT //a/../b%2Fc/?x=%zz;y&z=1 " + w.WebAddr().String(), "Seen-X-Own": "1,2", "Seen-X-Hop": "", "Seen-Connection": "",
		"Seen-X-Forwarded-For": "10.1.1.1, 127.0.0.1", "Seen-X-Forwarded-Host": w.WebAddr().String(), "Seen-X-Forwarded-Proto": "http",
		"Seen-X-Call-Id": "mine", "X-Call-Id": "mine", "Seen-Length": "4",
	} {
		if got := a.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if a.status != 200 || a.body != "text" {
		t.Errorf("%d %q", a.status, a.body)
	}
	for path, want := range map[string]string{
		"POST /function/f": "POST / ", "GET /function/f": "GET / ", "POST /function/f/": "POST / ", "GET /function/f?q": "GET /?q ",
		"DELETE /function/f.openfaas-fn/x": "DELETE /x ", "GET /v2/models/f/infer": "GET /v2/models/f/infer ",
	} {
		method, rest, _ := strings.Cut(path, " ")
		if got := w.do(method, rest, "").header.Get("Seen"); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	long := strings.Repeat("long ", 40_000)
	if a := w.do("POST", "/function/f/long", long); a.body != long || a.header.Get("Seen-Length") != fmt.Sprint(len(long)) {
		t.Errorf("%d bytes came back, length %s", len(a.body), a.header.Get("Seen-Length"))
	}
}

// TestInvokePath: a POST without a path goes where the function's contract is
// invoked.
func TestInvokePath(t *testing.T) {
	w := newWorld(t, mixed{"/v2/health/ready": func(http.ResponseWriter, *http.Request) {}}, nil)
	w.apply(fn("k", func(f *function.Function) { f.Contract = "kserve-v2" }))
	if got := w.do("POST", "/function/k", "{}").header.Get("Seen"); !strings.HasPrefix(got, "POST /v2/models/k/infer ") {
		t.Error(got)
	}
}

// own wants an answer of the gateway's own.
func own(t *testing.T, a answer, status int, code string) {
	t.Helper()
	if a.status != status || a.reason() != code || !strings.HasPrefix(a.body, `{"error":{"code":"`+code+`","message":`) || a.header.Get("Gfaas-Instance") != "" {
		t.Errorf("%d %s %s %v, want %d %s", a.status, a.reason(), a.body, a.header, status, code)
	}
	for _, name := range []string{"X-Call-Id", "X-Start-Time", "Gfaas-Queue-Ms", "Gfaas-Start-Ms", "Gfaas-Start", "Gfaas-Attempts"} {
		if a.header.Get(name) == "" {
			t.Errorf("%d %s without %s", status, code, name)
		}
	}
}

// TestRefused: what is wrong with a request is said.
func TestRefused(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.GPUs[0].Mem = 1 << 30 })
	w.apply(fn("f"), fn("big", func(f *function.Function) { f.GPUMem = 2 * gpu.GiB }))
	own(t, w.do("GET", "/function/g", ""), 404, codeNoFunction)
	own(t, w.do("GET", "/function/f.other-namespace", ""), 404, codeNoFunction)
	own(t, w.do("GET", "/functions", ""), 404, codeNoPath)
	own(t, w.do("GET", "/system/nothing", ""), 404, codeNoPath)
	own(t, said(t, w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n\r\n")), 413, codeTooLarge)
	own(t, w.do("POST", "/function/big", ""), 503, codeLargerThan)
	if a := w.do("POST", "/system/status", ""); a.header.Get("Allow") != "GET, HEAD" {
		t.Errorf("Allow: %q", a.header.Get("Allow"))
	} else {
		own(t, a, 405, codeMethod)
	}
	own(t, w.do("GET", "/system/status", "", "Origin", "http://elsewhere.example"), 403, codeAuth)
	if a := w.do("GET", "/system/status", ""); a.status != 200 || !strings.Contains(a.body, `"function":"big"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// dial sends text over a connection of its own.
func (w *world) dial(text string) net.Conn {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.WebAddr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		w.t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// said reads an answer from a connection.
func said(t *testing.T, conn net.Conn) answer {
	t.Helper()
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	return answer{r.StatusCode, string(text), r.Header}
}

// TestSenders: who sends slowly, too much or nonsense gets an answer and has held
// no place on an instance; no instance has seen the call.
func TestSenders(t *testing.T) {
	var seen atomic.Int32
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			seen.Add(1)
		}
		echo(rw, r)
	}), nil)
	w.apply(fn("f"))
	own(t, said(t, w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n")), 413, codeTooLarge)
	own(t, said(t, w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n")), 400, codeBadRequest)
	for _, smuggled := range []string{
		"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\ntext",
		"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: +4\r\n\r\ntext",
		"POST /function/f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"POST /function/f HTTP/1.1\r\nHost: x\r\nX-A : 1\r\n\r\n",
	} {
		if a := said(t, w.dial(smuggled)); a.status/100 != 4 && a.status != 501 {
			t.Errorf("%q: %d %s", smuggled, a.status, a.body)
		}
	}
	w.Gateway.cfg.BodyTimeout = 100 * time.Millisecond
	own(t, said(t, w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")), 408, codeSlowBody)
	own(t, said(t, w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")), 408, codeSlowBody)
	if n := seen.Load(); n > 0 {
		t.Errorf("an instance has seen %d of them", n)
	}
	// More than is kept: the rest is streamed, and its pauses are bounded too.
	own(t, said(t, w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n"+strings.Repeat("x", 2000))), 408, codeSlowBody)
	w.settled()
}

// settled waits until nothing runs or waits, to the policy too.
func (w *world) settled() {
	w.t.Helper()
	w.until("all is over", func() bool {
		w.engine.mu.Lock()
		defer w.engine.mu.Unlock()
		for _, f := range w.engine.policy.Snapshot().Functions {
			if f.Waiting+f.InFlight > 0 {
				return false
			}
		}
		return len(w.engine.calls) == 0
	})
}

// TestQueueFull: a queue is as long as it may be, and its answer says when to come
// again.
func TestQueueFull(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t, mixed{"/wait": func(rw http.ResponseWriter, r *http.Request) { <-release; echo(rw, r) }},
		func(c *Config) { c.Concurrency = 1 })
	w.apply(fn("f", func(f *function.Function) { f.Queue, f.Scale.Max = 2, 1 }))
	var wg sync.WaitGroup
	for n := range 3 {
		wg.Go(func() {
			if a, err := w.try(context.Background(), "POST", "/function/f/wait", "x"); err != nil || a.status != 200 {
				t.Errorf("%+v, %v", a, err)
			}
		})
		w.until("one runs, then two wait", func() bool { // the first waits too, until its instance is there
			f := w.Status().Functions[0]
			return *f.InFlight == 1 && *f.Waiting == n
		})
	}
	a := w.do("POST", "/function/f/wait", "x")
	own(t, a, 429, codeQueueFull)
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
	}
	if why := w.Status().Functions[0].Why; why == "" {
		t.Error("nothing says why they wait")
	}
	close(release)
	wg.Wait()
	w.settled()
}

// TestNoAnswer: what a call is answered that its instance gives no answer, and how
// often it was sent.
func TestNoAnswer(t *testing.T) {
	var seen, flaky atomic.Int32
	w := newWorld(t, mixed{
		"/die": func(rw http.ResponseWriter, r *http.Request) { seen.Add(1); hangUp(rw, r) },
		"/flaky": func(rw http.ResponseWriter, r *http.Request) {
			if flaky.Add(1) == 1 {
				hangUp(rw, r)
				return
			}
			echo(rw, r)
		},
		"/nonsense": func(rw http.ResponseWriter, r *http.Request) {
			seen.Add(1)
			conn, _, err := http.NewResponseController(rw).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, "nonsense\r\n\r\n")
				_ = conn.Close()
			}
		},
		"/cut": func(rw http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(rw).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
				_ = conn.Close()
			}
		},
		"/fault": func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, "own", http.StatusServiceUnavailable) },
	}, nil)
	w.apply(fn("f", func(f *function.Function) { f.Probes.Methods = []string{} }))
	for _, c := range []struct {
		method, path string
		headers      []string
		code         string
		seen         int32
	}{
		{"POST", "/die", nil, codeInstanceDied, 1},
		{"PATCH", "/die", nil, codeInstanceDied, 1},
		{"GET", "/die", nil, codeInstanceDied, 2},
		{"HEAD", "/die", nil, "", 2},
		{"OPTIONS", "/die", nil, codeInstanceDied, 2},
		{"PUT", "/die", nil, codeInstanceDied, 2},
		{"DELETE", "/die", nil, codeInstanceDied, 2},
		{"POST", "/die", []string{"Idempotency-Key", "1"}, codeInstanceDied, 2},
		{"POST", "/die", []string{"Idempotency-Key", "1", "X-Long", "1"}, codeInstanceDied, 1},
		{"GET", "/nonsense", nil, codeBadAnswer, 1},
	} {
		seen.Store(0)
		body := ""
		if c.method == "POST" || c.method == "PUT" {
			body = "x"
		}
		if len(c.headers) > 2 {
			body = strings.Repeat("x", 5000) // more than is kept
		}
		a := w.do(c.method, "/function/f"+c.path, body, c.headers...)
		if c.code != "" {
			own(t, a, 502, c.code)
		}
		if got := a.header.Get("Gfaas-Attempts"); seen.Load() != c.seen || got != fmt.Sprint(c.seen) {
			t.Errorf("%s %s %v: an instance has seen it %d times, the answer says %s, want %d", c.method, c.path, c.headers, seen.Load(), got, c.seen)
		}
	}
	if a := w.do("GET", "/function/f/flaky", ""); a.status != 200 || a.header.Get("Gfaas-Attempts") != "2" {
		t.Errorf("%+v", a)
	}
	if a := w.do("GET", "/function/f/fault", ""); a.status != 503 || a.body != "own\n" || a.header.Get("Gfaas-Instance") == "" {
		t.Errorf("a function's own status: %+v", a)
	}
	if a, err := w.try(context.Background(), "GET", "/function/f/cut", ""); !errors.Is(err, io.ErrUnexpectedEOF) || a.body != "half" {
		t.Errorf("an answer that was cut: %+v, %v", a, err)
	}
	w.settled()
}

// unconnected is an Invoker that can make no connection the first time.
type unconnected struct {
	ports.Invoker
	asked atomic.Int32
}

func (u *unconnected) Invoke(ctx context.Context, r *instance.Record, c ports.Call) (*http.Response, error) {
	if u.asked.Add(1) == 1 {
		return nil, &ports.CallError{Progress: ports.NotTried, Err: syscall.EMFILE}
	}
	return u.Invoker.Invoke(ctx, r, c)
}

// TestNoConnection: a call for which the gateway can make no connection is refused,
// and its instance, which is well, lives on.
func TestNoConnection(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Invoker = &unconnected{Invoker: c.Invoker} })
	w.apply(fn("f"))
	a := w.do("GET", "/function/f", "")
	own(t, a, 503, codeNoConnection)
	if a.header.Get("Retry-After") != "1" || a.header.Get("Gfaas-Attempts") != "0" {
		t.Errorf("%+v", a)
	}
	if a := w.do("POST", "/function/f", "x"); a.status != 200 || a.header.Get("Gfaas-Instance") != "f.1" || a.header.Get("Gfaas-Start") != "gpu-warm" {
		t.Errorf("%+v", a)
	}
	if running := w.runtime.Running(); fmt.Sprint(running) != "[f.1]" {
		t.Errorf("%v run", running)
	}
}

// TestTimeouts: a call waits for so long, its instance may think for so long, and
// pause for so long within its answer, which may take longer in all.
func TestTimeouts(t *testing.T) {
	release := make(chan struct{})
	gone := make(chan struct{}, 100)
	hang := func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
			gone <- struct{}{}
		}
	}
	w := newWorld(t, mixed{
		"/hang": hang,
		"/pause": func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(rw, "begun")
			_ = http.NewResponseController(rw).Flush()
			hang(rw, r)
		},
		"/steady": func(rw http.ResponseWriter, r *http.Request) {
			for range 10 {
				_, _ = io.WriteString(rw, "part ")
				_ = http.NewResponseController(rw).Flush()
				time.Sleep(50 * time.Millisecond)
			}
		},
	}, func(c *Config) { c.Concurrency, c.Timeout = 1, patience })
	w.apply(fn("f", func(f *function.Function) { f.Timeout = 250 * time.Millisecond }), fn("slow"))
	// An instance that was held up has paused too: before it is called, before what it
	// says or within.
	w.until("a request is cancelled", func() bool {
		own(t, w.do("GET", "/function/f/hang", ""), 504, codeTimeout)
		select {
		case <-gone:
			return true
		case <-time.After(time.Second):
			return false
		}
	})
	w.until("an answer that pauses is cut", func() bool {
		a, err := w.try(context.Background(), "GET", "/function/f/pause", "")
		if err == nil && a.reason() != codeTimeout || err != nil && a.body != "begun" {
			t.Fatalf("an answer that paused: %+v, %v", a, err)
		}
		return err != nil
	})
	<-gone
	w.until("an answer takes longer than it may pause", func() bool {
		a, err := w.try(context.Background(), "GET", "/function/f/steady", "")
		return err == nil && a.body == strings.Repeat("part ", 10)
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if a, err := w.try(context.Background(), "GET", "/function/slow/hang", ""); err != nil || a.status != 200 {
			t.Errorf("%+v, %v", a, err)
		}
	})
	w.until("it runs", func() bool { return *w.Status().GPUs[0].Running == 1 })
	w.Gateway.cfg.QueueTimeout = 300 * time.Millisecond
	own(t, w.do("GET", "/function/f/x", ""), 504, codeQueueTimeout)
	close(release)
	wg.Wait()
	w.settled()
}

// TestCallerLeaves: what waits for a caller that left waits no more, and what runs
// for one is cancelled; its place is free at once.
func TestCallerLeaves(t *testing.T) {
	began, cancelled := make(chan struct{}, 10), make(chan struct{}, 10)
	w := newWorld(t, mixed{"/hang": func(_ http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		<-r.Context().Done()
		cancelled <- struct{}{}
	}}, func(c *Config) { c.Concurrency = 1 })
	w.apply(fn("f"))
	ctx, leave := context.WithCancel(context.Background())
	waiting, leaveQueue := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = w.try(ctx, "GET", "/function/f/hang", "") })
	<-began
	wg.Go(func() { _, _ = w.try(waiting, "GET", "/function/f/hang", "") })
	w.until("one waits", func() bool { return *w.Status().Functions[0].Waiting == 1 })
	leaveQueue()
	w.until("none waits", func() bool { return *w.Status().Functions[0].Waiting == 0 })
	leave()
	<-cancelled
	wg.Wait()
	w.settled()
	if len(began) > 0 {
		t.Error("what waited ran though its caller had left")
	}
	if a := w.do("GET", "/function/f/x", ""); a.status != 200 || a.header.Get("Gfaas-Start") != "gpu-warm" {
		t.Errorf("%+v", a)
	}
}

// doNotRead makes a call, and reads nothing of its answer, until its instance says that
// it has begun: one that was held up for longer than it may pause has not seen it.
func (w *world) doNotRead(path string, began <-chan struct{}) {
	w.t.Helper()
	w.until("an instance is called", func() bool {
		conn := w.dial("")
		_ = conn.(*net.TCPConn).SetReadBuffer(4096)
		_, _ = io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
		select {
		case <-began:
			return true
		case <-time.After(time.Second):
			return false
		}
	})
}

// TestCallerNeverReads: an answer that nobody takes does not hold its place for
// ever.
func TestCallerNeverReads(t *testing.T) {
	began := make(chan struct{}, 100)
	w := newWorld(t, mixed{"/endless": func(rw http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		for block := make([]byte, 64<<10); r.Context().Err() == nil; {
			if _, err := rw.Write(block); err != nil {
				return
			}
		}
	}}, func(c *Config) { c.Timeout = 300 * time.Millisecond })
	w.apply(fn("f"))
	w.doNotRead("/function/f/endless", began)
	w.settled()
}

// TestFlushed: parts of an answer are passed on as they come, whether its length is
// known or not.
func TestFlushed(t *testing.T) {
	next := make(chan struct{})
	parts := func(header ...string) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			for i := 0; i+1 < len(header); i += 2 {
				rw.Header().Set(header[i], header[i+1])
			}
			for range 4 {
				_ = http.NewResponseController(rw).Flush()
				<-next
				_, _ = io.WriteString(rw, "part;")
			}
		}
	}
	w := newWorld(t, mixed{"/chunked": parts(), "/events": parts("Content-Type", "text/event-stream"), "/known": parts("Content-Length", "20")}, nil)
	w.apply(fn("f"))
	for _, path := range []string{"/chunked", "/events", "/known"} {
		r, err := http.Get(w.url("/function/f" + path)) // the head is there before any part is
		if err != nil {
			t.Fatal(err)
		}
		part := make([]byte, 5)
		for range 4 {
			next <- struct{}{}
			if _, err := io.ReadFull(r.Body, part); err != nil || string(part) != "part;" {
				t.Fatalf("%s: %q, %v", path, part, err)
			}
		}
		if _, err := r.Body.Read(part); err != io.EOF {
			t.Errorf("%s: %v at its end", path, err)
		}
		_ = r.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestUpgrade: an upgraded connection passes both ways, holds its place until it is
// closed, and may be silent.
func TestUpgrade(t *testing.T) {
	w := newWorld(t, mixed{"/socket": func(rw http.ResponseWriter, r *http.Request) {
		conn, rest, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, rest)
	}}, func(c *Config) { c.Timeout = 100 * time.Millisecond })
	w.apply(fn("f"))
	var conn net.Conn
	var in *bufio.Reader
	w.until("it is upgraded", func() bool { // which an instance that was held up may be too late for
		conn = w.dial("GET /function/f/socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		in = bufio.NewReader(conn)
		r, err := http.ReadResponse(in, nil)
		if err != nil || r.StatusCode != 504 && (r.StatusCode != 101 || r.Header.Get("Gfaas-Instance") == "") {
			t.Fatalf("%+v, %v", r, err)
		}
		return r.StatusCode == 101
	})
	for _, text := range []string{"one", "two"} {
		time.Sleep(150 * time.Millisecond) // longer than an answer may pause
		_, _ = io.WriteString(conn, text)
		got := make([]byte, len(text))
		if _, err := io.ReadFull(in, got); err != nil || string(got) != text {
			t.Fatalf("%q, %v", got, err)
		}
	}
	if n := *w.Status().GPUs[0].Running; n != 1 {
		t.Errorf("%d run", n)
	}
	_ = conn.Close()
	w.settled()
}

// TestStartFailed: calls of a function that does not start wait for another try,
// until it has failed three times in a row: then they are told at once, and it is
// tried again later.
func TestStartFailed(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	var tries atomic.Int32
	var last atomic.Pointer[time.Time]
	var works atomic.Bool
	w.runtime.FailStart = func(instance.Spec) error {
		if tries.Add(1); works.Load() {
			return nil
		}
		last.Store(new(time.Now()))
		return errors.New("it is broken")
	}
	w.apply(fn("f"))
	a := w.do("POST", "/function/f", "x")
	own(t, a, 502, codeStartFailed)
	if !strings.Contains(a.body, "it is broken") || tries.Load() != 3 {
		t.Errorf("%s after %d tries", a.body, tries.Load())
	}
	third := *last.Load()
	own(t, w.do("POST", "/function/f", "x"), 502, codeStartFailed)
	if tries.Load() != 3 && last.Load().Sub(third) < time.Second {
		t.Errorf("tried at once: %d times", tries.Load())
	}
	if f := w.Status().Functions[0]; f.State != "failing" {
		t.Errorf("%+v", f)
	}
	works.Store(true)
	w.until("it works", func() bool { return w.do("POST", "/function/f", "x").status == 200 })
	if l, err := w.catalog.Look(context.Background()); err != nil || len(l.Instances) != 1 {
		t.Errorf("records of what did not start are left: %+v, %v", l.Instances, err)
	}
}
