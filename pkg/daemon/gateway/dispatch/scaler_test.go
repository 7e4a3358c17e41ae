package dispatch

import (
	"cmp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/profile"
)

// rowsOfTwo are two configurations of f: 30 requests/s at 24% x 0.4 and, less efficient, 10 at 12% x
// 0.4.
var rowsOfTwo = map[string][]profile.Row{"f": {
	{Function: "f", Config: profile.Config{SMPct: 12, Quota: 0.4, Batch: 1}, ThroughputRPS: 10, P95MS: 10},
	{Function: "f", Config: profile.Config{SMPct: 24, Quota: 0.4, Batch: 1}, ThroughputRPS: 30, P95MS: 10},
}}

// load runs a tick of the scalers after a second with that many calls of f, and waits until
// the instances have started and stopped.
func load(d *Dispatcher, calls int) {
	d.mu.Lock()
	d.Function("f").scaling.calls = calls
	d.mu.Unlock()
	time.Sleep(time.Second)
	d.scale()
	synctest.Wait()
}

// shares returns the SM shares of all instances, ascending.
func shares(d *Dispatcher) (list []float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, i := range d.Instances.byID {
		list = append(list, i.record.Slice.SMPct)
	}
	slices.Sort(list)
	return list
}

// TestHeuristicChoosesRows checks that the heuristic scaler starts instances of several
// configurations side by side, and stops the least efficient first.
func TestHeuristicChoosesRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, fakeShell{}, func(c *Config, s *Settings) {
			c.Scaler, s.Profile = "heuristic", rowsOfTwo
		})
		defer d.Close()
		for _, second := range []struct {
			calls int
			want  []float64
		}{
			{70, []float64{12, 24, 24}}, // 2 × 30 and, for the rest, 10
			{60, []float64{24, 24}},
			{31, []float64{24, 24}},
			{9, []float64{24}},
			{0, []float64{24}}, // one stays until scale.idle
		} {
			for range 3 { // a surplus instance stops when instances have been idle for 2 s
				load(d, second.calls)
			}
			if !slices.Equal(shares(d), second.want) {
				t.Fatalf("SM shares after %d calls: got %v, want %v", second.calls, shares(d), second.want)
			}
		}
	})
}

// TestHeuristicKeepsPlanned checks that the heuristic scaler counts the throughput of an
// instance of a plan, which it cannot stop, and stops its own instances instead.
func TestHeuristicKeepsPlanned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, fakeShell{}, func(c *Config, s *Settings) {
			c.Scaler, s.Profile = "heuristic", rowsOfTwo
		})
		defer d.Close()
		d.Instances.Adopt(instance.Record{ID: "f-0", Function: "f", GPUs: []string{"sim"}, RPS: 10, Slice: gpu.Slice{SMPct: 12, QuotaRequest: 0.4, QuotaLimit: 0.4}}, 0)
		if load(d, 40); !slices.Equal(shares(d), []float64{12, 24}) {
			t.Fatalf("got %v, want one instance beside that of the plan", shares(d))
		}
		for range 3 {
			load(d, 1)
		}
		if !slices.Equal(shares(d), []float64{12}) {
			t.Errorf("got %v, want only the instance of the plan", shares(d))
		}
	})
}

// TestWaitingCallsStartOne checks that waiting calls of a scaled function start an instance if it has none, and no
// further ones: the scaler decides about those, under every placement.
func TestWaitingCallsStartOne(t *testing.T) {
	for _, placement := range []string{"policy", "dilu", "maxrect"} {
		for _, scaler := range []string{"heuristic", "eager", "lazy"} {
			synctest.Test(t, func(t *testing.T) {
				d := newDispatcher(t, fakeShell{}, func(c *Config, s *Settings) {
					c.Scaler, c.Placement, s.Profile = scaler, placement, rowsOfTwo
				})
				defer d.Close()
				var calls [8]Attempt
				for i := range calls {
					d.Submit(&calls[i], d.Function("f"), plainCall{})
				}
				synctest.Wait()
				if got := len(shares(d)); got != 1 {
					t.Errorf("%s, %s: got %d instances for %d waiting calls, want 1", placement, scaler, got, len(calls))
				}
				for range 3 {
					load(d, 1)
				}
				if got := len(shares(d)); got != 1 {
					t.Errorf("%s, %s: got %d instances for a load that needs one, want 1", placement, scaler, got)
				}
			})
		}
	}
}

// TestPlannedBatches checks that the gateway counts on the rate of a plan's batches only if batches reach the instance:
// with a batch of 8 that does not, a rate of 40 requests/s counts as 5, and the scaler starts another instance.
func TestPlannedBatches(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*function.Function)
		rps    float64
		want   []float64
	}{
		"one call at a time": {func(*function.Function) {}, 5, []float64{12, 24}},
		"concurrent calls":   {func(fn *function.Function) { fn.Inflight = 8 }, 40, []float64{24}},
		"batcher":            {func(fn *function.Function) { fn.Batcher = &function.DefaultBatcher }, 40, []float64{24}},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newDispatcher(t, fakeShell{}, func(cfg *Config, s *Settings) { cfg.Scaler, s.Profile = "heuristic", rowsOfTwo })
			defer d.Close()
			fn := d.Function("f").definition
			c.change(&fn)
			d.Apply([]function.Function{fn})
			d.Instances.Adopt(instance.Record{ID: "f-0", Function: "f", GPUs: []string{"sim"}, RPS: 40, Batch: 8, Slice: gpu.Slice{SMPct: 24, QuotaRequest: 0.2, QuotaLimit: 0.2}}, 0)
			if got := *d.Status().Functions[0].PlannedRPS; got != c.rps {
				t.Errorf("%s: got a planned rate of %v, want %v", name, got, c.rps)
			}
			if load(d, 12); !slices.Equal(shares(d), c.want) {
				t.Errorf("%s: got instances with the SM shares %v, want %v", name, shares(d), c.want)
			}
		})
	}
}

// TestEstimator checks that the estimator delays the stops: its window still contains the
// highest load.
func TestEstimator(t *testing.T) {
	for _, c := range []struct {
		estimator string
		want      int
	}{{"", 1}, {"last", 1}, {"window", 3}, {"ewma", 2}, {"kalman", 2}} {
		synctest.Test(t, func(t *testing.T) {
			d := newDispatcher(t, fakeShell{}, func(cfg *Config, s *Settings) {
				options := scale.DefaultOptions()
				options.Estimate.Window = 2
				cfg.Placement = "maxrect" // so that surplus instances stop at once
				cfg.Scaler, cfg.Estimator, cfg.Scaling, s.Profile = "heuristic", c.estimator, &options, rowsOfTwo
			})
			defer d.Close()
			load(d, 70)
			if load(d, 1); len(shares(d)) != c.want {
				t.Errorf("%s: got %d instances after a second with less load, want %d", cmp.Or(c.estimator, "default"), len(shares(d)), c.want)
			}
		})
	}
}

// TestSlicePrecedence checks that the keys of the function's file override the row of the
// profile, and what neither states is all SMs and an equal share of the time. Rows with
// another SM share or quota are not used.
func TestSlicePrecedence(t *testing.T) {
	row := func(sm, quota, rps float64) profile.Row {
		return profile.Row{Function: "f", Config: profile.Config{SMPct: sm, Quota: quota, Batch: 1}, ThroughputRPS: rps, P95MS: 10}
	}
	rows := []profile.Row{row(12, 0.4, 10), row(24, 0.4, 30), row(24, 0.8, 50), row(50, 0.2, 20)}
	half := function.Quota{Request: 0.4, Limit: 0.4}
	rising := function.Quota{Request: 0.4, Limit: 0.8}
	for name, c := range map[string]struct {
		scaler  string
		profile []profile.Row
		file    function.Function
		want    gpu.Slice
		limit   float64 // throughput at the limit by which it is scaled; 0: not scaled
	}{
		"nothing":             {"none", nil, function.Function{}, gpu.Slice{SMPct: 100, QuotaRequest: 0.5, QuotaLimit: 1}, 0},
		"profile":             {"heuristic", rows, function.Function{}, gpu.Slice{SMPct: 24, QuotaRequest: 0.4, QuotaLimit: 0.4}, 30},
		"file":                {"none", nil, function.Function{SM: 30, Quota: rising, GPUMem: gpu.GiB}, gpu.Slice{SMPct: 30, QuotaRequest: 0.4, QuotaLimit: 0.8, Mem: gpu.GiB}, 0},
		"only sm":             {"none", nil, function.Function{SM: 30}, gpu.Slice{SMPct: 30, QuotaRequest: 0.5, QuotaLimit: 1}, 0},
		"sm of a row":         {"heuristic", rows, function.Function{SM: 12}, gpu.Slice{SMPct: 12, QuotaRequest: 0.4, QuotaLimit: 0.4}, 10},
		"quota of a row":      {"heuristic", rows, function.Function{Quota: function.Quota{Request: 0.2, Limit: 0.3}}, gpu.Slice{SMPct: 50, QuotaRequest: 0.2, QuotaLimit: 0.3}, 20},
		"both, eager":         {"eager", rows, function.Function{SM: 24, Quota: half}, gpu.Slice{SMPct: 24, QuotaRequest: 0.4, QuotaLimit: 0.4}, 30},
		"a limit of its own":  {"lazy", rows, function.Function{SM: 24, Quota: rising}, gpu.Slice{SMPct: 24, QuotaRequest: 0.4, QuotaLimit: 0.8}, 50},
		"no row for the file": {"heuristic", rows, function.Function{SM: 99}, gpu.Slice{SMPct: 99, QuotaRequest: 0.5, QuotaLimit: 1}, 0},
	} {
		d := newDispatcher(t, fakeShell{}, func(cfg *Config, s *Settings) {
			cfg.Scaler, s.Profile = c.scaler, map[string][]profile.Row{"f": c.profile}
		})
		fn := d.Function("f").definition
		fn.SM, fn.Quota, fn.GPUMem = c.file.SM, c.file.Quota, c.file.GPUMem
		d.Apply([]function.Function{fn})
		f := d.Function("f")
		if s, _ := f.chooser().slice(0); s != c.want {
			t.Errorf("%s: got the slice %+v, want %+v", name, s, c.want)
		}
		limit := 0.0
		if f.scaling != nil {
			limit = f.unit.Limit.ThroughputRPS
		}
		if limit != c.limit {
			t.Errorf("%s: scaled by %g requests/s, want %g", name, limit, c.limit)
		}
		d.Close()
	}
}
