package fnhttp_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// invokeAt calls an address and returns the answer's status and body.
func invokeAt(t *testing.T, c *fnhttp.Client, address string, call ports.Call) (int, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	answer, err := c.Invoke(ctx, &instance.Record{ID: "f-0", Handle: instance.Handle{Address: address}}, call)
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), errors.Join(err, answer.Body.Close())
}

// newRawServer starts a server with one function per connection, in order; the last one serves
// all further connections. It returns the address.
func newRawServer(t *testing.T, each ...func(in *bufio.Reader, out net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for n := 0; ; n++ {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				each[min(n, len(each)-1)](bufio.NewReader(conn), conn)
			}()
		}
	}()
	return l.Addr().String()
}

// readRequest reads a request with its body.
func readRequest(in *bufio.Reader) bool {
	r, err := http.ReadRequest(in)
	if err != nil {
		return false
	}
	_, err = io.Copy(io.Discard, r.Body)
	return err == nil
}

const fine = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// A connection is reused, unless it was closed, is to be closed, or carried more than an
// answer. The caller does not notice.
func TestConnectionsAreKept(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		close  bool
		keep   time.Duration
		want   int // connections used by three calls
	}{
		"as they should be": {fine, false, time.Hour, 1},
		"chunked":           {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", false, time.Hour, 1},
		"idle for too long": {fine, false, 1, 3},
		"closed when idle":  {fine, true, time.Hour, 3},
		"to be closed":      {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", false, time.Hour, 3},
		"HTTP/1.0":          {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", false, time.Hour, 3},
		"too much said":     {fine + fine, false, time.Hour, 3},
	} {
		t.Run(name, func(t *testing.T) {
			opened, closed := make(chan bool, 9), make(chan bool, 9)
			address := newRawServer(t, func(in *bufio.Reader, out net.Conn) {
				opened <- true
				for readRequest(in) {
					if _, err := io.WriteString(out, c.answer); err != nil || c.close {
						break
					}
				}
				_ = out.Close()
				closed <- true
			})
			client := fnhttp.NewClient()
			client.SetIdleTimeout(c.keep)
			defer client.Close()
			for range 3 {
				if status, text, err := invokeAt(t, client, address, ports.Call{Body: strings.NewReader("in")}); status != 200 || text != "ok" || err != nil {
					t.Fatalf("answer: got %d %q, %v; want 200 \"ok\"", status, text, err)
				}
				if c.close {
					<-closed
				}
			}
			if len(opened) != c.want {
				t.Errorf("%d connections, want %d", len(opened), c.want)
			}
		})
	}
}

// TestReceived checks that the body of an answer reports whether it has arrived completely.
func TestReceived(t *testing.T) {
	chunked := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" // its end is not parsed yet
	for text, want := range map[string]bool{fine: true, fine[:len(fine)-1]: false, chunked: false} {
		read := make(chan bool)
		address := newRawServer(t, func(in *bufio.Reader, out net.Conn) {
			readRequest(in)
			_, _ = io.WriteString(out, text)
			<-read
		})
		client := fnhttp.NewClient()
		answer, err := client.Invoke(t.Context(), &instance.Record{Handle: instance.Handle{Address: address}}, ports.Call{})
		if err != nil {
			t.Fatal(err)
		}
		if got := answer.Body.(ports.Received).Received(); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
		close(read)
		_ = answer.Body.Close()
		client.Close()
	}
}

// A body longer than the socket buffers is sent while the answer is read.
func TestLongBodies(t *testing.T) {
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("Content-Length", fmt.Sprint(r.ContentLength))
		_, _ = io.Copy(w, r.Body)
	}))
	defer echo.Close()
	client := fnhttp.NewClient()
	defer client.Close()
	for _, size := range []int{0, 1, 8 << 10, 8<<10 + 1, 1 << 20, 32 << 20} {
		in := bytes.Repeat([]byte("0123456789abcde\n"), size/16+1)[:size]
		status, text, err := invokeAt(t, client, echo.Listener.Addr().String(), ports.Call{Body: bytes.NewReader(in)})
		if status != 200 || text != string(in) || err != nil {
			t.Errorf("echo of %d bytes: got status %d and %d bytes, %v; want 200 and the same bytes", size, status, len(text), err)
		}
	}
}

// An instance can answer before it has read the whole body, and the caller gets the answer.
func TestAnsweredEarly(t *testing.T) {
	address := newRawServer(t, func(in *bufio.Reader, out net.Conn) {
		if _, err := http.ReadRequest(in); err == nil {
			_, _ = io.WriteString(out, "HTTP/1.1 413 No\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
			_ = out.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, in) // if closed at once, the answer could be lost (RFC 9112, 9.6)
		}
	})
	client := fnhttp.NewClient()
	defer client.Close()
	status, text, err := invokeAt(t, client, address, ports.Call{Body: bytes.NewReader(make([]byte, 32<<20))})
	if status != 413 || text != "no" || err != nil {
		t.Errorf("answer before the end of the body: got %d %q, %v; want 413 \"no\"", status, text, err)
	}
}

// If reading the caller's body fails, the call ends with that error.
func TestBrokenBody(t *testing.T) {
	address := newRawServer(t, func(in *bufio.Reader, _ net.Conn) { readRequest(in) })
	client := fnhttp.NewClient()
	defer client.Close()
	broken := errors.New("broken off")
	_, _, err := invokeAt(t, client, address, ports.Call{Body: io.MultiReader(strings.NewReader("in"), failing{broken})})
	if err == nil || !strings.Contains(err.Error(), broken.Error()) {
		t.Errorf("call whose body fails: got the error %v, want %v", err, broken)
	}
}

// If a connection fails while a body is sent, the error is the connection's, and not one of
// reading the body.
func TestEndsWhileSent(t *testing.T) {
	address := newRawServer(t, func(in *bufio.Reader, out net.Conn) {
		_, _ = in.ReadByte()
		_ = out.(*net.TCPConn).SetLinger(0) // with a reset
	})
	for range 20 {
		_, _, err := invokeAt(t, &fnhttp.Client{}, address, ports.Call{Method: "POST", Body: io.MultiReader(strings.NewReader(strings.Repeat("x", 8<<20)))})
		var ended *net.OpError
		// The kernel reports the reset once: if the writer gets it, the reader sees EOF.
		if !errors.As(err, &ended) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("call whose instance ends: got the error %v, want one that says so", err)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// 1xx answers reach the caller, and the head of an answer is limited.
func TestHeads(t *testing.T) {
	address := newRawServer(t, func(in *bufio.Reader, out net.Conn) {
		readRequest(in)
		_, _ = io.WriteString(out, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nAlt-Svc: h3=\":443\"\r\nKeep-Alive: timeout=5\r\n\r\n"+fine)
	}, func(in *bufio.Reader, out net.Conn) {
		readRequest(in)
		_, err := io.WriteString(out, "HTTP/1.1 200 OK\r\n")
		for line := "X-A: " + strings.Repeat("a", 1<<16) + "\r\n"; err == nil; {
			_, err = io.WriteString(out, line)
		}
	})
	client := fnhttp.NewClient()
	defer client.Close()
	early := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
		if code == 103 && header.Get("Link") == "</a>" && len(header) == 1 {
			early++
		}
		return nil
	}})
	answer, err := client.Invoke(ctx, &instance.Record{Handle: instance.Handle{Address: address}}, ports.Call{})
	if err != nil || answer.StatusCode != 200 || early != 1 {
		t.Fatalf("answer: got %+v, %v after %d interim answers, want 200 after 1", answer, err, early)
	}
	_ = answer.Body.Close() // not read: the connection is not used again
	var failed *ports.CallError
	if _, _, err := invokeAt(t, client, address, ports.Call{}); !errors.As(err, &failed) || failed.Progress != ports.Answered || !strings.Contains(err.Error(), "head") {
		t.Errorf("answer with an endless head: got the error %v, want one about the head, with the progress %v", err, ports.Answered)
	}
}

// Cancelled and closed calls leave no connection.
func TestCancelledCallsReleaseGoroutines(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	before := runtime.NumGoroutine()
	client := fnhttp.NewClient()
	for n := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		answer, err := client.Invoke(ctx, &instance.Record{Handle: instance.Handle{Address: server.Listener.Addr().String()}}, ports.Call{Method: "GET", Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		if n%2 == 0 {
			cancel()
			if _, err := io.ReadAll(answer.Body); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		_ = answer.Body.Close()
		cancel()
	}
	client.Close()
	for end := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("goroutines at the end: got %d, want at most the %d from before", runtime.NumGoroutine(), before)
		}
		time.Sleep(time.Millisecond)
	}
}
