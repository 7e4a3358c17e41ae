package sim_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/sim"
	"github.com/gfaas/gfaas/pkg/trace"
)

// TestSharedWeights checks on random traces, under each policy, that a start takes the shorter time exactly if one of a
// function with the same weights has ended on the GPU before.
func TestSharedWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var functions []trace.Function
		for i := range rapid.IntRange(2, 5).Draw(t, "functions") {
			f := trace.Function{Name: fmt.Sprint(i), Warm: time.Second, Load: 4 * time.Second, Cold: 5 * time.Second, Weight: 1, MemMiB: 10,
				Tenant: rapid.SampledFrom([]string{"", "t"}).Draw(t, "tenant"), Model: rapid.SampledFrom([]string{"m", "n"}).Draw(t, "model")}
			if rapid.IntRange(0, 3).Draw(t, "shares") > 0 {
				f.SharedStart = time.Duration(i+1) * time.Second / 10
			}
			functions = append(functions, f)
		}
		var rows []trace.Row
		for range rapid.IntRange(1, 40).Draw(t, "invocations") {
			rows = append(rows, trace.Row{At: time.Duration(rapid.IntRange(0, 100).Draw(t, "at")) * time.Second / 2, Function: int32(rapid.IntRange(0, len(functions)-1).Draw(t, "function"))})
		}
		policy := rapid.SampledFrom(queue.Names()).Draw(t, "policy")
		c := sim.Config{Functions: functions, GPUs: rapid.IntRange(1, 3).Draw(t, "gpus"), Mem: 25 << 20, Concurrency: rapid.IntRange(1, 2).Draw(t, "concurrency"),
			Config: queue.Config{Policy: policy, Pool: residency.Unlimited, Options: queue.Defaults()}}
		type weights struct {
			gpu           int32
			tenant, model string
		}
		since := map[weights]time.Duration{}
		c.Decide = func(now time.Duration, a *queue.Action) error {
			starts := a.Start == residency.Cold || a.Start == residency.HostWarm && queue.OneAtATime(policy)
			if a.Kind != queue.Run || !starts {
				return nil
			}
			f := functions[a.Function]
			w, want := weights{a.GPU, f.Tenant, f.Model}, f.Cold
			from, has := since[w]
			if f.SharedStart > 0 && has && from <= now {
				want = f.Warm + f.SharedStart
			}
			if a.Expected != want {
				t.Fatalf("at %v, a start of %+v on GPU %d: expected %v, want %v (weights since %v, %v)", now, f, a.GPU, a.Expected, want, from, has)
			}
			if end := now + want - f.Warm; f.SharedStart > 0 && (!has || end < from) {
				since[w] = end
			}
			return nil
		}
		got, err := sim.Run(c, trace.NewList(sorted(rows)))
		if err != nil || got.Completed != int64(len(rows)) {
			t.Fatalf("%d of %d completed, %v", got.Completed, len(rows), err)
		}
	})
}
