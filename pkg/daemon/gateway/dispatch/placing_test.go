package dispatch

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/profile"
)

// oneRow is one configuration of f: 10 requests/s at 60% x 0.4. Three of them have an area of 0.72,
// but only two fit side by side.
var oneRow = map[string][]profile.Row{"f": {{Function: "f", Config: profile.Config{SMPct: 60, Quota: 0.4, Batch: 1}, ThroughputRPS: 10, P95MS: 10}}}

var twoGPUs = []GPU{{Name: "sim", Mem: int64(16 * gpu.GiB)}, {Name: "sim:1", Mem: int64(16 * gpu.GiB)}}

// gpusOf returns the GPUs of each instance of a function, in the order of their starts.
func gpusOf(d *Dispatcher, name string) (list []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(d.Instances.byID)) {
		if i := d.Instances.byID[id]; i.function.name == name {
			list = append(list, strings.Join(i.record.GPUs, "+"))
		}
	}
	return list
}

// TestPlacements checks where the instances of a scaled function go: with policy, they are
// spread; with dilu, their shares of 0.24 fill a GPU; with maxrect, two fit side by side.
func TestPlacements(t *testing.T) {
	for placement, want := range map[string][]string{
		"policy": {"sim", "sim:1", "sim"}, "dilu": {"sim", "sim", "sim"}, "maxrect": {"sim", "sim", "sim:1"},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newDispatcher(t, fakeShell{}, func(c *Config, s *Settings) {
				c.Scaler, c.Placement, c.GPUs, s.Profile = "heuristic", placement, twoGPUs, oneRow
			})
			defer d.Close()
			if load(d, 30); !slices.Equal(gpusOf(d, "f"), want) {
				t.Errorf("%s: got the GPUs %v, want %v", placement, gpusOf(d, "f"), want)
			}
			for range 3 {
				load(d, 5)
			}
			if len(gpusOf(d, "f")) != 1 {
				t.Errorf("%s: got the GPUs %v, want one", placement, gpusOf(d, "f"))
			}
		})
	}
}

// TestFirstCallIsPlaced checks that a call without an instance starts one at once, on the GPU
// of the placement. If there is no room, the policy starts it.
func TestFirstCallIsPlaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, fakeShell{}, func(c *Config, s *Settings) {
			c.Scaler, c.Placement, c.GPUs, c.Concurrency = "heuristic", "maxrect", twoGPUs, 8
			s.Profile = map[string][]profile.Row{"f": oneRow["f"], "g": oneRow["f"]}
		})
		defer d.Close()
		g := d.Function("f").definition
		g.Name = "g"
		d.Apply([]function.Function{d.Function("f").definition, g})
		load(d, 40) // both GPUs are full
		for _, name := range []string{"f", "g"} {
			var a Attempt
			d.Submit(&a, d.Function(name), plainCall{})
			if turn := <-a.Turn(); turn.Refusal != nil {
				t.Fatalf("%s: got %v, want the call to run", name, turn.Refusal)
			}
			a.Finish(true)
		}
		if got := gpusOf(d, "f"); !slices.Equal(got, []string{"sim", "sim", "sim:1", "sim:1"}) {
			t.Errorf("got %v", got)
		}
		if got := gpusOf(d, "g"); len(got) != 1 {
			t.Errorf("without a free rectangle: got %v, want the policy to start an instance", got)
		}
	})
}

// TestPlacementByModel checks that instances go to GPUs of every model, each with the
// configuration for it.
func TestPlacementByModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, fakeShell{}, func(c *Config, s *Settings) {
			c.Scaler, c.Placement, c.GPUs = "eager", "maxrect", []GPU{{Name: "0", Model: "T4"}, {Name: "1", Model: "A100"}}
			s.Profile = map[string][]profile.Row{"f": {
				{Function: "f", GPU: "T4", Config: profile.Config{SMPct: 100, Quota: 1, Batch: 1}, ThroughputRPS: 10, P95MS: 10},
				{Function: "f", GPU: "A100", Config: profile.Config{SMPct: 50, Quota: 1, Batch: 1}, ThroughputRPS: 30, P95MS: 10},
			}}
		})
		defer d.Close()
		load(d, 30) // three instances at 10 requests/s, the throughput on a T4
		if got := gpusOf(d, "f"); !slices.Equal(got, []string{"0", "1", "1"}) || !slices.Equal(shares(d), []float64{50, 50, 100}) {
			t.Errorf("got the GPUs %v with the SM shares %v", got, shares(d))
		}
	})
}

// spanning is a function on two GPUs.
func spanning(mem gpu.Bytes, change func(*function.Function)) function.Function {
	fn := function.Function{Name: "wide", Tenant: "default", GPUs: 2, GPUMem: mem, Weight: 1, Inflight: 1, Scale: function.DefaultScale}
	if change != nil {
		change(&fn)
	}
	return fn
}

// TestSpanningStarts checks that the gateway starts instances that span several GPUs: for
// scale.min, and for a call. They go to the GPUs with the most free memory, and their memory
// counts on each.
func TestSpanningStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, fakeShell{}, func(c *Config, s *Settings) {
			c.GPUs = append(slices.Clone(twoGPUs), GPU{Name: "sim:2", Mem: int64(16 * gpu.GiB)})
		})
		defer d.Close()
		f := d.Function("f").definition
		f.GPUMem, f.Scale.Min = 4*gpu.GiB, 1
		wide := spanning(6*gpu.GiB, func(fn *function.Function) { fn.Scale.Min = 1 })
		d.Apply([]function.Function{f, wide})
		d.scale()
		synctest.Wait()
		if got := gpusOf(d, "wide"); !slices.Equal(got, []string{"sim:1+sim:2"}) {
			t.Fatalf("got %v, want the GPUs with the most free memory", got)
		}
		if occupied := d.memory.gpus[2].occupied; occupied != int64(6*gpu.GiB) || d.memory.gpus[1].occupied != 0 {
			t.Errorf("got %v occupied on the second GPU, want 6GiB", gpu.Bytes(occupied))
		}
		wide.Scale.Min = 2
		d.Apply([]function.Function{f, wide})
		d.scale()
		synctest.Wait()
		if got := gpusOf(d, "wide"); !slices.Equal(got, []string{"sim:1+sim:2", "sim+sim:1"}) {
			t.Errorf("got %v, want another on sim and sim:1", got)
		}
		d.Apply([]function.Function{f})
		synctest.Wait()
		if occupied := d.memory.gpus[2].occupied; occupied != 0 {
			t.Errorf("got %v occupied after the removal", gpu.Bytes(occupied))
		}
	})
}

// TestSpanningClears checks that a call of a function that spans several GPUs makes idle
// instances of other functions stop if it needs their memory, and then runs on both GPUs.
func TestSpanningClears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDispatcher(t, fakeShell{}, func(c *Config, s *Settings) { c.GPUs = twoGPUs })
		defer d.Close()
		f := d.Function("f").definition
		f.GPUMem, f.Scale.Min = 10*gpu.GiB, 2
		d.Apply([]function.Function{f, spanning(12*gpu.GiB, nil)})
		synctest.Wait()
		var a Attempt
		d.Submit(&a, d.Function("wide"), plainCall{})
		d.scale()
		synctest.Wait()
		if got := gpusOf(d, "f"); len(got) != 2 {
			t.Fatalf("got %v, want the instances that scale.min keeps", got)
		}
		f.Scale.Min = 0
		d.Apply([]function.Function{f, spanning(12*gpu.GiB, nil)})
		d.scale()
		synctest.Wait()
		d.scale()
		if turn := <-a.Turn(); turn.Refusal != nil {
			t.Fatal(turn.Refusal)
		}
		a.Finish(true)
		if got := gpusOf(d, "wide"); !slices.Equal(got, []string{"sim+sim:1"}) || len(gpusOf(d, "f")) > 0 {
			t.Errorf("got %v, want it on both GPUs, and no other instance", got)
		}
	})
}
