package chassis

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// boundedServer returns a server with a limit on connections, and a function that connects
// to it.
func boundedServer(t *testing.T, limit int, h http.HandlerFunc) (b *bounded, dial func() net.Conn) {
	t.Helper()
	path := filepath.Join(runDir(t), "s")
	l, err := Listen("unix", path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	b = Bounded(s, l, limit).(*bounded)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(b) }()
	t.Cleanup(func() {
		_ = s.Close()
		select {
		case err := <-ended:
			if !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Errorf("the server has not ended after %v", patience)
		}
	})
	return b, func() net.Conn {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(patience))
		return conn
	}
}

// request sends a request on a connection and keeps the connection open.
func request(conn net.Conn) error {
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: s\r\n\r\n"); err != nil {
		return err
	}
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, got.Body)
	return err
}

// The number of connections never exceeds the limit; other clients wait and get an answer
// in the end.
func TestBounded(t *testing.T) {
	const limit, callers = 3, 20
	var inside, peak atomic.Int64
	enter, leave := make(chan struct{}, callers), make(chan struct{})
	_, dial := boundedServer(t, limit, func(http.ResponseWriter, *http.Request) {
		n := inside.Add(1)
		for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
		}
		enter <- struct{}{}
		<-leave
		inside.Add(-1)
	})
	var all sync.WaitGroup
	for range callers {
		conn := dial()
		all.Go(func() {
			if err := request(conn); err != nil {
				t.Error(err)
			}
			_ = conn.Close()
		})
	}
	for range callers {
		<-enter
		if len(enter) == 0 && inside.Load() < limit && peak.Load() < limit {
			continue // until the limit is reached
		}
		leave <- struct{}{}
	}
	close(leave)
	all.Wait()
	if n := peak.Load(); n != limit {
		t.Errorf("peak of concurrent connections: got %d, want %d", n, limit)
	}
}

// Idle connections are closed, beginning with the one idle for longest.
func TestBoundedIdle(t *testing.T) {
	b, dial := boundedServer(t, 3, func(http.ResponseWriter, *http.Request) {})
	use := func(conn net.Conn, idle int) {
		t.Helper()
		if err := request(conn); err != nil {
			t.Fatal(err)
		}
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
			b.mu.Lock()
			n := len(b.idle)
			b.mu.Unlock()
			if n == idle {
				return
			}
		}
		t.Fatalf("idle connections: not %d within %v", idle, patience)
	}
	var conns []net.Conn
	for i := range 3 {
		conns = append(conns, dial())
		use(conns[i], i+1)
	}
	use(conns[0], 3)
	more := dial()
	if err := request(more); err != nil {
		t.Fatal(err)
	}
	if _, err := conns[1].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("read from the connection that was idle for longest: got %v, want io.EOF", err)
	}
	for _, conn := range []net.Conn{conns[0], conns[2], more} {
		if err := request(conn); err != nil {
			t.Errorf("request on another connection: %v", err)
		}
	}
}

// A server can shut down while it waits for room.
func TestBoundedEnds(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	_, dial := boundedServer(t, 1, func(http.ResponseWriter, *http.Request) { close(entered); <-leave })
	t.Cleanup(func() { close(leave) })
	first := dial()
	if _, err := io.WriteString(first, "GET / HTTP/1.1\r\nHost: s\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	<-entered
	dial() // waits
}
