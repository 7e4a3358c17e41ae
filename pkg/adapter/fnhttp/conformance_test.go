package fnhttp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// TestConformance checks that a Client conforms to ports.Invoker.
func TestConformance(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"passes any request":     testForm,
		"answers pass unchanged": testAnswers,
		"streams":                testStreams,
		"ends with its context":  testCallCancelled,
		"no listener":            testNoListener,
		"dies before an answer":  testDies,
		"answer is cut off":      testTruncated,
		"is sent once":           testNoResend,
		"refuses invalid calls":  testNoCall,
	} {
		t.Run(name, test)
	}
}

// serve runs a handler until the test ends. It returns a client, and the address of the handler.
func serve(t *testing.T, h http.Handler) (*Client, string) {
	t.Helper()
	s := httptest.NewServer(h)
	client := NewClient()
	t.Cleanup(func() { client.Close(); s.Close() })
	return client, s.Listener.Addr().String()
}

// at returns an instance at an address.
func at(address string) *instance.Record {
	return &instance.Record{ID: "f-0", Function: "f", Contract: "http", Handle: instance.Handle{Address: address}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func readAll(t *testing.T, answer *http.Response) string {
	t.Helper()
	text, err := io.ReadAll(answer.Body)
	must(t, errors.Join(err, answer.Body.Close()))
	return string(text)
}

func testForm(t *testing.T) {
	i, address := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s %q %v %s", r.Method, r.RequestURI, body, r.Header["X-A"], r.Host)
	}))
	header := http.Header{"x-a": {"1", "2"}, "Host": {"f.example"}}
	for _, c := range []struct {
		call ports.Call
		want string
	}{
		{ports.Call{}, `POST / "" [] ` + address},
		{ports.Call{Body: strings.NewReader("in"), Header: header}, `POST / "in" [1 2] f.example`},
		{ports.Call{Method: "GET", Path: "/a%2Fb//c%20d", Query: "x=1&y=%20&x"}, `GET /a%2Fb//c%20d?x=1&y=%20&x "" [] ` + address},
		{ports.Call{Method: "PUT", Path: "/a", Body: strings.NewReader("in")}, `PUT /a "in" [] ` + address},
		{ports.Call{Method: "DELETE", Path: "//a", Header: header}, `DELETE //a "" [1 2] f.example`},
		{ports.Call{Method: "MKCOL", Path: "/", Header: http.Header{"Idempotency-Key": {"k"}}}, `MKCOL / "" [] ` + address},
	} {
		answer, err := i.Invoke(t.Context(), at(address), c.call)
		must(t, err)
		expect(t, readAll(t, answer), c.want)
	}
}

func testAnswers(t *testing.T) {
	i, address := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["X-B"] = []string{"1", "2"}
		w.Header().Set("Location", "/elsewhere")
		var status int
		_, _ = fmt.Sscan(strings.TrimPrefix(r.URL.Path, "/"), &status)
		w.WriteHeader(status)
	}))
	for _, status := range []int{200, 204, 307, 404, 429, 500, 503} {
		answer, err := i.Invoke(t.Context(), at(address), ports.Call{Method: "GET", Path: fmt.Sprintf("/%d", status)})
		must(t, err)
		if answer.StatusCode != status || !reflect.DeepEqual(answer.Header["X-B"], []string{"1", "2"}) || readAll(t, answer) != "" {
			t.Errorf("%d: got %s, %v", status, answer.Status, answer.Header)
		}
	}
}

// testStreams checks that both bodies pass while they are written.
func testStreams(t *testing.T) {
	i, address := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		_ = control.EnableFullDuplex()
		for lines := bufio.NewScanner(r.Body); lines.Scan(); {
			fmt.Fprintf(w, "got %s\n", lines.Text())
			_ = control.Flush()
		}
	}))
	out, in := io.Pipe()
	go func() { fmt.Fprintln(in, "one") }()
	answer, err := i.Invoke(t.Context(), at(address), ports.Call{Body: out})
	must(t, err)
	defer answer.Body.Close()
	lines := bufio.NewReader(answer.Body)
	for _, next := range []string{"two", ""} {
		got, err := lines.ReadString('\n')
		must(t, err)
		want := "got one\n"
		if next == "" {
			want = "got two\n"
		}
		expect(t, got, want)
		go func() {
			if next == "" {
				_ = in.Close()
			} else {
				fmt.Fprintln(in, next)
			}
		}()
	}
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("in the end %q, %v", rest, err)
	}
}

func testCallCancelled(t *testing.T) {
	seen := make(chan bool)
	ended := make(chan bool)
	i, address := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/head" {
			_ = http.NewResponseController(w).Flush()
		}
		seen <- true
		<-r.Context().Done()
		ended <- true
	}))
	for _, path := range []string{"/", "/head"} {
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-seen; cancel() }()
		answer, err := i.Invoke(ctx, at(address), ports.Call{Path: path})
		if err == nil {
			_, err = io.ReadAll(answer.Body)
			_ = answer.Body.Close()
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", path, err)
		}
		<-ended
	}
}

func failedWith(t *testing.T, err error, want ports.Progress) {
	t.Helper()
	var failed *ports.CallError
	if !errors.As(err, &failed) || failed.Progress != want {
		t.Errorf("failed with %v, want a *ports.CallError with Progress %v", err, want)
	}
}

func testNoListener(t *testing.T) {
	i, _ := serve(t, http.NotFoundHandler())
	body := strings.NewReader("in")
	_, err := i.Invoke(t.Context(), at("127.0.0.1:1"), ports.Call{Body: body})
	failedWith(t, err, ports.NotConnected)
	if body.Len() != 2 {
		t.Error("the body was read")
	}
}

func testDies(t *testing.T) {
	i, address := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	_, err := i.Invoke(t.Context(), at(address), ports.Call{Body: strings.NewReader("in")})
	failedWith(t, err, ports.Sent)
}

func testTruncated(t *testing.T) {
	i, address := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	answer, err := i.Invoke(t.Context(), at(address), ports.Call{})
	must(t, err)
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err == nil || string(text) != "half" {
		t.Errorf("got %q, %v, want half and an error", text, err)
	}
}

// testNoResend checks that no call is sent twice, whatever its method and headers.
func testNoResend(t *testing.T) {
	var calls atomic.Int32
	i, address := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/dies" {
			return
		}
		calls.Add(1)
		panic(http.ErrAbortHandler)
	}))
	key := http.Header{"Idempotency-Key": {"k"}}
	for _, c := range []ports.Call{
		{Method: "GET"}, {Method: "HEAD"}, {Method: "OPTIONS"}, {Method: "PUT", Header: key}, {Method: "POST", Header: key},
		{Method: "POST", Header: key, Body: strings.NewReader("in")}, {Method: "POST"},
	} {
		answer, err := i.Invoke(t.Context(), at(address), ports.Call{Method: "GET", Path: "/"}) // opens a connection
		must(t, err)
		readAll(t, answer)
		calls.Store(0)
		c.Path = "/dies"
		_, err = i.Invoke(t.Context(), at(address), c)
		failedWith(t, err, ports.Sent)
		if n := calls.Load(); n != 1 {
			t.Errorf("%s %v was sent %d times", c.Method, c.Header, n)
		}
	}
}

func testNoCall(t *testing.T) {
	i, address := serve(t, http.NotFoundHandler())
	for _, c := range []ports.Call{{Path: "a"}, {Path: "/a b"}, {Path: "/%zz"}, {Path: "/a?b"}, {Path: "/a#b"}} {
		_, err := i.Invoke(t.Context(), at(address), c)
		var failed *ports.CallError
		if err == nil || errors.As(err, &failed) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
