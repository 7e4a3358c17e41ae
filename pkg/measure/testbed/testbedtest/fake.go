// Package testbedtest has simulated GPUs for tests that measure.
package testbedtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/testbed"
)

// GPUs is a testbed whose instances answer one request at a time. The slice sets
// the duration of a request or of an iteration: the function's FAKE_MS, in ms on a whole GPU, divided
// by SM share and quota. A job prints the line FAKE_OUTPUT, in which # stands for
// the number of iterations so far, after each iteration. A test reads the counters when no instance runs.
//
// The function's FAKE_FAULT selects a fault:
//
//	engine    Start fails: no container engine answers
//	start     an instance with an SM share below 20% ends before it is ready
//	parkless  an instance that parks ends before it is ready
//	stop      Stop fails
//	lingers   Stop of an instance that parks fails
//	mute      Target waits until its context ends
//	batch     Target refuses batches
//	stalls    only the first request is answered
//	waits     with an SM share above 25%, no request is answered
//	answer    with an SM share below 20%, requests fail
//	tires     requests take 1 ms longer for each second since the start
//	pools     parking moves only a quarter of the memory
//	quick     requests to a parked instance take no longer
//	memory    the memory is not known
//	leaks     the memory grows
//	ends      the instance has ended 5 s after its start; a job, after jobEnds iterations
//	ranks     two processes of a job print each line
//	sparse    a job prints only every tenth iteration
//	buffers   a job prints ten lines at once, after every tenth iteration
//	epochs    the numbers that a job prints begin again after ten iterations
type GPUs struct {
	Imported float64 // MiB of the model daemon's memory that each instance has mapped

	mu          sync.Mutex
	Started     []gpu.Slice    // of instances that do not park
	Parking     int            // number of instances that park
	Running     int            // instances now
	MostRunning int            // at the same time
	Requests    map[string]int // number of requests by "batch body"
	otherUsers  []string
	numbers     map[int]bool // Options.Number of the running instances
	stopped     time.Time    // last stop of an instance that does not park
}

// errNoEngine is an error that every start meets.
type errNoEngine struct{}

func (errNoEngine) Error() string     { return "no container engine answers" }
func (errNoEngine) Unavailable() bool { return true }
func (errNoEngine) Hint() string      { return "start it" }

// OtherUsers returns the names that SetOthers set.
func (f *GPUs) OtherUsers(context.Context) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.otherUsers
}

// SetOthers sets the other users of the GPUs.
func (f *GPUs) SetOthers(names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.otherUsers = names
}

// HasParked reports whether an instance that parks was started.
func (f *GPUs) HasParked() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.Parking > 0
}

// JustStopped reports whether an instance that does not park stopped at this
// moment of virtual time.
func (f *GPUs) JustStopped() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stopped.Equal(time.Now())
}

// Meter returns a meter that reports the number of its samples as the power.
func (f *GPUs) Meter() testbed.Meter { return &meter{} }

type meter struct{ samples int }

func (m *meter) Sample()                 { m.samples++ }
func (m *meter) Close() testbed.Activity { return testbed.Activity{PowerW: float64(m.samples)} }

// Start starts an instance, unless the function's fault forbids it.
func (f *GPUs) Start(ctx context.Context, fn function.Function, options testbed.Options) (testbed.Instance, error) {
	s := options.Slice
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
	if options.Parks {
		f.Parking++
	} else {
		f.Started = append(f.Started, s)
	}
	switch fault := fn.Env["FAKE_FAULT"]; {
	case fault == "engine":
		return nil, fmt.Errorf("start: %w", errNoEngine{})
	case fault == "start" && s.SMPct < 20:
		return nil, errors.New("ended before it was ready: exit status 3\nit printed last:\n  out of memory")
	case fault == "parkless" && options.Parks:
		return nil, errors.New("ended before it was ready: managed memory is not supported")
	}
	if f.numbers[options.Number] {
		return nil, fmt.Errorf("an instance with the number %d is running", options.Number)
	}
	if f.numbers == nil {
		f.numbers = map[int]bool{}
	}
	f.numbers[options.Number] = true
	f.Running++
	f.MostRunning = max(f.MostRunning, f.Running)
	return &instance{
		gpus: f, number: options.Number, fault: fn.Env["FAKE_FAULT"], output: fn.Env["FAKE_OUTPUT"], slice: s, parks: options.Parks, running: make(chan struct{}, 1),
		service: time.Duration(float64(full) / (s.SMPct / 100) / s.QuotaLimit), started: time.Now(), worked: time.Now(),
	}, nil
}

type instance struct {
	gpus    *GPUs
	number  int
	fault   string
	output  string
	slice   gpu.Slice
	running chan struct{} // full while a request runs
	service time.Duration // duration of a request or of an iteration
	started time.Time
	parks   bool
	worked  time.Time // when the last request ended
	answers int       // requests begun
}

// An instance that parks does so 500 ms after its last request. The next request
// takes ReloadTime longer.
const (
	parkAfter  = 500 * time.Millisecond
	ReloadTime = 30 * time.Millisecond
)

func (s *instance) Parked(ctx context.Context) (used, parked float64) {
	used = s.GPUMemMiB(ctx)
	switch {
	case !s.parks || time.Since(s.worked) < parkAfter:
		return used, 0
	case s.fault == "pools":
		return used, used / 4
	}
	return used, used
}

// jobEnds is the number of iterations after which a job with the fault "ends" is over.
const jobEnds = 20

// Output returns the output of a job. It ends with ctx or the job.
func (s *instance) Output(ctx context.Context) ports.LogLines {
	return func(yield func(ports.LogLine, error) bool) {
		for n := 1; s.fault != "ends" || n <= jobEnds; n++ {
			timer := time.NewTimer(s.service)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
			if (s.fault == "sparse" || s.fault == "buffers") && n%10 != 0 {
				continue
			}
			number, times := n, 1
			switch s.fault {
			case "epochs":
				number = (n-1)%10 + 1
			case "ranks":
				times = 2
			case "buffers":
				times = 10
			}
			line := ports.LogLine{Time: time.Now(), Text: strings.ReplaceAll(s.output, "#", strconv.Itoa(number))}
			for range times {
				if !yield(line, nil) {
					return
				}
			}
		}
	}
}

func (s *instance) Target(ctx context.Context, r testbed.Request) (load.Sender, error) {
	if s.fault == "mute" {
		<-ctx.Done()
		return nil, &testbed.BodyError{Err: ctx.Err()}
	}
	if s.fault == "batch" && r.Batch > 1 {
		return nil, &testbed.BodyError{Err: errors.New("it takes one at a time")}
	}
	return func(ctx context.Context) error { return s.invoke(ctx, r) }, nil
}

func (s *instance) invoke(ctx context.Context, r testbed.Request) error {
	select {
	case s.running <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-s.running }()
	s.gpus.mu.Lock()
	if s.gpus.Requests == nil {
		s.gpus.Requests = map[string]int{}
	}
	s.gpus.Requests[fmt.Sprintf("%d %s", r.Batch, r.Body)]++
	s.gpus.mu.Unlock()
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
		service += time.Since(s.started) / 1000
	}
	if _, parked := s.Parked(ctx); parked > 0 && s.fault != "quick" {
		service += ReloadTime
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

func (s *instance) ImportedMiB(context.Context) float64 { return s.gpus.Imported }

func (s *instance) GPUMemMiB(context.Context) float64 {
	switch s.fault {
	case "memory":
		return 0
	case "leaks":
		return 100 * (1 + time.Since(s.started).Seconds())
	}
	return 100 + s.slice.SMPct
}

func (s *instance) CheckRunning(context.Context) error {
	if s.fault == "ends" && time.Since(s.started) > 5*time.Second {
		return errors.New("signal: segmentation fault")
	}
	return nil
}

func (s *instance) LastLines(context.Context) string { return "line one\nline two\n" }

func (s *instance) Stop(ctx context.Context) error {
	s.gpus.mu.Lock()
	defer s.gpus.mu.Unlock()
	s.gpus.Running--
	delete(s.gpus.numbers, s.number)
	if !s.parks {
		s.gpus.stopped = time.Now()
	}
	if s.fault == "stop" || s.fault == "lingers" && s.parks {
		return errors.New("it does not end")
	}
	// For tests that run the command in another process.
	if path := os.Getenv("FAKE_STOPPED"); path != "" {
		return os.WriteFile(path, []byte("stopped\n"), 0o644)
	}
	return ctx.Err()
}
