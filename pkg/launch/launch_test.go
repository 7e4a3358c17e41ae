package launch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/wire"
	wiremodel "github.com/gfaas/gfaas/pkg/wire/model"
)

// TestRegistration checks that an instance is registered on each of its GPUs, with its turns there.
func TestRegistration(t *testing.T) {
	turns := []gpu.Turn{{From: 0.2, To: 0.5}}
	p := instance.Placement{
		ID: "f-0", GPUs: []string{"sim", "sim:1"}, Turns: [][]gpu.Turn{nil, turns},
		Slice: gpu.Slice{SMPct: 24, QuotaRequest: 0.3, QuotaLimit: 0.8, Mem: gpu.GiB},
	}
	got := NewRegistration(function.Function{Name: "f"}, p, "secret")
	seat := wire.Allocation{GPU: "sim", SMPct: 24, QuotaRequest: 0.3, QuotaLimit: 0.8, MemLimit: gpu.GiB}
	second := seat
	second.GPU, second.Turns = "sim:1", turns
	want := wire.Registration{Instance: "f-0", Function: "f", Secret: "secret", Allocation: seat, More: []wire.Allocation{second}}
	if !reflect.DeepEqual(got, want) || checkPlacement(p) != nil {
		t.Errorf("registered %+v, want %+v", got, want)
	}
	if p.Turns = p.Turns[1:]; checkPlacement(p) == nil {
		t.Error("registration with turns on one of two GPUs: got no error, want one")
	}
}

// TestSLO checks that an inference function is registered with its objective, and a training function without one but with
// its kind.
func TestSLO(t *testing.T) {
	p := instance.Placement{ID: "f-0", GPUs: []string{"sim"}, Slice: gpu.Slice{SMPct: 100, QuotaRequest: 1, QuotaLimit: 1}}
	for kind, want := range map[string]wire.Registration{"inference": {SLOMS: 69}, "training": {Kind: "training"}} {
		fn := function.Function{Name: "f", Kind: kind, SLO: 69 * time.Millisecond}
		got := NewRegistration(fn, p, "secret")
		if got.SLOMS != want.SLOMS || got.Kind != want.Kind || got.Validate() != nil {
			t.Errorf("%s: registered with slo_ms %v and kind %q, want %v and %q", kind, got.SLOMS, got.Kind, want.SLOMS, want.Kind)
		}
	}
}

// TestLanguageModels checks that functions of language models are registered as such.
func TestLanguageModels(t *testing.T) {
	p := instance.Placement{ID: "f-0", GPUs: []string{"sim"}}
	for contract, want := range map[string]bool{"openai": true, "http": false, "": false} {
		if got := NewRegistration(function.Function{Name: "f", Contract: contract}, p, "secret").LLM; got != want {
			t.Errorf("contract %q: registered with llm %v, want %v", contract, got, want)
		}
	}
}

// fakeTokens is a fake token daemon.
type fakeTokens struct {
	mu             sync.Mutex
	registered     map[string]wire.Registration
	abandoned      []wire.Registration // registrations whose client had given up
	refuse         error
	beforeRegister func() // called before a registration takes place
	smPct          float64
}

func (d *fakeTokens) Registrations(context.Context) (all []wire.Registration, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.registered {
		all = append(all, r)
	}
	return all, nil
}

// Register registers the instance even if the client has given up, as the daemon does. Such a registration goes to
// abandoned.
func (d *fakeTokens) Register(ctx context.Context, r wire.Registration) (wire.Registered, error) {
	if d.beforeRegister != nil {
		d.beforeRegister()
	}
	if err := ctx.Err(); err != nil {
		d.abandoned = append(d.abandoned, r)
		return wire.Registered{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse != nil {
		return wire.Registered{}, d.refuse
	}
	if _, taken := d.registered[r.Instance]; taken {
		return wire.Registered{}, fmt.Errorf("%s is registered already", r.Instance)
	}
	d.registered[r.Instance] = r
	return wire.Registered{MPSPipeDir: "/pipes", SMPct: d.smPct}, nil
}

func (d *fakeTokens) Change(_ context.Context, id string, c wire.Change) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.registered[id], err = c.Apply(d.registered[id])
	return err
}

func (d *fakeTokens) Unregister(_ context.Context, id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.registered, id)
	return nil
}

// device implements SimulatedDevice with the real folder.
type device struct{}

func (device) Retain(id string) error  { return simgpu.Retain(id) }
func (device) Release(id string) error { return simgpu.Release(id) }

// bench is a Launcher on fakes. Tests can replace openDocker.
type bench struct {
	*Launcher
	tokens     *fakeTokens
	process    *instancetest.Fake
	docker     *instancetest.Fake
	openDocker func(context.Context) (ports.Runtime, error)
	runDir     string
	simulated  int // calls of Config.Simulated
}

func newBench(t *testing.T, ready time.Duration) *bench {
	t.Setenv("GFAAS_SIM_DIR", filepath.Join(t.TempDir(), "sim"))
	b := &bench{
		tokens:  &fakeTokens{registered: map[string]wire.Registration{}},
		process: instancetest.NewFake(instance.Process), docker: instancetest.NewFake(instance.Docker),
		runDir: t.TempDir(),
	}
	b.openDocker = func(context.Context) (ports.Runtime, error) { return b.docker, nil }
	b.Launcher = New(Config{
		LogDir: filepath.Join(b.runDir, "logs"), ReadyTimeout: ready, Ready: fnhttp.WaitReady, Tokens: b.tokens,
		Device: device{}, RemoveLog: os.RemoveAll, KeepFailed: keepNone, OutOfMemory: neverOutOfMemory, Note: func(string, ...any) {},
		Simulated: func() { b.simulated++ },
		Runtime: func(ctx context.Context, name string) (ports.Runtime, error) {
			if name == instance.Docker {
				return b.openDocker(ctx)
			}
			return b.process, nil
		},
	})
	return b
}

// Functions of Config for tests that do not concern them.
func keepNone(_, _ string, _ ports.LogLines) error      { return nil }
func neverOutOfMemory(_ context.Context, _ string) bool { return false }

// empty fails the test if any part of an instance remains.
func (b *bench) empty(t *testing.T) {
	t.Helper()
	if running := append(b.process.Running(), b.docker.Running()...); len(running) > 0 {
		t.Errorf("running instances at the end: got %v, want none", running)
	}
	if len(b.tokens.registered) > 0 {
		t.Errorf("registered instances at the end: got %v, want none", b.tokens.registered)
	}
	if logs, _ := filepath.Glob(filepath.Join(b.runDir, "logs", "*")); len(logs) > 0 {
		t.Errorf("logs at the end: got %v, want none", logs)
	}
	if files, _ := filepath.Glob(filepath.Join(os.Getenv("GFAAS_SIM_DIR"), "*")); len(files) > 0 {
		t.Errorf("files of the simulated device at the end: got %v, want none", files)
	}
}

var (
	whole = gpu.Slice{SMPct: 100, QuotaRequest: 1, QuotaLimit: 1}
	place = instance.Placement{ID: "f-0", GPUs: []string{"sim"}, Slice: gpu.Slice{SMPct: 24, QuotaRequest: 0.3, QuotaLimit: 0.8, Mem: gpu.GiB}}
	serve = function.Function{Name: "f", Command: []string{"./serve"}, Contract: "auto", Dir: "/srv/f"}
)

func TestStartAndStop(t *testing.T) {
	for _, c := range []struct {
		fn      function.Function
		runtime func(*bench) *instancetest.Fake
	}{
		{serve, func(b *bench) *instancetest.Fake { return b.process }},
		{function.Function{Name: "f", Image: "f:1"}, func(b *bench) *instancetest.Fake { return b.docker }},
	} {
		b := newBench(t, time.Minute)
		var noted instance.Record
		p := place
		p.Note = func(s instance.Record) error { noted = s; return nil }
		s, err := b.Start(t.Context(), c.fn, p)
		if err != nil {
			t.Fatal(err)
		}
		if s.Handle.Runtime != RuntimeOf(c.fn) || s.Contract != "http" || !slices.Equal(s.Registered, []string{"f-0"}) {
			t.Errorf("started instance: got %+v, want the runtime %s, the contract http and the registration f-0", s, RuntimeOf(c.fn))
		}
		if noted.Handle != s.Handle || noted.Contract != "" || noted.State != instance.Starting || s.State != instance.Ready {
			t.Errorf("noted before the start was complete: got %+v, want %+v in state Starting without a contract", noted, s)
		}
		got := b.tokens.registered["f-0"]
		if len(got.Secret) < 26 { // 128 bits
			t.Errorf("secret: got %d bytes, want at least 26", len(got.Secret))
		}
		got.Secret = ""
		want := wire.Registration{
			Instance: "f-0", Function: "f",
			Allocation: wire.Allocation{GPU: "sim", SMPct: 24, QuotaRequest: 0.3, QuotaLimit: 0.8, MemLimit: gpu.GiB},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("registered %+v, want %+v", got, want)
		}
		if state, err := b.State(t.Context(), s.Handle); err != nil || !state.Running {
			t.Errorf("state %+v, %v; want Running true", state, err)
		}
		kept, _ := filepath.Glob(filepath.Join(os.Getenv("GFAAS_SIM_DIR"), "keep.f-0"))
		if (len(kept) == 1) != (s.Handle.Runtime == instance.Docker) {
			t.Errorf("%s: files that keep the simulated device's folder: got %v, want one only with Docker", s.Handle.Runtime, kept)
		}
		if running := c.runtime(b).Running(); !slices.Equal(running, []string{"f-0"}) {
			t.Errorf("running %v, want [f-0]", running)
		}
		for range 2 { // stopping twice is no error
			if err := b.Stop(t.Context(), s); err != nil {
				t.Error(err)
			}
		}
		b.empty(t)
	}
}

// TestSeats checks that an instance has its slice on each of its GPUs.
func TestSeats(t *testing.T) {
	b := newBench(t, time.Minute)
	p := place
	p.GPUs = []string{"sim", "sim:2", "sim:1"}
	s, err := b.Start(t.Context(), serve, p)
	if err != nil {
		t.Fatal(err)
	}
	for n, seat := range b.tokens.registered["f-0"].Allocations() {
		if seat.GPU != p.GPUs[n] || seat.Slice() != p.Slice {
			t.Errorf("seat %d: %+v, want the slice on %s", n, seat, p.GPUs[n])
		}
	}
	if err := b.Stop(t.Context(), s); err != nil {
		t.Error(err)
	}
	b.empty(t)
}

// TestStartsWithTheShareOfTheDaemon checks that processes start with the SM share that the token daemon returns. An older
// daemon returns none.
func TestStartsWithTheShareOfTheDaemon(t *testing.T) {
	for _, c := range []struct{ answer, want float64 }{{48, 48}, {24, 24}, {0, 24}} {
		b := newBench(t, time.Minute)
		b.tokens.smPct = c.answer
		var got instance.Spec
		b.process.FailStart = func(s instance.Spec) error { got = s; return errors.New("not now") }
		limited := place
		limited.Slice.SMLimitPct = 48
		var registered wire.Allocation
		b.tokens.beforeRegister = func() { registered = NewRegistration(serve, limited, "").Allocation }
		if _, err := b.Start(t.Context(), serve, limited); err == nil {
			t.Fatal("start although the runtime refuses it: got no error, want one")
		}
		if got.Slice.SMPct != c.want || registered.SMPct != 24 || registered.SMLimitPct != 48 {
			t.Errorf("answer %v: got a start with %v%% and the registration %+v, want %v%% and a share of 24%% with limit 48%%", c.answer, got.Slice.SMPct, registered, c.want)
		}
		b.empty(t)
	}
}

func TestSpec(t *testing.T) {
	b := newBench(t, time.Minute)
	var got []instance.Spec
	b.process.FailStart = func(s instance.Spec) error { got = append(got, s); return errors.New("not now") }
	for _, command := range []string{"./serve", "bin/serve", "serve", "/opt/serve"} {
		fn := serve
		fn.Command = []string{command, "./arg"}
		if _, err := b.Start(t.Context(), fn, place); err == nil {
			t.Fatal("start although the runtime refuses it: got no error, want one")
		}
	}
	for i, want := range []string{"/srv/f/serve", "/srv/f/bin/serve", "serve", "/opt/serve"} {
		if got[i].Command[0] != want || got[i].Command[1] != "./arg" || got[i].Dir != "/srv/f" {
			t.Errorf("command %v in %s, want %s", got[i].Command, got[i].Dir, want)
		}
	}
	if serve.Command[0] != "./serve" {
		t.Errorf("command of the function: got %s, want ./serve as before the start", serve.Command[0])
	}
	b.empty(t)
}

func TestFailuresLeaveNothing(t *testing.T) {
	broken := errors.New("broken")
	silent := func(instance.Spec) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	}
	for _, c := range []struct {
		name    string
		prepare func(*bench, *function.Function, *instance.Placement)
		says    string
		is      error
	}{
		{"refused by the daemon", func(b *bench, _ *function.Function, _ *instance.Placement) { b.tokens.refuse = broken }, "instance f-0: broken", broken},
		{"refused by the runtime", func(b *bench, _ *function.Function, _ *instance.Placement) {
			b.process.FailStart = func(instance.Spec) error { return broken }
		}, "instance f-0: broken", broken},
		{"ends at once", func(_ *bench, f *function.Function, _ *instance.Placement) {
			f.Env = map[string]string{"PROBE_EXIT": "3"}
		},
			"ended before it was ready: exited with status 3\nit printed last:\n  exiting", nil},
		{"not noted", func(_ *bench, _ *function.Function, p *instance.Placement) {
			p.Note = func(instance.Record) error { return broken }
		}, "broken", broken},
		{"never ready", func(b *bench, _ *function.Function, _ *instance.Placement) { b.process.Handler = silent }, "not ready after 200ms", context.DeadlineExceeded},
		{"no GPU", func(_ *bench, _ *function.Function, p *instance.Placement) { p.GPUs = nil }, "no GPU", nil},
		{"no such GPU", func(_ *bench, _ *function.Function, p *instance.Placement) { p.GPUs = []string{"fast"} }, `"fast" is not a GPU`, nil},
		{"no such slice", func(_ *bench, _ *function.Function, p *instance.Placement) { p.Slice.SMPct = 0 }, "SM share 0", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			ready := time.Minute
			if c.is == context.DeadlineExceeded {
				ready = 200 * time.Millisecond
			}
			b := newBench(t, ready)
			fn, p := serve, place
			c.prepare(b, &fn, &p)
			_, err := b.Start(t.Context(), fn, p)
			var start *ports.StartError
			if !errors.As(err, &start) || start.Remains || !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error %v, want %q", err, c.says)
			}
			b.empty(t)
		})
	}
}

// TestOutOfMemory checks that a start error reports whether the driver refused memory, according to the token daemon,
// which is queried after the instance has ended and before it is unregistered, or according to the model daemon.
func TestOutOfMemory(t *testing.T) {
	ends := serve
	ends.Env = map[string]string{"PROBE_EXIT": "3"}
	model := serve
	model.Model = &function.Model{Name: "m", File: "m.safetensors"}
	for _, c := range []struct {
		name     string
		fn       function.Function
		observed bool  // the preload library observed it
		held     error // error of the model daemon
		want     bool
	}{
		{name: "refused", fn: ends, observed: true, want: true},
		{name: "not refused", fn: ends},
		{name: "no room for its model", fn: model, held: wiremodel.Errorf(wiremodel.CodeGPUMemory, "full"), want: true},
		{name: "models in use leave no room", fn: model, held: wiremodel.Errorf(wiremodel.CodeBusy, "full"), want: true},
		{name: "the model is invalid", fn: model, held: wiremodel.Errorf(wiremodel.CodeChecksum, "other")},
	} {
		b := newBench(t, time.Minute)
		b.config.OutOfMemory = func(_ context.Context, id string) bool {
			_, registered := b.tokens.registered[id]
			if len(b.process.Running()) > 0 || !registered {
				t.Errorf("%s: the token daemon is queried about the memory while instances run (%v) or without a registration (registered: %v), want after the end and before the removal", c.name, b.process.Running(), registered)
			}
			return c.observed
		}
		b.config.Models = refusingModels{c.held}
		_, err := b.Start(t.Context(), c.fn, place)
		var start *ports.StartError
		if !errors.As(err, &start) || start.OutOfMemory != c.want {
			t.Errorf("%s: %+v, want %v", c.name, err, c.want)
		}
		b.empty(t)
	}
}

// refusingModels is a model daemon that refuses all models.
type refusingModels struct{ err error }

func (r refusingModels) Hold(context.Context, string, string, string, string) (HeldModel, error) {
	return nil, r.err
}

// TestIDOfAnotherUser checks that a start with the ID of another user's instance leaves that instance untouched.
func TestIDOfAnotherUser(t *testing.T) {
	b := newBench(t, time.Minute)
	theirs := wire.Registration{Instance: "f-0", Secret: "theirs"}
	if _, err := b.tokens.Register(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(b.runDir, "logs", "f-0", "current")
	if err := errors.Join(os.MkdirAll(filepath.Dir(log), 0o700), os.WriteFile(log, []byte("theirs"), 0o600), simgpu.Retain("f-0")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(t.Context(), serve, place); err == nil {
		t.Fatal("start with the ID of another user's instance: got no error, want one")
	}
	if !reflect.DeepEqual(b.tokens.registered["f-0"], theirs) {
		t.Errorf("the other user's registration: got %+v, want %+v unchanged", b.tokens.registered["f-0"], theirs)
	}
	if _, err := os.Stat(log); err != nil {
		t.Errorf("log of the other user's instance: got %v, want it unchanged", err)
	}
	if kept, _ := filepath.Glob(filepath.Join(os.Getenv("GFAAS_SIM_DIR"), "*")); len(kept) != 1 {
		t.Errorf("files of the other user's simulated device: got %v, want one", kept)
	}
}

func TestCancelled(t *testing.T) {
	b := newBench(t, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	b.process.Handler = func(instance.Spec) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			cancel()
			w.WriteHeader(http.StatusServiceUnavailable)
		})
	}
	if _, err := b.Start(ctx, serve, place); !errors.Is(err, context.Canceled) {
		t.Errorf("start with a cancelled context: got the error %v, want %v", err, context.Canceled)
	}
	b.empty(t)
}

// TestCancelledWhileItRegisters cancels a start during the registration. The launcher must wait for the answer, because
// the registration could otherwise succeed after it was taken back.
func TestCancelledWhileItRegisters(t *testing.T) {
	b := newBench(t, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	b.tokens.beforeRegister = cancel
	if _, err := b.Start(ctx, serve, place); !errors.Is(err, context.Canceled) {
		t.Errorf("start cancelled during the registration: got the error %v, want %v", err, context.Canceled)
	}
	if len(b.tokens.abandoned) > 0 {
		t.Errorf("registrations after the cancellation: got %v, want none", b.tokens.abandoned)
	}
	b.empty(t)
}

func TestSimulatedGPUIsNotedOnce(t *testing.T) {
	b := newBench(t, time.Minute)
	for _, id := range []string{"a", "b"} {
		p := instance.Placement{ID: id, GPUs: []string{"sim"}, Slice: whole}
		if _, err := b.Start(t.Context(), serve, p); err != nil {
			t.Fatal(err)
		}
	}
	if b.simulated != 1 {
		t.Errorf("notes about the simulated GPU: got %d, want 1", b.simulated)
	}
}

// TestAdopt checks that a second Launcher adopts a ready instance and learns about its end, but adopts no instance that
// was starting or has ended.
func TestAdopt(t *testing.T) {
	b := newBench(t, time.Minute)
	r, err := b.Start(t.Context(), serve, place)
	if err != nil {
		t.Fatal(err)
	}
	later := New(b.config)
	if err := later.Adopt(t.Context(), r); err != nil {
		t.Errorf("Adopt: %v", err)
	}
	var gone *ports.GoneError
	half := r
	half.State = instance.Starting
	if err := later.Adopt(t.Context(), half); !errors.As(err, &gone) || gone.ID != "f-0" {
		t.Errorf("Adopt of an instance that was not ready: got the error %v, want a GoneError of f-0", err)
	}
	ended := make(chan instance.State)
	go func() {
		state, err := later.Wait(t.Context(), r)
		if err != nil {
			t.Error(err)
		}
		ended <- state
	}()
	b.process.Kill("f-0", 7)
	if state := <-ended; state.Running || state.ExitCode != 7 {
		t.Errorf("ended with %+v, want Running false and ExitCode 7", state)
	}
	if err := later.Adopt(t.Context(), r); !errors.As(err, &gone) || !strings.Contains(err.Error(), "status 7") {
		t.Errorf("Adopt of an instance that has ended: got %v, want an error with status 7", err)
	}
	if err := later.Stop(t.Context(), r); err != nil {
		t.Error(err)
	}
	b.empty(t)
}

// restarting is a runtime that has restarted an instance before it was ready.
type restarting struct{ *instancetest.Fake }

func (r *restarting) State(context.Context, instance.Handle) (instance.State, error) {
	return instance.State{Running: true, ExitCode: -1, Detail: "restarted once, after it exited with status 3", Restarts: 1}, nil
}

// TestRestartsBeforeItIsReady checks that an instance that ends before it is ready has failed, even if its runtime
// restarts it.
func TestRestartsBeforeItIsReady(t *testing.T) {
	b := newBench(t, time.Minute)
	b.process.Handler = func(instance.Spec) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	}
	b.useProcess(&restarting{b.process})
	_, err := b.Start(t.Context(), serve, place)
	if err == nil || !strings.Contains(err.Error(), "ended before it was ready: restarted once, after it exited with status 3") {
		t.Errorf("error: got %v, want one that reports a restart after status 3", err)
	}
	b.empty(t)
}
