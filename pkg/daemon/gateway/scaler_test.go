package gateway

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/profile"
)

// TestScalers: the number of instances follows the load by the profile's rows,
// whose slices they have, and goes back when nothing comes.
func TestScalers(t *testing.T) {
	for _, scaler := range []string{"eager", "heuristic", "lazy"} {
		t.Run(scaler, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, http.HandlerFunc(echo), func(c *Config) {
				c.Scaler, c.Concurrency = scaler, 2
				c.Profile = map[string][]profile.Row{"f": {{Function: "f", Config: profile.Config{SMPct: 20, Quota: 0.5, Batch: 1}, ThroughputRPS: 1, P95MS: 50}}}
			})
			w.apply(fn("f", func(f *function.Function) { f.Scale = function.Scale{Max: 4, Idle: time.Second} }))
			ctx, stop := context.WithCancel(context.Background())
			var callers sync.WaitGroup
			defer callers.Wait()
			defer stop()
			callers.Go(func() { // on a machine that has time 25 a second and more, and some on any
				for ctx.Err() == nil {
					if a, err := w.try(context.Background(), "POST", "/function/f", "x"); err != nil || a.status != 200 {
						t.Errorf("%+v, %v", a, err)
					}
					pause(ctx, 20*time.Millisecond)
				}
			})
			least := 3
			if scaler == "lazy" {
				least = 2 // it waits for several seconds before it starts more
			}
			w.until("enough are there", func() bool {
				if scaler == "lazy" && w.Status().Functions[0].Instances == 1 {
					return true // by its rule only a load that lasts starts another
				}
				return w.Status().Functions[0].Instances >= least
			})
			if i := w.Status().Instances[0]; i.SMPct != 20 || i.QuotaRequest != 0.5 {
				t.Errorf("%+v", i)
			}
			stop()
			callers.Wait()
			w.until("none is left", func() bool { return w.Status().Functions[0].Instances == 0 })
		})
	}
}

// TestSliceOfModel: an instance has the slice of the row for the model of its GPU.
func TestSliceOfModel(t *testing.T) {
	row := func(model string, sm, quota, rps float64) profile.Row {
		return profile.Row{Function: "f", GPU: model, Config: profile.Config{SMPct: sm, Quota: quota, Batch: 1}, ThroughputRPS: rps, P95MS: 10}
	}
	g := &Gateway{cfg: Config{Concurrency: 4, GPUs: []GPU{{Name: "0", Model: "V100"}, {Name: "1", Model: "A100"}, {Name: "2", Model: "T4"}}}}
	e := &g.engine
	e.g = g
	g.settings.Store(&Settings{Profile: map[string][]profile.Row{
		"f": {row("V100", 50, 0.5, 10), row("A100", 20, 0.25, 100), row("V100", 80, 0.5, 12)},
	}})
	for scaler, want := range map[string][]float64{ // SM share, 100 where no row holds
		"none": {50, 20, 100}, "heuristic": {50, 20, 100}, "eager": {50, 20, 100}, "lazy": {50, 20, 100},
	} {
		g.cfg.Scaler = scaler
		f := &target{name: "f", function: function.Function{Name: "f", SLO: time.Second}}
		for number, sm := range want {
			s, profiled := e.sliceOf(f, number)
			if s.SMPct != sm || profiled != (sm < 100) {
				t.Errorf("%s on GPU %d: %+v, %v, want %v%% of the SMs", scaler, number, s, profiled, sm)
			}
		}
		if unit := e.unitOf(f.function); unit == nil || unit.Request.ThroughputRPS != 10 {
			t.Errorf("%s: scaled by %+v, want what sustains least", scaler, unit)
		}
		g.cfg.GPUs[0].Model = ""
		if _, profiled := e.sliceOf(f, 0); !profiled {
			t.Errorf("%s: no row holds for a GPU of which nothing is known", scaler)
		}
		g.cfg.GPUs[0].Model = "V100"
	}
}
