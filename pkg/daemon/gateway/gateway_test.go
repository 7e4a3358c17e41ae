package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/wire"
)

func TestMain(m *testing.M) {
	if os.Getenv(witnessing) != "" {
		witnessHost()
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

// world is a gateway that serves, on instances that are servers of the test's own
// process.
type world struct {
	t       testing.TB
	dir     string
	catalog *instancetest.FakeCatalog
	runtime *instancetest.Fake
	client  *fnhttp.Client
	cfg     Config
	handler http.Handler // what instances do
	*Gateway
	stop  context.CancelFunc
	ended chan error
}

// config is what a test may change of a gateway before it serves.
func newWorld(t testing.TB, handler http.Handler, change func(*Config)) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "gateway")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := &world{t: t, dir: dir, catalog: &instancetest.FakeCatalog{}, runtime: instancetest.NewFake(instance.Process), client: fnhttp.NewClient(), handler: handler}
	w.runtime.Handler = func(instance.Spec) http.Handler { return w.handler }
	t.Cleanup(w.client.Close)
	w.cfg = Config{
		Socket: filepath.Join(dir, "gateway.sock"), Listen: "127.0.0.1:0", Log: slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Starter: w.launcher(), Invoker: w.client, Catalog: w.catalog,
		Policy: queue.Config{Policy: "gfaas", Pool: residency.Unlimited, Options: queue.Defaults()}, Concurrency: 2, GPUs: []GPU{{Name: "sim"}},
		SpillDir: filepath.Join(dir, "spill"),
		Limits: Limits{Queue: 64, QueueTimeout: patience, Timeout: patience, MaxBody: 1 << 20, Buffer: 1 << 10, BufferMemory: 1 << 20, Spill: 8 << 20, BodyRate: 1,
			HeaderTimeout: patience, BodyTimeout: patience, Drain: patience},
	}
	if change != nil {
		change(&w.cfg)
	}
	w.open()
	return w
}

// open begins to serve, as a gateway that comes after another does too.
func (w *world) open() {
	w.t.Helper()
	g, err := Open(w.cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	w.Gateway, w.stop, w.ended = g, stop, make(chan error, 1)
	ended := w.ended
	go func() { ended <- g.Serve(ctx) }()
	w.t.Cleanup(func() { w.close() })
	w.until("ready", func() bool { return g.ready() == nil })
}

// close ends it in order.
func (w *world) close() {
	w.t.Helper()
	w.stop()
	select {
	case err := <-w.ended:
		if err != nil {
			w.t.Error(err)
		}
		w.ended <- nil
	case <-time.After(patience):
		w.t.Fatal("the gateway does not end")
	}
}

func (w *world) launcher() *launch.Launcher {
	return launch.New(launch.Config{RunDir: w.dir, Tokens: tokens{}, Device: device{}, Ready: fnhttp.WaitReady,
		Runtime: func(_ context.Context, name string) (ports.Runtime, error) { return w.runtime, nil }})
}

type tokens struct{}

func (tokens) Register(context.Context, wire.Registration) (wire.Registered, error) {
	return wire.Registered{}, nil
}
func (tokens) Change(context.Context, string, wire.Change) error          { return nil }
func (tokens) Registrations(context.Context) ([]wire.Registration, error) { return nil, nil }

func (tokens) Unregister(context.Context, string) error { return nil }

type device struct{}

func (device) Keep(string) error    { return nil }
func (device) Release(string) error { return nil }

// testLog is a log that is the test's.
type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Helper()
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// until waits for something.
func (w *world) until(what string, is func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("it did not come to be: %s", what)
		}
	}
}

// apply applies functions and waits until the gateway knows them.
func (w *world) apply(functions ...function.Function) {
	w.t.Helper()
	if err := w.catalog.Apply(context.Background(), functions...); err != nil {
		w.t.Fatal(err)
	}
	w.until("applied", func() bool {
		names := *w.names.Load()
		for _, fn := range functions {
			t := names[fn.Name]
			if t == nil {
				return false
			}
			w.engine.mu.Lock()
			same := fmt.Sprint(t.function) == fmt.Sprint(fn)
			w.engine.mu.Unlock()
			if !same {
				return false
			}
		}
		return true
	})
}

// fn is a function.
func fn(name string, change ...func(*function.Function)) function.Function {
	f := function.Function{Name: name, Command: []string{"./" + name}, Contract: "http", Kind: "inference", GPUs: 1, Weight: 1, Tenant: "default",
		Port: 8080, Scale: function.DefaultScale, Inflight: 1}
	for _, c := range change {
		c(&f)
	}
	return f
}

func (w *world) url(path string) string { return "http://" + w.WebAddr().String() + path }

// answer is what came of a request.
type answer struct {
	status int
	body   string
	header http.Header
}

func (a answer) reason() string { return a.header.Get("Gfaas-Reason") }

// do sends a request.
func (w *world) do(method, path, body string, headers ...string) answer {
	w.t.Helper()
	a, err := w.try(context.Background(), method, path, body, headers...)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (w *world) try(ctx context.Context, method, path, body string, headers ...string) (answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, w.url(path), strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, string(text), response.Header}, err
}

// echo answers with what it was sent.
func echo(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/healthz" {
		return
	}
	text, _ := io.ReadAll(r.Body)
	w.Header().Set("Seen", fmt.Sprintf("%s %s %s", r.Method, r.RequestURI, r.Host))
	for _, name := range []string{"X-Call-Id", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Own", "Connection", "X-Hop", "Content-Length"} {
		w.Header().Set("Seen-"+name, strings.Join(r.Header.Values(name), ","))
	}
	w.Header().Set("Seen-Length", fmt.Sprint(r.ContentLength))
	_, _ = w.Write(text)
}

// TestFromZero: the first call starts an instance, the next finds it.
func TestFromZero(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f"))
	first := w.do("POST", "/function/f", "hello")
	if first.status != 200 || first.body != "hello" || first.header.Get("Gfaas-Start") != "cold" || first.header.Get("Gfaas-Instance") != "f.1" {
		t.Errorf("%+v", first)
	}
	second := w.do("POST", "/function/f.openfaas-fn", "again")
	if second.status != 200 || second.body != "again" || second.header.Get("Gfaas-Start") != "gpu-warm" || second.header.Get("Gfaas-Instance") != "f.1" {
		t.Errorf("%+v", second)
	}
	for _, name := range []string{"X-Call-Id", "X-Start-Time", "Gfaas-Queue-Ms", "Gfaas-Start-Ms", "Gfaas-Attempts", "Gfaas-Reason"} {
		if second.header.Get(name) == "" {
			t.Errorf("no %s in %v", name, second.header)
		}
	}
	w.until("the record is ready", func() bool {
		l, err := w.catalog.Look(context.Background())
		return err == nil && len(l.Instances) == 1 && l.Instances[0].State == instance.Ready && l.Instances[0].Owner == instance.Gateway
	})
	w.close()
	if l, err := w.catalog.Look(context.Background()); err != nil || len(l.Instances) > 0 || len(w.runtime.Running()) > 0 {
		t.Errorf("left: %v, %v, %v", l.Instances, w.runtime.Running(), err)
	}
}

// TestDo: a call that came over no connection goes the same way.
func TestDo(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f"))
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			body := fmt.Sprint("call ", i)
			answer, err := w.Do(context.Background(), Request{Function: "f", Path: "/a%20b", Query: "x=1", Header: http.Header{"x-own": {"1"}}, Body: []byte(body), ID: fmt.Sprint("id-", i)})
			if err != nil {
				t.Error(err)
				return
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			if err != nil || string(text) != body || answer.Header.Get("Seen-X-Own") != "1" || answer.Header.Get("X-Call-Id") != fmt.Sprint("id-", i) ||
				!strings.HasPrefix(answer.Header.Get("Seen"), "POST /a%20b?x=1 ") {
				t.Errorf("%s, %v, %v", text, answer.Header, err)
			}
		})
	}
	wg.Wait()
	var own *Error
	if _, err := w.Do(context.Background(), Request{Function: "g"}); !errors.As(err, &own) || own.Code != codeNoFunction {
		t.Errorf("%v", err)
	}
}

// TestLearnsStart: the policy is told what a start takes, as soon as a call ends,
// although the call took what was expected.
func TestLearnsStart(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f"))
	w.do("POST", "/function/f", "")
	e := &w.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	f := (*w.names.Load())["f"]
	f.costs = costs{warm: mean{f.spec.Warm, few}, start: mean{time.Hour, few}}
	e.learn(&call{target: f, on: &server{state: serverReady}, found: residency.GPUWarm}, f.spec.Warm)
	if f.spec.Cold < time.Hour {
		t.Errorf("a start is expected to take %v, want an hour", f.spec.Cold-f.spec.Warm)
	}
}
