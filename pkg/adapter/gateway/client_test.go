package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
)

// handler answers like a gateway.
var handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	user, password, _ := r.BasicAuth()
	switch r.URL.Path {
	case "/cut":
		panic(http.ErrAbortHandler)
	case "/refuse":
		w.WriteHeader(429)
		_, _ = io.WriteString(w, `{"error":{"code":"queue-full","message":"64 calls wait","hint":"later"}}`)
	case "/plain":
		http.Error(w, "odd", http.StatusBadGateway)
	default:
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, `{"text":"`+strings.Join([]string{r.Method, r.RequestURI, r.Host, user, password, r.Header.Get("X-A")}, " ")+`","body":`+string(body)+`}`)
	}
})

func TestClient(t *testing.T) {
	dir, err := os.MkdirTemp("", "client")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", Socket(dir))
	if err != nil {
		t.Fatal(err)
	}
	local := httptest.NewUnstartedServer(handler)
	_ = local.Listener.Close()
	local.Listener = l
	local.Start()
	defer local.Close()
	remote := httptest.NewServer(handler)
	defer remote.Close()
	bySocket := Dial(dir)
	byURL, err := DialURL(strings.Replace(remote.URL, "http://", "http://u:p@", 1) + "/")
	if err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]*Client{
		"POST /system/x%2Fy?a=b gateway   ":                                   bySocket,
		"POST /system/x%2Fy?a=b " + remote.Listener.Addr().String() + " u p ": byURL,
	} {
		var got struct {
			Text string
			Body map[string]int
		}
		if err := c.Do(t.Context(), "POST", "/system/x%2Fy?a=b", map[string]int{"n": 3}, &got); err != nil || got.Text != want || got.Body["n"] != 3 {
			t.Errorf("answer: got %+v, %v; want %s", got, err, want)
		}
		answer, err := c.Send(t.Context(), "GET", "/x", http.Header{"x-a": {"1"}, "Host": {"h"}}, strings.NewReader("0"))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if !strings.Contains(string(text), "GET /x h ") || !strings.Contains(string(text), ` 1"`) {
			t.Errorf("request: got %s, want GET /x at the host h", text)
		}
		var e *Error
		if err := c.Do(t.Context(), "GET", "/refuse", nil, nil); !errors.As(err, &e) || e.Status != 429 || e.Code != "queue-full" || e.Error() != "64 calls wait" || e.Hint() != "later" || e.Unavailable() {
			t.Errorf("refusal: got %+v, want status 429, the code queue-full, and the hint \"later\"", err)
		}
		if err := c.Do(t.Context(), "GET", "/plain", nil, nil); !errors.As(err, &e) || e.Status != 502 || e.Error() != "the gateway answered 502 Bad Gateway" {
			t.Errorf("answer that is no JSON: got %+v, want the status 502", err)
		}
		if err := c.Do(t.Context(), "GET", "/cut", nil, nil); !errors.As(err, &e) || e.Unavailable() || strings.Contains(err.Error(), ":p@") {
			t.Errorf("answer that breaks off: got %+v, want an error that is not Unavailable and has no password", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.Do(ctx, "GET", "/x", nil, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled request: got %+v, want %v", err, context.Canceled)
		}
		c.Close()
	}
	local.Close()
	remote.Close()
	for _, c := range []*Client{bySocket, byURL} {
		var e *Error
		if err := c.Do(t.Context(), "GET", "/x", nil, nil); !errors.As(err, &e) || !e.Unavailable() || e.Hint() == "" || !strings.HasPrefix(err.Error(), "no gateway at ") || strings.Contains(err.Error(), ":p@") {
			t.Errorf("request without a gateway: got %v, want an Unavailable error with a hint and without the password", err)
		}
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	var e *Error
	if err := bySocket.Do(t.Context(), "GET", "/x", nil, nil); !errors.As(err, &e) || !e.Unavailable() || !strings.Contains(err.Error(), "is writable by other users") {
		t.Errorf("socket in a folder that others can write to: got %v, want an Unavailable error that says so", err)
	}
	for _, bad := range []string{"", "127.0.0.1:8080", "ftp://x", "http://", "http://x/?q", "http://x/#f", "http://%zz"} {
		if _, err := DialURL(bad); err == nil {
			t.Errorf("DialURL(%q): got no error, want one", bad)
		}
	}
}
