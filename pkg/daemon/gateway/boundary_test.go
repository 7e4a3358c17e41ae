package gateway

import (
	"bufio"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// TestAnswersKeepTheirCallers: an instance answers with what the query says. If a
// further request comes on the same connection, it does not answer that but goes on
// with the rest of its first answer, which the next caller would get. So its
// connection must not be used again unless the end of the answer is certain.
func TestAnswersKeepTheirCallers(t *testing.T) {
	const late = "HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\nanswer of the last"
	reused := make(chan string, 16)
	w := newWorld(t, mixed{
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
			_, _ = io.WriteString(conn, late)
		},
		"/own": func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "own") },
	}, nil)
	w.apply(fn("f"))
	w.do("GET", "/function/f/own", "") // HEAD starts no instance
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
		{"more than its length", "GET", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntext" + late, 200, false},
		{"more than its chunks", "GET", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntext\r\n0\r\n\r\n" + late, 200, false},
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
		w.settled()
		a := w.do("GET", "/function/f/own", "")
		if c.reused {
			if path := <-reused; path != "/own" || a.body != "answer of the last" {
				t.Errorf("%s: %+v, %s; the connection is not used again although the end is certain", c.name, a, path)
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

// TestUpgradeOnlyWhenRequested: an answer 101 is passed on only where it names the
// protocol that the request asked for. Otherwise the caller gets 502, its next request
// on the same connection goes to the gateway, and the instance's connection is closed.
func TestUpgradeOnlyWhenRequested(t *testing.T) {
	ended := make(chan struct{}, 16)
	w := newWorld(t, mixed{
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
				t.Errorf("the function read %q", text)
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
		if err != nil || a.StatusCode != 502 || a.Header.Get("Gfaas-Reason") != codeBadAnswer {
			t.Errorf("%s: %+v, %v; want 502 %s", c.name, a, err, codeBadAnswer)
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
			t.Errorf("%s: the next request: %+v, %v", c.name, a, err)
		}
	}
	w.settled()
}

// TestUpgradeEarlyData: what a caller sends together with an upgrade request reaches
// the function.
func TestUpgradeEarlyData(t *testing.T) {
	w := newWorld(t, mixed{"/socket": func(rw http.ResponseWriter, _ *http.Request) {
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
		t.Fatalf("%+v, %v", r, err)
	}
	if alternative := r.Header.Values("Alt-Svc"); len(alternative) > 0 {
		t.Errorf("the answer 101 has Alt-Svc %q, want none", alternative)
	}
	_, _ = io.WriteString(conn, "and more")
	got := make([]byte, len(early)+len("and more"))
	if _, err := io.ReadFull(in, got); err != nil || string(got) != early+"and more" {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
	_ = conn.Close()
	w.settled()
}

// TestNoInterimAnswersToHTTP10: a caller by HTTP/1.0 gets the final answer alone.
func TestNoInterimAnswersToHTTP10(t *testing.T) {
	w := newWorld(t, mixed{"/early": raw("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntext")}, nil)
	w.apply(fn("f"))
	text, err := io.ReadAll(w.dial("GET /function/f/early HTTP/1.0\r\nHost: x\r\n\r\n"))
	if err != nil || !strings.HasPrefix(string(text), "HTTP/1.0 200 OK\r\n") || !strings.HasSuffix(string(text), "\r\n\r\ntext") || strings.Contains(string(text), "Link") {
		t.Errorf("%s, %v", text, err)
	}
}

// TestTrailers: a function's trailers reach the caller, but for those that speak of the
// connection and those that the gateway sets itself.
func TestTrailers(t *testing.T) {
	for name, announced := range map[string]string{"announced": "Trailer: X-Sum, Alt-Svc, X-Call-Id\r\n", "not announced": ""} {
		w := newWorld(t, mixed{"/trailers": raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n" + announced +
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
				t.Errorf("%s: the caller got %s:\n%s", name, field, text)
			}
		}
	}
}

// TestEarlyAnswerKeepsNoConnection: where a function answers before it was sent all of a
// request, the rest of that request is not the beginning of the next call.
func TestEarlyAnswerKeepsNoConnection(t *testing.T) {
	reused := make(chan string, 1)
	rest := make(chan struct{})
	w := newWorld(t, mixed{
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
		t.Fatalf("%+v, %v", a, err)
	}
	_, _ = io.WriteString(conn, strings.Repeat("x", 18000))
	close(rest)
	w.settled()
	if a := w.do("GET", "/function/f/own", ""); a.body != "own" || len(reused) > 0 {
		t.Errorf("%+v; the connection was used again", a)
	}
}
