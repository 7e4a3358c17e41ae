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
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/async"
	"github.com/gfaas/gfaas/pkg/daemon/async/journal"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/api"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
)

// withAsync configures at most 4 asynchronous calls, with callbacks allowed to servers of
// the test.
func withAsync(t *testing.T) func(*Config) {
	dir := t.TempDir()
	return func(c *Config) {
		c.Async = api.Async{Dir: filepath.Join(dir, "async"), Concurrency: 2, Retries: 1, CallbackRetries: 1, Max: 4, Allow: allowed(t, "127.0.0.1")}
	}
}

// allowed parses entries of --callback-allow.
func allowed(t *testing.T, entries ...string) (out []async.Allowed) {
	t.Helper()
	for _, text := range entries {
		a, err := async.ParseAllowed(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, a)
	}
	return out
}

// came is a request that a callback receiver got.
type came struct {
	header http.Header
	body   string
}

func receiver(t *testing.T) (address string, answers chan came) {
	took := make(chan came, 16)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		took <- came{r.Header, string(body)}
	}))
	t.Cleanup(s.Close)
	return s.URL, took
}

// nextCallback returns the next request that a callback receiver got.
func nextCallback(t *testing.T, from chan came) came {
	t.Helper()
	select {
	case c := <-from:
		return c
	case <-time.After(patience):
		t.Fatalf("callback: got none within %v, want one", patience)
		return came{}
	}
}

// state returns the gateway's status of an asynchronous call, or a zero Status if the
// gateway knows no such call.
func (w *world) state(id string) async.Status {
	w.t.Helper()
	a := w.do("GET", "/system/async/"+id, "")
	var s async.Status
	if a.status == 200 {
		if err := json.Unmarshal([]byte(a.body), &s); err != nil {
			w.t.Fatal(err)
		}
	}
	return s
}

func TestAsync(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), withAsync(t))
	w.apply(fn("f"))
	back, took := receiver(t)
	a := w.do("POST", "/async-function/f.openfaas-fn/a%2Fb?x=1&y", "hello", "X-Callback-Url", back, "X-Own", "1", "X-Call-Id", "one")
	if a.status != 202 || a.body != "" || a.header.Get("X-Call-Id") != "one" {
		t.Errorf("got %+v; want status 202, no body, X-Call-Id one", a)
	}
	got := nextCallback(t, took)
	if got.body != "hello" || got.header.Get("X-Call-Id") != "one" || got.header.Get("X-Function-Name") != "f" || got.header.Get("X-Function-Status") != "200" {
		t.Errorf(`got %+v; want body "hello", X-Call-Id one, X-Function-Name f, X-Function-Status 200`, got)
	}
	w.until("the asynchronous call is done", func() bool {
		return w.state("one") == async.Status{ID: "one", Function: "f", State: "done", Attempts: 1, Status: 200}
	})
	same := []string{"X-Callback-Url", back, "X-Call-Id", "one"}
	if a := w.do("POST", "/async-function/f.openfaas-fn/a%2Fb?x=1&y", "hello", same...); a.status != 202 {
		t.Errorf("the same call: got %+v; want status 202", a)
	}
	checkRefusal(t, w.do("POST", "/async-function/f/a%2Fb?x=1&y", "again", same...), 409, refusal.CallID)
	checkRefusal(t, w.do("POST", "/async-function/f/a%2Fb", "hello", same...), 409, refusal.CallID)
	checkRefusal(t, w.do("POST", "/async-function/f/a%2Fb?x=1&y", "hello", "X-Call-Id", "one"), 409, refusal.CallID)
	long := strings.Repeat("0123456789", 50_000)
	if a = w.do("POST", "/async-function/f", long, "X-Callback-Url", back); a.status != 202 || a.header.Get("X-Call-Id") == "" {
		t.Errorf("got %+v; want status 202, a header X-Call-Id", a)
	}
	if got := nextCallback(t, took); got.body != long || got.header.Get("X-Call-Id") != a.header.Get("X-Call-Id") {
		t.Errorf("got %d bytes of call %s, want %d of call %s", len(got.body), got.header.Get("X-Call-Id"), len(long), a.header.Get("X-Call-Id"))
	}
	if a := w.do("GET", "/system/async/none", ""); a.status != 404 || a.reason() != "no-call" {
		t.Errorf("got %+v; want status 404, reason no-call", a)
	}
	w.until("the metrics count the asynchronous calls", func() bool {
		return strings.Contains(w.do("GET", "/metrics", "").body, `gfaas_async_total{function="f",result="done"} 2`)
	})
}

// TestAsyncSameID checks that calls to two functions and to two paths with the same ID
// all run, and the state of each can be queried.
func TestAsyncSameID(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), withAsync(t))
	w.apply(fn("f"), fn("g"))
	for _, path := range []string{"f/x", "f/x?q", "g/x", "f/y", "g"} {
		if path == "f/x?q" { // the query is part of the call, but does not distinguish IDs
			checkRefusal(t, w.do("POST", "/async-function/"+path, path, "X-Call-Id", "one"), 409, refusal.CallID)
		} else if a := w.do("POST", "/async-function/"+path, path, "X-Call-Id", "one"); a.status != 202 || a.header.Get("X-Call-Id") != "one" {
			t.Errorf("%s: got %+v; want status 202, X-Call-Id one", path, a)
		}
	}
	checkRefusal(t, w.do("GET", "/system/async/one", ""), 409, refusal.CallID)
	checkRefusal(t, w.do("GET", "/system/async/one?function=f", ""), 409, refusal.CallID)
	for query, function := range map[string]string{"function=f&path=/x": "f", "function=g&path=/x": "g", "path=/y": "f", "function=g&path=": "g"} {
		w.until(query+" is done", func() bool {
			return w.state("one?"+query) == async.Status{ID: "one", Function: function, State: "done", Attempts: 1, Status: 200}
		})
	}
	for _, query := range []string{"function=h", "function=f&path=/z", "path="} {
		if a := w.do("GET", "/system/async/one?"+query, ""); query != "path=" && a.status != 404 || query == "path=" && a.status != 200 {
			t.Errorf("%s: got %+v; want status 404, or 200 for path=", query, a)
		}
	}
	w.until("the metrics count the asynchronous calls", func() bool {
		all := w.do("GET", "/metrics", "").body
		return strings.Contains(all, `gfaas_async_total{function="f",result="done"} 2`) && strings.Contains(all, `gfaas_async_total{function="g",result="done"} 2`)
	})
}

func TestAsyncRefused(t *testing.T) {
	hold := make(chan struct{})
	held := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			select {
			case <-hold:
			case <-r.Context().Done():
			}
		}
	})
	w := newWorld(t, held, withAsync(t))
	defer close(hold)
	w.apply(fn("f"), fn("narrow", func(f *function.Function) { f.Queue = 1 }))
	refused := func(what string, a answer, status int, code string) {
		t.Helper()
		var body struct {
			Error struct{ Code, Message, Hint string }
		}
		if err := json.Unmarshal([]byte(a.body), &body); a.status != status || a.reason() != code || err != nil || body.Error.Code != code || a.header.Get("X-Call-Id") == "" {
			t.Errorf("%s: %d %s %s, want %d %s", what, a.status, a.reason(), a.body, status, code)
		}
	}
	refused("no function", w.do("POST", "/async-function/g", ""), 404, "no-function")
	refused("another namespace", w.do("POST", "/async-function/f.other", ""), 404, "no-function")
	refused("GET", w.do("GET", "/async-function/f", ""), 405, "method")
	refused("callback", w.do("POST", "/async-function/f", "", "X-Callback-Url", "ftp://x/"), 400, "bad-request")
	for range 30 { // the caller receives the refusal although it is still sending
		refused("large", w.do("POST", "/async-function/f", strings.Repeat("x", 1<<20+1)), 413, "too-large")
	}
	refused("large in chunks", w.raw("POST /async-function/f HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"+
		fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", 1<<20+1, strings.Repeat("x", 1<<20+1))), 413, "too-large")
	async := withAsync(t)
	impatient := newWorld(t, held, func(c *Config) { // used for one request only: a busy host may delay other requests past the timeout
		async(c)
		c.BodyTimeout = 50 * time.Millisecond
	})
	impatient.apply(fn("f"))
	refused("slow", impatient.raw("POST /async-function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf"), 408, "slow-body")
	for n := range 4 {
		if a := w.do("POST", "/async-function/f", "", "X-Call-Id", fmt.Sprint(n)); a.status != 202 {
			t.Errorf("got %+v; want status 202", a)
		}
	}
	full := w.do("POST", "/async-function/f", "")
	refused("full", full, 429, "async-full")
	if full.header.Get("Retry-After") != "1" {
		t.Errorf("got Retry-After %q, want 1", full.header.Get("Retry-After"))
	}
	if a := w.do("POST", "/async-function/f", "", "X-Call-Id", "0"); a.status != 202 {
		t.Errorf("full, of an id that is known: got %+v; want status 202", a)
	}
	if _, err := Open(Config{Log: w.cfg.Log, Socket: filepath.Join(t.TempDir(), "s"), dispatchConfig: w.cfg.dispatchConfig, Async: w.cfg.Async}); !errors.As(err, new(*journal.LockedError)) {
		t.Errorf("a second gateway on the same state: got %v, want a LockedError", err)
	}
}

// raw sends text over a new connection and returns the answer.
func (w *world) raw(text string) answer {
	w.t.Helper()
	conn, err := net.Dial("tcp", w.WebAddr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	go func() { _, _ = io.WriteString(conn, text) }()
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer{response.StatusCode, string(body), response.Header}
}

// TestAsyncCallsAfterRestart checks that a call that is running at shutdown runs again
// after the next start. If its function was removed in between, the call fails with a
// reason.
func TestAsyncCallsAfterRestart(t *testing.T) {
	began := make(chan struct{}, 1)
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that its caller disconnects
			began <- struct{}{}
			<-r.Context().Done()
		}
	}), func(c *Config) {
		withAsync(t)(c)
		c.Drain = 10 * time.Millisecond
	})
	w.apply(fn("f"), fn("g"))
	back, took := receiver(t)
	w.do("POST", "/async-function/f", "body", "X-Callback-Url", back, "X-Call-Id", "f")
	<-began
	w.do("POST", "/async-function/g", "body", "X-Callback-Url", back, "X-Call-Id", "g")
	<-began
	if s := w.state("f"); s.State != "running" {
		t.Errorf("got %+v; want state running", s)
	}
	w.close()
	if err := w.catalog.Remove(context.Background(), "g"); err != nil {
		t.Fatal(err)
	}
	w.handler = http.HandlerFunc(echo)
	w.open()
	for range 2 {
		switch got := nextCallback(t, took); got.header.Get("X-Call-Id") {
		case "f":
			if got.body != "body" || got.header.Get("X-Function-Status") != "200" {
				t.Errorf(`got %+v; want body "body", X-Function-Status 200`, got)
			}
		case "g":
			if !strings.Contains(got.body, `"no-function"`) || got.header.Get("X-Function-Status") != "404" {
				t.Errorf(`got %+v; want a body with "no-function", X-Function-Status 404`, got)
			}
		}
	}
}

// TestAsyncOnFullDisk checks that if the disk is full, new calls are refused until space
// is free again. No accepted call is lost.
func TestAsyncOnFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=4m"); err != nil {
		if os.Getenv("CI") != "" || os.Geteuid() == 0 {
			t.Fatal(err)
		}
		t.Skip("needs root:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	hold := make(chan struct{})
	w := newWorld(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			_, _ = io.Copy(io.Discard, r.Body)
			<-hold
		}
	}), func(c *Config) {
		c.Async = api.Async{Dir: filepath.Join(disk, "async"), Concurrency: 2, Max: 1000}
	})
	w.apply(fn("f"))
	body := strings.Repeat("x", 500_000)
	accepted := 0
	for ; accepted < 100; accepted++ {
		a := w.do("POST", "/async-function/f", body, "X-Call-Id", fmt.Sprint(accepted))
		if a.status == 202 {
			continue
		}
		if a.status != 503 || a.reason() != "journal" || a.header.Get("Retry-After") == "" {
			t.Errorf("full: got %+v; want status 503, reason journal, a header Retry-After", a)
		}
		break
	}
	if accepted < 3 || accepted == 100 {
		t.Fatalf("%d of 100 calls were accepted, want at least 3 and a refusal", accepted)
	}
	close(hold)
	for n := range accepted {
		w.until(fmt.Sprintf("call %d is done", n), func() bool { return w.state(fmt.Sprint(n)).State == "done" })
	}
	if a := w.do("POST", "/async-function/f", body, "X-Call-Id", "later"); a.status != 202 {
		t.Errorf("with room again: got %+v; want status 202", a)
	}
	w.until("the later call is done", func() bool { return w.state("later").State == "done" })
}

// TestCallbackToItself checks that a callback cannot send a function's answer to the
// gateway, even if every receiver is allowed. Otherwise a caller could deploy functions
// that way.
func TestCallbackToItself(t *testing.T) {
	const deployment = `{"service": "deployed", "image": "example.com/image:1"}`
	for _, listen := range []string{"127.0.0.1:0", "0.0.0.0:0", ":0"} {
		t.Run(listen, func(t *testing.T) {
			var calls atomic.Int32
			w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/healthz" {
					calls.Add(1)
					_, _ = io.Copy(w, r.Body)
				}
			}), func(c *Config) {
				withAsync(t)(c)
				c.Listen, c.UIListen = listen, listen
				c.Async.Allow = allowed(t, "0.0.0.0/0", "::/0", "127.0.0.1", "localhost")
			})
			w.apply(fn("f"))
			hosts := []string{"127.0.0.1", "localhost", "LOCALHOST", "0.0.0.0", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "name:password@127.0.0.1"}
			if listen != "127.0.0.1:0" { // the gateway serves on all addresses of the host
				hosts = append(hosts, "127.9.9.9")
				interfaces, err := net.InterfaceAddrs()
				if err != nil {
					t.Fatal(err)
				}
				for _, a := range interfaces {
					if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
						hosts = append(hosts, n.IP.String())
					}
				}
			}
			for _, at := range []net.Addr{w.WebAddr(), w.UIAddr()} {
				for _, host := range hosts {
					for _, path := range []string{"/system/functions", "/function/f", "/async-function/f"} {
						to := fmt.Sprintf("http://%s:%d%s", host, at.(*net.TCPAddr).Port, path)
						a := w.do("POST", "/async-function/f", deployment, "X-Callback-Url", to)
						if a.status != 400 || a.reason() != "bad-request" || !strings.Contains(a.body, "is this gateway itself") {
							t.Errorf("callback to %s: got %d %s, want 400 bad-request", to, a.status, a.body)
						}
					}
				}
			}
			w.until("all calls have ended", func() bool { return strings.Contains(w.do("GET", "/metrics", "").body, "\ngfaas_async_pending 0") })
			if got := calls.Load(); got != 0 {
				t.Errorf("got %d calls of the function, want 0", got)
			}
			var functions []struct{ Name string }
			if err := json.Unmarshal([]byte(w.do("GET", "/system/functions", "").body), &functions); err != nil || len(functions) != 1 || functions[0].Name != "f" {
				t.Errorf("got functions %v, %v, want f alone", functions, err)
			}
		})
	}
}

// TestCallbackNeedsAllow checks that a callback to an address that is not public requires
// an entry in --callback-allow.
func TestCallbackNeedsAllow(t *testing.T) {
	back, took := receiver(t)
	port := back[strings.LastIndexByte(back, ':'):]
	for _, c := range []struct {
		allow   []string
		refused []string
		sent    []string
	}{
		{refused: []string{back, "http://localhost" + port, "http://169.254.169.254/latest/meta-data/", "http://[fd00::1]/", "http://0.0.0.0" + port}},
		{allow: []string{"127.0.0.1:1", "10.0.0.0/8", "localhost"}, refused: []string{back}},
		{allow: []string{"127.0.0.0/8"}, sent: []string{back}},
		{allow: []string{"127.0.0.1" + port}, sent: []string{back}},
		{allow: []string{"localhost"}, sent: []string{"http://localhost" + port}},
	} {
		t.Run(strings.Join(c.allow, " "), func(t *testing.T) {
			w := newWorld(t, http.HandlerFunc(echo), func(cfg *Config) {
				withAsync(t)(cfg)
				cfg.Async.Allow = allowed(t, c.allow...)
			})
			w.apply(fn("f"))
			for _, to := range c.refused {
				a := w.do("POST", "/async-function/f", "body", "X-Callback-Url", to)
				if a.status != 400 || a.reason() != "bad-request" || !strings.Contains(a.body, "--callback-allow") {
					t.Errorf("callback to %s: got %d %s, want 400 bad-request and a message that names --callback-allow", to, a.status, a.body)
				}
			}
			for _, to := range c.sent {
				if a := w.do("POST", "/async-function/f", "body", "X-Callback-Url", to); a.status != 202 {
					t.Fatalf("callback to %s: got %d %s, want 202", to, a.status, a.body)
				}
				if got := nextCallback(t, took); got.body != "body" {
					t.Errorf("callback to %s: the receiver got %q, want %q", to, got.body, "body")
				}
			}
		})
	}
}
