package gateway

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/browsertest"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/status"
	"github.com/gfaas/gfaas/pkg/wire"
)

func TestMain(m *testing.M) {
	if os.Getenv(delayWitness) != "" { // a benchmark started this process to observe scheduling delays
		witnessHost()
	}
	// Parallel tests mostly wait, so more of them run at a time than there are CPUs. A flag
	// of the command line overrides this value.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(browsertest.Tests{M: m})
}

// patience is the time limit of every wait in the tests.
const patience = 30 * time.Second

// world is a running gateway and its environment. The instances are HTTP servers in the test's
// own process; the runtime and the token daemon are fakes.
type world struct {
	t       testing.TB
	dir     string
	catalog *instancetest.FakeCatalog
	runtime *instancetest.Fake
	client  *fnhttp.Client
	cfg     Config
	handler http.Handler // answers the requests to all instances
	*Gateway
	stop  context.CancelFunc // shuts the gateway down
	ended chan error         // receives the result of Serve
}

// newWorld starts a gateway. If change is not nil, newWorld calls it on the configuration first.
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
		dispatchConfig: dispatchConfig{
			Policy:      queue.Config{Policy: "gfaas", Pool: residency.Unlimited, Options: queue.Defaults()},
			Concurrency: 2, GPUs: []GPU{{Name: "sim"}}, Queue: 64, QueueTimeout: patience, Timeout: patience,
		},
		instancesConfig: instancesConfig{
			Starter: w.launcher(), Invoker: w.client, Catalog: w.catalog, Alone: alone, AtWork: func() bool { return true },
		},
		FailedStarts: func(string) []FailedStart { return nil },
		inboundConfig: inboundConfig{
			MaxBody: 1 << 20, Buffer: 1 << 10, BufferMemory: 1 << 20, Spill: 8 << 20, SpillDir: filepath.Join(dir, "spill"),
			BodyRate: 1, BodyTimeout: patience,
		},
		HeaderTimeout: patience, Drain: patience,
	}
	if change != nil {
		change(&w.cfg)
	}
	w.open()
	return w
}

// Status returns the status of the gateway.
func (w *world) Status() status.Status { return w.dispatcher.Status() }

// open starts a gateway with w.cfg and waits until it is ready. A test may call it again after
// close.
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
	w.until("the gateway is ready", func() bool { return g.ready() == nil })
}

// close shuts the gateway down gracefully and waits for its end. It may be called several times.
func (w *world) close() {
	w.t.Helper()
	w.stop()
	select {
	case err := <-w.ended:
		if err != nil {
			w.t.Error(err)
		}
		w.ended <- nil // for the next close
	case <-time.After(patience):
		w.t.Fatalf("the gateway still runs %v after the stop, want its end", patience)
	}
}

// alone is Config.Alone on a machine without other processes of gfaas.
func alone(context.Context) (release func(), err error) { return func() {}, nil }

func (w *world) launcher() *launch.Launcher {
	return launch.New(launch.Config{LogDir: filepath.Join(w.dir, "logs"), Tokens: tokens{}, Device: device{}, Ready: fnhttp.WaitReady,
		RemoveLog:   func(string) error { return nil },
		KeepFailed:  func(string, string, ports.LogLines) error { return nil },
		OutOfMemory: func(context.Context, string) bool { return false },
		Note:        func(string, ...any) {}, Simulated: func() {},
		Runtime: func(_ context.Context, name string) (ports.Runtime, error) { return w.runtime, nil }})
}

// tokens is a token daemon that accepts every request.
type tokens struct{}

func (tokens) Register(context.Context, wire.Registration) (wire.Registered, error) {
	return wire.Registered{}, nil
}
func (tokens) Change(context.Context, string, wire.Change) error          { return nil }
func (tokens) Registrations(context.Context) ([]wire.Registration, error) { return nil, nil }

func (tokens) Unregister(context.Context, string) error { return nil }

// device is a simulated device without a folder.
type device struct{}

func (device) Retain(string) error  { return nil }
func (device) Release(string) error { return nil }

// testLog writes to the log of the test.
type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Helper()
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// pause waits for d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// until polls condition until it returns true. It fails the test after patience.
func (w *world) until(description string, condition func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("timed out after %v waiting for: %s", patience, description)
		}
	}
}

// apply writes functions to the catalog and waits until the gateway uses these definitions.
func (w *world) apply(functions ...function.Function) {
	w.t.Helper()
	if err := w.catalog.Apply(context.Background(), functions...); err != nil {
		w.t.Fatal(err)
	}
	w.until("the gateway uses the applied definitions", func() bool {
		for _, fn := range functions {
			if f := w.dispatcher.Function(fn.Name); f == nil || fmt.Sprint(f.Info().Definition) != fmt.Sprint(fn) {
				return false
			}
		}
		return true
	})
}

// fn returns a function with default settings, adapted by change.
func fn(name string, change ...func(*function.Function)) function.Function {
	f := function.Function{Name: name, Command: []string{"./" + name}, Contract: "http", Kind: "inference", GPUs: 1, Weight: 1, Tenant: "default",
		Port: 8080, Scale: function.DefaultScale, Inflight: 1}
	for _, c := range change {
		c(&f)
	}
	return f
}

func (w *world) url(path string) string { return "http://" + w.WebAddr().String() + path }

// answer is the answer to a request.
type answer struct {
	status int
	body   string
	header http.Header
}

func (a answer) reason() string { return a.header.Get("Gfaas-Reason") }

// do sends a request and returns the answer. headers are pairs of a name and a value.
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

// echo answers with the request's body and describes the request in headers.
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

// TestFromZero checks that the first call starts an instance, and the second call uses it.
func TestFromZero(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f"))
	first := w.do("POST", "/function/f", "hello")
	if first.status != 200 || first.body != "hello" || first.header.Get("Gfaas-Start") != "cold" || first.header.Get("Gfaas-Instance") != "f.1" {
		t.Errorf(`got %+v; want status 200, body "hello", Gfaas-Start cold, Gfaas-Instance f.1`, first)
	}
	second := w.do("POST", "/function/f.openfaas-fn", "again")
	if second.status != 200 || second.body != "again" || second.header.Get("Gfaas-Start") != "gpu-warm" || second.header.Get("Gfaas-Instance") != "f.1" {
		t.Errorf(`got %+v; want status 200, body "again", Gfaas-Start gpu-warm, Gfaas-Instance f.1`, second)
	}
	for _, name := range []string{"X-Call-Id", "X-Start-Time", "Gfaas-Queue-Ms", "Gfaas-Start-Ms", "Gfaas-Attempts", "Gfaas-Reason"} {
		if second.header.Get(name) == "" {
			t.Errorf("header of the answer: got no %s, want it, in %v", name, second.header)
		}
	}
	w.until("the record of the instance is ready", func() bool {
		l, err := w.catalog.List(context.Background())
		return err == nil && len(l.Instances) == 1 && l.Instances[0].State == instance.Ready && l.Instances[0].Owner == instance.Gateway
	})
	w.close()
	if l, err := w.catalog.List(context.Background()); err != nil || len(l.Instances) > 0 || len(w.runtime.Running()) > 0 {
		t.Errorf("after the end: got the records %v, the instances %v, %v; want none", l.Instances, w.runtime.Running(), err)
	}
}
