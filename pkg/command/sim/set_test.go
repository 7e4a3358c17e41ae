package sim

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/sim"
	"github.com/gfaas/gfaas/pkg/splitmix"
	"github.com/gfaas/gfaas/pkg/trace"
)

// TestIgnored checks that the parameters reported as ignored change no decision, and that each of
// the others changes some run.
func TestIgnored(t *testing.T) {
	draw := splitmix.Source(1)
	var functions []trace.Function
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		ms := func(least, span int) time.Duration { return time.Duration(least+draw.Below(span)) * time.Millisecond }
		warm := ms(5, 60)
		functions = append(functions, trace.Function{Name: name, Warm: warm, Cold: warm + ms(100, 400), Load: ms(10, 100),
			MemMiB: float64(500 + draw.Below(1500)), Weight: 1, Tenant: string(name[0] & ^byte(1)), Model: name})
	}
	invocations := func(apart int) (rows []trace.Row) {
		for i := range 2000 {
			rows = append(rows, trace.Row{At: time.Duration(apart*i+draw.Below(apart)) * time.Millisecond, Function: int32(draw.Below(1 + draw.Below(5)))})
		}
		return rows
	}
	dense, sparse := invocations(10), invocations(1000)
	decisions := func(rows []trace.Row, policy string, pool, concurrency int, set ...string) string {
		c := sim.Config{GPUs: 2, Mem: 4 << 30, Concurrency: concurrency, Functions: functions,
			Config: queue.Config{Policy: policy, Pool: pool, Options: queue.Defaults()}}
		if err := cli.SetParameters("set", parameters, &c, set...); err != nil {
			t.Fatal(err)
		}
		r, err := sim.Run(c, trace.NewList(rows))
		if err != nil {
			t.Fatal(err)
		}
		r.Fairness.BoundMS, r.Events = 0, 0 // the bound depends on t, and the events include samples
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, policy := range queue.Names() {
		before := decisions(dense, policy, residency.Unlimited, 3)
		for key, set := range map[string][]string{
			"t": {"t=0s"}, "alpha": {"alpha=0.1"}, "ttl": {"ttl=1ms"}, "charge": {"charge=1s"}, "swap": {"swap=true"}, "limit": {"limit=1"}, "starvation": {"starvation=1"}, "penalty": {"penalty=0"},
			"correct": {"correct=false", "interference=1"}, "patient": {"patient=true"}, "prefetch": {"prefetch=true"}, "utilization": {"utilization=40", "demand=50"},
			"tenant-slots": {"tenant-slots=1"}, "tenant-processes": {"tenant-processes=1"}, "tenant-mem": {"tenant-mem=2GiB"}, "tenant-time": {"tenant-time=5"},
		} {
			with := before
			if key == "correct" {
				with = decisions(dense, policy, residency.Unlimited, 3, "interference=1")
			}
			if policy == "gfaas" && (key == "alpha" || key == "prefetch") { // they matter with swap only
				set = append(set, "swap=true")
				with = decisions(dense, policy, residency.Unlimited, 3, "swap=true")
			}
			same := decisions(dense, policy, residency.Unlimited, 3, set...) == with
			// A limit on time may have no effect, a lead over T is rare under mqfq, and lalb's
			// work takes the expected time.
			may := key == "tenant-time" || key == "t" && policy == "mqfq" || key == "patient"
			if ignored := len(queue.Ignored([]string{key}, policy)) > 0; ignored != same && !may {
				t.Errorf("%s under %s: reported as ignored: %v, but all decisions are the same: %v", key, policy, ignored, same)
			}
		}
		if same := decisions(dense, policy, residency.Unlimited, 1) == before; same != queue.OneAtATime(policy) {
			t.Errorf("--concurrency under %s: all decisions are the same: got %v, want %v", policy, same, queue.OneAtATime(policy))
		}
		pool := !queue.OneAtATime(policy) && policy != "fcfs-naive"
		if same := decisions(sparse, policy, 0, 3) == decisions(sparse, policy, residency.Unlimited, 3); same == pool {
			t.Errorf("--pool under %s: all decisions are the same: got %v, want %v", policy, same, !pool)
		}
	}
}
