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
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
)

// raw returns a handler that calls the given functions, writes text to the connection and
// closes it.
func raw(text string, also ...func()) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for _, f := range also {
			f()
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}
	}
}

// TestInvalidAnswersAreNotPassedOn checks that the gateway does not pass on an invalid or
// incomplete answer. It does not retry the call, and it releases the call's place.
func TestInvalidAnswersAreNotPassedOn(t *testing.T) {
	seen := 0
	count := func() { seen++ }
	w := newWorld(t, pathHandlers{
		"/below":  raw("HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n", count),
		"/begun":  raw("HTTP/1.1 200 OK\r\nX-A: b\r\n", count),
		"/early":  raw("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", count),
		"/switch": raw("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n", count),
	}, nil)
	w.apply(fn("f"))
	for _, c := range []struct{ path, code string }{
		{"/below", refusal.BadAnswer}, {"/begun", refusal.InstanceDied}, {"/early", refusal.InstanceDied}, {"/switch", refusal.BadAnswer},
	} {
		seen = 0
		if a := w.do("GET", "/function/f"+c.path, ""); a.status != 502 || a.reason() != c.code || seen != 1 || a.header.Get("Gfaas-Attempts") != "1" {
			t.Errorf("%s: got %d %s, seen %d times, %s attempts; want status 502, reason %s, seen once, 1 attempt", c.path, a.status, a.body, seen, a.header.Get("Gfaas-Attempts"), c.code)
		}
	}
	w.awaitNoCalls()
	if all := w.do("GET", "/metrics", "").body; strings.Contains(all, `code="101"`) || !strings.Contains(all, `gfaas_requests_total{code="502",function="f"} 4`) {
		t.Errorf("metrics: want 4 requests with code 502 and none with code 101, got\n%s", all)
	}
	checkRefusal(t, w.do("GET", "/function/f", "", "Connection", "Upgrade", "Upgrade", "f\xe9"), 400, refusal.BadRequest)
}

// TestCutAnswerResetsConnection checks that if an answer without a length is cut off, the
// caller's connection is reset, so that the caller cannot take the answer for complete.
func TestCutAnswerResetsConnection(t *testing.T) {
	w := newWorld(t, pathHandlers{"/cut": raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")}, nil)
	w.apply(fn("f"))
	conn := w.dial("GET /function/f/cut HTTP/1.0\r\nHost: x\r\n\r\n")
	if _, err := io.ReadAll(conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the connection of the cut answer ended with %v, want a reset", err)
	}
	conn = w.dial("GET /function/f/whole HTTP/1.0\r\nHost: x\r\n\r\n")
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("the connection of a whole answer ended with %v, want its end", err)
	}
}

// TestDrainPassesAnswers checks that during shutdown, the gateway passes on the complete
// answer of an instance, however slowly the caller reads it within --drain.
func TestDrainPassesAnswers(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	w := newWorld(t, pathHandlers{"/long": func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(make([]byte, size)) }}, nil)
	w.apply(fn("f"))
	conn := w.dial("GET /function/f/long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	// Read all bytes except those that fit into the sockets' buffers, so that the gateway
	// has received the end of the answer.
	n, err := io.CopyN(io.Discard, r.Body, size-(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	w.stop()
	time.Sleep(1500 * time.Millisecond) // longer than the timeout of a server's shutdown
	rest, err := io.Copy(io.Discard, r.Body)
	if n += rest; err != nil || n != size {
		t.Errorf("got %d bytes, %v; want %d", n, err, size)
	}
	w.close()
}

// TestUnreadInterimAnswersHoldNoPlace checks that a caller that does not read 1xx answers
// does not occupy its slot forever.
func TestUnreadInterimAnswersHoldNoPlace(t *testing.T) {
	began := make(chan struct{}, 100)
	early := "HTTP/1.1 103 Early Hints\r\nX-A: " + strings.Repeat("a", 900<<10) + "\r\n\r\n"
	w := newWorld(t, pathHandlers{"/early": func(rw http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		began <- struct{}{}
		_, _ = io.WriteString(conn, strings.Repeat(early, 11))
		_, _ = io.Copy(io.Discard, conn)
	}}, func(c *Config) { c.Timeout = 300 * time.Millisecond })
	w.apply(fn("f"))
	w.callWithoutReading("/function/f/early", began)
	w.awaitNoCalls()
}

// TestAnswerBeforeEndOfBody checks that the gateway passes on an answer at once if it
// arrives before the request's body is complete.
func TestAnswerBeforeEndOfBody(t *testing.T) {
	w := newWorld(t, pathHandlers{"/no": raw("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")}, func(c *Config) { c.BodyTimeout = time.Hour })
	w.apply(fn("f"))
	a := readAnswer(t, w.dial("POST /function/f/no HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"+strings.Repeat("x", 2000)))
	if a.status != 403 || a.body != "no" {
		t.Errorf(`got %+v; want status 403, body "no"`, a)
	}
	w.awaitNoCalls()
}

// TestContinueOnce checks that a caller that sends Expect: 100-continue gets exactly one
// 100 Continue.
func TestContinueOnce(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f"))
	conn := w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 5000\r\n\r\n" + strings.Repeat("x", 5000))
	text, err := io.ReadAll(conn)
	if n := strings.Count(string(text), "100 Continue"); err != nil || n != 1 || !strings.Contains(string(text), "200 OK") {
		t.Errorf("got 100 Continue %d times, %v; want once, and 200 OK:\n%.300s", n, err, text)
	}
}

// TestUpgradeHalfClosed checks that a caller that has closed its sending side of an
// upgraded connection still receives the function's data.
func TestUpgradeHalfClosed(t *testing.T) {
	w := newWorld(t, pathHandlers{"/socket": func(rw http.ResponseWriter, _ *http.Request) {
		conn, rest, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n")
		said, _ := io.ReadAll(rest)
		fmt.Fprintf(conn, "%d bytes", len(said))
	}}, nil)
	w.apply(fn("f"))
	conn := w.dial("GET /function/f/socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n")
	in := bufio.NewReader(conn)
	if r, err := http.ReadResponse(in, nil); err != nil || r.StatusCode != 101 {
		t.Fatalf("got %+v, %v; want status 101", r, err)
	}
	_, _ = io.WriteString(conn, "hello")
	_ = conn.(*net.TCPConn).CloseWrite()
	if text, err := io.ReadAll(in); err != nil || string(text) != "5 bytes" {
		t.Errorf("got %q, %v; want 5 bytes", text, err)
	}
	w.awaitNoCalls()
}

// TestDisconnectDuringLongBody checks that the gateway notices when a caller disconnects
// before its long body was read, whether the call is queued or running.
func TestDisconnectDuringLongBody(t *testing.T) {
	began, release := make(chan struct{}, 10), make(chan struct{})
	w := newWorld(t, pathHandlers{"/hang": func(http.ResponseWriter, *http.Request) {
		began <- struct{}{}
		<-release // without reading the body
	}}, func(c *Config) { c.Concurrency = 1 })
	defer close(release)
	w.apply(fn("f"))
	long := func() net.Conn {
		conn := w.dial("POST /function/f/hang HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n")
		_, _ = io.WriteString(conn, strings.Repeat("x", 20_000)) // fits into the sockets' buffers
		return conn
	}
	runs := long()
	<-began
	waits := long()
	w.until("one call of f is queued", func() bool { return *w.Status().Functions[0].Waiting == 1 })
	_ = waits.Close()
	w.until("no call of f is queued", func() bool { return *w.Status().Functions[0].Waiting == 0 })
	_ = runs.Close()
	w.awaitNoCalls()
	if len(began) > 0 {
		t.Errorf("calls that began after their callers disconnected: got %d, want 0", len(began))
	}
}

// TestIncompleteBodyTakesNoQueuePlace checks that a call whose body is incomplete takes
// no place in the queue.
func TestIncompleteBodyTakesNoQueuePlace(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f", func(f *function.Function) { f.Queue = 1 }))
	w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
	w.incoming(1)
	if a := w.do("POST", "/function/f", "x"); a.status != 200 {
		t.Errorf("got %+v; want status 200", a)
	}
}

// TestRemoveWithQueuedCalls checks that queued calls of a removed function run on the
// existing instances, and the function's metrics disappear.
func TestRemoveWithQueuedCalls(t *testing.T) {
	began, release := make(chan struct{}, 10), make(chan struct{})
	w := newWorld(t, pathHandlers{"/wait": func(http.ResponseWriter, *http.Request) { began <- struct{}{}; <-release }}, func(c *Config) { c.Concurrency = 1 })
	w.apply(fn("f"))
	var wg sync.WaitGroup
	call := func() {
		wg.Go(func() {
			if a, err := w.try(context.Background(), "GET", "/function/f/wait", ""); err != nil || a.status != 200 {
				t.Errorf("got %+v, %v; want status 200", a, err)
			}
		})
	}
	call()
	<-began
	call()
	call()
	w.until("two calls of f are queued", func() bool { return *w.Status().Functions[0].Waiting == 2 })
	slow := w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nha")
	w.incoming(1)
	labelled := func() bool {
		all := w.do("GET", "/metrics", "").body
		return strings.Contains(all, `"f"`) || strings.Contains(all, `"f.openfaas-fn"`)
	}
	if err := w.catalog.Remove(context.Background(), "f"); err != nil {
		t.Fatal(err)
	}
	w.until("the gateway has forgotten f", func() bool { return w.dispatcher.Function("f") == nil }) // until then, a new call would be queued with the others
	checkRefusal(t, w.do("GET", "/function/f/x", ""), 404, refusal.NoFunction)
	close(release)
	wg.Wait()
	w.until("no instance of f runs and no metric names f", func() bool { return len(w.runtime.Running()) == 0 && !labelled() })
	_, _ = io.WriteString(slow, "lf")
	if a := readAnswer(t, slow); a.status != 404 {
		t.Errorf("got %+v; want status 404", a)
	}
	if labelled() {
		t.Error("labels of the metrics: got the name of the removed function, want none")
	}
}

// TestCallRightAfterApply checks that a call succeeds immediately after its function was
// applied.
func TestCallRightAfterApply(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	for n := range 20 {
		name := fmt.Sprint("f", n)
		if err := w.catalog.Apply(context.Background(), fn(name)); err != nil {
			t.Fatal(err)
		}
		if a := w.do("POST", "/function/"+name, "x"); a.status != 200 {
			t.Fatalf("got %+v; want status 200", a)
		}
	}
}

// TestGatewayErrorsAreLabelled checks that on every path, the gateway's own errors carry
// the headers that identify them.
func TestGatewayErrorsAreLabelled(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), withAsync(t))
	checkRefusal(t, w.do("GET", "/system/async/none", ""), 404, refusal.NoCall)
	checkRefusal(t, w.do("GET", "/system/function/none", ""), 404, refusal.NoFunction)
	checkRefusal(t, w.do("GET", "/system/logs?name=none", ""), 404, refusal.NoFunction)
	checkRefusal(t, w.do("GET", "/system/secrets", ""), 501, refusal.NotImplemented)
}
