package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/adapter/logs"
	"github.com/gfaas/gfaas/pkg/adapter/logs/logstest"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/process"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/wire"
)

func TestMain(m *testing.M) { os.Exit(logstest.Main(m)) }

// TestConformance checks that a Launcher with real processes conforms to ports.Starter.
func TestConformance(t *testing.T) {
	program := instancetest.BuildProbe(t)
	hook, simDir := instancetest.BuildLibs(t)
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
			runDir, daemon := t.TempDir(), &fakeTokens{registered: map[string]wire.Registration{}}
			t.Setenv("GFAAS_SIM_DIR", t.TempDir())
			open := func() ports.Starter {
				return New(Config{
					LogDir: filepath.Join(runDir, "logs"), Ready: fnhttp.WaitReady, Tokens: daemon, Device: device{},
					RemoveLog: logs.Remove, KeepFailed: keepNone, OutOfMemory: neverOutOfMemory, Note: t.Logf, Simulated: func() {},
					Runtime: func(_ context.Context, name string) (ports.Runtime, error) {
						if name == instance.Docker {
							return instancetest.NewFake(name), nil
						}
						return process.New(process.Config{RunDir: runDir, Libs: preload.Libs{Hook: hook, SimDir: simDir}, Keeper: logstest.Keeper}), nil
					},
				})
			}
			fn := function.Function{Name: "f", Command: []string{program}, Contract: "auto"}
			test(t, &starts{t: t, open: open, starter: open(), fn: fn})
		})
	}
}

// starts starts instances of a function for one test.
type starts struct {
	t       *testing.T
	open    func() ports.Starter // returns a starter of the same machine, as in another program
	starter ports.Starter
	fn      function.Function
}

func placement(id string) instance.Placement {
	return instance.Placement{ID: id, GPUs: []string{"sim"}, Slice: gpu.Slice{SMPct: 24, QuotaRequest: 0.3, QuotaLimit: 0.8, Mem: gpu.GiB}}
}

// kill ends an instance from outside.
func kill(t *testing.T, r instance.Record) {
	t.Helper()
	if err := unix.Kill(r.Handle.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
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
	kill(t, first)
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
	kill(t, again)
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
	kill(t, r)
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
