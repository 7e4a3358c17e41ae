package gateway

import (
	"bufio"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
)

// TestReuseOnlyAfterCertainEnd checks that the gateway reuses an instance's connection
// only if the end of the last answer is certain. The instance sends the text in the
// query. If another request arrives on the same connection, the instance sends the rest
// of its first answer instead of an answer, and the next caller would receive that.
func TestReuseOnlyAfterCertainEnd(t *testing.T) {
	const second = "HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\nanswer of the last"
	reused := make(chan string, 16)
	w := newWorld(t, pathHandlers{
		"/raw": func(rw http.ResponseWriter, r *http.Request) {
			conn, in, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, r.URL.Query().Get("answer"))
			next, err := http.ReadRequest(in.Reader)
			if err != nil { // the connection's end
				return
			}
			reused <- next.URL.Path
			_, _ = io.WriteString(conn, second)
		},
		"/own": func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "own") },
	}, nil)
	w.apply(fn("f"))
	w.do("GET", "/function/f/own", "") // a HEAD request starts no instance
	for _, c := range []struct {
		name, method, answer string
		status               int
		reused               bool
	}{
		{"HEAD", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n", 200, false},
		{"HEAD with chunks", "HEAD", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 200, false},
		{"HEAD of nothing", "HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, false},
		{"204", "GET", "HTTP/1.1 204 No Content\r\n\r\n", 204, false},
		{"204 with a length", "GET", "HTTP/1.1 204 No Content\r\nContent-Length: 18\r\n\r\n", 204, false},
		{"304", "GET", "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n", 304, false},
		{"304 with a length", "GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 18\r\n\r\n", 304, false},
		{"empty", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, false},
		{"empty POST", "POST", "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n", 201, false},
		{"205", "GET", "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n", 205, false},
		{"103 before it", "GET", "HTTP/1.1 103 Early Hints\r\nContent-Length: 4\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntext", 200, false},
		{"more than its length", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntext" + second, 200, false},
		{"more than its chunks", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntext\r\n0\r\n\r\n" + second, 200, false},
		{"announced end", "GET", "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\ntext", 200, false},
		{"HTTP/1.0", "GET", "HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\ntext", 200, false},
		{"HTTP/1.0 kept, with chunks", "GET", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\ntext", 200, false},
		{"no chunks", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 200, false},
		{"chunks and a length", "GET", "HTTP/1.1 200 OK\r\ncontent-length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntext\r\n0\r\n\r\n", 200, false},
		{"a length", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntext", 200, true},
		{"chunks", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntext\r\n0\r\n\r\n", 200, true},
	} {
		if a := w.do(c.method, "/function/f/raw?answer="+url.QueryEscape(c.answer), ""); a.status != c.status {
			t.Errorf("%s: %+v, want %d", c.name, a, c.status)
		}
		w.awaitNoCalls()
		a := w.do("GET", "/function/f/own", "")
		if c.reused {
			if path := <-reused; path != "/own" || a.body != "answer of the last" {
				t.Errorf("%s: got %+v for %s, want a reuse of the connection, because the end of the answer is certain", c.name, a, path)
			}
			continue
		}
		if a.status != 200 || a.body != "own" || len(reused) > 0 {
			t.Errorf("%s: the next caller got %d %q, want its own answer", c.name, a.status, a.body)
		}
		for len(reused) > 0 {
			<-reused
		}
	}
}

// TestUpgradeOnlyWhenRequested checks that the gateway passes on a 101 answer only if it
// names the protocol that the request asked for. Otherwise the caller gets 502, its next
// request on the same connection goes to the gateway, and the gateway closes the
// instance's connection.
func TestUpgradeOnlyWhenRequested(t *testing.T) {
	ended := make(chan struct{}, 16)
	w := newWorld(t, pathHandlers{
		"/switch": func(rw http.ResponseWriter, r *http.Request) {
			conn, in, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n"+r.URL.Query().Get("head")+"\r\n")
			text, _ := io.ReadAll(in)
			if strings.Contains(string(text), "secret") {
				t.Errorf("the function read %q, want nothing of the next request", text)
			}
			ended <- struct{}{}
		},
		"/next": func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "next") },
	}, nil)
	w.apply(fn("f"), fn("g"))
	const own = "Connection: Upgrade\r\nUpgrade: own\r\n"
	for _, c := range []struct {
		name, proto, asked, answered string
		body                         string
	}{
		{"none asked, none named", "HTTP/1.1", "", "", ""},
		{"none asked", "HTTP/1.1", "", own, ""},
		{"none named", "HTTP/1.1", own, "", ""},
		{"another", "HTTP/1.1", own, "Connection: Upgrade\r\nUpgrade: other\r\n", ""},
		{"it and another", "HTTP/1.1", own, own + "Upgrade: other\r\n", ""},
		{"named without Connection", "HTTP/1.1", own, "Upgrade: own\r\n", ""},
		{"asked without Connection", "HTTP/1.1", "Upgrade: own\r\n", own, ""},
		{"HTTP/1.0", "HTTP/1.0", "Connection: keep-alive, Upgrade\r\nUpgrade: own\r\n", own, ""},
		{"a body that was not read", "HTTP/1.1", own + "Content-Length: 5000\r\n", own, strings.Repeat("x", 4990)},
		{"an ambiguous length", "HTTP/1.1", own + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", own, "0\r\n\r\n"},
	} {
		conn := w.dial("POST /function/f/switch?head=" + url.QueryEscape(c.answered) + " " + c.proto + "\r\nHost: x\r\n" + c.asked + "\r\n" + c.body)
		in := bufio.NewReader(conn)
		a, err := finalAnswer(in)
		if err != nil || a.StatusCode != 502 || a.Header.Get("Gfaas-Reason") != refusal.BadAnswer {
			t.Errorf("%s: %+v, %v; want 502 %s", c.name, a, err, refusal.BadAnswer)
			continue
		}
		<-ended
		if a.Close {
			continue
		}
		if _, err := io.WriteString(conn, "GET /function/g/next?secret HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if a, err := finalAnswer(in); err != nil || a.StatusCode != 200 || !strings.HasPrefix(a.Header.Get("Gfaas-Instance"), "g.") {
			t.Errorf("%s: the next request: got %+v, %v; want status 200 of an instance of g", c.name, a, err)
		}
	}
	w.awaitNoCalls()
}

// TestUpgradeEarlyData checks that data that a caller sends together with an upgrade
// request reaches the function.
func TestUpgradeEarlyData(t *testing.T) {
	w := newWorld(t, pathHandlers{"/socket": func(rw http.ResponseWriter, _ *http.Request) {
		conn, in, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\nAlt-Svc: h3=\":443\"\r\n\r\n")
		_, _ = io.Copy(conn, in)
	}}, nil)
	w.apply(fn("f"))
	early := strings.Repeat("early data ", 300)
	conn := w.dial("GET /function/f/socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: Own\r\n\r\n" + early)
	in := bufio.NewReader(conn)
	r, err := http.ReadResponse(in, nil)
	if err != nil || r.StatusCode != 101 {
		t.Fatalf("got %+v, %v; want status 101", r, err)
	}
	if alternative := r.Header.Values("Alt-Svc"); len(alternative) > 0 {
		t.Errorf("the answer 101 has Alt-Svc %q, want none", alternative)
	}
	_, _ = io.WriteString(conn, "and more")
	got := make([]byte, len(early)+len("and more"))
	if _, err := io.ReadFull(in, got); err != nil || string(got) != early+"and more" {
		t.Errorf("got %d bytes, %v; want the same %d bytes back", len(got), err, len(early+"and more"))
	}
	_ = conn.Close()
	w.awaitNoCalls()
}

// TestNoInterimAnswersToHTTP10 checks that an HTTP/1.0 caller gets only the final answer.
func TestNoInterimAnswersToHTTP10(t *testing.T) {
	w := newWorld(t, pathHandlers{"/early": raw("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntext")}, nil)
	w.apply(fn("f"))
	text, err := io.ReadAll(w.dial("GET /function/f/early HTTP/1.0\r\nHost: x\r\n\r\n"))
	if err != nil || !strings.HasPrefix(string(text), "HTTP/1.0 200 OK\r\n") || !strings.HasSuffix(string(text), "\r\n\r\ntext") || strings.Contains(string(text), "Link") {
		t.Errorf("got %s, %v; want only the final answer, as HTTP/1.0", text, err)
	}
}

// TestTrailers checks that a function's trailers reach the caller, except fields about
// the connection and fields that the gateway sets itself.
func TestTrailers(t *testing.T) {
	for name, announced := range map[string]string{"announced": "Trailer: X-Sum, Alt-Svc, X-Call-Id\r\n", "not announced": ""} {
		w := newWorld(t, pathHandlers{"/trailers": raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + announced +
			"\r\n4\r\ntext\r\n0\r\nX-Sum: 1\r\nAlt-Svc: h3=\":443\"\r\nX-Call-Id: forged\r\nConnection: close\r\nContent-Type: text/html\r\n\r\n")}, nil)
		w.apply(fn("f"))
		conn := w.dial("GET /function/f/trailers HTTP/1.1\r\nHost: x\r\nX-Call-Id: own\r\nConnection: close\r\n\r\n")
		text, err := io.ReadAll(conn)
		head, rest, _ := strings.Cut(string(text), "\r\n\r\n")
		if err != nil || !strings.Contains(rest, "X-Sum: 1\r\n") {
			t.Errorf("%s: %q, %v; want the trailer X-Sum", name, rest, err)
		}
		for _, field := range []string{"Alt-Svc", "forged", "Content-Type: text/html", "\r\nConnection"} {
			if strings.Contains(rest, field) || field != "\r\nConnection" && strings.Contains(head, field) {
				t.Errorf("%s: the caller got the field %s, want it removed:\n%s", name, field, text)
			}
		}
	}
}

// TestEarlyAnswerKeepsNoConnection checks that if a function answers before it has
// received the whole request, the rest of that request does not become the beginning of
// the next call.
func TestEarlyAnswerKeepsNoConnection(t *testing.T) {
	reused := make(chan string, 1)
	rest := make(chan struct{})
	w := newWorld(t, pathHandlers{
		"/early": func(rw http.ResponseWriter, _ *http.Request) {
			conn, in, err := http.NewResponseController(rw).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly")
			<-rest
			for {
				next, err := http.ReadRequest(in.Reader)
				if err != nil {
					return
				}
				if next.URL.Path == "/own" {
					reused <- next.URL.Path
				}
			}
		},
		"/own": func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "own") },
	}, nil)
	w.apply(fn("f"))
	conn := w.dial("POST /function/f/early HTTP/1.1\r\nHost: x\r\nContent-Length: 20000\r\n\r\n" + strings.Repeat("x", 2000))
	if a, err := finalAnswer(bufio.NewReader(conn)); err != nil || a.StatusCode != 200 {
		t.Fatalf("got %+v, %v; want status 200", a, err)
	}
	_, _ = io.WriteString(conn, strings.Repeat("x", 18000))
	close(rest)
	w.awaitNoCalls()
	if a := w.do("GET", "/function/f/own", ""); a.body != "own" || len(reused) > 0 {
		t.Errorf("got %+v, and the connection was reused; want body own on a new connection", a)
	}
}
