package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/splitmix"
	"github.com/gfaas/gfaas/pkg/trace"
)

const milli = time.Millisecond

// world is a random simulation with its trace.
type world struct {
	config Config
	rows   []trace.Row
}

func draw(t *rapid.T, policy string) world {
	w := world{config: Config{
		GPUs: rapid.IntRange(1, 3).Draw(t, "gpus"), Concurrency: rapid.IntRange(1, 3).Draw(t, "concurrency"),
		Config: queue.Config{Policy: policy, Options: queue.Defaults(), Pool: rapid.SampledFrom([]int{residency.Unlimited, 0, 1, 2, 4}).Draw(t, "pool")},
		Mem:    int64(rapid.SampledFrom([]int{0, 40, 100}).Draw(t, "memory")) << 20}}
	w.config.T = time.Duration(rapid.IntRange(0, 300).Draw(t, "T")) * milli
	w.config.Limit = rapid.IntRange(0, 4).Draw(t, "limit")
	w.config.Starvation = float64(rapid.IntRange(0, 5).Draw(t, "starvation"))
	for i := range rapid.IntRange(1, 6).Draw(t, "functions") {
		warm := time.Duration(rapid.IntRange(1, 50).Draw(t, "warm")) * milli
		load := time.Duration(rapid.IntRange(0, 30).Draw(t, "load")) * milli
		w.config.Functions = append(w.config.Functions, trace.Function{Name: fmt.Sprint("f", i), Warm: warm, Load: load,
			Cold: warm + load + time.Duration(rapid.IntRange(0, 90).Draw(t, "cold"))*milli, MemMiB: float64(rapid.IntRange(0, 50).Draw(t, "mem")),
			Weight: float64(rapid.IntRange(1, 3).Draw(t, "weight")), Model: fmt.Sprint("m", rapid.IntRange(0, i).Draw(t, "model"))})
	}
	at := time.Duration(0)
	for range rapid.IntRange(0, 60).Draw(t, "invocations") {
		at += time.Duration(rapid.IntRange(0, 20).Draw(t, "after")) * milli
		w.rows = append(w.rows, trace.Row{At: at, Function: int32(rapid.IntRange(0, len(w.config.Functions)-1).Draw(t, "function"))})
	}
	return w
}

// container is a container according to the decisions.
type container struct {
	function int32
	gpu      int32
	resident bool
	end      time.Duration
}

// checker checks the invariants of all decisions.
type checker struct {
	t          *rapid.T
	w          world
	containers map[residency.ID]*container
	running    []container // invocations of policies without containers
	state      map[int64]string
	now        time.Duration
	arrived    int // number of rows that have arrived
}

func (c *checker) decide(now time.Duration, a *queue.Action) error {
	if now > c.now {
		c.checkIdleSlots(now)
		c.now = now
	}
	for ; c.arrived < len(c.w.rows) && c.w.rows[c.arrived].At <= now; c.arrived++ {
	}
	switch a.Kind {
	case queue.Run:
		if row := c.w.rows[a.ID]; row.Function != a.Function || row.At != a.Arrived || row.At > now {
			c.t.Fatalf("at %v: invocation %d: got a run as function %d that arrived at %v, want function %d, arrived at %v", now, a.ID, a.Function, a.Arrived, row.Function, row.At)
		}
		if s := c.state[a.ID]; s != "" && s != "assigned" {
			c.t.Fatalf("at %v: invocation %d runs in state %q, want a waiting or assigned invocation", now, a.ID, s)
		}
		c.state[a.ID] = "done"
		c.run(now, a)
	case queue.Reject:
		if !TooLarge(c.w.config, c.w.config.Functions[a.Function]) || c.state[a.ID] != "" {
			c.t.Fatalf("at %v: invocation %d, in state %q, is rejected, want only waiting invocations rejected that are too large", now, a.ID, c.state[a.ID])
		}
		c.state[a.ID] = "rejected"
	case queue.Assign:
		c.state[a.ID] = "assigned"
	case queue.Remove, queue.Offload:
		if !queue.OneAtATime(c.w.config.Policy) {
			c.checkRemoval(now, a)
		}
	}
	return nil
}

func (c *checker) run(now time.Duration, a *queue.Action) {
	f := c.w.config.Functions[a.Function]
	want := [3]time.Duration{f.Cold, f.Warm + f.Load, f.Warm}[a.Start]
	if a.Expected != want {
		c.t.Fatalf("at %v: expected time of a %v start: got %v, want %v", now, a.Start, a.Expected, want)
	}
	it := container{function: a.Function, gpu: a.GPU, resident: true, end: now + a.Expected}
	if queue.OneAtATime(c.w.config.Policy) {
		c.running = append(slices.DeleteFunc(c.running, func(b container) bool { return b.end <= now }), it)
		for _, b := range c.running[:len(c.running)-1] {
			if b.gpu == a.GPU {
				c.t.Fatalf("at %v: GPU %d runs a second invocation while function %d runs, want one at a time", now, a.GPU, b.function)
			}
		}
		return
	}
	b := c.containers[a.Instance]
	start := residency.Cold
	switch {
	case b == nil:
	case b.function != a.Function || b.gpu != a.GPU || b.end > now:
		c.t.Fatalf("at %v: container %d: got %+v for %+v, want an idle container of the function on this GPU", now, a.Instance, a, *b)
	case b.resident:
		start = residency.GPUWarm
	default:
		start = residency.HostWarm
	}
	if start != a.Start {
		c.t.Fatalf("at %v: kind of start: got %v, want %v", now, a.Start, start)
	}
	c.containers[a.Instance] = &it
	running, exist, idle, mem := 0, 0, 0, 0.0
	for _, b := range c.containers {
		if b.gpu != a.GPU {
			continue
		}
		exist++
		if b.end > now || b == c.containers[a.Instance] {
			running++
		} else {
			idle++
		}
		if b.resident {
			mem += c.w.config.Functions[b.function].MemMiB
		}
	}
	pool := c.w.config.Pool
	if c.w.config.Policy == "fcfs-naive" {
		pool = 0
	}
	switch limit := float64(c.w.config.Mem >> 20); {
	case running > c.w.config.Concurrency:
		c.t.Fatalf("at %v: invocations running on GPU %d: got %d, want at most %d", now, a.GPU, running, c.w.config.Concurrency)
	case pool >= 0 && a.Start == residency.Cold && exist > pool && idle > 0:
		c.t.Fatalf("at %v: containers on GPU %d: got %d, of which %d are idle, want at most %d, or no idle ones", now, a.GPU, exist, idle, pool)
	case limit > 0 && mem > limit:
		c.t.Fatalf("at %v: memory used on GPU %d: got %g MiB, want at most %g", now, a.GPU, mem, limit)
	}
}

func (c *checker) checkRemoval(now time.Duration, a *queue.Action) {
	b := c.containers[a.Instance]
	if b == nil || b.function != a.Function || b.gpu != a.GPU || b.end > now || a.Kind == queue.Offload && !b.resident {
		c.t.Fatalf("at %v: %v of container %d: got %+v, want an idle container of the function on this GPU, with its memory there for an offload", now, a.Kind, a.Instance, b)
	}
	if a.Kind == queue.Remove {
		delete(c.containers, a.Instance)
	} else {
		b.resident = false
	}
}

// checkIdleSlots checks that at the end of an instant, with enough memory, no invocation waits
// while a slot is free. It excludes batches, which wait for their container, exclusive GPUs, which
// may be free for other functions only, and invocations assigned to a GPU.
func (c *checker) checkIdleSlots(time.Duration) {
	if c.w.config.Mem > 0 || c.w.config.Policy == "exclusive" || c.w.config.Policy == "batch" || c.w.config.Policy == "gfaas" {
		return
	}
	waits := 0
	for id := range c.arrived {
		if c.state[int64(id)] == "" {
			waits++
		}
	}
	busy, slots := 0, slots(c.w.config)
	for _, b := range c.containers {
		if b.end > c.now {
			busy++
		}
	}
	for _, b := range c.running {
		if b.end > c.now {
			busy++
		}
	}
	if waits > 0 && busy < slots {
		c.t.Fatalf("at %v: %d invocations wait: got %d busy slots, want all %d", c.now, waits, busy, slots)
	}
}

// TestAlways checks for every policy that each invocation runs once or is rejected, that
// decisions respect the limits of the GPUs and have correct fields, that no invocation waits in
// vain, and that results are deterministic.
func TestAlways(t *testing.T) {
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := draw(t, policy)
				c := &checker{t: t, w: w, containers: map[residency.ID]*container{}, state: map[int64]string{}}
				w.config.Decide = c.decide
				result, err := Run(w.config, trace.NewList(w.rows))
				if err != nil {
					t.Fatal(err)
				}
				if n := int64(len(w.rows)); len(c.state) != len(w.rows) || result.Invocations != n || result.Completed+result.Rejected != n {
					t.Fatalf("%d invocations: got %d decided, %d completed, %d rejected; want each one decided, and either completed or rejected", n, len(c.state), result.Completed, result.Rejected)
				}
				w.config.Decide = nil
				repeated, _ := Run(w.config, trace.NewList(w.rows))
				if a, b := text(result), text(repeated); !bytes.Equal(a, b) {
					t.Fatalf("result of a second run: got\n%s\nwant\n%s", b, a)
				}
			})
		})
	}
}

func text(r *Result) []byte {
	out, _ := json.Marshal(r)
	return out
}

// TestFairnessBound checks MQFQ's bound on the difference of execution time over weight between
// functions that wait throughout a window.
func TestFairnessBound(t *testing.T) {
	for _, policy := range []string{"mqfq", "mqfq-sticky", "gfaas"} {
		t.Run(policy, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := draw(t, policy)
				w.config.Mem = 0
				w.config.T = time.Duration(rapid.IntRange(0, 4000).Draw(t, "T")) * milli
				for i := range w.config.Functions {
					f := &w.config.Functions[i]
					f.Warm, f.Load, f.Cold = f.Warm*100, f.Load*100, f.Cold*100
				}
				w.rows = w.rows[:0]
				at := time.Duration(0)
				for range rapid.IntRange(50, 400).Draw(t, "backlog") {
					at += time.Duration(rapid.IntRange(0, 500).Draw(t, "after")) * milli
					w.rows = append(w.rows, trace.Row{At: at, Function: int32(rapid.IntRange(0, len(w.config.Functions)-1).Draw(t, "function"))})
				}
				r, err := Run(w.config, trace.NewList(w.rows))
				if err != nil {
					t.Fatal(err)
				}
				if r.Fairness.MaxGapMS > r.Fairness.BoundMS {
					t.Fatalf("gap between execution times over weight: got %g ms, want at most the bound %g ms", r.Fairness.MaxGapMS, r.Fairness.BoundMS)
				}
			})
		})
	}
}

// TestNoStarvation runs one invocation of a function during a flood of another one that keeps the
// GPU busy, under every policy that bounds the waiting time.
func TestNoStarvation(t *testing.T) {
	functions := []trace.Function{
		{Name: "flood", Warm: 10 * milli, Cold: 10 * milli, Weight: 1, Model: "a"},
		{Name: "lone", Warm: 500 * milli, Cold: 500 * milli, Load: 0, Weight: 1, Model: "b"},
	}
	rows := []trace.Row{}
	for i := range 20000 {
		rows = append(rows, trace.Row{At: time.Duration(i) * 5 * milli})
		if i == 100 {
			rows = append(rows, trace.Row{At: time.Duration(i) * 5 * milli, Function: 1})
		}
	}
	for _, kind := range queue.Kinds() {
		if kind.Starves {
			continue
		}
		policy, waited := kind.Name, time.Duration(-1)
		c := Config{Functions: functions, GPUs: 1, Concurrency: 1,
			Config: queue.Config{Policy: policy, Pool: residency.Unlimited, Options: queue.Defaults()}}
		c.T = time.Second
		c.Decide = func(now time.Duration, a *queue.Action) error {
			if a.Kind == queue.Run && a.Function == 1 {
				waited = now - a.Arrived
			}
			return nil
		}
		if _, err := Run(c, trace.NewList(rows)); err != nil {
			t.Fatal(err)
		}
		if waited < 0 || waited > 15*time.Second {
			t.Errorf("%s: the single invocation waited %v, want at most 15s", policy, waited)
		}
	}
}

// TestOvertaking checks R20: an invocation is passed over at most limit times before it is sent
// to a GPU.
func TestOvertaking(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := draw(t, "lalb-o3")
		gone := map[int64]bool{}
		w.config.Decide = func(_ time.Duration, a *queue.Action) error {
			if a.Kind != queue.Run && a.Kind != queue.Assign || gone[a.ID] {
				return nil
			}
			gone[a.ID] = true
			later := 0
			for id := range gone {
				if id > a.ID {
					later++
				}
			}
			if later > w.config.Limit {
				t.Fatalf("invocation %d was overtaken %d times, want at most %d", a.ID, later, w.config.Limit)
			}
			return nil
		}
		if _, err := Run(w.config, trace.NewList(w.rows)); err != nil {
			t.Fatal(err)
		}
	})
}

// TestOptions checks with random options that no invocation is lost, and that tenants respect
// their limit on slots.
func TestOptions(t *testing.T) {
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := draw(t, policy)
				c := &w.config
				c.Prefetch = rapid.Bool().Draw(t, "prefetch")
				c.Swap = rapid.Bool().Draw(t, "swap")
				c.FixedTTL, c.TTL = rapid.Bool().Draw(t, "fixed TTL"), time.Duration(rapid.IntRange(0, 50).Draw(t, "TTL"))*time.Millisecond
				c.Uncorrected = !rapid.Bool().Draw(t, "correct")
				c.Patient = rapid.Bool().Draw(t, "patient")
				c.Interference = float64(rapid.IntRange(0, 2).Draw(t, "interference"))
				c.Utilization = float64(rapid.IntRange(0, 1).Draw(t, "utilization")) / 2
				c.Limits = queue.Limits{Slots: rapid.IntRange(0, 2).Draw(t, "slots"), Processes: rapid.IntRange(0, 2).Draw(t, "processes"), Mem: int64(rapid.IntRange(0, 60).Draw(t, "mem")) << 20,
					Time: float64(rapid.IntRange(0, 2).Draw(t, "time")) / 100}
				for i := range c.Functions {
					c.Functions[i].Tenant = fmt.Sprint(i % 2)
					c.Functions[i].Warm *= time.Duration(rapid.SampledFrom([]int{1, 20}).Draw(t, "times"))
				}
				ends, runs := map[int64]time.Duration{}, map[int64]string{}
				c.Decide = func(now time.Duration, a *queue.Action) error {
					if a.Kind != queue.Run {
						return nil
					}
					runs[a.ID], ends[a.ID] = c.Functions[a.Function].Tenant, now+a.Expected
					together := 0
					for id, tenant := range runs {
						if tenant == runs[a.ID] && (ends[id] > now || id == a.ID) {
							together++
						}
					}
					if c.Limits.Slots > 0 && together > c.Limits.Slots {
						t.Fatalf("at %v: concurrent invocations of tenant %s: got %d, want at most %d", now, runs[a.ID], together, c.Limits.Slots)
					}
					return nil
				}
				r, err := Run(w.config, trace.NewList(w.rows))
				if err != nil {
					t.Fatal(err)
				}
				if n := int64(len(w.rows)); r.Completed+r.Rejected != n || len(runs) != int(r.Completed) {
					t.Fatalf("%d invocations: got %d completed, %d rejected, %d runs; want each one either completed or rejected, and a run for each completed one", n, r.Completed, r.Rejected, len(runs))
				}
			})
		})
	}
}

// TestUtilizationIsAtMostOne adds up very long executions, whose sum is rounded.
func TestUtilizationIsAtMostOne(t *testing.T) {
	c := Config{GPUs: 1, Concurrency: 1, Config: queue.Config{Policy: "fcfs", Options: queue.Defaults(), Pool: residency.Unlimited}}
	var rows []trace.Row
	for i := range int32(20) {
		warm := time.Duration(1e15 + splitmix.Mix(uint64(i))%7e15)
		c.Functions = append(c.Functions, trace.Function{Name: fmt.Sprint("f", i), Warm: warm, Cold: warm + 1, Weight: 1})
	}
	for i := range int32(900) {
		rows = append(rows, trace.Row{Function: i * 7 % 20})
		r, err := Run(c, trace.NewList(rows))
		if err != nil {
			t.Fatal(err)
		}
		if r.GPUUtilization > 1 {
			t.Fatalf("GPU utilization after %d invocations: got %v, want at most 1", i+1, r.GPUUtilization)
		}
	}
}
