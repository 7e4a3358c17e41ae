package async

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/gfaas/gfaas/pkg/daemon/async/journal"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("GFAAS_TEST_ASYNC"); dir != "" {
		os.Exit(serveUntilKilled(dir))
	}
	goleak.VerifyTestMain(m)
}

// patience is the time limit for expected events.
const patience = time.Minute

// world is a queue whose handler and receiver are functions of the test.
type world struct {
	*Queue
	t       *testing.T
	cfg     Config
	run     func(w http.ResponseWriter, r *http.Request)
	receive func(r *http.Request) (status int, err error)
	start   time.Time
	mu      sync.Mutex
	events  []string // each with the second at which it occurred
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, start: time.Now(), run: answers(200), receive: func(*http.Request) (int, error) { return 204, nil }}
	w.cfg = Config{
		Dir: t.TempDir(), Concurrency: 4, Retries: 3, CallbackRetries: 5, Max: 100, MaxAnswer: 1 << 20,
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w.note("run " + r.Header.Get("X-Call-Id"))
			w.run(rw, r)
		}),
		Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			w.note("send " + r.Header.Get("X-Call-Id"))
			status, err := w.receive(r)
			if err != nil {
				return nil, err
			}
			return &http.Response{StatusCode: status, Status: http.StatusText(status), Header: http.Header{"Location": {"http://elsewhere/"}}, Body: http.NoBody, Request: r}, nil
		}),
		Receivers: Receivers{Lookup: names},
	}
	w.open()
	return w
}

func (w *world) open() {
	w.t.Helper()
	q, err := Open(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.Queue = q
}

func (w *world) stop() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.Stop(ctx); err != nil {
		w.t.Error(err)
	}
}

type roundTrip func(r *http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answers returns a handler with these statuses, the last one repeatedly. A status of 600
// and above is 600 plus a status of the gateway itself.
func answers(statuses ...int) func(http.ResponseWriter, *http.Request) {
	var mu sync.Mutex
	return func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		status := statuses[0]
		if len(statuses) > 1 {
			statuses = statuses[1:]
		}
		if status < 600 {
			w.Header().Set("Gfaas-Instance", "f-0")
		}
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(status % 600)
		_, _ = io.WriteString(w, "answer")
	}
}

func (w *world) note(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("%s %v", what, time.Since(w.start).Round(time.Second)))
}

func (w *world) eventLog() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.events, ", ")
}

func (w *world) accept(id string, change func(*Request)) {
	w.t.Helper()
	r := Request{ID: id, Function: "f", Header: http.Header{}}
	if change != nil {
		change(&r)
	}
	if err := w.Accept(r); err != nil {
		w.t.Fatal(err)
	}
}

// Status returns the status of the only call with an ID.
func (w *world) Status(id string) (Status, bool) {
	w.t.Helper()
	switch all := w.Statuses(id, "", nil); len(all) {
	case 0:
		return Status{}, false
	case 1:
		return all[0], true
	default:
		w.t.Fatalf("calls with the ID %s: got %d, want at most 1", id, len(all))
		return Status{}, false
	}
}

func withCallback(r *Request) { r.Header.Set("X-Callback-Url", "http://receiver/x") }

// checkStatus checks the status of a call after all work has ended.
func (w *world) checkStatus(id, state string, attempts, status int) {
	w.t.Helper()
	got, known := w.Status(id)
	if want := (Status{id, "f", state, attempts, status}); !known || got != want {
		w.t.Errorf("status of call %s: got %+v (known: %v), want %+v; events: %s", id, got, known, want, w.eventLog())
	}
}

func TestRuns(t *testing.T) {
	for name, c := range map[string]struct {
		statuses []int
		events   string
		state    string
		status   int
	}{
		"done":                 {[]int{200}, "run a 0s", "done", 200},
		"a function's error":   {[]int{500}, "run a 0s", "done", 500},
		"its 404":              {[]int{404}, "run a 0s", "done", 404},
		"the gateway's":        {[]int{600 + 404}, "run a 0s", "failed", 404},
		"instances fail":       {[]int{600 + 502, 600 + 503, 600 + 504, 200}, "run a 0s, run a 1s, run a 3s, run a 7s", "done", 200},
		"too busy":             {[]int{600 + 429, 429, 201}, "run a 0s, run a 1s, run a 3s", "done", 201},
		"in vain":              {[]int{600 + 502}, "run a 0s, run a 1s, run a 3s, run a 7s", "failed", 502},
		"the function is busy": {[]int{429}, "run a 0s, run a 1s, run a 3s, run a 7s", "failed", 429},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.stop()
				w.run = answers(c.statuses...)
				w.accept("a", nil)
				synctest.Wait()
				w.checkStatus("a", "queued", 0, 0)
				w.Start()
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := w.eventLog(); got != c.events {
					t.Errorf("events: got %s\nwant %s", got, c.events)
				}
				w.checkStatus("a", c.state, strings.Count(c.events, "run"), c.status)
				if w.Pending() != 0 {
					t.Errorf("pending calls: got %d, want 0", w.Pending())
				}
				if got, want := counted(t, w.Queue), "gfaas_async_pending 0, gfaas_async_total f "+c.state+" 1"; got != want {
					t.Errorf("counted %s, want %s", got, want)
				}
				w.accept("a", nil) // a known ID
				time.Sleep(59 * time.Minute)
				synctest.Wait()
				if strings.Count(w.eventLog(), "run") != strings.Count(c.events, "run") {
					t.Errorf("runs after a repeated call with a known ID: got %d, want %d; events: %s", strings.Count(w.eventLog(), "run"), strings.Count(c.events, "run"), w.eventLog())
				}
				time.Sleep(2 * time.Minute)
				if _, known := w.Status("a"); known {
					t.Error("the ended call is known after 61 minutes, want it forgotten after an hour")
				}
			})
		})
	}
}

func TestCallback(t *testing.T) {
	for name, c := range map[string]struct {
		run    []int
		take   []any // statuses or errors; the last one is repeated
		events string
		state  string
		status int
	}{
		"taken":             {[]int{200}, []any{204}, "run a 0s, send a 0s", "done", 200},
		"an error is sent":  {[]int{600 + 404}, []any{200}, "run a 0s, send a 0s", "failed", 404},
		"once it has ended": {[]int{600 + 502, 418}, []any{200}, "run a 0s, run a 1s, send a 1s", "done", 418},
		"no redirects":      {[]int{200}, []any{302, 307, 200}, "run a 0s, send a 0s, send a 1s, send a 3s", "done", 200},
		"later": {[]int{200}, []any{errors.New("refused"), 500, 404, 503, 429, 202},
			"run a 0s, send a 0s, send a 1s, send a 3s, send a 7s, send a 15s, send a 31s", "done", 200},
		"never": {[]int{200}, []any{503}, "run a 0s, send a 0s, send a 1s, send a 3s, send a 7s, send a 15s, send a 31s", "failed", 200},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				defer w.stop()
				w.run = answers(c.run...)
				var got *http.Request
				var body []byte
				w.receive = func(r *http.Request) (int, error) {
					got = r
					body, _ = io.ReadAll(r.Body)
					next := c.take[0]
					if len(c.take) > 1 {
						c.take = c.take[1:]
					}
					if err, failed := next.(error); failed {
						return 0, err
					}
					return next.(int), nil
				}
				w.accept("a", withCallback)
				w.Start()
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				if got := w.eventLog(); got != c.events {
					t.Errorf("events: got %s\nwant %s", got, c.events)
				}
				w.checkStatus("a", c.state, strings.Count(c.events, "run"), c.status)
				want := map[string]string{
					"Content-Type": "text/plain", "X-Call-Id": "a", "X-Function-Name": "f", "X-Function-Status": strconv.Itoa(c.status),
					"X-Duration-Seconds": "0.000000", "User-Agent": "gfaas",
				}
				for name := range want {
					if got.Header.Get(name) != want[name] {
						t.Errorf("header %s of the callback: got %q, want %q", name, got.Header.Get(name), want[name])
					}
				}
				if string(body) != "answer" || got.Method != "POST" || got.URL.String() != "http://receiver/x" || got.ContentLength != 6 || len(got.Header) != len(want) {
					t.Errorf("callback: got %s %s with %d headers %v and the body %q of length %d, want POST http://receiver/x with %d headers and the body \"answer\"", got.Method, got.URL, len(got.Header), got.Header, body, got.ContentLength, len(want))
				}
			})
		})
	}
}

// TestPanics checks that a handler that panics counts as one without an answer, and affects
// no other call.
func TestPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		var text strings.Builder
		w.log = slog.New(slog.NewTextHandler(&text, nil))
		w.run = func(rw http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Call-Id") == "a" {
				panic("a mistake")
			}
			answers(200)(rw, r)
		}
		w.accept("a", nil)
		w.accept("b", nil)
		w.Start()
		time.Sleep(time.Minute)
		synctest.Wait()
		w.checkStatus("a", "failed", 4, 502)
		w.checkStatus("b", "done", 1, 200)
		if got := text.String(); !strings.Contains(got, "a mistake") || !strings.Contains(got, "TestPanics") {
			t.Errorf(`log: got %s, want a text with "a mistake" and the stack of "TestPanics"`, got)
		}
	})
}

// TestSlowReceiver checks that a receiver that does not answer is given up after 30 s, and
// that such receivers occupy at most half of the places.
func TestSlowReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.receive = func(r *http.Request) (int, error) {
			<-r.Context().Done()
			return 0, r.Context().Err()
		}
		for n := range 20 {
			w.accept(fmt.Sprint(n), withCallback)
		}
		w.Start()
		time.Sleep(time.Second)
		synctest.Wait()
		if got := w.eventLog(); strings.Count(got, "run") != 20 || strings.Count(got, "send") != 2 {
			t.Errorf("events after 1 s: got %d runs and %d sends, want 20 and 2: %s", strings.Count(got, "run"), strings.Count(got, "send"), got)
		}
		w.checkStatus("0", "callback", 1, 200)
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if got := w.eventLog(); strings.Count(got, "send") != 4 {
			t.Errorf("events after 31 s: got %d sends, want 4: %s", strings.Count(got, "send"), got)
		}
	})
}

// TestRequest checks that the handler gets the caller's request, also after a restart.
func TestRequest(t *testing.T) {
	for _, body := range []string{"", "\x00short\xff", strings.Repeat("long", 50_000)} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			defer func() { w.stop() }()
			w.accept("a b", func(r *Request) {
				r.Path, r.Query, r.Body, r.Host, r.Remote = "/x%2Fy/%zz"[:6], "q=\xfe;a=%", strings.NewReader(body), "here:80", "10.0.0.1:99"
				r.Header = http.Header{
					"A": {"1", "2 \xe9"}, "Authorization": {"Bearer x"}, "X-Call-Id": {"other"}, "Content-Type": {"text/x"},
					"Connection": {"close, X-Hop"}, "X-Hop": {"1"}, "Te": {"trailers"}, "Content-Length": {"7"}, "Upgrade": {"h2c"},
				}
			})
			w.stop()
			w.open()
			var got *http.Request
			var sent []byte
			w.run = func(rw http.ResponseWriter, r *http.Request) {
				got = r
				sent, _ = io.ReadAll(r.Body)
				answers(200)(rw, r)
			}
			w.Start()
			synctest.Wait()
			want := http.Header{"A": {"1", "2 \xe9"}, "Authorization": {"Bearer x"}, "X-Call-Id": {"a b"}, "Content-Type": {"text/x"}}
			if got == nil || !maps.EqualFunc(got.Header, want, slices.Equal) || string(sent) != body || got.ContentLength != int64(len(body)) ||
				got.Method != "POST" || got.URL.EscapedPath() != "/function/f/x%2Fy" || got.URL.RawQuery != "q=\xfe;a=%" || got.Host != "here:80" || got.RemoteAddr != "10.0.0.1:99" {
				t.Errorf("request to the function: got %+v with %d bytes of body, want POST /function/f/x%%2Fy?q=\\xfe;a=%% with %d bytes and the header %v", got, len(sent), len(body), want)
			}
		})
	}
}

func TestAcceptErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		for _, bad := range []string{"receiver", "ftp://x/", "http://", "http:///x", "http://a b/", "//x", "http://x/\x7f", "http://" + strings.Repeat("x", maxCallback), "http://127.0.0.1/", "http://127.1/"} {
			var e *CallbackError
			if err := w.Accept(Request{ID: "a", Function: "f", Header: http.Header{"X-Callback-Url": {bad}}}); !errors.As(err, &e) {
				t.Errorf("accept a call with the callback URL %q: got %v, want a *CallbackError", bad, err)
			}
		}
		broken := errors.New("the caller has disconnected")
		if err := w.Accept(Request{ID: "a", Function: "f", Body: io.MultiReader(strings.NewReader("x"), &failing{broken})}); !errors.Is(err, broken) {
			t.Errorf("accept a call whose body cannot be read: got %v, want %v", err, broken)
		}
		for n := range w.cfg.Max {
			w.accept(fmt.Sprint(n), nil)
		}
		if err := w.Accept(Request{ID: "more", Function: "f"}); !errors.Is(err, ErrFull) {
			t.Errorf("accept a call beyond the limit: got %v, want %v", err, ErrFull)
		}
		w.accept("7", nil) // a known ID
		if w.Pending() != w.cfg.Max {
			t.Errorf("pending calls at the limit: got %d, want %v", w.Pending(), w.cfg.Max)
		}
		if _, err := Open(w.cfg); err == nil || !errors.As(err, new(*journal.LockedError)) {
			t.Errorf("open a second queue on the folder: got %v, want a *journal.LockedError", err)
		}
	})
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

// TestTurns checks that a function with many calls does not delay another function's call.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		var running, most int
		var order []string
		w.run = func(rw http.ResponseWriter, r *http.Request) {
			w.mu.Lock()
			running++
			most = max(most, running)
			order = append(order, r.URL.Path)
			w.mu.Unlock()
			time.Sleep(time.Second)
			w.mu.Lock()
			running--
			w.mu.Unlock()
			answers(200)(rw, r)
		}
		for n := range 12 {
			w.accept(fmt.Sprint(n), nil)
		}
		w.accept("g", func(r *Request) { r.Function = "g" })
		w.accept("h", func(r *Request) { r.Function = "h" })
		w.Start()
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if first := order[:4]; !slices.Contains(first, "/function/g") || !slices.Contains(first, "/function/h") {
			t.Errorf("first four calls: got %v, want /function/g and /function/h among them", first)
		}
		if s, _ := w.Status("11"); s.State != "queued" {
			t.Errorf("status of call 11 after 1.5 s: got %+v, want State queued", s)
		}
		if got := func() (states []string) {
			for n := range 12 {
				s, _ := w.Status(fmt.Sprint(n))
				states = append(states, s.State)
			}
			return
		}(); !slices.Contains(got, "running") {
			t.Errorf("states of the calls of f after 1.5 s: got %v, want one of them running", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if most != w.cfg.Concurrency || len(order) != 14 {
			t.Errorf("calls: got at most %d at once and %d in all, want %d and 14", most, len(order), w.cfg.Concurrency)
		}
	})
}

// TestStop checks that running calls are cancelled when the context of Stop ends, and are
// run after the next start, like calls that the gateway refuses while draining. Such
// attempts do not count.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var draining bool
		w.run = func(rw http.ResponseWriter, r *http.Request) {
			if draining {
				rw.Header().Set("Gfaas-Reason", "draining")
				rw.WriteHeader(503)
				return
			}
			<-r.Context().Done()
			rw.WriteHeader(502)
		}
		w.accept("a", withCallback)
		w.accept("b", withCallback)
		w.Start()
		synctest.Wait()
		w.checkStatus("a", "running", 0, 0)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := w.Stop(ctx); err != nil || time.Since(w.start).Round(time.Second) != 10*time.Second {
			t.Errorf("stop with a running call: got %v after %v, want no error after 10s", err, time.Since(w.start))
		}
		draining = true
		w.open()
		w.Start()
		synctest.Wait()
		w.stop()
		w.open()
		w.checkStatus("a", "queued", 0, 0)
		w.run = answers(200)
		w.receive = func(*http.Request) (int, error) { return 500, nil }
		w.Start()
		time.Sleep(time.Second / 2)
		synctest.Wait()
		w.stop() // between two attempts to send the answer
		w.open()
		w.checkStatus("a", "callback", 1, 200)
		w.receive = func(*http.Request) (int, error) { return 200, nil }
		w.Start()
		synctest.Wait()
		w.checkStatus("a", "done", 1, 200)
		w.checkStatus("b", "done", 1, 200)
		w.stop()
		w.open()
		w.checkStatus("a", "done", 1, 200)
		w.stop()
		if got := strings.Count(w.eventLog(), "run a"); got != 3 {
			t.Errorf("runs of call a: got %d, want 3; events: %s", got, w.eventLog())
		}
	})
}

// TestIncompleteAnswers checks that the caller gets an error in place of an incomplete
// answer, and no part of the answer.
func TestIncompleteAnswers(t *testing.T) {
	dead := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.Header().Set("Gfaas-Instance", "f-0")
		_, _ = io.WriteString(w, "part of it")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer dead.Close()
	at, err := url.Parse(dead.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(at)
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	long := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Gfaas-Instance", "f-0")
		for {
			if _, err := w.Write(make([]byte, 100_000)); err != nil {
				panic(http.ErrAbortHandler)
			}
		}
	}
	for name, c := range map[string]struct {
		run    func(http.ResponseWriter, *http.Request)
		runs   int
		status int
		code   string
	}{
		"cut off":     {proxy.ServeHTTP, 2, 502, "instance-died"},
		"without end": {long, 1, 502, "bad-answer"},
		"nothing":     {func(http.ResponseWriter, *http.Request) {}, 1, 200, ""},
		"early hints": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(103)
			w.WriteHeader(200)
			w.WriteHeader(500)
		}, 1, 200, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			defer w.stop()
			w.Queue.cfg.Retries = c.runs - 1
			w.run = c.run
			taken := make(chan string, 1)
			w.receive = func(r *http.Request) (int, error) {
				body, _ := io.ReadAll(r.Body)
				taken <- r.Header.Get("X-Function-Status") + " " + string(body)
				return 200, nil
			}
			w.accept("a", withCallback)
			w.Start()
			select {
			case got := <-taken:
				if !strings.HasPrefix(got, strconv.Itoa(c.status)+" ") || c.code != "" && !strings.Contains(got, `{"error":{"code":"`+c.code+`"`) || strings.Contains(got, "part of it") {
					t.Errorf("answer to the receiver: got %q, want status %d and the code %q", got, c.status, c.code)
				}
			case <-time.After(patience):
				t.Fatalf("no answer was sent to the receiver within %v", patience)
			}
			if got := strings.Count(w.eventLog(), "run"); got != c.runs {
				t.Errorf("runs of the call: got %d, want %d", got, c.runs)
			}
		})
	}
}

// TestDamaged checks that a call with a damaged record ends and does not delay other calls.
func TestDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		w.accept("a", func(r *Request) { r.Body = strings.NewReader(strings.Repeat("x", 100_000)) })
		w.accept("b", withCallback)
		bodies, _ := os.ReadDir(w.cfg.Dir)
		for _, f := range bodies {
			if strings.HasSuffix(f.Name(), ".body") {
				if err := os.Truncate(w.cfg.Dir+"/"+f.Name(), 5); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.Start()
		time.Sleep(time.Second)
		synctest.Wait()
		w.checkStatus("a", "failed", 0, 0)
		w.checkStatus("b", "done", 1, 200)
		if w.Pending() != 0 || w.runs+w.sends != 0 {
			t.Errorf("after both calls ended: got %d pending calls, %d occupied places for runs and %d for sends, want 0 of each", w.Pending(), w.runs, w.sends)
		}
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.stop()
		sent := 0
		w.receive = func(*http.Request) (int, error) { sent++; return 200 + 300*(sent%2), nil }
		w.accept("a", withCallback)
		w.accept("b", nil)
		w.Start()
		time.Sleep(time.Minute)
		synctest.Wait()
		w.accept("c", func(r *Request) { r.Function = "g" })
		synctest.Wait()
		w.run = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		w.accept("d", nil)
		synctest.Wait()
		const want = "gfaas_async_pending 1, gfaas_async_total f done 2, gfaas_async_total g done 1, gfaas_callbacks_total ok 1, gfaas_callbacks_total retried 1"
		if got := counted(t, w.Queue); got != want {
			t.Errorf("counted %s\nwant %s", got, want)
		}
	})
}

// counted returns the metrics as text.
func counted(t *testing.T, q *Queue) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(q.Collectors()...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, family := range families {
		for _, m := range family.Metric {
			line := []string{family.GetName()}
			for _, label := range m.Label {
				line = append(line, label.GetValue())
			}
			out = append(out, fmt.Sprintf("%s %v", strings.Join(line, " "), m.GetCounter().GetValue()+m.GetGauge().GetValue()))
		}
	}
	return strings.Join(out, ", ")
}
