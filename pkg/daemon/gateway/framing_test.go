package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
)

// smuggled is the text of a request of 1 KiB. The tests build bodies from it.
var smuggled = func() string {
	head := "GET /function/f/smuggled HTTP/1.1\r\nHost: x\r\nX-Pad: "
	return head + strings.Repeat("p", 1024-len(head)-4) + "\r\n\r\n"
}()

// chunked frames a body in chunks of 1000 bytes, so that in some chunks the text of a
// request begins at the start of a line.
func chunked(body string) string {
	var out strings.Builder
	for len(body) > 0 {
		n := min(len(body), 1000)
		fmt.Fprintf(&out, "%x\r\n%s\r\n", n, body[:n])
		body = body[n:]
	}
	return out.String() + "0\r\n\r\n"
}

// answersEarly returns a handler that answers 418 before it has read the request's body.
// Then it reads the body, leaves it unread, or ends the connection without having
// announced that.
func answersEarly(then string, release <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		head := "HTTP/1.1 418 I'm a teapot\r\nContent-Length: 5\r\n"
		if then != "ends" {
			head += "Connection: close\r\n"
		}
		_, _ = io.WriteString(conn, head+"\r\nearly")
		switch then {
		case "ends":
			_ = conn.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, conn)
		case "reads":
			_, _ = io.Copy(io.Discard, conn)
		case "waits":
			<-release
		}
	}
}

// TestOneAnswerPerRequest sends a request whose body consists of further requests and
// which is answered before the body was read, and then a second request on the same
// connection. The first request gets exactly one answer. Either that answer announces
// that the connection closes, which then ends without a reset, or the second request is
// answered correctly. No request in a body is executed, and no handler panics.
func TestOneAnswerPerRequest(t *testing.T) {
	t.Parallel()
	var stolen atomic.Int64
	release := make(chan struct{})
	var logged bytes.Buffer
	var logging sync.Mutex
	w := newWorld(t, pathHandlers{
		"/smuggled": func(http.ResponseWriter, *http.Request) { stolen.Add(1) },
		"/next":     func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "next") },
		"/reads":    answersEarly("reads", nil), "/waits": answersEarly("waits", release), "/ends": answersEarly("ends", nil),
	}, func(c *Config) {
		withAsync(t)(c)
		c.GPUs[0].Mem = 1 << 30
		c.MaxBody, c.Concurrency = 4<<20, 8
		c.Log = slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
			logging.Lock()
			defer logging.Unlock()
			return logged.Write(p)
		}), nil))
	})
	defer close(release)
	w.runtime.FailStart = func(s instance.Spec) error {
		if s.Function == "broken" {
			return errors.New("it does not start")
		}
		return nil
	}
	w.apply(fn("f", func(f *function.Function) { f.Inflight = 8 }), fn("broken"), fn("big", func(f *function.Function) { f.GPUMem = 2 * gpu.GiB }))
	if a := w.do("GET", "/function/f/next", ""); a.status != 200 {
		t.Fatalf("got %+v; want status 200", a)
	}
	big := strings.Repeat(smuggled, 1000)
	small := strings.Repeat(smuggled, 20)
	for _, c := range []struct {
		name, request string // the head up to the fields of the body
		status        int
		large         bool // only the large body gets this answer
	}{
		{name: "function reads on", request: "POST /function/f/reads HTTP/1.1", status: 418},
		{name: "function ends its connection", request: "POST /function/f/ends HTTP/1.1", status: 418},
		{name: "function reads no more", request: "POST /function/f/waits HTTP/1.1", status: 418},
		{name: "upgrade with a body", request: "POST /function/f/reads HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: own", status: 418},
		{name: "KServe", request: "POST /v2/models/none/infer HTTP/1.1", status: 404},
		{name: "start failed", request: "POST /function/broken HTTP/1.1", status: 502},
		{name: "larger than a GPU", request: "POST /function/big HTTP/1.1", status: 503},
		{name: "no function", request: "POST /function/none HTTP/1.1", status: 404},
		{name: "no path", request: "POST /nothing HTTP/1.1", status: 404},
		{name: "wrong method of /v1", request: "PUT /v1/chat/completions HTTP/1.1", status: 405},
		{name: "no model", request: "POST /v1/chat/completions HTTP/1.1", status: 400},
		{name: "models", request: "GET /v1/models HTTP/1.1", status: 200},
		{name: "asynchronous, no function", request: "POST /async-function/none HTTP/1.1", status: 404},
		{name: "asynchronous, wrong method", request: "PUT /async-function/f HTTP/1.1", status: 405},
		{name: "asynchronous, bad callback", request: "POST /async-function/f HTTP/1.1\r\nX-Callback-Url: nowhere", status: 400},
		{name: "management", request: "PUT /system/nothing HTTP/1.1", status: 404},
		{name: "health", request: "GET /healthz HTTP/1.1", status: 200},
		{name: "metrics", request: "GET /metrics HTTP/1.1", status: 200},
		{name: "CONNECT", request: "CONNECT /function/f/next HTTP/1.1", status: 405},
		{name: "OPTIONS of the server", request: "OPTIONS * HTTP/1.1", status: 404},
		{name: "another site", request: "GET /system/status HTTP/1.1\r\nOrigin: http://elsewhere.example", status: 403},
		{name: "HTTP/1.0", request: "POST /function/f/waits HTTP/1.0\r\nConnection: keep-alive", status: 418},
		{name: "HTTP/1.0, refused", request: "POST /function/none HTTP/1.0\r\nConnection: keep-alive", status: 404},
	} {
		for _, framing := range []string{"length", "chunked", "expect"} {
			old := strings.Contains(c.request, "HTTP/1.0")
			if old && framing != "length" {
				continue
			}
			for size, body := range map[string]string{"small": small, "large": big} {
				name := fmt.Sprintf("%s, %s, %s", c.name, framing, size)
				head, sent := "\r\nHost: localhost\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n", body
				switch framing {
				case "chunked":
					head, sent = "\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", chunked(body)
				case "expect":
					head = "\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n"
				}
				w.exchange(name, c.request+head, sent, c.status, framing == "expect")
			}
		}
	}
	if n := stolen.Load(); n > 0 {
		t.Errorf("%d requests were carried out that are parts of bodies, want 0", n)
	}
	logging.Lock()
	defer logging.Unlock()
	if text := logged.String(); strings.Contains(text, "panic") {
		t.Errorf("log: got a panic, want none:\n%.2000s", text)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// exchange sends a request and then, on the same connection, a second request, which is
// answered with "next". It checks both answers. A body announced by Expect is sent
// without waiting for a 100 answer, as a caller may do (RFC 9110, section 10.1.1).
func (w *world) exchange(name, head, body string, status int, expects bool) {
	w.t.Helper()
	conn := w.dial(head)
	defer conn.Close()
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(conn, body)
		sent <- err
	}()
	in := bufio.NewReader(conn)
	first, err := finalAnswer(in)
	if err != nil {
		w.t.Errorf("%s: no answer: %v", name, err)
		return
	}
	if first.StatusCode != status {
		w.t.Errorf("%s: %d, want %d", name, first.StatusCode, status)
	}
	if first.Close {
		rest, err := io.ReadAll(in)
		if err != nil || len(rest) > 0 {
			w.t.Errorf("%s: after the last answer: %d bytes %.80q, %v; want the end of the connection", name, len(rest), rest, err)
		}
		if err := <-sent; err != nil {
			w.t.Errorf("%s: the body could not be sent: %v", name, err)
		}
		return
	}
	if err := <-sent; err != nil {
		w.t.Errorf("%s: the body could not be sent: %v", name, err)
		return
	}
	if _, err := io.WriteString(conn, "GET /function/f/next HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
		w.t.Errorf("%s: second request: %v", name, err)
	}
	second, err := finalAnswer(in)
	if err != nil {
		w.t.Errorf("%s: no answer to the second request: %v", name, err)
		return
	}
	if text, err := io.ReadAll(in); second.StatusCode != 200 || second.Header.Get("Content-Length") != "4" || err != nil || len(text) > 0 {
		w.t.Errorf("%s: second answer %d of %s bytes, then %d bytes, %v; want 200, 4, none", name, second.StatusCode, second.Header.Get("Content-Length"), len(text), err)
	}
}

// finalAnswer reads an answer and its body. It skips 1xx answers before it.
func finalAnswer(in *bufio.Reader) (*http.Response, error) {
	for {
		r, err := http.ReadResponse(in, nil)
		if err != nil || r.StatusCode >= 200 {
			if err == nil {
				_, err = io.Copy(io.Discard, r.Body)
			}
			return r, err
		}
	}
}

// TestTooLargeIsRead checks that a caller that sends all of a too large body before it
// reads gets the answer 413 and then the end of the connection, however the body is
// framed.
func TestTooLargeIsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(echo), withAsync(t))
	w.apply(fn("f"))
	body := strings.Repeat("x", 8<<20)
	for _, path := range []string{"/function/f", "/async-function/f", "/v1/chat/completions", "/system/functions"} {
		for framing, head := range map[string]string{"length": fmt.Sprintf("Content-Length: %d", len(body)), "chunked": "Transfer-Encoding: chunked"} {
			sent := body
			if framing == "chunked" {
				sent = fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
			}
			conn := w.dial("POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + head + "\r\n\r\n")
			if _, err := io.WriteString(conn, sent); err != nil {
				t.Errorf("%s, %s: the body could not be sent: %v", path, framing, err)
				continue
			}
			in := bufio.NewReader(conn)
			a, err := finalAnswer(in)
			want := 413
			if path == "/v1/chat/completions" && framing == "chunked" {
				want = 400 // the body is not a JSON object
			}
			if err != nil || a.StatusCode != want || !a.Close {
				t.Errorf("%s, %s: got the answer %+v, %v; want %d and Connection: close", path, framing, a, err, want)
				continue
			}
			if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
				t.Errorf("%s, %s: after the answer: got %d bytes, %v; want the end of the connection", path, framing, len(rest), err)
			}
		}
	}
}

// TestAmbiguousLength checks that after a request whose length two recipients may
// interpret differently, the gateway closes the connection. After other requests it does
// not.
func TestAmbiguousLength(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f"))
	const (
		post    = "POST /function/f HTTP/1.1\r\nHost: localhost\r\n"
		old     = "POST /function/f HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n"
		length  = post + "Content-Length: 5\r\n\r\nhello"
		chunks  = post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
		both    = post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
		both2   = post + "transfer-encoding: chunked\r\nX-Pad: y\r\ncontent-length: 20\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
		refused = "PUT /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
	)
	long := post + "X-Pad: " + strings.Repeat("p", 9000) + "\r\nContent-Length: 5\r\nX-More: " + strings.Repeat("p", 9000) + "\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
	for _, c := range []struct {
		name     string
		requests []string // the test checks the answer to the last request
		closed   bool
	}{
		{"length", []string{length}, false},
		{"chunks", []string{chunks}, false},
		{"chunks after a length", []string{length, chunks}, false},
		{"a length after chunks", []string{chunks, length}, false},
		{"many of both kinds", []string{length, chunks, length, chunks}, false},
		{"both", []string{both}, true},
		{"both, otherwise written", []string{both2}, true},
		{"both, in a long head", []string{long}, true},
		{"both, after others", []string{length, chunks, both}, true},
		{"both, refused", []string{refused}, true},
		{"HTTP/1.0 with a length", []string{old + "Content-Length: 5\r\n\r\nhello"}, false},
		{"HTTP/1.0 with both", []string{old + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello"}, true},
		{"HTTP/1.0 with both and no body", []string{old + "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n"}, true},
	} {
		for _, pieces := range []int{1 << 20, 7} { // bytes per write
			conn := w.dial("")
			in := bufio.NewReader(conn)
			var last *http.Response
			for _, text := range c.requests {
				for len(text) > 0 {
					n := min(pieces, len(text))
					if _, err := io.WriteString(conn, text[:n]); err != nil {
						t.Fatal(err)
					}
					text = text[n:]
				}
				var err error
				if last, err = finalAnswer(in); err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
			}
			if last.Close != c.closed {
				t.Errorf("%s, %d bytes at once: got Connection: close %v in the answer, want %v", c.name, pieces, last.Close, c.closed)
			}
			_ = conn.Close()
		}
	}
	// The gateway does not answer a request that was sent together with an ambiguous
	// request,
	conn := w.dial(both + length)
	in := bufio.NewReader(conn)
	if a, err := finalAnswer(in); err != nil || !a.Close {
		t.Errorf("got %+v, %v; want Connection: close", a, err)
	}
	if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
		t.Errorf("after the last answer: got %q, %v; want the end of the connection", rest, err)
	}
	// not even if the ambiguous request followed a valid one.
	conn = w.dial(length + both + length)
	in = bufio.NewReader(conn)
	answers := 0
	for {
		a, err := finalAnswer(in)
		if err != nil {
			break
		}
		answers++
		if a.Close {
			break
		}
	}
	if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 || answers > 2 {
		t.Errorf("got %d answers, then %q, %v; want at most 2 and the end of the connection", answers, rest, err)
	}
}

// TestFieldsOfEarlierRequests checks that the fields of a request do not affect the next
// request, even if the server's background read begins only after the handler has
// returned. With one processor this is always so, because these handlers do not block.
func TestFieldsOfEarlierRequests(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	w := newWorld(t, http.HandlerFunc(echo), nil)
	const put = "PUT /v1/x HTTP/1.1\r\nHost: localhost\r\n"
	conn := w.dial("")
	in := bufio.NewReader(conn)
	for n := range 50 {
		request := put + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
		if n%2 == 1 {
			request = put + "Content-Length: 1\r\n\r\nx"
		}
		if _, err := io.WriteString(conn, request); err != nil {
			t.Fatal(err)
		}
		if a, err := finalAnswer(in); err != nil || a.StatusCode != 405 || a.Close {
			t.Fatalf("request %d: %+v, %v; want 405 and an open connection", n, a, err)
		}
	}
}

// TestLastAnswerIsRead checks that a client that sends an ambiguous request and many
// further requests before it reads gets one answer and then the end of the connection,
// even if the server has read none of the further requests that exceed its buffer.
func TestLastAnswerIsRead(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // the handler returns before the server continues reading
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f"))
	const fields = " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
	for request, status := range map[string]int{"PUT /v1/x": 405, "POST /function/f": 200} {
		conn := w.dial(request + fields + strings.Repeat(smuggled, 64))
		in := bufio.NewReader(conn)
		if a, err := finalAnswer(in); err != nil || a.StatusCode != status || !a.Close {
			t.Errorf("%s: %+v, %v; want %d and Connection: close", request, a, err, status)
			continue
		}
		if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
			t.Errorf("%s: after the answer: %d bytes, %v; want the connection's end", request, len(rest), err)
		}
	}
}

// TestSlowBodyIsNotAwaited checks that if an answer leaves the body unread, a caller that
// stops sending the body does not delay the answer, and the connection ends.
func TestSlowBodyIsNotAwaited(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t, pathHandlers{"/waits": answersEarly("waits", release)}, func(c *Config) { c.BodyTimeout = time.Hour })
	defer close(release)
	w.apply(fn("f"))
	for path, status := range map[string]int{"/function/none": 404, "/function/f/waits": 418} {
		conn := w.dial("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("x", 2000))
		in := bufio.NewReader(conn)
		a, err := finalAnswer(in)
		if err != nil || a.StatusCode != status || !a.Close {
			t.Errorf("%s: got %+v, %v; want status %d and Connection: close", path, a, err, status)
			continue
		}
		if _, err := in.ReadByte(); err != io.EOF {
			t.Errorf("%s: %v, want the connection's end", path, err)
		}
	}
}
