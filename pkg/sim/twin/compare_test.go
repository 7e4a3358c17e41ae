package twin

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/sim"
	"github.com/gfaas/gfaas/pkg/trace"
)

// drawFunctions draws costs in whole units, and weights that make many virtual times tie, even
// thirds and sevenths.
func drawFunctions(t *rapid.T, unit time.Duration) []trace.Function {
	n := rapid.IntRange(1, 6).Draw(t, "functions")
	var out []trace.Function
	for i := range n {
		ms := func(label string, most int) time.Duration {
			return time.Duration(rapid.IntRange(0, most).Draw(t, label)) * unit
		}
		f := trace.Function{Name: fmt.Sprint("f", i), Warm: ms("warm", 30), Load: ms("load", 40)}
		f.Cold = f.Warm + f.Load + ms("starting", 100)
		f.Cold += time.Duration(i) // different durations, because the rules have no order for ties
		f.MemMiB = float64(rapid.SampledFrom([]int{0, 1, 2, 3, 5, 8, 20}).Draw(t, "mem"))
		f.Weight = rapid.SampledFrom([]float64{0.5, 1, 1, 1, 2, 3, 0.3, 0.7}).Draw(t, "weight")
		f.Model = f.Name
		if i > 0 && rapid.IntRange(0, 5).Draw(t, "shared") == 0 {
			f.Model, f.MemMiB, f.Load = out[0].Model, out[0].MemMiB, out[0].Load
		}
		out = append(out, f)
	}
	return out
}

func drawRows(t *rapid.T, functions int, unit time.Duration) []trace.Row {
	n := rapid.IntRange(1, 60).Draw(t, "rows")
	spread := rapid.SampledFrom([]int{0, 100, 1000, 5000}).Draw(t, "spread")
	rows := make([]trace.Row, n)
	for i := range rows {
		rows[i] = trace.Row{At: time.Duration(rapid.IntRange(0, spread).Draw(t, "at")) * unit,
			Function: int32(rapid.IntRange(0, functions-1).Draw(t, "function"))}
	}
	slices.SortStableFunc(rows, func(a, b trace.Row) int { return cmp.Compare(a.At, b.At) })
	return rows
}

func drawSettings(t *rapid.T, policy string) settings {
	s := settings{policy: policy, gpus: rapid.IntRange(1, 3).Draw(t, "gpus"), d: rapid.IntRange(1, 3).Draw(t, "d"),
		memory: float64(rapid.SampledFrom([]int{0, 8, 10, 16}).Draw(t, "gpu-mem")),
		pool:   rapid.SampledFrom([]int{-1, 0, 1, 2, 3, 5}).Draw(t, "pool"),
		t:      time.Duration(rapid.SampledFrom([]int{0, 10, 50, 10000}).Draw(t, "t")) * time.Millisecond,
		alpha:  rapid.SampledFrom([]float64{0, 0.5, 2}).Draw(t, "alpha"),
		limit:  rapid.SampledFrom([]int{0, 1, 3, 25}).Draw(t, "limit"),
		// Halves, and 25, are never reached by rounding alone.
		starvation:   rapid.SampledFrom([]float64{0.55, 1.05, 2.05, 25}).Draw(t, "starvation"),
		penalty:      rapid.SampledFrom([]float64{0, 1, 10}).Draw(t, "penalty"),
		interference: rapid.SampledFrom([]float64{0, 0, 0.5, 2}).Draw(t, "interference"),
		correct:      rapid.Bool().Draw(t, "correct"),
		patient:      rapid.Bool().Draw(t, "patient"),
	}
	if policy == "fcfs-naive" {
		s.pool = 0
	}
	return s
}

// decision is the start of an invocation, for comparisons.
type decision struct {
	id    int
	at    time.Duration
	gpu   int32
	start residency.Start
}

func (s settings) config(functions []trace.Function) sim.Config {
	o := queue.Defaults()
	o.T, o.Alpha, o.Limit, o.Starvation, o.Penalty = s.t, s.alpha, s.limit, s.starvation, s.penalty
	o.Uncorrected, o.Patient = !s.correct, s.patient
	return sim.Config{Functions: functions, Interference: s.interference,
		GPUs: s.gpus, Mem: int64(s.memory * (1 << 20)), Concurrency: s.d, BatchWindow: s.window,
		Config: queue.Config{Policy: s.policy, Pool: s.pool, Options: o}}
}

func TestAgainstTwin(t *testing.T) {
	for _, policy := range []string{"fcfs", "fcfs-naive", "batch", "sjf", "eevdf", "mqfq", "mqfq-sticky", "lb", "lalb", "lalb-o3", "cfs-affinity", "exclusive", "gfaas"} {
		t.Run(policy, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { compare(t, policy) })
		})
	}
}

func compare(t *rapid.T, policy string) {
	unit := rapid.SampledFrom([]time.Duration{100 * time.Microsecond, time.Millisecond, 300 * time.Millisecond}).Draw(t, "unit")
	functions := drawFunctions(t, unit)
	rows := drawRows(t, len(functions), unit)
	s := drawSettings(t, policy)
	t.Logf("%+v\n%+v\n%v", s, functions, rows)
	w := newWorld(s, functions, rows)
	w.run()

	result, got := simulate(t, s, functions, rows)
	w.starts(t, got)
	w.totals(t, result)
}

// simulate returns what the simulator does with a trace: its result, and its starts in order of invocation.
func simulate(t *rapid.T, s settings, functions []trace.Function, rows []trace.Row) (*sim.Result, []decision) {
	var got []decision
	c := s.config(functions)
	c.Decide = func(now time.Duration, a *queue.Action) error {
		if a.Kind == queue.Run {
			got = append(got, decision{int(a.ID), now, a.GPU, a.Start})
		}
		return nil
	}
	result, err := sim.Run(c, trace.NewList(rows))
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(a, b decision) int { return cmp.Compare(a.id, b.id) })
	return result, got
}

// starts compares the time, the GPU and the kind of every start.
func (w *world) starts(t *rapid.T, got []decision) {
	for id, in := range w.invocations {
		i, found := slices.BinarySearchFunc(got, id, func(d decision, id int) int { return cmp.Compare(d.id, id) })
		if found == in.rejected {
			t.Fatalf("invocation %d: got started %v, want %v", id, found, !in.rejected)
		}
		if !found {
			continue
		}
		want := decision{id, in.start, int32(in.gpu), map[kind]residency.Start{
			gpuWarm: residency.GPUWarm, hostWarm: residency.HostWarm, cold: residency.Cold}[in.kind]}
		if got[i] != want {
			t.Fatalf("invocation %d of %s at %v: got %+v, want %+v, as in the twin", id, w.functions[in.f].Name, in.at, got[i], want)
		}
	}
}

// totals compares the results over all functions.
func (w *world) totals(t *rapid.T, got *sim.Result) {
	want := map[string]float64{"false_miss_ratio": 0}
	first, last := time.Duration(math.MaxInt64), time.Duration(0)
	for _, in := range w.invocations {
		first = min(first, in.at)
		if in.rejected {
			want["rejected"]++
			continue
		}
		want["completed"]++
		want[[]string{"gpu-warm", "host-warm", "cold"}[in.kind]]++
		want["sum"] += float64(in.completed-in.at) / 1e6
		want["max"] = max(want["max"], float64(in.completed-in.at)/1e6)
		last = max(last, in.completed)
	}
	if want["completed"] > 0 {
		want["makespan"] = float64(last-first) / 1e6
		want["mean"] = want["sum"] / want["completed"]
	}
	if w.falseMisses > 0 {
		want["false_miss_ratio"] = float64(w.falseMisses) / want["host-warm"]
	}
	for name, v := range map[string]float64{
		"rejected": float64(got.Rejected), "completed": float64(got.Completed), "makespan": got.MakespanMS,
		"gpu-warm": float64(got.GPUWarmStarts), "host-warm": float64(got.HostWarmStarts), "cold": float64(got.ColdStarts),
		"mean": got.LatencyMS.Mean, "max": got.LatencyMS.Max, "false_miss_ratio": got.FalseMissRatio,
		"max_gap": got.Fairness.MaxGapMS - w.gap(first), "bound": got.Fairness.BoundMS - w.bound(),
	} {
		if math.Abs(v-want[name]) > 1e-6 {
			t.Fatalf("%s: got %v, want %v, as in the twin", name, v, want[name])
		}
	}
	for _, f := range got.Functions {
		w.function(t, f)
	}
}

// function compares the result of one function.
func (w *world) function(t *rapid.T, got sim.FunctionResult) {
	var latency []float64
	service, n := 0.0, int64(0)
	for _, in := range w.invocations {
		if w.functions[in.f].Name != got.Function {
			continue
		}
		n++
		if !in.rejected {
			latency = append(latency, float64(in.completed-in.at)/1e6)
			service += float64(in.completed-in.start) / 1e6
		}
	}
	sum, squares := 0.0, 0.0
	for _, v := range latency {
		sum += v
	}
	mean := 0.0
	if len(latency) > 0 {
		mean = sum / float64(len(latency))
		for _, v := range latency {
			squares += (v - mean) * (v - mean)
		}
		squares /= float64(len(latency))
	}
	if n != got.Invocations || math.Abs(mean-got.MeanMS) > 1e-6 || math.Abs(service-got.ServiceMS) > 1e-6 || math.Abs(squares-got.Variance) > max(1e-3, 1e-13*squares) {
		t.Fatalf("got %+v, want %d invocations, mean %v, service %v, variance %v, as in the twin", got, n, mean, service, squares)
	}
}

// gap returns the largest difference of execution over weight among functions that wait
// throughout a window of 30 s, in ms.
func (w *world) gap(first time.Duration) (most float64) {
	end := first
	for _, in := range w.invocations {
		end = max(end, in.completed)
	}
	for from := first; from < end; from += 30 * time.Second {
		to := from + 30*time.Second
		var ran []float64
		for f := range w.functions {
			if !w.waitsThrough(f, from, to) {
				continue
			}
			sum := time.Duration(0)
			for _, in := range w.invocations {
				if in.f == f && !in.rejected {
					sum += max(0, min(in.completed, to)-max(in.completed-in.ran, from))
				}
			}
			ran = append(ran, float64(sum)/1e6/w.functions[f].Weight)
		}
		if len(ran) > 1 {
			most = max(most, slices.Max(ran)-slices.Min(ran))
		}
	}
	return most
}

// waitsThrough reports whether invocations of f wait during the whole interval.
func (w *world) waitsThrough(f int, from, to time.Duration) bool {
	for at := from; at < to; {
		next := at
		for _, in := range w.invocations {
			if in.f == f && !in.rejected && in.at <= at && in.start > next {
				next = in.start
			}
		}
		if next == at {
			return false
		}
		at = next
	}
	return true
}

func (w *world) bound() float64 {
	longest := make([]float64, len(w.functions)+2)
	for _, in := range w.invocations {
		if !in.rejected {
			longest[in.f] = max(longest[in.f], float64(in.ran)/1e6/w.functions[in.f].Weight)
		}
	}
	slices.Sort(longest)
	slices.Reverse(longest)
	slots := w.gpus * w.d
	if w.policy == "lb" || w.policy == "lalb" || w.policy == "lalb-o3" {
		slots = w.gpus
	}
	return 2*float64(w.t)/1e6 + float64(slots+1)*(longest[0]+longest[1])
}
