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

	"github.com/gfaas/gfaas/pkg/function"
)

// raw answers with that text, and closes the connection.
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

// TestNoSuchAnswer: what is no answer, or only the beginning of one, is not passed on;
// the call is not sent again, and its place is free.
func TestNoSuchAnswer(t *testing.T) {
	seen := 0
	count := func() { seen++ }
	w := newWorld(t, mixed{
		"/below":  raw("HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n", count),
		"/begun":  raw("HTTP/1.1 200 OK\r\nX-A: b\r\n", count),
		"/early":  raw("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", count),
		"/switch": raw("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n", count),
	}, nil)
	w.apply(fn("f"))
	for _, c := range []struct{ path, code string }{
		{"/below", codeBadAnswer}, {"/begun", codeInstanceDied}, {"/early", codeInstanceDied}, {"/switch", codeBadAnswer},
	} {
		seen = 0
		if a := w.do("GET", "/function/f"+c.path, ""); a.status != 502 || a.reason() != c.code || seen != 1 || a.header.Get("Gfaas-Attempts") != "1" {
			t.Errorf("%s: %d %s, seen %d times, %s attempts", c.path, a.status, a.body, seen, a.header.Get("Gfaas-Attempts"))
		}
	}
	w.settled()
	if all := w.do("GET", "/metrics", "").body; strings.Contains(all, `code="101"`) || !strings.Contains(all, `gfaas_requests_total{code="502",function="f"} 4`) {
		t.Errorf("counted otherwise:\n%s", all)
	}
	own(t, w.do("GET", "/function/f", "", "Connection", "Upgrade", "Upgrade", "f\xe9"), 400, codeBadRequest)
}

// TestCutWithoutLength: an answer that ends with its connection does not look whole
// when it was cut.
func TestCutWithoutLength(t *testing.T) {
	w := newWorld(t, mixed{"/cut": raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")}, nil)
	w.apply(fn("f"))
	conn := w.dial("GET /function/f/cut HTTP/1.0\r\nHost: x\r\n\r\n")
	if _, err := io.ReadAll(conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("its connection ended with %v, want a reset", err)
	}
	conn = w.dial("GET /function/f/whole HTTP/1.0\r\nHost: x\r\n\r\n")
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("that of a whole one ended with %v", err)
	}
}

// TestDrainPassesAnswers: an answer that an instance has given is passed on before the
// gateway ends, however long its caller takes within --drain.
func TestDrainPassesAnswers(t *testing.T) {
	const size = 8 << 20
	w := newWorld(t, mixed{"/long": func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(make([]byte, size)) }}, nil)
	w.apply(fn("f"))
	conn := w.dial("GET /function/f/long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	// All but what the sockets hold, so that the instance has been heard to its end.
	n, err := io.CopyN(io.Discard, r.Body, size-(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	w.stop()
	time.Sleep(1500 * time.Millisecond) // longer than a server has to shut down
	rest, err := io.Copy(io.Discard, r.Body)
	if n += rest; err != nil || n != size {
		t.Errorf("%d bytes of %d came, %v", n, size, err)
	}
	w.close()
}

// TestEarlyAnswersAreNotTaken: a caller who does not read answers 1xx holds no place
// for ever.
func TestEarlyAnswersAreNotTaken(t *testing.T) {
	began := make(chan struct{}, 100)
	early := "HTTP/1.1 103 Early Hints\r\nX-A: " + strings.Repeat("a", 900<<10) + "\r\n\r\n"
	w := newWorld(t, mixed{"/early": func(rw http.ResponseWriter, r *http.Request) {
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
	w.doNotRead("/function/f/early", began)
	w.settled()
}

// TestEarlyAnswer: an answer that comes before the body has is passed on at once.
func TestEarlyAnswer(t *testing.T) {
	w := newWorld(t, mixed{"/no": raw("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")}, func(c *Config) { c.BodyTimeout = time.Hour })
	w.apply(fn("f"))
	a := said(t, w.dial("POST /function/f/no HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"+strings.Repeat("x", 2000)))
	if a.status != 403 || a.body != "no" {
		t.Errorf("%+v", a)
	}
	w.settled()
}

// TestContinueOnce: a caller who waits to be told to send is told so once.
func TestContinueOnce(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f"))
	conn := w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 5000\r\n\r\n" + strings.Repeat("x", 5000))
	text, err := io.ReadAll(conn)
	if n := strings.Count(string(text), "100 Continue"); err != nil || n != 1 || !strings.Contains(string(text), "200 OK") {
		t.Errorf("told %d times, %v", n, err)
	}
}

// TestUpgradeHalfClosed: who has said all of an upgraded connection still hears the
// other.
func TestUpgradeHalfClosed(t *testing.T) {
	w := newWorld(t, mixed{"/socket": func(rw http.ResponseWriter, _ *http.Request) {
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
		t.Fatalf("%+v, %v", r, err)
	}
	_, _ = io.WriteString(conn, "hello")
	_ = conn.(*net.TCPConn).CloseWrite()
	if text, err := io.ReadAll(in); err != nil || string(text) != "5 bytes" {
		t.Errorf("%q, %v", text, err)
	}
	w.settled()
}

// TestLongBodyLeaves: a caller who leaves before all of a long body was read is heard
// of, whether its call waits or runs.
func TestLongBodyLeaves(t *testing.T) {
	began, release := make(chan struct{}, 10), make(chan struct{})
	w := newWorld(t, mixed{"/hang": func(http.ResponseWriter, *http.Request) {
		began <- struct{}{}
		<-release // it reads nothing of the body
	}}, func(c *Config) { c.Concurrency = 1 })
	defer close(release)
	w.apply(fn("f"))
	long := func() net.Conn {
		conn := w.dial("POST /function/f/hang HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n")
		_, _ = io.WriteString(conn, strings.Repeat("x", 20_000)) // the sockets hold it
		return conn
	}
	runs := long()
	<-began
	waits := long()
	w.until("one waits", func() bool { return *w.Status().Functions[0].Waiting == 1 })
	_ = waits.Close()
	w.until("none waits", func() bool { return *w.Status().Functions[0].Waiting == 0 })
	_ = runs.Close()
	w.settled()
	if len(began) > 0 {
		t.Error("what waited ran though its caller had left")
	}
}

// TestBodiesDoNotWait: who sends a body slowly takes no place in the queue.
func TestBodiesDoNotWait(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f", func(f *function.Function) { f.Queue = 1 }))
	w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
	w.incoming(1)
	if a := w.do("POST", "/function/f", "x"); a.status != 200 {
		t.Errorf("%+v", a)
	}
}

// TestRemovedWhileCallsWait: calls of a function that is removed run on the instances
// that are there, and it is no label any more.
func TestRemovedWhileCallsWait(t *testing.T) {
	began, release := make(chan struct{}, 10), make(chan struct{})
	w := newWorld(t, mixed{"/wait": func(http.ResponseWriter, *http.Request) { began <- struct{}{}; <-release }}, func(c *Config) { c.Concurrency = 1 })
	w.apply(fn("f"))
	var wg sync.WaitGroup
	call := func() {
		wg.Go(func() {
			if a, err := w.try(context.Background(), "GET", "/function/f/wait", ""); err != nil || a.status != 200 {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	call()
	<-began
	call()
	call()
	w.until("two wait", func() bool { return *w.Status().Functions[0].Waiting == 2 })
	slow := w.dial("POST /function/f HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nha")
	f := (*w.names.Load())["f"]
	w.incoming(1)
	if err := w.catalog.Remove(context.Background(), "f"); err != nil {
		t.Fatal(err)
	}
	w.until("it is gone", func() bool { return (*w.names.Load())["f"] == nil }) // a call before would wait with them
	own(t, w.do("GET", "/function/f/x", ""), 404, codeNoFunction)
	close(release)
	wg.Wait()
	w.until("nothing is left of it", func() bool { return len(w.runtime.Running()) == 0 && f.forgotten.Load() })
	_, _ = io.WriteString(slow, "lf")
	if a := said(t, slow); a.status != 404 {
		t.Errorf("%+v", a)
	}
	if all := w.do("GET", "/metrics", "").body; strings.Contains(all, `"f"`) || strings.Contains(all, `"f.openfaas-fn"`) {
		t.Errorf("its name is a label:\n%s", all)
	}
}

// TestAppliedJustNow: a function is there for who applied it a moment ago.
func TestAppliedJustNow(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	for n := range 20 {
		name := fmt.Sprint("f", n)
		if err := w.catalog.Apply(context.Background(), fn(name)); err != nil {
			t.Fatal(err)
		}
		if a := w.do("POST", "/function/"+name, "x"); a.status != 200 {
			t.Fatalf("%+v", a)
		}
	}
}

// TestOwnAnswersAreLabelled: what the gateway answers itself says so, everywhere.
func TestOwnAnswersAreLabelled(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), withAsync(t))
	own(t, w.do("GET", "/system/async/none", ""), 404, codeNoCall)
	own(t, w.do("GET", "/system/function/none", ""), 404, codeNoFunction)
	own(t, w.do("GET", "/system/logs?name=none", ""), 404, codeNoFunction)
	own(t, w.do("GET", "/system/secrets", ""), 501, codeNotHere)
}
