package profile

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/adapter/gateway"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/owndir"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// server answers in the way that a path asks for, and writes a line of each
// request to the file served.
type server struct {
	mu     sync.Mutex
	served *os.File
	count  int
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	user, password, _ := r.BasicAuth()
	s.mu.Lock()
	s.count++
	odd := s.count%2 == 1
	fmt.Fprintln(s.served, r.Method, r.RequestURI, r.Host, user+":"+password, r.Header.Get("X-Test"), r.Proto, string(body))
	s.mu.Unlock()
	switch {
	case strings.HasSuffix(r.URL.Path, "/hang"):
		<-r.Context().Done()
	case strings.HasSuffix(r.URL.Path, "/endless"):
		for r.Context().Err() == nil {
			_, _ = w.Write(make([]byte, 1<<10))
			_ = http.NewResponseController(w).Flush()
		}
	case strings.HasSuffix(r.URL.Path, "/flaky") && odd:
		http.Error(w, "no such luck", http.StatusInternalServerError)
	case strings.HasSuffix(r.URL.Path, "/cut"):
		w.Header().Set("Content-Length", "9")
		_, _ = w.Write([]byte("half"))
	case strings.HasSuffix(r.URL.Path, "/moved"):
		http.Redirect(w, r, "/", http.StatusFound)
	}
}

func newServer(ts *testscript.TestScript) *server {
	f, err := os.OpenFile(ts.MkAbs("served"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	ts.Check(err)
	ts.Defer(func() { _ = f.Close() })
	return &server{served: f}
}

// serve: a server at $ADDRESS and, over HTTP/2 and TLS, at $SECURE, which the file
// ca.pem vouches for; and an address where nothing listens, $NOBODY.
func serve(ts *testscript.TestScript, _ bool, _ []string) {
	handler := newServer(ts)
	s := httptest.NewServer(handler)
	ts.Defer(s.Close)
	ts.Setenv("ADDRESS", s.Listener.Addr().String())
	secure := httptest.NewUnstartedServer(handler)
	secure.EnableHTTP2 = true
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // who does not trust it hangs up
	secure.StartTLS()
	ts.Defer(secure.Close)
	ts.Setenv("SECURE", secure.Listener.Addr().String())
	ts.Check(os.WriteFile(ts.MkAbs("ca.pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Setenv("NOBODY", free.Addr().String())
	ts.Check(free.Close())
}

// serveGateway, gateway in scripts: a gateway of the run directory, which knows all functions.
func serveGateway(ts *testscript.TestScript, _ bool, _ []string) {
	dir := ts.Getenv("GFAAS_RUN_DIR")
	ts.Check(owndir.Ensure(dir))
	l, err := net.Listen("unix", gateway.Socket(dir))
	ts.Check(err)
	s := &http.Server{Handler: newServer(ts), ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	ts.Defer(func() { _ = s.Close() })
}

// applied NAME CONTRACT SLO [ADDRESS…]: a function with such an objective, and an
// instance at each address, which is this process.
func applied(ts *testscript.TestScript, _ bool, args []string) {
	ctx := context.Background()
	state := bolt.Open(filepath.Join(ts.Getenv("WORK"), "state.db"), nil)
	slo, err := time.ParseDuration(args[2])
	ts.Check(err)
	fns, err := function.Parse(strings.NewReader(fmt.Sprintf("name: %s\ncommand: [x]\ncontract: %s\n", args[0], args[1])), "-")
	ts.Check(err)
	fns[0].SLO = slo
	ts.Check(state.Apply(ctx, fns...))
	self, err := procfs.Read(os.Getpid())
	ts.Check(err)
	for i, address := range args[3:] {
		r := instance.Record{ID: fmt.Sprintf("%s-%d", args[0], i), Function: args[0], Runtime: instance.Process, GPUs: []string{"sim"},
			Slice: gpu.Slice{SMPct: 50, QuotaRequest: 1, QuotaLimit: 1}, State: instance.Ready, Contract: args[1],
			Handle: instance.Handle{Runtime: instance.Process, PID: self.PID, StartTime: self.Start, Address: address}}
		if address == "gone" {
			r.Handle.StartTime++
			r.Handle.Address = ts.Getenv("ADDRESS")
		}
		if address == "starting" {
			r.State = instance.Starting
		}
		ts.Check(state.Reserve(ctx, r))
	}
}

func TestHistogram(t *testing.T) {
	ms := func(v float64) time.Duration { return time.Duration(v * float64(time.Millisecond)) }
	for _, c := range []struct {
		latencies []time.Duration
		want      string
	}{
		{nil, "[]"},
		{[]time.Duration{0, ms(0.01), ms(0.0125)}, "[{0.01 2} {0.0125 1}]"},
		{[]time.Duration{ms(1), ms(1), ms(1.01), ms(1.25), ms(2)}, "[{1 2} {1.25 2} {1.6 0} {2 1}]"},
		{[]time.Duration{ms(801), ms(1000)}, "[{1000 2}]"},
	} {
		if got := fmt.Sprint(histogram(c.latencies)); got != c.want {
			t.Errorf("%v: %s, want %s", c.latencies, got, c.want)
		}
	}
}

// Every latency is in one bucket, which it fits into and the one before it does not.
func TestHistogramHasAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		latencies := rapid.SliceOf(rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(24*time.Hour)).Draw(t, "latency"))
		})).Draw(t, "latencies")
		slices.Sort(latencies)
		at, below := 0, time.Duration(-1)
		for _, b := range histogram(latencies) {
			bound := time.Duration(b.UpToMS * float64(time.Millisecond))
			for range b.Count {
				if latencies[at] > bound || latencies[at] <= below {
					t.Fatalf("%v is between %v and %v", latencies[at], below, bound)
				}
				at++
			}
			below = bound
		}
		if at != len(latencies) {
			t.Fatalf("%d of %d are counted", at, len(latencies))
		}
	})
}

func TestLoadedFigures(t *testing.T) {
	res := load.Result{Duration: time.Second, Completed: 99, Samples: 99, Errors: 1, Due: 100, Misses: 10,
		P95: 20 * time.Millisecond, P95CI: time.Millisecond, Latencies: []time.Duration{10 * time.Millisecond, 30 * time.Millisecond}}
	o := load.Options{Spec: load.Spec{Kind: load.Poisson, RPS: 100}, Objective: 15 * time.Millisecond}
	l := newLoaded("f", o, res)
	for metric, want := range map[string]float64{
		"throughput_rps": 99, "mean_ms": 20, "max_ms": 30, "p95_ms": 20, "errors": 1, "error_pct": 1, "within_pct": 90, "samples": 99,
	} {
		if got, _, ok := l.figures(metric); !ok || got != want {
			t.Errorf("%s is %v, %v, want %v", metric, got, ok, want)
		}
	}
	o.Objective = 0
	l = newLoaded("f", o, load.Result{Duration: time.Second})
	for metric, want := range map[string]bool{"within_pct": false, "error_pct": false, "throughput_ci_rps": false, "p95_ci_ms": false, "errors": true} {
		if _, _, ok := l.figures(metric); ok != want {
			t.Errorf("of nothing %s is measured: %v", metric, ok)
		}
	}
	header := l.csv()[0]
	for _, metric := range ofLoads {
		if !slices.Contains(header, metric) {
			t.Errorf("%s is no column", metric)
		}
		l.figures(metric) // knows it
	}
	if len(header) != len(l.csv()[1]) {
		t.Errorf("%d columns, %d cells", len(header), len(l.csv()[1]))
	}
}
