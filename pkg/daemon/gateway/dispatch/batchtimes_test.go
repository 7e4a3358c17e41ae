package dispatch

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/trace"
)

// batchFunction returns a function whose instances run inflight calls at once, which form batches by themselves or, with max
// above 0, are batches of up to max inferences.
func batchFunction(inflight, most int) function.Function {
	fn := function.Function{Name: "f", Tenant: "default", GPUs: 1, Weight: 1, Inflight: inflight, Scale: function.DefaultScale}
	if most > 0 {
		fn.Batcher = &function.Batcher{Max: most, Latency: time.Millisecond}
	}
	return fn
}

// batchTime is the duration of a batch of n inferences: 100 ms, and 50 ms for each further one.
func batchTime(n int) time.Duration { return time.Duration(n+1) * 50 * time.Millisecond }

// runTogether runs n calls on one instance, which begin and end together, or one batch of n inferences.
func runTogether(t *testing.T, d *Dispatcher, n int, batcher bool) {
	t.Helper()
	calls := n
	if batcher {
		calls = 1
	}
	attempts := make([]Attempt, calls)
	for i := range attempts {
		if a := &attempts[i]; batcher {
			d.SubmitBatch(a, d.Function("f"), plainCall{}, d.Now())
		} else {
			d.Submit(a, d.Function("f"), plainCall{})
		}
	}
	for i := range attempts {
		if turn := <-attempts[i].Turn(); turn.Refusal != nil {
			t.Fatal(turn.Refusal)
		}
		if batcher {
			attempts[i].Inferences(n)
		}
	}
	time.Sleep(batchTime(n))
	for i := range attempts {
		attempts[i].Finish(true)
	}
}

// TestLearnsBatchTimes checks that the gateway learns how much longer batches take for each further inference, that the
// policy has the duration of one inference alone, or that of the usual batch of a batcher, and that the next gateway knows
// both.
func TestLearnsBatchTimes(t *testing.T) {
	for _, batcher := range []bool{false, true} {
		for _, policy := range []string{"lalb", "gfaas"} {
			t.Run(map[bool]string{false: "inflight/", true: "batcher/"}[batcher]+policy, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					file := filepath.Join(t.TempDir(), "costs.json")
					fn := batchFunction(8, 0)
					if batcher {
						fn = batchFunction(1, 8)
					}
					gateway := func() *Dispatcher {
						d := newDispatcher(t, fakeShell{}, func(c *Config, _ *Settings) {
							c.Policy.Policy, c.LearnedFile, c.Concurrency, c.BatchWindow = policy, file, 1, time.Second
						})
						d.Apply([]function.Function{fn})
						return d
					}
					d := gateway()
					for range 10 { // from batches of one size, no slope follows
						runTogether(t, d, 4, batcher)
					}
					f := d.Function("f")
					if f.costs.fitted || !nearly(f.spec.Warm, batchTime(4)) {
						t.Errorf("after batches of 4: the policy has %v, slope known: %v; want %v, false", f.spec.Warm, f.costs.fitted, batchTime(4))
					}
					for i := range 48 {
						runTogether(t, d, 1+i*5%8, batcher)
					}
					check := func(f *Function) {
						t.Helper()
						usual, slope := 100*time.Millisecond, f.spec.BatchSlope
						if batcher {
							usual, slope = time.Duration(float64(usual)*f.costs.usual(0.5)), f.costs.slope
						}
						if !f.costs.fitted || math.Abs(f.costs.slope-0.5) > 0.02 || math.Abs(slope-0.5) > 0.05 || !nearly(f.spec.Warm, usual) {
							t.Errorf("after batches of 1 to 8: the policy has %v and the slope %g, measured %g; want %v and 0.5", f.spec.Warm, slope, f.costs.slope, usual)
						}
						if !batcher && f.spec.BatchSlope == 0 || batcher && f.spec.BatchSlope != 0 {
							t.Errorf("slope for the policy: got %g", f.spec.BatchSlope)
						}
					}
					check(f)
					for range 40 { // these do not change the slope
						runTogether(t, d, 8, batcher)
					}
					check(f)
					text, err := json.Marshal(d.learnedNow())
					if err == nil {
						err = os.WriteFile(file, text, 0o600)
					}
					if err != nil {
						t.Fatal(err)
					}
					check(gateway().Function("f"))
				})
			})
		}
	}
}

func nearly(a, b time.Duration) bool { return max(a-b, b-a) <= b/8 }

// TestReportsSizes checks that the gateway reports to the policy how much longer a batch takes than the usual one.
func TestReportsSizes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, fakeShell{}, func(c *Config, _ *Settings) { c.Policy.Policy, c.GPUs = "lalb", twoGPUs })
		d.Apply([]function.Function{batchFunction(1, 8)})
		for i := range 64 {
			runTogether(t, d, 1+i*5%8, true)
		}
		f := d.Function("f")
		for _, c := range []struct {
			n     int
			waits bool
		}{{1, true}, {2, true}, {8, false}} {
			d.mu.Lock() // a start takes as long as the usual batch, so a call waits for a smaller one
			f.costs.start = mean{f.costs.warm.value, few}
			f.relearn()
			d.mu.Unlock()
			var first, second Attempt
			d.SubmitBatch(&first, f, plainCall{}, d.Now())
			<-first.Turn()
			first.Inferences(c.n)
			d.SubmitBatch(&second, f, plainCall{}, d.Now())
			d.mu.Lock()
			waits := second.state == attemptWaits
			d.mu.Unlock()
			if waits != c.waits {
				t.Errorf("while a batch of %d runs for %v: the next one waits: %v, want %v (a usual one and a start take %v each)", c.n, batchTime(c.n), waits, c.waits, f.spec.Warm)
			}
			time.Sleep(batchTime(c.n))
			first.Finish(true)
			<-second.Turn()
			second.Release()
		}
	})
}

// TestSlopeOfBatches checks where the slope of batches comes from.
func TestSlopeOfBatches(t *testing.T) {
	row := func(quota float64, batch int, warm float64) profile.Row {
		return profile.Row{Function: "f", Config: profile.Config{SMPct: 100, Quota: quota, Batch: batch}, WarmMS: warm}
	}
	rows := []profile.Row{row(1, 1, 10), row(1, 4, 13), row(1, 32, 1000)}
	for _, c := range []struct {
		name              string
		inflight, batcher int
		rows              []profile.Row
		costs, fixed      bool
		fitted            bool
		want              float64 // measured: 0.5; given: 0.3
	}{
		{name: "unknown", inflight: 4},
		{name: "measured", inflight: 4, fitted: true, want: 0.5},
		{name: "given", inflight: 4, costs: true, want: 0.3},
		{name: "measured replaces given", inflight: 4, costs: true, fitted: true, want: 0.5},
		{name: "fixed", inflight: 4, rows: rows, costs: true, fixed: true, fitted: true, want: 0.3},
		{name: "profile replaces measured", inflight: 4, rows: rows, costs: true, fitted: true, want: 0.1},
		{name: "profile, batcher", inflight: 1, batcher: 8, rows: rows, want: 0.1},
		{name: "profile without batches", inflight: 4, rows: rows[:1], fitted: true, want: 0.5},
		{name: "no batches", inflight: 1, rows: rows, costs: true, fitted: true},
	} {
		d := newDispatcher(t, fakeShell{}, func(_ *Config, s *Settings) {
			s.Profile = map[string][]profile.Row{"f": c.rows}
			if s.FixedCosts = c.fixed; c.costs {
				s.Costs = map[string]trace.Function{"f": {Name: "f", Warm: time.Second, Cold: time.Second, BatchSlope: 0.3}}
			}
		})
		d.Apply([]function.Function{batchFunction(c.inflight, c.batcher)})
		f := d.Function("f")
		f.costs.slope, f.costs.fitted = 0.5, c.fitted
		if spec := f.newSpec(); math.Abs(f.forecast().slope()-c.want) > 1e-9 || c.batcher == 0 && spec.BatchSlope != f.forecast().slope() {
			t.Errorf("%s: got %g, and %g for the policy, want %g", c.name, f.forecast().slope(), spec.BatchSlope, c.want)
		}
		d.Close()
	}
}
