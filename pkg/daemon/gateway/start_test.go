package gateway

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// behavior describes the starts of one version of a function.
type behavior struct {
	takes   time.Duration // time until the instance is ready or has failed
	fails   bool
	deaf    bool          // it becomes ready although its start was cancelled
	dying   time.Duration // time that the instance takes to end after a stop or a cancelled start
	remains bool          // resources remain after its start was cancelled
}

// fakeStarter is a ports.Starter in virtual time.
type fakeStarter struct {
	invoker *fakeInvoker
	begin   time.Time

	mu        sync.Mutex
	behaviors map[string]behavior // by function and version, for example "f 1"
	starts    map[string][]time.Duration
	running   map[string]*fakeInstance // by ID
}

type fakeInstance struct {
	what  string
	dying time.Duration
	ended chan struct{}
}

// versionOf returns the key of a function's version in behaviors and starts.
func versionOf(fn function.Function) string { return fn.Name + " " + fn.Env["VERSION"] }

func (f *fakeStarter) Start(ctx context.Context, fn function.Function, p instance.Placement) (instance.Record, error) {
	what := versionOf(fn)
	f.mu.Lock()
	b := f.behaviors[what]
	f.starts[what] = append(f.starts[what], time.Since(f.begin))
	in := &fakeInstance{what: what, dying: b.dying, ended: make(chan struct{})}
	f.running[p.ID] = in
	f.mu.Unlock()
	r := instance.Record{ID: p.ID, Function: fn.Name, Runtime: instance.Process, GPUs: p.GPUs, Slice: p.Slice, State: instance.Ready, Contract: "http", RPS: p.RPS,
		Handle: instance.Handle{Runtime: instance.Process, Address: p.ID, Started: time.Now()}}
	fail := func(err error, remains bool) (instance.Record, error) {
		if !remains {
			f.stop(p.ID)
		}
		return r, &ports.StartError{ID: p.ID, Err: err, Remains: remains}
	}
	heeds := ctx
	if b.deaf {
		heeds = context.WithoutCancel(ctx)
	}
	if !pause(heeds, b.takes) {
		if b.remains {
			return fail(ctx.Err(), true)
		}
		return fail(ctx.Err(), false)
	}
	if b.fails {
		return fail(errors.New("exited with status 3"), false)
	}
	f.invoker.serve(p.ID, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d, err := time.ParseDuration(r.Header.Get("X-Takes")); err == nil {
			time.Sleep(d)
		}
		if kind := r.Header.Get("X-Type"); kind != "" {
			w.Header().Set("Content-Type", kind)
		}
		if status, err := strconv.Atoi(r.Header.Get("X-Status")); err == nil {
			w.WriteHeader(status)
		}
		_, _ = io.WriteString(w, cmp.Or(r.Header.Get("X-Text"), what))
	}))
	return r, nil
}

func (f *fakeStarter) stop(id string) {
	f.mu.Lock()
	in := f.running[id]
	f.mu.Unlock()
	if in == nil {
		return
	}
	time.Sleep(in.dying)
	f.kill(id)
}

// kill makes an instance end by itself.
func (f *fakeStarter) kill(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if in := f.running[id]; in != nil {
		delete(f.running, id)
		f.invoker.serve(id, nil)
		close(in.ended)
	}
}

func (f *fakeStarter) Stop(_ context.Context, r instance.Record) error {
	f.stop(r.ID)
	return nil
}

func (f *fakeStarter) Wait(ctx context.Context, r instance.Record) (instance.State, error) {
	f.mu.Lock()
	in := f.running[r.ID]
	f.mu.Unlock()
	if in == nil {
		return instance.State{ExitCode: 3, Detail: "gone"}, nil
	}
	select {
	case <-in.ended:
		return instance.State{ExitCode: 3, Detail: "exited with status 3"}, nil
	case <-ctx.Done():
		return instance.State{}, ctx.Err()
	}
}

func (f *fakeStarter) Adopt(_ context.Context, r instance.Record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.running[r.ID] == nil {
		return &ports.GoneError{ID: r.ID, Why: "exited with status 3"}
	}
	return nil
}

func (f *fakeStarter) Restart(ctx context.Context, fn function.Function, r instance.Record, note func(instance.Record) error) (instance.Record, error) {
	r.State, r.Restarts = instance.Starting, r.Restarts+1
	if err := note(r); err != nil {
		return r, err
	}
	again, err := f.Start(ctx, fn, instance.Placement{ID: r.ID, GPUs: r.GPUs, Slice: r.Slice})
	again.Restarts = r.Restarts
	return again, err
}

func (f *fakeStarter) Logs(context.Context, instance.Record, ports.LogOptions) ports.LogLines {
	return func(func(ports.LogLine, error) bool) {}
}

// runs returns the versions of all running or starting instances, sorted.
func (f *fakeStarter) runs() (out []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, in := range f.running {
		out = append(out, in.what)
	}
	slices.Sort(out)
	return out
}

// started returns the times at which starts of a version began, since the beginning of
// the test.
func (f *fakeStarter) started(what string) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.starts[what])
}

// fakeInvoker is a ports.Invoker that runs the handlers of instances in this process, in virtual time.
type fakeInvoker struct {
	mu       sync.Mutex
	handlers map[string]http.Handler // by address
}

// serve sets the handler of an address; nil: the address accepts no connections.
func (f *fakeInvoker) serve(address string, h http.Handler) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handlers[address] = h
}

func (f *fakeInvoker) Invoke(ctx context.Context, r *instance.Record, c ports.Call) (*http.Response, error) {
	f.mu.Lock()
	handler := f.handlers[r.Handle.Address]
	f.mu.Unlock()
	if handler == nil {
		return nil, &ports.CallError{Progress: ports.NotConnected, Err: errors.New("connection refused")}
	}
	request := httptest.NewRequestWithContext(ctx, cmp.Or(c.Method, http.MethodPost), cmp.Or(c.Path, "/"), c.Body)
	request.Header = c.Header
	answer, done := httptest.NewRecorder(), make(chan struct{})
	answer.Header()["Content-Type"] = nil // otherwise, the recorder would add one
	go func() {
		defer close(done)
		handler.ServeHTTP(answer, request)
	}()
	select {
	case <-done:
		return answer.Result(), nil
	case <-ctx.Done():
		return nil, &ports.CallError{Progress: ports.Sent, Err: ctx.Err()}
	}
}

// lab is a gateway in virtual time, without sockets.
type lab struct {
	*Gateway
	t       *testing.T
	catalog *instancetest.FakeCatalog
	starter *fakeStarter
	log     *bytes.Buffer
	calls   sync.WaitGroup
}

// newLab creates a gateway with one GPU and two slots. It must be called in a synctest
// bubble.
func newLab(t *testing.T, behaviors map[string]behavior, change func(*Config)) *lab {
	t.Helper()
	invoker := &fakeInvoker{handlers: map[string]http.Handler{}}
	l := &lab{t: t, catalog: &instancetest.FakeCatalog{}, log: &bytes.Buffer{},
		starter: &fakeStarter{invoker: invoker, begin: time.Now(), behaviors: behaviors, starts: map[string][]time.Duration{}, running: map[string]*fakeInstance{}}}
	cfg := Config{Log: slog.New(slog.NewTextHandler(l.log, nil)), Drain: time.Minute,
		dispatchConfig: dispatchConfig{
			Policy:      queue.Config{Policy: "gfaas", Pool: residency.Unlimited, Options: queue.Defaults()},
			Concurrency: 2, GPUs: []GPU{{Name: "sim"}}, Queue: 64, QueueTimeout: time.Minute, Timeout: time.Hour,
		},
		instancesConfig: instancesConfig{
			Starter: l.starter, Invoker: invoker, Catalog: l.catalog, Alone: alone, AtWork: func() bool { return true },
		},
		FailedStarts:  func(string) []FailedStart { return nil },
		inboundConfig: inboundConfig{MaxBody: 1 << 20, Buffer: 1 << 10}}
	if change != nil {
		change(&cfg)
	}
	g, err := newGateway(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l.Gateway = g
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- g.run(ctx) }()
	<-g.dispatcher.Known
	t.Cleanup(func() {
		l.calls.Wait()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if running := l.starter.runs(); len(running) > 0 {
			t.Errorf("instances at the end: got %v, want none", running)
		}
		if listing, err := l.catalog.List(context.Background()); err != nil || len(listing.Instances) > 0 {
			t.Errorf("records at the end: got %+v, %v; want none", listing.Instances, err)
		}
	})
	return l
}

// ver returns a version of a function.
func ver(name, version string, change ...func(*function.Function)) function.Function {
	return fn(name, append(change, func(f *function.Function) { f.Env = map[string]string{"VERSION": version} })...)
}

func (l *lab) apply(functions ...function.Function) {
	l.t.Helper()
	if err := l.catalog.Apply(context.Background(), functions...); err != nil {
		l.t.Fatal(err)
	}
	synctest.Wait()
}

func (l *lab) remove(names ...string) {
	l.t.Helper()
	if err := l.catalog.Remove(context.Background(), names...); err != nil {
		l.t.Fatal(err)
	}
	synctest.Wait()
}

// outcome is the result of a call: the version that answered, or an error code.
type outcome struct {
	text string
	took time.Duration
}

func (o *outcome) String() string { return fmt.Sprintf("%s after %v", o.text, o.took) }

// do runs a call that takes the given time on its instance, and returns the version that
// answered or the error code.
func (l *lab) do(name string, takes time.Duration) string {
	r := httptest.NewRequest("POST", "/function/"+name, nil)
	r.Header.Set("X-Takes", takes.String())
	w := httptest.NewRecorder()
	l.api.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		return w.Header().Get("Gfaas-Reason")
	}
	return w.Body.String()
}

// call starts a call in the background. The returned outcome is complete when the call
// has ended.
func (l *lab) call(name string, takes time.Duration) *outcome {
	o, came := &outcome{}, time.Now()
	l.calls.Go(func() {
		o.text = l.do(name, takes)
		o.took = time.Since(came)
	})
	synctest.Wait()
	return o
}

// want checks the result of a call and that the call took at most within.
func (l *lab) want(o *outcome, text string, within time.Duration) {
	l.t.Helper()
	synctest.Wait()
	if o.text != text || o.took > within {
		l.t.Errorf("result of the call: got %v, want %s within %v", o, text, within)
	}
}

// inVirtualTime runs a test in a synctest bubble.
func inVirtualTime(t *testing.T, name string, test func(*testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, test) })
}

// forPolicies runs a test in a synctest bubble for each policy that keeps instances.
func forPolicies(t *testing.T, name string, test func(t *testing.T, policy string)) {
	for _, policy := range queue.Names() {
		if policy == "fcfs-naive" {
			continue
		}
		inVirtualTime(t, name+", "+policy, func(t *testing.T) { test(t, policy) })
	}
}

// TestFailingStarts checks that after three failed starts in a row, the gateway answers
// all calls with an error, and it pauses for 1, 2, 4, … 60 s before each further start.
// This holds for any number of callers, GPUs and kinds of start.
func TestFailingStarts(t *testing.T) {
	t.Parallel()
	const takes = 20 * time.Millisecond
	for _, c := range []struct {
		name        string
		callers     int
		gpus, slots int
		min         int
		inflight    int
	}{
		{"one caller", 1, 1, 2, 0, 1}, {"two callers", 2, 1, 2, 0, 1}, {"eight callers", 8, 1, 2, 0, 1}, {"one slot", 3, 1, 1, 0, 1},
		{"two GPUs", 2, 2, 1, 0, 1}, {"many GPUs", 20, 8, 2, 0, 1}, {"inflight", 8, 1, 2, 0, 4},
		{"kept ready", 0, 1, 2, 1, 1}, {"several kept ready", 0, 2, 2, 3, 1}, {"kept ready, and a caller", 1, 1, 2, 1, 1}, {"kept ready, and callers", 4, 2, 2, 2, 2},
	} {
		inVirtualTime(t, c.name, func(t *testing.T) {
			l := newLab(t, map[string]behavior{"f 1": {takes: takes, fails: true}}, func(cfg *Config) {
				cfg.Concurrency, cfg.GPUs = c.slots, nil
				for n := range c.gpus {
					cfg.GPUs = append(cfg.GPUs, GPU{Name: fmt.Sprint("sim:", n)})
				}
			})
			l.apply(ver("f", "1", func(f *function.Function) { f.Scale.Min, f.Inflight = c.min, c.inflight }))
			over := time.Now().Add(200 * time.Second)
			for n := range c.callers {
				pause := 30 * time.Millisecond
				if n > 0 { // the others only add to the load
					pause *= 10
				}
				l.calls.Go(func() {
					for time.Now().Before(over) {
						o := outcome{}
						came := time.Now()
						if text := l.do("f", 0); text != refusal.StartFailed {
							t.Errorf("got %s, want %s", text, refusal.StartFailed)
						}
						if o.took = time.Since(came); o.took > 5*takes {
							t.Errorf("answered after %v, want at most %v", o.took, 5*takes)
						}
						time.Sleep(pause)
					}
				})
			}
			time.Sleep(time.Until(over))
			var pauses []time.Duration
			var bursts []int // numbers of starts that began within half a second of each other
			starts := l.starter.started("f 1")
			for i, at := range starts {
				if i == 0 || at-starts[i-1] > time.Second/2 {
					bursts = append(bursts, 0)
				}
				if len(bursts) > 1 {
					pauses = append(pauses, (at - starts[i-1] - takes).Round(time.Second/10))
				}
				bursts[len(bursts)-1]++
			}
			if most := 2 + c.gpus*c.slots; bursts[0] < 3 || bursts[0] > most || slices.Max(bursts[1:]) > 1 {
				t.Errorf("%d starts at once, want 3 to %d and then one each: %v", bursts, most, starts)
			}
			want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second, time.Minute, time.Minute}
			if !slices.Equal(pauses, want) {
				t.Errorf("pauses of %v, want %v, between starts at %v", pauses, want, starts)
			}
		})
	}
}

// gpuSeconds returns the GPU time of a function according to the status.
func (l *lab) gpuSeconds(name string) float64 {
	l.t.Helper()
	for _, f := range l.dispatcher.Status().Functions {
		if f.Function == name {
			return *f.GPUSeconds
		}
	}
	l.t.Fatalf("snapshot: got no function %s, want it", name)
	return 0
}

// TestGPUSecondsWithoutFailedStarts checks that the GPU time excludes failed starts,
// however long they took. It includes successful starts and the calls that waited for
// them.
func TestGPUSecondsWithoutFailedStarts(t *testing.T) {
	inVirtualTime(t, "", func(t *testing.T) {
		l := newLab(t, map[string]behavior{"f 1": {takes: 5 * time.Second, fails: true}}, nil)
		l.apply(ver("f", "1"))
		first := l.call("f", time.Second)
		l.calls.Wait()
		if first.text != refusal.StartFailed {
			t.Fatalf("first call: got %v, want %s", first, refusal.StartFailed)
		}
		if starts := l.starter.started("f 1"); len(starts) < 2 {
			t.Fatalf("got %d starts, want at least 2", len(starts))
		}
		if got := l.gpuSeconds("f"); got != 0 {
			t.Errorf("%g s after starts that failed, want 0", got)
		}
		l.starter.become("f 1", behavior{takes: 2 * time.Second})
		time.Sleep(time.Minute)
		second := l.call("f", 3*time.Second)
		l.calls.Wait()
		l.want(second, "f 1", 5*time.Second)
		if got := l.gpuSeconds("f"); got != 5 {
			t.Errorf("%g s, want 2 s of the start and 3 s of the call", got)
		}
	})
}

// become changes the behavior of later starts of a version.
func (f *fakeStarter) become(what string, b behavior) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behaviors[what] = b
}

// TestFailingStartsBesideOneThatRuns checks that while further starts of a function fail,
// its calls wait for the running instance, and the starts keep to the pauses.
func TestFailingStartsBesideOneThatRuns(t *testing.T) {
	for _, c := range []struct {
		name    string
		planned bool
	}{{"its own", false}, {"of a plan", true}} {
		inVirtualTime(t, c.name, func(t *testing.T) {
			l := newLab(t, map[string]behavior{}, func(cfg *Config) { cfg.Concurrency = 4 })
			f := ver("f", "1")
			l.apply(f)
			if c.planned {
				l.gfaasUp("f-0", f)
				time.Sleep(time.Millisecond)
			}
			first := l.call("f", 20*time.Second)
			l.starter.become("f 1", behavior{takes: 10 * time.Millisecond, fails: true})
			began := time.Since(l.starter.begin)
			var others []*outcome
			for range 5 {
				others = append(others, l.call("f", time.Millisecond))
			}
			time.Sleep(12 * time.Second)
			var gaps []time.Duration
			starts := slices.DeleteFunc(l.starter.started("f 1"), func(at time.Duration) bool { return at < began })
			for i := 1; i < len(starts); i++ {
				if gap := (starts[i] - starts[i-1]).Round(time.Second); gap > 0 {
					gaps = append(gaps, gap)
				}
			}
			if want := []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}; !slices.Equal(gaps, want) {
				t.Errorf("pauses of %v, want %v, between starts at %v", gaps, want, starts)
			}
			l.calls.Wait()
			l.want(first, "f 1", 20*time.Second)
			for _, o := range others {
				l.want(o, "f 1", 21*time.Second)
			}
			if c.planned {
				l.down("f-0")
			}
		})
	}
}

// TestStartSucceedsAfterFailures checks that a successful start ends the pauses.
func TestStartSucceedsAfterFailures(t *testing.T) {
	inVirtualTime(t, "", func(t *testing.T) {
		l := newLab(t, map[string]behavior{"f 1": {fails: true}}, nil)
		l.apply(ver("f", "1", func(f *function.Function) { f.Scale.Idle = time.Second }))
		fails := func(times int) {
			for range times {
				o := l.call("f", 0)
				l.calls.Wait()
				l.want(o, refusal.StartFailed, 0)
			}
		}
		fails(1)
		for _, pause := range []time.Duration{time.Second, 2 * time.Second} {
			time.Sleep(pause - time.Millisecond)
			fails(2) // immediately, because no start is due
			time.Sleep(time.Millisecond)
			fails(1)
		}
		time.Sleep(4 * time.Second)
		l.starter.become("f 1", behavior{})
		o := l.call("f", 0)
		l.calls.Wait()
		l.want(o, "f 1", 0)
		time.Sleep(2 * time.Second) // the instance stops
		l.starter.become("f 1", behavior{fails: true})
		before := len(l.starter.started("f 1"))
		fails(1)
		if n := len(l.starter.started("f 1")) - before; n != 3 {
			t.Errorf("%d starts in a row, want 3", n)
		}
		time.Sleep(time.Second)
		l.starter.become("f 1", behavior{})
		o = l.call("f", 0)
		l.calls.Wait()
		l.want(o, "f 1", 0)
	})
}

const (
	soon  = time.Second
	never = 10 * time.Minute // for a start that never completes during a test
)

// TestCancelledStarts checks that apply and rm cancel the starts of the versions that
// they replace or remove, and release all their resources.
func TestCancelledStarts(t *testing.T) {
	stuck := behavior{takes: never}
	max1 := func(f *function.Function) { f.Scale.Max = 1 }
	inflight2 := func(f *function.Function) { f.Inflight, f.Scale.Max = 2, 1 }
	min2 := func(f *function.Function) { f.Scale.Min = 2 }
	large := func(f *function.Function) { f.GPUMem = 8 << 20 }
	for _, c := range []struct {
		name   string
		old    behavior
		set    func(*function.Function)
		calls  int // number of calls to f in the old version
		config func(*Config)
		change func(*lab)
		calls2 []string      // their results
		within time.Duration // limit for the calls, after the change
		runs   []string      // versions that run afterwards
	}{
		{"rm", stuck, max1, 3, nil, func(l *lab) { l.remove("f") }, []string{refusal.NoFunction, refusal.NoFunction, refusal.NoFunction}, soon, nil},
		{"rm, several calls on one start", stuck, inflight2, 3, nil, func(l *lab) { l.remove("f") }, []string{refusal.NoFunction, refusal.NoFunction, refusal.NoFunction}, soon, nil},
		{"rm, both slots taken", stuck, nil, 4, nil, func(l *lab) { l.remove("f") }, []string{refusal.NoFunction, refusal.NoFunction, refusal.NoFunction, refusal.NoFunction}, soon, nil},
		{"rm, kept ready", stuck, min2, 0, nil, func(l *lab) { l.remove("f") }, nil, soon, nil},
		{"rm, two GPUs", stuck, nil, 5, func(c *Config) { c.GPUs = []GPU{{Name: "sim:0"}, {Name: "sim:1"}} }, func(l *lab) { l.remove("f") }, slices.Repeat([]string{refusal.NoFunction}, 5), soon, nil},
		{"rm, tenants have limits", stuck, nil, 3, func(c *Config) { c.Policy.Limits.Slots = 1 }, func(l *lab) { l.remove("f") }, slices.Repeat([]string{refusal.NoFunction}, 3), soon, nil},
		{"apply", stuck, nil, 2, nil, func(l *lab) { l.apply(ver("f", "2")) }, []string{"f 2", "f 2"}, soon, []string{"f 2", "f 2"}},
		{"apply, calls that wait", stuck, max1, 4, nil, func(l *lab) { l.apply(ver("f", "2", max1)) }, slices.Repeat([]string{"f 2"}, 4), soon, []string{"f 2"}},
		{"apply, several calls on one start", stuck, inflight2, 3, nil, func(l *lab) { l.apply(ver("f", "2", inflight2)) }, slices.Repeat([]string{"f 2"}, 3), soon, []string{"f 2"}},
		{"apply, kept ready", stuck, min2, 0, nil, func(l *lab) { l.apply(ver("f", "2", min2)) }, nil, soon, []string{"f 2", "f 2"}},
		{"apply, no more kept ready", stuck, min2, 0, nil, func(l *lab) { l.apply(ver("f", "2")) }, nil, soon, nil},
		{"apply, two GPUs", stuck, nil, 4, func(c *Config) { c.GPUs = []GPU{{Name: "sim:0"}, {Name: "sim:1"}} }, func(l *lab) { l.apply(ver("f", "2")) }, slices.Repeat([]string{"f 2"}, 4), soon, slices.Repeat([]string{"f 2"}, 4)},
		{"apply, tenants have limits", stuck, max1, 3, func(c *Config) { c.Policy.Limits.Slots = 1 }, func(l *lab) { l.apply(ver("f", "2", max1)) }, slices.Repeat([]string{"f 2"}, 3), soon, []string{"f 2"}},
		{"apply, ready all the same", behavior{takes: 2500 * time.Millisecond, deaf: true}, max1, 2, nil, func(l *lab) { l.apply(ver("f", "2", max1)) }, []string{"f 2", "f 2"}, soon, []string{"f 2"}},
		{"apply, slow to end", behavior{takes: never, dying: 3 * time.Second}, max1, 2, nil, func(l *lab) { l.apply(ver("f", "2", max1)) }, []string{"f 2", "f 2"}, soon, []string{"f 2"}},
		{"apply, slow to end, with its memory", behavior{takes: never, dying: 3 * time.Second}, large, 2, func(c *Config) { c.GPUs[0].Mem = 10 << 20 }, func(l *lab) { l.apply(ver("f", "2", large)) }, []string{"f 2", "f 2"}, 3*time.Second + soon, []string{"f 2"}},
		{"apply, something remains", behavior{takes: never, remains: true, dying: time.Second}, large, 1, func(c *Config) { c.GPUs[0].Mem = 10 << 20 }, func(l *lab) { l.apply(ver("f", "2", large)) }, []string{"f 2"}, time.Second + soon, []string{"f 2"}},
		{"apply with another need of memory", stuck, large, 1, func(c *Config) { c.GPUs[0].Mem = 10 << 20 }, func(l *lab) {
			l.apply(ver("f", "2", func(f *function.Function) { f.GPUMem = 9 << 20 }))
		}, []string{"f 2"}, soon, []string{"f 2"}},
		{"rm and apply", stuck, nil, 2, nil, func(l *lab) { l.remove("f"); l.apply(ver("f", "2")) }, []string{refusal.NoFunction, refusal.NoFunction}, soon, nil},
		{"rm and apply of the same", stuck, nil, 2, nil, func(l *lab) { l.remove("f"); l.apply(ver("f", "1")) }, []string{refusal.NoFunction, refusal.NoFunction}, soon, nil},
		{"apply and rm", stuck, nil, 2, nil, func(l *lab) { l.apply(ver("f", "3")); l.remove("f") }, []string{refusal.NoFunction, refusal.NoFunction}, soon, nil},
		{"apply twice", stuck, nil, 2, nil, func(l *lab) { l.apply(ver("f", "3")); l.apply(ver("f", "2")) }, []string{"f 2", "f 2"}, soon, []string{"f 2", "f 2"}},
		{"apply there and back", behavior{takes: 2500 * time.Millisecond}, nil, 2, nil, func(l *lab) { l.apply(ver("f", "3")); l.apply(ver("f", "1")) }, []string{"f 1", "f 1"}, 2500*time.Millisecond + soon, []string{"f 1", "f 1"}},
		{"apply of a version that fails", stuck, nil, 2, nil, func(l *lab) { l.apply(ver("f", "bad")) }, []string{refusal.StartFailed, refusal.StartFailed}, soon, nil},
		{"apply of the same", behavior{takes: 5 * time.Second}, nil, 2, nil, func(l *lab) { l.apply(ver("f", "1", func(f *function.Function) { f.Timeout = time.Minute })) }, []string{"f 1", "f 1"}, 3*time.Second + soon, []string{"f 1", "f 1"}},
	} {
		forPolicies(t, c.name, func(t *testing.T, policy string) {
			l := newLab(t, map[string]behavior{"f 1": c.old, "f 3": stuck, "f bad": {fails: true}}, func(cfg *Config) {
				cfg.Policy.Policy = policy
				if c.config != nil {
					c.config(cfg)
				}
			})
			if c.set == nil {
				c.set = func(*function.Function) {}
			}
			l.apply(ver("f", "1", c.set), ver("third", "1"))
			var outcomes []*outcome
			for range c.calls {
				outcomes = append(outcomes, l.call("f", 0))
			}
			time.Sleep(2 * time.Second)
			if len(l.starter.runs()) == 0 {
				t.Fatal("starts after 2s: got none, want at least one")
			}
			c.change(l)
			if c.old.takes == never && c.old.dying == 0 {
				third := l.call("third", 0)
				synctest.Wait()
				l.want(third, "third 1", soon)
			}
			time.Sleep(c.within)
			for i, o := range outcomes {
				l.want(o, c.calls2[i], 2*time.Second+c.within)
			}
			l.calls.Wait()
			if c.old.dying > c.within {
				time.Sleep(c.old.dying)
			}
			synctest.Wait()
			runs := slices.DeleteFunc(l.starter.runs(), func(what string) bool { return what == "third 1" })
			if policy == "gfaas" && !slices.Equal(runs, c.runs) || slices.ContainsFunc(runs, func(what string) bool { return !slices.Contains(c.runs, what) }) {
				t.Errorf("%v run, want %v", runs, c.runs)
			}
			for _, line := range bytes.Split(l.log.Bytes(), []byte("\n")) {
				if bytes.Contains(line, []byte("level=ERROR")) && !bytes.Contains(line, []byte("exited with status 3")) {
					t.Errorf("log: got the error %s, want only errors of exits with status 3", line)
				}
			}
			if f := l.dispatcher.Function("f"); f != nil {
				fails := f.Info().FailedStarts
				if want := 3 * min(strings.Count(strings.Join(c.calls2, " "), refusal.StartFailed), 1); fails < want || want == 0 && fails > 0 {
					l.t.Errorf("%d starts failed, want %d", fails, want)
				}
			}
		})
	}
}

// gfaasUp starts a planned instance, as gfaas up does.
func (l *lab) gfaasUp(id string, f function.Function) {
	l.t.Helper()
	r, err := l.starter.Start(context.Background(), f, instance.Placement{ID: id, GPUs: []string{l.cfg.GPUs[0].Name}, RPS: 1000})
	if err := errors.Join(err, l.catalog.Reserve(context.Background(), r)); err != nil {
		l.t.Fatal(err)
	}
	synctest.Wait()
}

// down stops a planned instance.
func (l *lab) down(id string) {
	l.t.Helper()
	if err := l.catalog.Forget(context.Background(), id); err != nil {
		l.t.Fatal(err)
	}
	l.starter.kill(id)
	synctest.Wait()
}

// TestNewVersionStartsFresh checks that failures, pauses, restarts and measured costs of
// a version do not affect the next version.
func TestNewVersionStartsFresh(t *testing.T) {
	min1 := func(f *function.Function) { f.Scale.Min = 1 }
	always := func(f *function.Function) { f.Restart = "always" }
	answers := func(l *lab) {
		l.t.Helper()
		o := l.call("f", 0)
		l.calls.Wait()
		l.want(o, "f 2", 0)
	}
	fail := func(l *lab) { // until the pause is 32 s
		for _, pause := range []time.Duration{1, 2, 4, 8, 16, 32} {
			l.call("f", 0)
			time.Sleep(pause * time.Second)
		}
		l.call("f", 0)
		time.Sleep(time.Second)
	}
	for _, c := range []struct {
		name   string
		f1, f2 function.Function
		old    behavior
		before func(*lab)
		after  func(*lab)
	}{
		{"failures", ver("f", "1"), ver("f", "2"), behavior{fails: true}, fail, answers},
		{"failures of those kept ready", ver("f", "1", min1), ver("f", "2", min1), behavior{fails: true}, func(l *lab) { time.Sleep(40 * time.Second) }, func(l *lab) {
			if got := l.starter.runs(); !slices.Equal(got, []string{"f 2"}) {
				l.t.Errorf("%v run, want [f 2]", got)
			}
		}},
		{"pauses of those kept ready that end too soon", ver("f", "1", min1), ver("f", "2", min1), behavior{}, func(l *lab) {
			for n := range 4 {
				l.starter.kill(fmt.Sprint("f.", n+1))
				synctest.Wait()
				if n < 3 {
					time.Sleep(time.Second<<n + time.Millisecond)
				}
			}
		}, func(l *lab) {
			if got := l.starter.runs(); !slices.Equal(got, []string{"f 2"}) {
				l.t.Errorf("%v run, want [f 2]", got)
			}
			l.starter.kill("f.5")
			time.Sleep(time.Second + time.Millisecond)
			if got := l.starter.runs(); !slices.Equal(got, []string{"f 2"}) {
				l.t.Errorf("%v run 1 s after the first instance ended, want [f 2]", got)
			}
			time.Sleep(10 * time.Second) // the pause of the old version has ended
			if got := l.starter.runs(); !slices.Equal(got, []string{"f 2"}) {
				l.t.Errorf("%v run after the old version's pause, want [f 2]", got)
			}
		}},
		{"restarts of its own", ver("f", "1", always), ver("f", "2", always), behavior{}, func(l *lab) {
			l.call("f", 0)
			l.starter.kill("f.1")
			synctest.Wait()
		}, func(l *lab) {
			time.Sleep(10 * time.Second)
			if got := l.starter.runs(); len(got) > 0 {
				l.t.Errorf("%v run in place of an instance of the old version, want none", got)
			}
			answers(l)
		}},
		{"restarts of a plan's", ver("f", "1", always), ver("f", "2", always), behavior{}, func(l *lab) {
			l.gfaasUp("f-0", ver("f", "1"))
			l.starter.become("f 1", behavior{fails: true})
			l.starter.kill("f-0")
			time.Sleep(40 * time.Second) // pauses of 1, 2, 4, 8 and 16 s have ended, the pause of 32 s has begun
			if starts := l.starter.started("f 1"); len(starts) != 6 {
				l.t.Errorf("starts at %v, want 6", starts)
			}
		}, func(l *lab) {
			if got := l.starter.runs(); !slices.Equal(got, []string{"f 2"}) {
				l.t.Errorf("%v run, want [f 2]", got)
			}
			answers(l)
			l.down("f-0")
		}},
		{"costs and contract", ver("f", "1"), ver("f", "2"), behavior{takes: 5 * time.Second}, func(l *lab) {
			l.call("f", 3*time.Second)
			l.calls.Wait()
			l.call("f", 3*time.Second) // still runs on the old version's instance when the new version is applied
		}, func(l *lab) {
			l.calls.Wait()
			f := l.dispatcher.Function("f").Info()
			if spec := f.Spec; f.Contract != "" || spec.MeasuredMem != spec.Mem || spec.Warm != 100*time.Millisecond || spec.Cold != 2100*time.Millisecond || spec.Load != 200*time.Millisecond {
				l.t.Errorf("got %+v, contract %q; want no contract, and costs without measurements of the old version", spec, f.Contract)
			}
			answers(l)
		}},
	} {
		for _, how := range []string{"apply", "rm and apply"} {
			if how != "apply" && c.name == "restarts of a plan's" { // the function is in use and cannot be removed
				continue
			}
			inVirtualTime(t, c.name+", "+how, func(t *testing.T) {
				l := newLab(t, map[string]behavior{"f 1": c.old}, nil)
				l.apply(c.f1)
				c.before(l)
				if how != "apply" {
					l.remove("f")
				}
				l.apply(c.f2)
				c.after(l)
			})
		}
	}
}

// TestApplyUnderLoad checks that running calls end on the old version's instance, and new
// calls go to the new version's instance, although the old instance always has calls.
func TestApplyUnderLoad(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*function.Function)
	}{
		{"inflight", func(f *function.Function) { f.Inflight = 4 }},
		{"one instance at most", func(f *function.Function) { f.Inflight, f.Scale.Max = 4, 1 }},
		{"kept ready", func(f *function.Function) { f.Inflight, f.Scale.Min = 4, 1 }},
		{"one at a time", func(f *function.Function) { f.Scale.Max = 1 }},
	} {
		forPolicies(t, c.name, func(t *testing.T, policy string) {
			l := newLab(t, nil, func(c *Config) {
				c.Policy.Policy = policy
				c.GPUs = []GPU{{Name: "sim:0"}, {Name: "sim:1"}}
			})
			l.apply(ver("f", "1", c.set))
			old := l.call("f", 30*time.Second)
			time.Sleep(time.Second)
			l.apply(ver("f", "2", c.set))
			for range 10 {
				o := l.call("f", 100*time.Millisecond)
				time.Sleep(time.Second)
				l.want(o, "f 2", 100*time.Millisecond)
			}
			l.calls.Wait()
			l.want(old, "f 1", 30*time.Second)
			synctest.Wait()
			if got := l.starter.runs(); slices.Contains(got, "f 1") {
				t.Errorf("%v run, want no f 1", got)
			}
		})
	}
}

// TestRemoveUnderLoad checks that queued calls of a removed function run on its existing
// instance. The gateway starts no further instance for them.
func TestRemoveUnderLoad(t *testing.T) {
	inVirtualTime(t, "", func(t *testing.T) {
		l := newLab(t, nil, func(c *Config) { c.Concurrency = 1 })
		l.apply(ver("f", "1"))
		var outcomes []*outcome
		for range 3 {
			outcomes = append(outcomes, l.call("f", time.Second))
		}
		l.remove("f")
		afterRemoval := l.call("f", 0)
		l.calls.Wait()
		l.want(afterRemoval, refusal.NoFunction, 0)
		for n, o := range outcomes {
			l.want(o, "f 1", time.Duration(n+1)*time.Second)
		}
		synctest.Wait()
		if got, starts := l.starter.runs(), l.starter.started("f 1"); len(got) > 0 || len(starts) != 1 {
			t.Errorf("%v run, starts at %v; want none and one start", got, starts)
		}
	})
}

// TestSlowStart checks that the start time of a function's instances does not count
// against the queue timeout of its own calls, but it does for calls to other functions.
func TestSlowStart(t *testing.T) {
	const patience = 5 * time.Second
	set := func(inflight, most int) func(*function.Function) {
		return func(f *function.Function) { f.Inflight, f.Scale.Max = inflight, most }
	}
	limited := func(c *Config) { c.Policy.Limits.Slots = 2 }
	for _, c := range []struct {
		name   string
		set    func(*function.Function)
		config func(*Config)
		start  behavior
		calls  int
		takes  time.Duration // duration of each call
		want   []string
	}{
		{"one at a time", set(1, 10), nil, behavior{takes: 6 * time.Second}, 8, 100 * time.Millisecond, slices.Repeat([]string{"f 1"}, 8)},
		{"one instance", set(1, 1), nil, behavior{takes: 6 * time.Second}, 8, 100 * time.Millisecond, slices.Repeat([]string{"f 1"}, 8)},
		{"inflight", set(3, 1), nil, behavior{takes: 6 * time.Second}, 8, 100 * time.Millisecond, slices.Repeat([]string{"f 1"}, 8)},
		{"kept ready", func(f *function.Function) { f.Scale.Min, f.Scale.Max = 1, 1 }, nil, behavior{takes: time.Minute}, 8, 100 * time.Millisecond, slices.Repeat([]string{"f 1"}, 8)},
		{"tenants have limits", set(1, 10), limited, behavior{takes: 6 * time.Second}, 8, 100 * time.Millisecond, slices.Repeat([]string{"f 1"}, 8)},
		{"then it is too slow", set(1, 1), nil, behavior{takes: 6 * time.Second}, 8, 2 * time.Second, append(slices.Repeat([]string{"f 1"}, 3), slices.Repeat([]string{refusal.QueueTimeout}, 5)...)},
		{"it fails, three times", set(1, 1), nil, behavior{takes: 6 * time.Second, fails: true}, 8, 0, slices.Repeat([]string{refusal.StartFailed}, 8)},
	} {
		forPolicies(t, c.name, func(t *testing.T, policy string) {
			l := newLab(t, map[string]behavior{"f 1": c.start}, func(cfg *Config) {
				cfg.QueueTimeout = patience
				cfg.Policy.Policy = policy
				if c.config != nil {
					c.config(cfg)
				}
			})
			l.apply(ver("f", "1", c.set))
			var outcomes []*outcome
			for range c.calls {
				outcomes = append(outcomes, l.call("f", c.takes))
			}
			l.calls.Wait()
			for i, o := range outcomes {
				l.want(o, c.want[i], 3*c.start.takes+patience)
			}
		})
	}
	inVirtualTime(t, "of another function", func(t *testing.T) {
		l := newLab(t, map[string]behavior{"f 1": {takes: 20 * time.Second}}, func(c *Config) { c.QueueTimeout, c.Concurrency = patience, 1 })
		l.apply(ver("f", "1"), ver("g", "1"))
		f, g := l.call("f", 0), l.call("g", 0)
		l.calls.Wait()
		l.want(f, "f 1", 20*time.Second)
		l.want(g, refusal.QueueTimeout, patience)
		if g.took != patience {
			t.Errorf("got %v, want a time of %v", g, patience)
		}
	})
	inVirtualTime(t, "after it waited", func(t *testing.T) {
		l := newLab(t, map[string]behavior{"f 1": {takes: 10 * time.Second}}, func(c *Config) { c.QueueTimeout, c.Concurrency = patience, 1 })
		l.apply(ver("f", "1", set(1, 1)), ver("g", "1"))
		l.call("g", 3*time.Second)
		first := l.call("f", 10*time.Second) // queued for 3 s
		second := l.call("f", 0)             // queued for 3 s, then waits for the start, then is queued for 2 s
		l.calls.Wait()
		l.want(first, "f 1", 23*time.Second)
		l.want(second, refusal.QueueTimeout, 15*time.Second)
		if second.took != 15*time.Second {
			t.Errorf("second call: got %v, want 15s: 3 s in the queue, 10 s for the start, and 2 s in the queue", second)
		}
	})
	inVirtualTime(t, "starts that fail do not count either", func(t *testing.T) {
		l := newLab(t, map[string]behavior{"f 1": {takes: 4 * time.Second, fails: true}}, func(c *Config) { c.QueueTimeout = patience })
		l.apply(ver("f", "1"))
		first := l.call("f", 0)
		time.Sleep(9 * time.Second)
		l.starter.become("f 1", behavior{takes: 4 * time.Second})
		l.calls.Wait()
		l.want(first, refusal.StartFailed, 12*time.Second) // the third start had begun with the old behavior
		first = l.call("f", 0)
		l.calls.Wait()
		l.want(first, refusal.StartFailed, 0)
		time.Sleep(time.Second)
		first = l.call("f", 0)
		l.calls.Wait()
		l.want(first, "f 1", 4*time.Second)
	})
}
