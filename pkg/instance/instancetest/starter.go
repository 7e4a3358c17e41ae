package instancetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// FakeStarter is a ports.Starter whose instances are ready at once and have no effect. A
// function with PROBE_EXIT=N in its environment ends with that status before it is ready.
// The zero value is ready to use.
type FakeStarter struct {
	// Fail, if set, can refuse or delay a start.
	Fail func(ctx context.Context, fn function.Function, p instance.Placement) error

	mu    sync.Mutex
	all   map[string]*startedFake // by Handle.Container
	known map[string]bool         // IDs in use
}

type startedFake struct {
	id    string
	state instance.State
	ended chan struct{}
}

var _ ports.Starter = (*FakeStarter)(nil)

// Start records an instance without starting a process.
func (f *FakeStarter) Start(ctx context.Context, fn function.Function, p instance.Placement) (instance.Record, error) {
	r := instance.Record{ID: p.ID, Function: fn.Name, GPUs: p.GPUs, Slice: p.Slice, State: instance.Starting, Turns: p.Turns, Restarts: p.Restarts,
		Job: fn.Kind == function.Training}
	refuse := func(err error) (instance.Record, error) { return r, &ports.StartError{ID: p.ID, Err: err} }
	if err := ctx.Err(); err != nil {
		return refuse(err)
	}
	if f.Fail != nil {
		if err := f.Fail(ctx, fn, p); err != nil {
			return refuse(err)
		}
	}
	f.mu.Lock()
	if f.known[p.ID] {
		f.mu.Unlock()
		return refuse(errors.New("the id is in use"))
	}
	if f.known == nil {
		f.known, f.all = map[string]bool{}, map[string]*startedFake{}
	}
	f.known[p.ID] = true
	r.Runtime, r.Registered = instance.Process, []string{p.ID}
	r.Handle = instance.Handle{Runtime: instance.Process, Container: fmt.Sprintf("%s/%d", p.ID, len(f.all)), Address: p.ID, Started: time.Now()}
	f.all[r.Handle.Container] = &startedFake{p.ID, instance.State{Running: true, ExitCode: -1, Detail: "running"}, make(chan struct{})}
	f.mu.Unlock()
	var err error
	if p.Note != nil {
		err = p.Note(r)
	}
	if status := fn.Env["PROBE_EXIT"]; err == nil && status != "" {
		err = fmt.Errorf("ended before it was ready: exited with status %s", status)
	}
	if err != nil {
		_ = f.Stop(ctx, r)
		return refuse(err)
	}
	if r.Job {
		r.State = instance.Running
		return r, nil
	}
	r.State, r.Contract = instance.Ready, fn.Contract
	if r.Contract == "" || r.Contract == "auto" {
		r.Contract = "http"
	}
	return r, nil
}

// Restart kills the instance and starts it as Start does.
func (f *FakeStarter) Restart(ctx context.Context, fn function.Function, r instance.Record, note func(instance.Record) error) (instance.Record, error) {
	f.Kill(r.ID, 0)
	f.mu.Lock()
	delete(f.known, r.ID)
	f.mu.Unlock()
	again, err := f.Start(ctx, fn, instance.Placement{ID: r.ID, GPUs: r.GPUs, Slice: r.Slice, Turns: r.Turns, RPS: r.RPS, Batch: r.Batch, Restarts: r.Restarts + 1, Note: note})
	if err != nil {
		return r, err
	}
	again.Owner = r.Owner
	return again, nil
}

// Adopt returns nil for a running instance of this FakeStarter that was ready.
func (f *FakeStarter) Adopt(_ context.Context, r instance.Record) error {
	state := f.stateOf(r)
	if r.State != instance.Ready {
		state.Running, state.Detail = false, "it was not yet ready when the command that started it ended"
	}
	if !state.Running {
		return &ports.GoneError{ID: r.ID, Why: state.Detail}
	}
	return nil
}

func (f *FakeStarter) stateOf(r instance.Record) instance.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.all[r.Handle.Container]; s != nil {
		return s.state
	}
	return instance.State{ExitCode: -1, Detail: "gone"}
}

// Wait returns after Stop or Kill was called.
func (f *FakeStarter) Wait(ctx context.Context, r instance.Record) (instance.State, error) {
	f.mu.Lock()
	s := f.all[r.Handle.Container]
	f.mu.Unlock()
	if s != nil {
		select {
		case <-s.ended:
		case <-ctx.Done():
			return instance.State{}, ctx.Err()
		}
	}
	return f.stateOf(r), nil
}

// Stop ends an instance and frees its ID.
func (f *FakeStarter) Stop(_ context.Context, r instance.Record) error {
	f.Kill(r.ID, 0)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.known, r.ID)
	return nil
}

// Logs returns the single line "started".
func (f *FakeStarter) Logs(ctx context.Context, r instance.Record, o ports.LogOptions) ports.LogLines {
	f.mu.Lock()
	s := f.all[r.Handle.Container]
	f.mu.Unlock()
	if s == nil {
		return func(func(ports.LogLine, error) bool) {}
	}
	return fakeLog(ctx, []ports.LogLine{{Time: r.Handle.Started, Text: "started"}}, o, s.ended)
}

// Kill makes the instance with an ID end by itself, with an exit status.
func (f *FakeStarter) Kill(id string, status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.all {
		if s.id == id && s.state.Running {
			s.state = instance.State{ExitCode: status, Detail: fmt.Sprintf("exited with status %d", status)}
			close(s.ended)
		}
	}
}

// StarterSuite holds the parameters of RunStarter.
type StarterSuite struct {
	// New returns a function that creates Starters of one machine. Two of them represent
	// two programs, of which the second adopts the instances of the first.
	New func(t *testing.T) func() ports.Starter
	// Function returns a function with the program of testdata/probe.c or an equivalent.
	Function func(t *testing.T) function.Function
	// Kill ends an instance of s from outside.
	Kill func(t *testing.T, s ports.Starter, r instance.Record)
}

// RunStarter checks that a Starter conforms to ports.Starter.
func RunStarter(t *testing.T, suite StarterSuite) {
	for name, test := range map[string]func(*testing.T, *starts){
		"starts and stops":                     testStartStop,
		"takes over":                           testAdopt,
		"reports the end of an instance":       testDeath,
		"failed start leaves nothing":          testFailedStarts,
		"start with a used id changes nothing": testDuplicateID,
		"stops lost instances":                 testLost,
		"several wait for an end":              testWaiters,
		"restarts":                             testRestart,
	} {
		t.Run(name, func(t *testing.T) {
			open := suite.New(t)
			test(t, &starts{t: t, suite: suite, open: open, starter: open(), fn: suite.Function(t)})
		})
	}
}

type starts struct {
	t       *testing.T
	suite   StarterSuite
	open    func() ports.Starter
	starter ports.Starter
	fn      function.Function
}

func placement(id string) instance.Placement {
	return instance.Placement{ID: id, GPUs: []string{"sim"}, Slice: gpu.Slice{SMPct: 24, QuotaRequest: 0.3, QuotaLimit: 0.8, Mem: gpu.GiB}}
}

// start starts an instance that is stopped when the test ends.
func (s *starts) start(p instance.Placement) instance.Record {
	s.t.Helper()
	r, err := s.starter.Start(s.t.Context(), s.fn, p)
	if err != nil {
		s.t.Fatalf("Start: %v", err)
	}
	s.t.Cleanup(func() {
		if err := s.starter.Stop(context.Background(), r); err != nil {
			s.t.Errorf("Stop at the end: %v", err)
		}
	})
	return r
}

func (s *starts) stop(r instance.Record) {
	s.t.Helper()
	if err := s.starter.Stop(s.t.Context(), r); err != nil {
		s.t.Fatalf("Stop: %v", err)
	}
}

func (s *starts) awaitEnd(r instance.Record) {
	s.t.Helper()
	state, err := s.starter.Wait(s.t.Context(), r)
	if err != nil || state.Running {
		s.t.Fatalf("Wait = %+v, %v, want ended", state, err)
	}
}

func (s *starts) checkRunning(r instance.Record) {
	s.t.Helper()
	if err := s.starter.Adopt(s.t.Context(), r); err != nil {
		s.t.Errorf("it does not run: %v", err)
	}
}

func (s *starts) checkLost(r instance.Record) {
	s.t.Helper()
	var gone *ports.GoneError
	if err := s.starter.Adopt(s.t.Context(), r); !errors.As(err, &gone) || gone.ID != r.ID || gone.Why == "" {
		s.t.Errorf("Adopt after the end: %v", err)
	}
}

func testStartStop(t *testing.T, s *starts) {
	p := placement("f-0")
	var noted instance.Record
	p.Note = func(r instance.Record) error { noted = r; return nil }
	r := s.start(p)
	if r.ID != p.ID || r.Function != s.fn.Name || r.State != instance.Ready || r.Contract != "http" || r.Slice != p.Slice ||
		len(r.GPUs) != 1 || r.Handle.Runtime == "" || r.Handle.Runtime != r.Runtime || r.Handle.Address == "" {
		t.Errorf("started %+v", r)
	}
	if noted.Handle != r.Handle || noted.State != instance.Starting {
		t.Errorf("noted %+v", noted)
	}
	s.checkRunning(r)
	for range 2 {
		s.stop(r)
		s.awaitEnd(r)
		s.checkLost(r)
	}
	s.start(placement("f-0"))
}

// testRestart checks that an ended instance is restarted with its settings, and that after
// a failed restart it can be restarted again or stopped.
func testRestart(t *testing.T, s *starts) {
	p := placement("f-0")
	p.Turns = [][]gpu.Turn{{{From: 0.1, To: 0.4}}}
	first := s.start(p)
	s.suite.Kill(t, s.starter, first)
	s.awaitEnd(first)
	wrong := s.fn
	wrong.Env = map[string]string{"PROBE_EXIT": "3"}
	var noted instance.Record
	if _, err := s.starter.Restart(t.Context(), wrong, first, func(r instance.Record) error { noted = r; return nil }); err == nil {
		t.Error("Restart succeeded, but the instance ended before it was ready")
	}
	if noted.Restarts != 1 || noted.State != instance.Starting || noted.Handle == first.Handle {
		t.Errorf("noted %+v", noted)
	}
	again, err := s.starter.Restart(t.Context(), s.fn, first, nil)
	if err != nil {
		t.Fatal(err)
	}
	if again.ID != first.ID || again.Restarts != 1 || again.State != instance.Ready || again.Slice != first.Slice || len(again.Turns) != 1 ||
		len(again.Turns[0]) != 1 || again.Handle == first.Handle || again.Contract != first.Contract {
		t.Errorf("restarted %+v, was %+v", again, first)
	}
	s.checkRunning(again)
	s.suite.Kill(t, s.starter, again)
	s.awaitEnd(again)
	if again, err = s.starter.Restart(t.Context(), s.fn, again, nil); err != nil || again.Restarts != 2 {
		t.Fatalf("the second time: %+v, %v", again, err)
	}
	s.stop(again)
	s.checkLost(again)
}

func testAdopt(_ *testing.T, s *starts) {
	r := s.start(placement("f-0"))
	s.starter = s.open()
	s.checkRunning(r)
	half := r
	half.State = instance.Starting
	s.checkLost(half)
	s.stop(r)
	s.awaitEnd(r)
	s.checkLost(r)
}

func testDeath(t *testing.T, s *starts) {
	r := s.start(placement("f-0"))
	first := s.starter
	for _, starter := range []ports.Starter{s.starter, s.open()} {
		s.starter = starter
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if state, err := s.starter.Wait(ctx, r); !errors.Is(err, context.Canceled) {
			t.Errorf("Wait with a cancelled context = %+v, %v", state, err)
		}
	}
	s.suite.Kill(t, first, r)
	s.awaitEnd(r)
	s.starter = first
	s.awaitEnd(r)
	s.checkLost(r)
}

func testFailedStarts(t *testing.T, s *starts) {
	start := func(fn function.Function, p instance.Placement) error {
		t.Helper()
		_, err := s.starter.Start(t.Context(), fn, p)
		var failed *ports.StartError
		if !errors.As(err, &failed) || failed.ID != p.ID || failed.Remains {
			t.Errorf("Start: %v", err)
		}
		return err
	}
	ends := s.fn
	ends.Env = map[string]string{"PROBE_EXIT": "3"}
	if err := start(ends, placement("f-0")); err == nil || !strings.Contains(err.Error(), "status 3") {
		t.Errorf("Start of a program that ends before it is ready: %v", err)
	}
	broken, p := errors.New("broken"), placement("f-0")
	p.Note = func(instance.Record) error { return broken }
	if err := start(s.fn, p); !errors.Is(err, broken) {
		t.Errorf("Start with a Note that fails: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.starter.Start(ctx, s.fn, placement("f-0")); !errors.Is(err, context.Canceled) {
		t.Errorf("Start with a cancelled context: %v", err)
	}
	s.start(placement("f-0")) // the id is free
}

func testDuplicateID(t *testing.T, s *starts) {
	r := s.start(placement("f-0"))
	s.starter = s.open()
	if _, err := s.starter.Start(t.Context(), s.fn, placement("f-0")); err == nil {
		t.Error("started twice under one id")
	}
	s.checkRunning(r)
}

func testLost(_ *testing.T, s *starts) {
	r := s.start(placement("f-0"))
	s.starter = s.open()
	s.stop(instance.Record{ID: r.ID, Registered: r.Registered})
	s.awaitEnd(r)
	s.start(placement("f-0"))
}

func testWaiters(t *testing.T, s *starts) {
	r := s.start(placement("f-0"))
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			if state, err := s.starter.Wait(t.Context(), r); err != nil || state.Running {
				t.Errorf("Wait = %+v, %v", state, err)
			}
		})
	}
	s.stop(r)
	all.Wait()
}
