package gateway

import (
	"bufio"
	"context"
	"encoding/json"
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

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// pathHandlers maps paths to handlers. All other paths are served by echo.
type pathHandlers map[string]http.HandlerFunc

func (m pathHandlers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

// TestRequestsPassUnchanged checks that an instance receives a request unchanged, with the caller's address in
// the forwarding headers.
func TestRequestsPassUnchanged(t *testing.T) {
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
			t.Errorf("header %s: got %q, want %q", name, got, want)
		}
	}
	if a.status != 200 || a.body != "text" {
		t.Errorf("got %d %q, want 200 text", a.status, a.body)
	}
	for path, want := range map[string]string{
		"POST /function/f": "POST / ", "GET /function/f": "GET / ", "POST /function/f/": "POST / ", "GET /function/f?q": "GET /?q ",
		"DELETE /function/f.openfaas-fn/x": "DELETE /x ", "GET /v2/models/f/infer": "GET /v2/models/f/infer ",
	} {
		method, rest, _ := strings.Cut(path, " ")
		if got := w.do(method, rest, "").header.Get("Seen"); !strings.HasPrefix(got, want) {
			t.Errorf("%s: the instance received %q, want %q", path, got, want)
		}
	}
	long := strings.Repeat("long ", 40_000)
	if a := w.do("POST", "/function/f/long", long); a.body != long || a.header.Get("Seen-Length") != fmt.Sprint(len(long)) {
		t.Errorf("got %d bytes, and the instance length %s; want %d", len(a.body), a.header.Get("Seen-Length"), len(long))
	}
}

// TestPostWithoutPathUsesInvocationPath checks that a POST without a path goes to the invocation path of the
// function's contract.
func TestPostWithoutPathUsesInvocationPath(t *testing.T) {
	w := newWorld(t, pathHandlers{"/v2/health/ready": func(http.ResponseWriter, *http.Request) {}}, nil)
	w.apply(fn("k", func(f *function.Function) { f.Contract = "kserve-v2" }))
	if got := w.do("POST", "/function/k", "{}").header.Get("Seen"); !strings.HasPrefix(got, "POST /v2/models/k/infer ") {
		t.Errorf("got %q, want POST /v2/models/k/infer", got)
	}
}

// checkRefusal checks that a is an error of the gateway itself, not an answer of an instance, with the
// given status and code.
func checkRefusal(t *testing.T, a answer, status int, code string) {
	t.Helper()
	checkError(t, a, status, code, `{"error":{"code":"`+code+`","message":`)
}

// checkModelRefusal is checkRefusal for answers to requests of OpenAI's API.
func checkModelRefusal(t *testing.T, a answer, status int, code string) {
	t.Helper()
	checkError(t, a, status, code, `{"error":{"message":`)
	var body struct {
		Error struct{ Message, Type, Code string }
	}
	want := code
	if code == refusal.NoFunction {
		want = "model_not_found"
	}
	if err := json.Unmarshal([]byte(a.body), &body); err != nil || body.Error.Code != want || body.Error.Message == "" || body.Error.Type == "" {
		t.Errorf("got body %s, %v; want a message, a type and the code %s", a.body, err, want)
	}
}

// checkError checks that an answer is an error of the gateway, whose body begins with the given text.
func checkError(t *testing.T, a answer, status int, code, begin string) {
	t.Helper()
	if a.status != status || a.reason() != code || !strings.HasPrefix(a.body, begin) || a.header.Get("Gfaas-Instance") != "" {
		t.Errorf("got status %d, code %s, body %s, headers %v; want %d and %s, in body and headers", a.status, a.reason(), a.body, a.header, status, code)
	}
	for _, name := range []string{"X-Call-Id", "X-Start-Time", "Gfaas-Queue-Ms", "Gfaas-Start-Ms", "Gfaas-Start", "Gfaas-Attempts"} {
		if a.header.Get(name) == "" {
			t.Errorf("%d %s: got headers %v, want %s among them", status, code, a.header, name)
		}
	}
}

// TestInvalidRequestsAreRefused checks that the gateway refuses an invalid request with the matching status
// and code.
func TestInvalidRequestsAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.GPUs[0].Mem = 1 << 30 })
	w.apply(fn("f"), fn("big", func(f *function.Function) { f.GPUMem = 2 * gpu.GiB }))
	checkRefusal(t, w.do("GET", "/function/g", ""), 404, refusal.NoFunction)
	checkRefusal(t, w.do("GET", "/function/f.other-namespace", ""), 404, refusal.NoFunction)
	checkRefusal(t, w.do("GET", "/functions", ""), 404, refusal.NoPath)
	checkRefusal(t, w.do("GET", "/system/nothing", ""), 404, refusal.NoPath)
	checkRefusal(t, readAnswer(t, w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 1048577\r\n\r\n")), 413, refusal.TooLarge)
	checkRefusal(t, w.do("POST", "/function/big", ""), 503, refusal.LargerThanGPU)
	if a := w.do("POST", "/system/status", ""); a.header.Get("Allow") != "GET, HEAD" {
		t.Errorf(`got Allow %q, want "GET, HEAD"`, a.header.Get("Allow"))
	} else {
		checkRefusal(t, a, 405, refusal.Method)
	}
	checkRefusal(t, w.do("GET", "/system/status", "", "Origin", "http://elsewhere.example"), 403, refusal.Auth)
	if a := w.do("GET", "/system/status", ""); a.status != 200 || !strings.Contains(a.body, `"function":"big"`) {
		t.Errorf(`got %d %s; want status 200, a body with "function":"big"`, a.status, a.body)
	}
}

// dial sends text over a new connection.
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

// readAnswer reads an answer from a connection.
func readAnswer(t *testing.T, conn net.Conn) answer {
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

// TestBadSendersReachNoInstance checks that a caller that sends slowly, too much or invalid data gets an
// answer. Its call takes no slot of an instance and reaches none.
func TestBadSendersReachNoInstance(t *testing.T) {
	t.Parallel()
	var seen atomic.Int32
	handler := func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			seen.Add(1)
		}
		echo(rw, r)
	}
	w := newWorld(t, http.HandlerFunc(handler), nil)
	w.apply(fn("f"))
	checkRefusal(t, readAnswer(t, w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000\r\n\r\n")), 413, refusal.TooLarge)
	checkRefusal(t, readAnswer(t, w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n")), 400, refusal.BadRequest)
	for _, smuggled := range []string{
		"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\ntext",
		"POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: +4\r\n\r\ntext",
		"POST /function/f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"POST /function/f HTTP/1.1\r\nHost: x\r\nX-A : 1\r\n\r\n",
	} {
		if a := readAnswer(t, w.dial(smuggled)); a.status/100 != 4 && a.status != 501 {
			t.Errorf("%q: got %d %s; want status 4xx or 501", smuggled, a.status, a.body)
		}
	}
	w = newWorld(t, http.HandlerFunc(handler), func(c *Config) { c.BodyTimeout = 100 * time.Millisecond })
	w.apply(fn("f"))
	checkRefusal(t, readAnswer(t, w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")), 408, refusal.SlowBody)
	checkRefusal(t, readAnswer(t, w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")), 408, refusal.SlowBody)
	if n := seen.Load(); n > 0 {
		t.Errorf("%d calls reached an instance, want 0", n)
	}
	// The body exceeds the buffer: the gateway streams the rest and bounds its pauses
	// too.
	checkRefusal(t, readAnswer(t, w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n"+strings.Repeat("x", 2000))), 408, refusal.SlowBody)
	w.awaitNoCalls()
}

// awaitNoCalls waits until no call runs or is queued, in the gateway and in the policy.
func (w *world) awaitNoCalls() {
	w.t.Helper()
	w.until("no call runs or is queued", func() bool {
		for _, f := range w.Status().Functions {
			if *f.Waiting+*f.InFlight > 0 {
				return false
			}
		}
		return w.dispatcher.Idle()
	})
}

// TestQueueFull checks that a full queue refuses further calls, with a Retry-After header.
func TestQueueFull(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t, pathHandlers{"/wait": func(rw http.ResponseWriter, r *http.Request) { <-release; echo(rw, r) }},
		func(c *Config) { c.Concurrency = 1 })
	w.apply(fn("f", func(f *function.Function) { f.Queue, f.Scale.Max = 2, 1 }))
	var wg sync.WaitGroup
	for n := range 3 {
		wg.Go(func() {
			if a, err := w.try(context.Background(), "POST", "/function/f/wait", "x"); err != nil || a.status != 200 {
				t.Errorf("got %+v, %v; want status 200", a, err)
			}
		})
		w.until("one call runs and two are queued", func() bool { // the first call is queued too, until its instance has started
			f := w.Status().Functions[0]
			return *f.InFlight == 1 && *f.Waiting == n
		})
	}
	a := w.do("POST", "/function/f/wait", "x")
	checkRefusal(t, a, 429, refusal.QueueFull)
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("got Retry-After %q, want 1", a.header.Get("Retry-After"))
	}
	if why := w.Status().Functions[0].Why; why == "" {
		t.Error("status: got no reason why calls are queued, want one")
	}
	close(release)
	wg.Wait()
	w.awaitNoCalls()
}

// TestInstanceWithoutAnswer checks the answer to a call whose instance sends none, and
// the number of attempts.
func TestInstanceWithoutAnswer(t *testing.T) {
	t.Parallel()
	var seen, flaky atomic.Int32
	w := newWorld(t, pathHandlers{
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
		{"POST", "/die", nil, refusal.InstanceDied, 1},
		{"PATCH", "/die", nil, refusal.InstanceDied, 1},
		{"GET", "/die", nil, refusal.InstanceDied, 2},
		{"HEAD", "/die", nil, "", 2},
		{"OPTIONS", "/die", nil, refusal.InstanceDied, 2},
		{"PUT", "/die", nil, refusal.InstanceDied, 2},
		{"DELETE", "/die", nil, refusal.InstanceDied, 2},
		{"POST", "/die", []string{"Idempotency-Key", "1"}, refusal.InstanceDied, 2},
		{"POST", "/die", []string{"Idempotency-Key", "1", "X-Long", "1"}, refusal.InstanceDied, 1},
		{"GET", "/nonsense", nil, refusal.BadAnswer, 1},
	} {
		seen.Store(0)
		body := ""
		if c.method == "POST" || c.method == "PUT" {
			body = "x"
		}
		if len(c.headers) > 2 {
			body = strings.Repeat("x", 5000) // exceeds the buffer
		}
		a := w.do(c.method, "/function/f"+c.path, body, c.headers...)
		if c.code != "" {
			checkRefusal(t, a, 502, c.code)
		}
		if got := a.header.Get("Gfaas-Attempts"); seen.Load() != c.seen || got != fmt.Sprint(c.seen) {
			t.Errorf("%s %s %v: got %d attempts at an instance and Gfaas-Attempts %s, want %d", c.method, c.path, c.headers, seen.Load(), got, c.seen)
		}
	}
	if a := w.do("GET", "/function/f/flaky", ""); a.status != 200 || a.header.Get("Gfaas-Attempts") != "2" {
		t.Errorf("got %+v; want status 200, Gfaas-Attempts 2", a)
	}
	if a := w.do("GET", "/function/f/fault", ""); a.status != 503 || a.body != "own\n" || a.header.Get("Gfaas-Instance") == "" {
		t.Errorf(`a function's own status: got %+v; want status 503, body "own\n", a header Gfaas-Instance`, a)
	}
	if a, err := w.try(context.Background(), "GET", "/function/f/cut", ""); !errors.Is(err, io.ErrUnexpectedEOF) || a.body != "half" {
		t.Errorf(`an answer that was cut: got %+v, %v; want body "half" and an unexpected EOF`, a, err)
	}
	w.awaitNoCalls()
}

// unconnected is an Invoker whose first call fails because it cannot open a connection.
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

// TestNoConnectionIsNotBlamedOnInstance checks that the gateway refuses a call for which it cannot open a
// connection, and does not blame the instance, which keeps running.
func TestNoConnectionIsNotBlamedOnInstance(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Invoker = &unconnected{Invoker: c.Invoker} })
	w.apply(fn("f"))
	a := w.do("GET", "/function/f", "")
	checkRefusal(t, a, 503, refusal.NoConnection)
	if a.header.Get("Retry-After") != "1" || a.header.Get("Gfaas-Attempts") != "0" {
		t.Errorf("got %+v; want Retry-After 1, Gfaas-Attempts 0", a)
	}
	if a := w.do("POST", "/function/f", "x"); a.status != 200 || a.header.Get("Gfaas-Instance") != "f.1" || a.header.Get("Gfaas-Start") != "gpu-warm" {
		t.Errorf("got %+v; want status 200, Gfaas-Instance f.1, Gfaas-Start gpu-warm", a)
	}
	if running := w.runtime.Running(); fmt.Sprint(running) != "[f.1]" {
		t.Errorf("%v run, want [f.1]", running)
	}
}

// TestTimeouts checks the limits on the time in the queue, on the time until the instance
// answers, and on pauses within an answer. The whole answer may take longer.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	cancelled := make(chan struct{}, 100) // requests whose cancellation the instance noticed
	hang := func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
			cancelled <- struct{}{}
		}
	}
	w := newWorld(t, pathHandlers{
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
	w.apply(fn("f", func(f *function.Function) { f.Timeout = 250 * time.Millisecond }))
	// A delayed instance has exceeded the limit too, whether the delay is before the
	// call, before the answer or within the answer.
	w.until("the gateway cuts off a request", func() bool {
		checkRefusal(t, w.do("GET", "/function/f/hang", ""), 504, refusal.Timeout)
		select {
		case <-cancelled:
			return true
		case <-time.After(time.Second):
			return false
		}
	})
	w.until("the gateway cuts off an answer that pauses", func() bool {
		a, err := w.try(context.Background(), "GET", "/function/f/pause", "")
		if err == nil && a.reason() != refusal.Timeout || err != nil && a.body != "begun" {
			t.Fatalf("an answer that paused: got %+v, %v; want reason %s, or body begun and an error", a, err, refusal.Timeout)
		}
		return err != nil
	})
	<-cancelled
	w.until("an answer that takes longer than the limit of a pause is complete", func() bool {
		a, err := w.try(context.Background(), "GET", "/function/f/steady", "")
		return err == nil && a.body == strings.Repeat("part ", 10)
	})
	w.awaitNoCalls()
	w = newWorld(t, pathHandlers{"/hang": hang}, func(c *Config) { c.Concurrency, c.QueueTimeout = 1, 300*time.Millisecond })
	w.apply(fn("f"), fn("slow"))
	var wg sync.WaitGroup
	wg.Go(func() {
		if a, err := w.try(context.Background(), "GET", "/function/slow/hang", ""); err != nil || a.status != 200 {
			t.Errorf("got %+v, %v; want status 200", a, err)
		}
	})
	w.until("the call of slow runs", func() bool { return *w.Status().GPUs[0].Running == 1 })
	checkRefusal(t, w.do("GET", "/function/f/x", ""), 504, refusal.QueueTimeout)
	close(release)
	wg.Wait()
	w.awaitNoCalls()
}

// TestDisconnectOfCallerEndsCall checks that if a caller disconnects, its queued call is dropped or its
// running call is cancelled, and its slot is free at once.
func TestDisconnectOfCallerEndsCall(t *testing.T) {
	began, cancelled := make(chan struct{}, 10), make(chan struct{}, 10)
	w := newWorld(t, pathHandlers{"/hang": func(_ http.ResponseWriter, r *http.Request) {
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
	w.until("one call is queued", func() bool { return *w.Status().Functions[0].Waiting == 1 })
	leaveQueue()
	w.until("no call is queued", func() bool { return *w.Status().Functions[0].Waiting == 0 })
	leave()
	<-cancelled
	wg.Wait()
	w.awaitNoCalls()
	if len(began) > 0 {
		t.Errorf("calls that began after their callers disconnected: got %d, want 0", len(began))
	}
	if a := w.do("GET", "/function/f/x", ""); a.status != 200 || a.header.Get("Gfaas-Start") != "gpu-warm" {
		t.Errorf("got %+v; want status 200, Gfaas-Start gpu-warm", a)
	}
}

// callWithoutReading sends a call without reading the answer, and repeats this until an instance
// reports that it has begun one. An instance that was delayed for longer than the timeout
// never sees its call.
func (w *world) callWithoutReading(path string, began <-chan struct{}) {
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

// TestUnreadAnswerEnds checks that an answer that the caller does not read does not occupy its slot forever.
func TestUnreadAnswerEnds(t *testing.T) {
	began := make(chan struct{}, 100)
	w := newWorld(t, pathHandlers{"/endless": func(rw http.ResponseWriter, r *http.Request) {
		began <- struct{}{}
		for block := make([]byte, 64<<10); r.Context().Err() == nil; {
			if _, err := rw.Write(block); err != nil {
				return
			}
		}
	}}, func(c *Config) { c.Timeout = 300 * time.Millisecond })
	w.apply(fn("f"))
	w.callWithoutReading("/function/f/endless", began)
	w.awaitNoCalls()
}

// TestAnswerIsPassedOnInParts checks that the gateway passes on each part of an answer as soon as it arrives,
// whether the length is known or not.
func TestAnswerIsPassedOnInParts(t *testing.T) {
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
	w := newWorld(t, pathHandlers{"/chunked": parts(), "/events": parts("Content-Type", "text/event-stream"), "/known": parts("Content-Length", "20")}, nil)
	w.apply(fn("f"))
	for _, path := range []string{"/chunked", "/events", "/known"} {
		r, err := http.Get(w.url("/function/f" + path)) // the head arrives before any part
		if err != nil {
			t.Fatal(err)
		}
		part := make([]byte, 5)
		for range 4 {
			next <- struct{}{}
			if _, err := io.ReadFull(r.Body, part); err != nil || string(part) != "part;" {
				t.Fatalf(`%s: got %q, %v; want "part;"`, path, part, err)
			}
		}
		if _, err := r.Body.Read(part); err != io.EOF {
			t.Errorf("%s: after the last part: got %v, want EOF", path, err)
		}
		_ = r.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestUpgradedConnection checks that an upgraded connection passes data in both directions, occupies a slot
// until it is closed, and may be silent.
func TestUpgradedConnection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, pathHandlers{"/socket": func(rw http.ResponseWriter, r *http.Request) {
		conn, rest, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, rest)
	}, "/hang": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }}, func(c *Config) { c.Timeout = 100 * time.Millisecond })
	w.apply(fn("f"), fn("g"))
	var conn net.Conn
	var in *bufio.Reader
	w.until("the connection is upgraded", func() bool { // a delayed instance may be too late for the timeout
		conn = w.dial("GET /function/f/socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		in = bufio.NewReader(conn)
		r, err := http.ReadResponse(in, nil)
		if err != nil || r.StatusCode != 504 && (r.StatusCode != 101 || r.Header.Get("Gfaas-Instance") == "") {
			t.Fatalf("got %+v, %v; want status 504, or 101 with a header Gfaas-Instance", r, err)
		}
		return r.StatusCode == 101
	})
	for _, text := range []string{"one", "two"} {
		// This call begins after the latest data, so its timeout shows that the connection
		// has been idle for longer than an answer may pause.
		checkRefusal(t, w.do("GET", "/function/g/hang", ""), 504, refusal.Timeout)
		_, _ = io.WriteString(conn, text)
		got := make([]byte, len(text))
		if _, err := io.ReadFull(in, got); err != nil || string(got) != text {
			t.Fatalf("got %q, %v; want %q", got, err, text)
		}
	}
	if n := *w.Status().GPUs[0].Running; n != 1 {
		t.Errorf("%d calls run on the GPU, want 1", n)
	}
	_ = conn.Close()
	w.awaitNoCalls()
}

// TestStartFailed checks that calls of a function whose start fails are queued for another try. After three
// failures in a row they are refused at once, and the gateway retries the start later.
func TestStartFailed(t *testing.T) {
	t.Parallel()
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
	checkRefusal(t, a, 502, refusal.StartFailed)
	if !strings.Contains(a.body, "it is broken") || tries.Load() != 3 {
		t.Errorf("got %s after %d starts, want the error of the third start", a.body, tries.Load())
	}
	third := *last.Load()
	checkRefusal(t, w.do("POST", "/function/f", "x"), 502, refusal.StartFailed)
	if tries.Load() != 3 && last.Load().Sub(third) < time.Second {
		t.Errorf("start %d began within 1 s of the third, want a pause", tries.Load())
	}
	if f := w.Status().Functions[0]; f.State != "failing" {
		t.Errorf("got %+v; want state failing", f)
	}
	works.Store(true)
	w.until("the function answers", func() bool { return w.do("POST", "/function/f", "x").status == 200 })
	if l, err := w.catalog.List(context.Background()); err != nil || len(l.Instances) != 1 {
		t.Errorf("got records %+v and error %v, want one record, of the instance that started", l.Instances, err)
	}
}
