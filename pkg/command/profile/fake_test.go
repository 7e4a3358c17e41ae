package profile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/nvml"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/load"
)

// fake is a machine whose instances answer one request at a time, each in a
// time that the slice decides, and remembers what was asked of it. A
// function's env steers it: FAKE_MS is the time of a request on the whole GPU.
type fake struct {
	imported float64 // MiB that instances have mapped of the model daemon's
	mu       sync.Mutex
	started  []gpu.Slice
	parking  int // instances started whose memory parks
	running  int
	most     int // instances that ran at once
	others   []string
	bodies   map[string]int // "batch body" by number of requests

	measured time.Time // when an instance was stopped whose memory does not park
}

// errNoEngine is an error that every start would end in.
type errNoEngine struct{}

func (errNoEngine) Error() string     { return "no container engine answers" }
func (errNoEngine) Unavailable() bool { return true }
func (errNoEngine) Hint() string      { return "start it" }

func (f *fake) Others(context.Context) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.others
}

// parks is how many instances were started whose memory parks.
func (f *fake) parks() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.parking
}

// justMeasured says that an instance whose memory does not park was stopped now.
func (f *fake) justMeasured() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.measured.Equal(time.Now())
}

func (f *fake) Meter() meter { return &fakeMeter{} }

// fakeMeter tells the looks it had.
type fakeMeter struct{ looks int }

func (m *fakeMeter) Look()               { m.looks++ }
func (m *fakeMeter) Close() nvml.Figures { return nvml.Figures{PowerW: float64(m.looks)} }

// meet has others run on the GPU from now on.
func (f *fake) meet(others ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.others = others
}

func (f *fake) Start(ctx context.Context, fn function.Function, how start) (subject, error) {
	s := how.slice
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	full, err := time.ParseDuration(fn.Env["FAKE_MS"] + "ms")
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if how.parks {
		f.parking++
	} else {
		f.started = append(f.started, s)
	}
	switch fn.Env["FAKE_FAULT"] {
	case "engine":
		return nil, fmt.Errorf("start: %w", errNoEngine{})
	case "start":
		if s.SMPct < 20 {
			return nil, errors.New("ended before it was ready: exit status 3\nit printed last:\n  out of memory")
		}
	}
	if fault := fn.Env["FAKE_FAULT"]; how.parks && fault == "parkless" {
		return nil, errors.New("ended before it was ready: managed memory is not supported")
	}
	f.running++
	f.most = max(f.most, f.running)
	return &fakeSubject{
		fake: f, fault: fn.Env["FAKE_FAULT"], slice: s, parks: how.parks, one: make(chan struct{}, 1),
		service: time.Duration(float64(full) / (s.SMPct / 100) / s.QuotaLimit), began: time.Now(), worked: time.Now(),
	}, nil
}

type fakeSubject struct {
	fake    *fake
	fault   string
	slice   gpu.Slice
	one     chan struct{}
	service time.Duration
	began   time.Time
	parks   bool
	worked  time.Time // when the last request ended
	answers int       // requests that it took up
}

// An instance that parks does so 500 ms after its last request, and has its
// memory back in reloadTime.
const (
	parkAfter  = 500 * time.Millisecond
	reloadTime = 30 * time.Millisecond
)

func (s *fakeSubject) Parked(ctx context.Context) (used, parked float64) {
	used = s.GPUMemMiB(ctx)
	switch {
	case s.parks && s.fault != "pools" && time.Since(s.worked) >= parkAfter:
		return used, used
	case s.parks && time.Since(s.worked) >= parkAfter:
		return used, used / 4
	}
	return used, 0
}

func (s *fakeSubject) Target(ctx context.Context, r request) (load.Target, error) {
	if s.fault == "mute" {
		<-ctx.Done()
		return nil, &bodyError{ctx.Err()}
	}
	if s.fault == "batch" && r.batch > 1 {
		return nil, &bodyError{errors.New("it takes one at a time")}
	}
	return func(ctx context.Context) error { return s.invoke(ctx, r) }, nil
}

func (s *fakeSubject) invoke(ctx context.Context, r request) error {
	select {
	case s.one <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.one }()
	s.fake.mu.Lock()
	if s.fake.bodies == nil {
		s.fake.bodies = map[string]int{}
	}
	s.fake.bodies[fmt.Sprintf("%d %s", r.batch, r.body)]++
	s.fake.mu.Unlock()
	if s.answers++; s.fault == "stalls" && s.answers > 1 {
		<-ctx.Done()
		return ctx.Err()
	}
	if s.fault == "waits" && s.slice.SMPct > 25 {
		<-ctx.Done()
		return ctx.Err()
	}
	service := s.service
	if s.fault == "tires" {
		service += time.Since(s.began) / 1000
	}
	if _, parked := s.Parked(ctx); parked > 0 && s.fault != "quick" {
		service += reloadTime
	}
	defer func() { s.worked = time.Now() }()
	timer := time.NewTimer(service)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.fault == "answer" && s.slice.SMPct < 20 {
		return errors.New("status 500")
	}
	return nil
}

func (s *fakeSubject) ImportedMiB(context.Context) float64 { return s.fake.imported }

func (s *fakeSubject) GPUMemMiB(context.Context) float64 {
	switch s.fault {
	case "memory":
		return 0
	case "leaks":
		return 100 * (1 + time.Since(s.began).Seconds())
	}
	return 100 + s.slice.SMPct
}

func (s *fakeSubject) Ended(context.Context) error {
	if s.fault == "ends" && time.Since(s.began) > 5*time.Second {
		return errors.New("signal: segmentation fault")
	}
	return nil
}

func (s *fakeSubject) LastLines(context.Context) string { return "line one\nline two\n" }

func (s *fakeSubject) Stop(ctx context.Context) error {
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	s.fake.running--
	if !s.parks {
		s.fake.measured = time.Now()
	}
	if s.fault == "stop" || s.fault == "lingers" && s.parks {
		return errors.New("it does not end")
	}
	// What a test asks about instances of a command it ran.
	if path := os.Getenv("FAKE_STOPPED"); path != "" {
		return os.WriteFile(path, []byte("stopped\n"), 0o644)
	}
	return ctx.Err()
}

// platform has the fake as its machines.
func (f *fake) platform() platform {
	return platform{
		gpus:   func(list string) (string, error) { return cmp.Or(list, "sim"), nil },
		runDir: cli.RunDir,
		open: func(_ context.Context, groups [][]string, _ []function.Function, _ time.Duration) ([]machine, error) {
			f.others = strings.Fields(os.Getenv("FAKE_OTHERS"))
			machines := []machine{f}
			for range groups[1:] {
				machines = append(machines, f)
			}
			return machines, nil
		},
	}
}

// mainFake is gfaas-profile on a fake machine.
func mainFake() {
	os.Exit(cli.Main("gfaas-profile", func(env *cli.Env) *cobra.Command { return newRoot(env, (&fake{}).platform()) }))
}
