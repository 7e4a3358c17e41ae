package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/metrics"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/trace"
)

// fakeShell is a Shell whose instances are ready at once.
type fakeShell struct {
	unparks time.Duration // time until an unpark fails
}

func (fakeShell) Start(_ context.Context, i *Instance, _ function.Function, _ Sharing) {
	go func() { i.Started(i.Record()) }()
}
func (fakeShell) Stop(i *Instance)     { go i.Stopped() }
func (fakeShell) Park(i *Instance)     { go i.Parked(true) }
func (fakeShell) Prefetch(i *Instance) { go i.Prefetched(true) }
func (s fakeShell) Unpark(i *Instance) {
	go func() {
		time.Sleep(s.unparks)
		i.Unparked(errors.New("out of memory"))
	}()
}

// plainCall is the Owner of a call without an upgraded connection.
type plainCall struct{}

func (plainCall) Cut(error)                   {}
func (plainCall) Idle() (time.Duration, bool) { return 0, false }

func newDispatcher(t *testing.T, shell Shell, change func(*Config, *Settings)) *Dispatcher {
	t.Helper()
	cfg := Config{Log: slog.New(slog.DiscardHandler), Metrics: metrics.New(), Policy: queue.Config{Policy: "gfaas", Pool: residency.Unlimited, Options: queue.Defaults()},
		Concurrency: 2, GPUs: []GPU{{Name: "sim"}}, QueueTimeout: time.Minute}
	var settings Settings
	if change != nil {
		change(&cfg, &settings)
	}
	d, err := New(t.Context(), cfg, settings)
	if err != nil {
		t.Fatal(err)
	}
	d.Begin(shell)
	d.Apply([]function.Function{{Name: "f", Tenant: "default", GPUs: 1, Weight: 1, Inflight: 1, Scale: function.DefaultScale, SLO: time.Second}})
	d.SetKnown()
	return d
}

// run runs a call of the given duration.
func run(t *testing.T, d *Dispatcher, takes time.Duration) {
	t.Helper()
	var a Attempt
	d.Submit(&a, d.Function("f"), plainCall{})
	if turn := <-a.Turn(); turn.Refusal != nil {
		t.Fatal(turn.Refusal)
	}
	time.Sleep(takes)
	a.Finish(true)
}

// TestLearnsStart checks that the policy learns the duration of a start as soon as a call
// ends, even if the call took as long as expected.
func TestLearnsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, fakeShell{}, nil)
		run(t, d, 0)
		f := d.Function("f")
		f.costs = costs{durations: durations{warm: mean{f.spec.Warm, few}, start: mean{time.Hour, few}}}
		run(t, d, f.spec.Warm)
		if f.spec.Cold < time.Hour {
			t.Errorf("learned duration of a start: got %v, want an hour", f.spec.Cold-f.spec.Warm)
		}
	})
}

// TestGPUSecondsWithoutFailedUnparks checks that the GPU time of a function excludes a
// failed unpark. The call goes to another instance.
func TestGPUSecondsWithoutFailedUnparks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, fakeShell{unparks: 5 * time.Second}, nil)
		run(t, d, time.Second)
		for _, i := range d.Instances.byID {
			i.parked = true
		}
		began := time.Now()
		run(t, d, 2*time.Second)
		if got, took := *d.Status().Functions[0].GPUSeconds, time.Since(began); took != 7*time.Second || got != 3 {
			t.Errorf("%g s, with a second call that took %v; want 3 s and 7s", got, took)
		}
	})
}

// movingShell is a Shell that moves the memory of an instance as instances.Manager does: one move at a time.
type movingShell struct {
	fakeShell
	moving chan struct{} // holds a value during a move; a mutex would stop the virtual clock
	moves  *[]string     // completed moves
}

func (s movingShell) Park(i *Instance) {
	go s.move(func() {
		if i.BeginPark() {
			*s.moves = append(*s.moves, "park")
			i.Parked(true)
		}
	})
}

func (s movingShell) Unpark(i *Instance) {
	go s.move(func() {
		time.Sleep(time.Second)
		*s.moves = append(*s.moves, "unpark")
		i.Unparked(nil)
	})
}

func (s movingShell) move(do func()) {
	s.moving <- struct{}{}
	do()
	<-s.moving
}

// TestParkForCallerWhoLeft checks that an instance that the policy wants to park is parked, although it is being
// unparked for a caller who has left, but not if another call waits for it.
func TestParkForCallerWhoLeft(t *testing.T) {
	for _, c := range []struct {
		name  string
		early bool // the policy requests the park before the call arrives, and the shell begins later
		other bool // another call waits
		want  []string
	}{
		{"during the unpark", false, false, []string{"unpark", "park"}},
		{"before the call", true, false, []string{"unpark", "park"}},
		{"another call", false, true, []string{"unpark"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			shell := movingShell{moving: make(chan struct{}, 1), moves: new([]string)}
			d := newDispatcher(t, shell, func(c *Config, _ *Settings) { c.Park = ParkCheckpoint })
			run(t, d, time.Second)
			var i *Instance
			for _, i = range d.Instances.byID {
			}
			offload := func() {
				d.mu.Lock()
				defer d.mu.Unlock()
				i.offload()
			}
			if c.early {
				shell.moving <- struct{}{} // the shell is busy
				offload()
				synctest.Wait()
			} else {
				i.parked = true
			}
			var left, other Attempt
			d.Submit(&left, d.Function("f"), plainCall{})
			synctest.Wait()
			left.Abandon()
			if c.early {
				<-shell.moving
			} else {
				if c.other {
					d.Submit(&other, d.Function("f"), plainCall{})
				}
				offload()
			}
			time.Sleep(time.Minute)
			if c.other {
				if turn := <-other.Turn(); turn.Refusal != nil {
					t.Errorf("%s: the other call: %v", c.name, turn.Refusal)
				}
				other.Finish(true)
			}
			synctest.Wait()
			if !slices.Equal(*shell.moves, c.want) || i.parked == c.other || i.moves != 0 {
				t.Errorf("%s: moves %v, parked: %v, moves in progress: %d; want %v, %v, 0", c.name, *shell.moves, i.parked, i.moves, c.want, !c.other)
			}
		})
	}
}

// TestPrefetchSupersedesPark checks that memory is on the GPU after a prefetch, although the policy requested its move to
// the host before, if the shell has not begun that move.
func TestPrefetchSupersedesPark(t *testing.T) {
	for _, c := range []struct {
		name string
		left bool // the move waits for the end of an unpark, whose caller has left; otherwise the shell is busy
		want []string
	}{
		{"during an unpark", true, []string{"park", "unpark"}},
		{"the shell is busy", false, []string{"unpark"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shell := movingShell{moving: make(chan struct{}, 1), moves: new([]string)}
				d := newDispatcher(t, shell, func(c *Config, _ *Settings) {
					c.Park, c.Concurrency, c.GPUs = ParkCheckpoint, 1, []GPU{{Name: "sim", Mem: int64(2 * gpu.GiB)}}
					c.Policy.Policy, c.Policy.Alpha, c.Policy.Prefetch, c.Policy.Swap = "mqfq-sticky", 0, true, true // inactive when idle
				})
				f := d.Function("f").definition
				f.GPUMem = 600 * gpu.MiB
				g := f
				g.Name = "g"
				d.Apply([]function.Function{f, g})
				if !c.left {
					shell.moving <- struct{}{}
				}
				run(t, d, time.Second) // then the function is inactive
				synctest.Wait()
				var left, other, last Attempt
				if c.left {
					d.Submit(&left, d.Function("f"), plainCall{})
					synctest.Wait()
					left.Abandon()
				}
				d.Submit(&other, d.Function("g"), plainCall{})
				if turn := <-other.Turn(); turn.Refusal != nil {
					t.Fatal(turn.Refusal)
				}
				d.Submit(&last, d.Function("f"), plainCall{}) // it waits for the slot, so the policy prefetches
				synctest.Wait()
				if !c.left {
					<-shell.moving
				}
				time.Sleep(10 * time.Second)
				synctest.Wait()
				if !slices.Equal(*shell.moves, c.want) {
					t.Errorf("moves %v, want %v", *shell.moves, c.want)
				}
				other.Finish(true)
				if turn := <-last.Turn(); turn.Refusal != nil || turn.Found != residency.GPUWarm || turn.Starting != 0 {
					t.Errorf("got %+v, want a gpu-warm call that does not wait for its memory", turn)
				}
			})
		})
	}
}

// cutCall is the Owner of a call that counts how often it is cut.
type cutCall struct {
	plainCall
	cuts *atomic.Int32
}

func (c cutCall) Cut(error) { c.cuts.Add(1) }

// TestTransferDuringCut checks that a call can become the owner of an attempt while the dispatcher cuts all calls, and
// that it is then cut itself.
func TestTransferDuringCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, fakeShell{}, nil)
		for range 100 {
			var a Attempt
			d.Submit(&a, d.Function("f"), plainCall{})
			<-a.Turn()
			var cuts atomic.Int32
			go a.Transfer(cutCall{cuts: &cuts})
			d.CutAll()
			synctest.Wait()
			before := cuts.Load()
			if d.CutAll(); cuts.Load() != before+1 {
				t.Fatalf("the new owner was cut %d times by the second CutAll, want once", cuts.Load()-before)
			}
			a.Finish(true)
		}
	})
}

// TestRowsWithBatches checks that the gateway uses a profile row only if its batch reaches the instances, also after the
// function changes.
func TestRowsWithBatches(t *testing.T) {
	row := func(batch int, quota, rps float64) profile.Row {
		return profile.Row{Function: "f", Config: profile.Config{SMPct: 10, Quota: quota, Batch: batch}, ThroughputRPS: rps, P95MS: 10}
	}
	for _, scaler := range append(Scalers()[1:], "") {
		d := newDispatcher(t, fakeShell{}, func(c *Config, s *Settings) {
			c.Scaler, c.GPUs = scaler, []GPU{{Name: "0"}}
			s.Profile = map[string][]profile.Row{"f": {row(8, 0.1, 80), row(4, 0.2, 90), row(1, 0.3, 30)}}
		})
		for _, c := range []struct {
			inflight, batcher, want int
		}{{1, 0, 1}, {4, 0, 4}, {1, 8, 8}, {16, 4, 4}, {1, 0, 1}} {
			fn := function.Function{Name: "f", Tenant: "default", GPUs: 1, Weight: 1, Inflight: c.inflight, Scale: function.DefaultScale, SLO: time.Second}
			if c.batcher > 0 {
				fn.Batcher = &function.Batcher{Max: c.batcher, Latency: time.Millisecond}
			}
			d.Apply([]function.Function{fn})
			f := d.Function("f")
			unit := f.chooser().unit()
			if unit == nil || unit.Request.Batch != c.want || max(batchOf(f.chooser().config(0)), 1) != c.want || scaler != "" && f.unit.Request.Batch != c.want {
				t.Errorf("scaler %q, inflight %d, batcher %d: got the row %+v, scaled by %+v; want that with batch %d", scaler, c.inflight, c.batcher, unit, f.unit, c.want)
			}
		}
		d.Close()
	}
}

// TestSliceOfModel checks that an instance gets the slice of the profile row for its
// GPU's model.
func TestSliceOfModel(t *testing.T) {
	row := func(model string, sm, quota, rps float64) profile.Row {
		return profile.Row{Function: "f", GPU: model, Config: profile.Config{SMPct: sm, Quota: quota, Batch: 1}, ThroughputRPS: rps, P95MS: 10}
	}
	for scaler, want := range map[string][]float64{ // SM share, 100 where no row matches
		"none": {50, 20, 100}, "heuristic": {50, 20, 100}, "eager": {50, 20, 100}, "lazy": {50, 20, 100},
	} {
		d := newDispatcher(t, fakeShell{}, func(c *Config, s *Settings) {
			c.Concurrency, c.Scaler, c.GPUs = 4, scaler, []GPU{{Name: "0", Model: "V100"}, {Name: "1", Model: "A100"}, {Name: "2", Model: "T4"}}
			s.Profile = map[string][]profile.Row{"f": {row("V100", 50, 0.5, 10), row("A100", 20, 0.25, 100), row("V100", 80, 0.5, 12)}}
		})
		f := d.Function("f")
		for number, sm := range want {
			s, profiled := f.chooser().slice(number)
			if s.SMPct != sm || profiled != (sm < 100) {
				t.Errorf("%s on GPU %d: %+v, %v, want %v%% of the SMs", scaler, number, s, profiled, sm)
			}
		}
		if unit := f.chooser().unit(); unit == nil || unit.Request.ThroughputRPS != 10 {
			t.Errorf("%s: scaled by %+v, want the configuration that sustains least", scaler, unit)
		}
		d.GPUs.list = slices.Clone(d.GPUs.list)
		d.GPUs.list[0].Model = ""
		if _, profiled := f.chooser().slice(0); !profiled {
			t.Errorf("%s: slice on a GPU of unknown model: got no row of the profile, want one", scaler)
		}
		d.Close()
	}
}

// TestSliceWithLimits checks that an instance gets the limits that its row states.
func TestSliceWithLimits(t *testing.T) {
	d := newDispatcher(t, fakeShell{}, func(c *Config, s *Settings) {
		c.Scaler = "heuristic"
		s.Profile = map[string][]profile.Row{"f": {{Function: "f", Config: profile.Config{SMPct: 30, Quota: 0.5, Batch: 1}, ThroughputRPS: 10, P95MS: 10, SMLimitPct: 60, QuotaLimit: 0.75}}}
	})
	defer d.Close()
	s, profiled := d.Function("f").chooser().slice(0)
	if s.Mem = 0; !profiled || s != (gpu.Slice{SMPct: 30, SMLimitPct: 60, QuotaRequest: 0.5, QuotaLimit: 0.75}) {
		t.Errorf("got %+v, %v, want 30:60%% of the SMs and a quota of 0.5:0.75", s, profiled)
	}
}

// TestBriefMemoryUseDoesNotCount checks that memory that is in use only briefly, such as
// the memory of an instance that is just ending, does not count as another program's.
// Longer use does.
func TestBriefMemoryUseDoesNotCount(t *testing.T) {
	var m gpuMemory
	for _, c := range []struct{ at, others, want int64 }{
		{1, 100, 100}, {2, 900, 100}, {3, 100, 100}, {4, 500, 100}, {5, 700, 500}, {6, 700, 700}, {7, 0, 0},
	} {
		m.note(time.Duration(c.at)*time.Second, c.others)
		if m.stable != c.want {
			t.Errorf("stable memory after %d s: got %d, want %d", c.at, m.stable, c.want)
		}
	}
	m.note(7*time.Second+10*time.Millisecond, 800)
	m.note(7*time.Second+20*time.Millisecond, 800)
	if m.stable != 0 {
		t.Errorf("memory that was in use for 20 ms: got %d, want 0", m.stable)
	}
}

func TestRestartable(t *testing.T) {
	for _, c := range []struct {
		restart, runtime string
		status           int
		want             bool
	}{
		{"", instance.Process, 1, false}, {"no", instance.Process, 1, false},
		{"on-failure", instance.Process, 1, true}, {"on-failure", instance.Process, 0, false}, {"on-failure", instance.Process, -1, true},
		{"always", instance.Process, 0, true}, {"always", instance.Docker, 1, false},
	} {
		if got := Restartable(function.Function{Restart: c.restart}, c.runtime, instance.State{ExitCode: c.status}); got != c.want {
			t.Errorf("%+v: %v, want %v", c, got, c.want)
		}
	}
}

// TestBackoff checks that the pauses are 1, 2, 4, … 60 s, and 1 s again after a steady
// run. A negative duration, which results from setting the clock, is not a steady run.
func TestBackoff(t *testing.T) {
	var f, g Backoff
	var got []time.Duration
	for range 8 {
		got = append(got, f.Next(time.Second)/time.Second)
	}
	if want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60}; !slices.Equal(got, want) {
		t.Errorf("pauses, in seconds: got %d, want %d", got, want)
	}
	if first := f.Next(steady); first != instance.FirstRestart || g.Next(-time.Hour) != instance.FirstRestart || f.Next(0) != 2*instance.FirstRestart {
		t.Errorf("pause after a steady run: got %v, want %v, also after a negative run, then %v", first, instance.FirstRestart, 2*instance.FirstRestart)
	}
}

// TestMissIsStart checks that under policies whose instances keep no memory on the host, the policy expects
// that a miss takes as long as a start.
func TestMissIsStart(t *testing.T) {
	for policy, start := range map[string]bool{"lb": true, "lalb": true, "lalb-o3": true, "gfaas": false, "mqfq-sticky": false} {
		d := newDispatcher(t, fakeShell{}, func(c *Config, s *Settings) {
			c.Policy.Policy, c.GPUs = policy, []GPU{{Name: "0"}}
			s.Costs = map[string]trace.Function{"f": {Name: "f", Warm: time.Second, Cold: 9 * time.Second, Load: 2 * time.Second}}
		})
		d.Apply([]function.Function{{Name: "f", Tenant: "default", GPUs: 1, Weight: 1, Inflight: 1, Scale: function.DefaultScale}})
		want := 2 * time.Second
		if start {
			want = 8 * time.Second
		}
		if got := d.Function("f").Info().Spec.Load; got != want {
			t.Errorf("%s: got a load of %v, want %v", policy, got, want)
		}
		d.Close()
	}
}

// TestMeanOf checks that durations of the file of measured costs are used only if they are possible.
func TestMeanOf(t *testing.T) {
	for _, c := range []struct {
		ms   float64
		n    int
		want mean
	}{
		{1.5, 3, mean{1500 * time.Microsecond, 3}}, {1.5, 1000, mean{1500 * time.Microsecond, few}},
		{0, 3, mean{}}, {-1, 3, mean{}}, {1.5, 0, mean{}}, {1e300, 3, mean{}},
	} {
		if got := meanOf(c.ms, c.n); got != c.want {
			t.Errorf("mean of %v ms, %d values: got %+v, want %+v", c.ms, c.n, got, c.want)
		}
	}
}

// TestLossIsReportedFirst checks that the policy learns of the end of an instance in the step that also delays its
// replacement. In an earlier step, it could still dispatch to the instance.
func TestLossIsReportedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, fakeShell{}, nil)
		f := function.Function{Name: "f", Tenant: "default", GPUs: 1, Weight: 1, Inflight: 1, Scale: function.DefaultScale}
		f.Scale.Min = 1
		d.Apply([]function.Function{f})
		synctest.Wait()
		var written bytes.Buffer
		stop := d.Record(&written, nil, nil)
		for _, i := range d.Instances.byID {
			r := i.Record()
			r.Handle.Started = time.Now()
			i.record = &r
			i.Died()
		}
		stop()
		var steps []float64
		for line := range strings.Lines(written.String()) {
			var ev struct {
				Event string
				Step  float64
			}
			if err := json.Unmarshal([]byte(line), &ev); err != nil {
				t.Fatal(err)
			}
			if ev.Event == "lost" || ev.Event == "function" {
				steps = append(steps, ev.Step)
			}
		}
		if len(steps) != 2 || steps[0] != steps[1] {
			t.Errorf("got the loss and the function's new minimum in the steps %v, want one step:\n%s", steps, &written)
		}
	})
}
