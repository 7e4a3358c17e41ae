package gateway

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestContentTypeIsNotGuessed checks that an answer has the Content-Type that the
// function sent, or none, and tells browsers not to guess one.
func TestContentTypeIsNotGuessed(t *testing.T) {
	const script = "<html><script>alert(1)</script>"
	answers := pathHandlers{}
	rows := []struct {
		name, text string
		kind       []string
		status     int
	}{
		{"none", "HTTP/1.1 200 OK\r\nContent-Length: 31\r\n\r\n" + script, nil, 200},
		{"chunked", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1f\r\n" + script + "\r\n0\r\n\r\n", nil, 200},
		{"until the end", "HTTP/1.1 200 OK\r\n\r\n" + script, nil, 200},
		{"empty", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", nil, 200},
		{"error", "HTTP/1.1 404 Not Found\r\nContent-Length: 31\r\n\r\n" + script, nil, 404},
		{"after an early answer", "HTTP/1.1 103 Early Hints\r\nContent-Type: text/html\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 31\r\n\r\n" + script, nil, 200},
		{"no content", "HTTP/1.1 204 No Content\r\n\r\n", nil, 204},
		{"not modified", "HTTP/1.1 304 Not Modified\r\nEtag: \"x\"\r\n\r\n", nil, 304},
		{"its own", "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 31\r\n\r\n" + script, []string{"text/html"}, 200},
		{"with nosniff", "HTTP/1.1 200 OK\r\nx-content-type-options: nosniff\r\nX-Content-Type-Options: sniff\r\nContent-Length: 31\r\n\r\n" + script, nil, 200},
	}
	for _, c := range rows {
		answers["/"+strings.ReplaceAll(c.name, " ", "-")] = raw(c.text)
	}
	answers["/upgrade"] = func(rw http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(rw).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: own\r\nX-Content-Type-Options: nosniff\r\n\r\n")
			_ = conn.Close()
		}
	}
	w := newWorld(t, answers, withAsync(t))
	w.apply(fn("f"))
	for _, c := range rows {
		a := w.do("GET", "/function/f/"+strings.ReplaceAll(c.name, " ", "-"), "")
		if got := a.header.Values("Content-Type"); a.status != c.status || fmt.Sprint(got) != fmt.Sprint(c.kind) {
			t.Errorf("%s: got %d with Content-Type %q, want %d with %q", c.name, a.status, got, c.status, c.kind)
		}
		if got := a.header.Values("X-Content-Type-Options"); len(got) != 1 || got[0] != "nosniff" {
			t.Errorf("%s: X-Content-Type-Options %q, want nosniff once", c.name, got)
		}
	}
	// In the answer to an upgrade, no header that the gateway sets occurs twice.
	conn := w.dial("GET /function/f/upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: own\r\n\r\n")
	if r, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || r.StatusCode != 101 || len(r.Header.Values("X-Content-Type-Options")) != 1 || r.Header["Content-Type"] != nil {
		t.Errorf("upgraded: got %+v, %v; want status 101, X-Content-Type-Options once and no Content-Type", r, err)
	}
	for _, path := range []string{"/system/status", "/system/functions", "/system/nothing", "/system/logs?name=f", "/system/info", "/ui/", "/", "/metrics", "/healthz", "/readyz", "/v1/models", "/v1/models/none", "/function/none", "/nothing"} {
		if a := w.do("GET", path, ""); len(a.header.Values("X-Content-Type-Options")) != 1 || a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d with X-Content-Type-Options %q, want nosniff once", path, a.status, a.header.Values("X-Content-Type-Options"))
		}
	}
	if a := w.do("POST", "/async-function/f", "x"); a.status != 202 || a.header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("asynchronous: got %+v; want status 202, X-Content-Type-Options nosniff", a)
	}
}
