package workload

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/trace"
)

func sorted(t *testing.T, w Workload, end time.Duration) {
	t.Helper()
	for i, row := range w.Rows {
		if row.At < 0 || row.At >= end || i > 0 && row.At < w.Rows[i-1].At || int(row.Function) >= len(w.Functions) {
			t.Fatalf("row %d: got %+v, want ascending times below %v and a known function", i, row, end)
		}
	}
}

// TestPatterns checks that every shape has the requested mean rate, and that the variance of
// counts per ten seconds is the least for poisson.
func TestPatterns(t *testing.T) {
	const rate, seconds = 10, 20_000
	spread := map[string]float64{}
	for _, shape := range Shapes() {
		p := Defaults()
		p.Shape = shape
		if err := p.Check(); err != nil {
			t.Fatal(err)
		}
		series := p.Series(rate, seconds, 7)
		if !reflect.DeepEqual(series, p.Series(rate, seconds, 7)) {
			t.Errorf("%s: two series with the same seed differ, want the same series", shape)
		}
		if reflect.DeepEqual(series, p.Series(rate, seconds, 8)) {
			t.Errorf("%s: two series with different seeds are equal, want different series", shape)
		}
		sum, squares := 0.0, 0.0
		for tens := range slices.Chunk(series, 10) {
			n := 0.0
			for _, v := range tens {
				n += v
			}
			sum += n
			squares += n * n
		}
		mean := sum / (seconds / 10)
		if math.Abs(mean/(10*rate)-1) > 0.15 {
			t.Errorf("%s: got a mean of %g arrivals in ten seconds, want %d ± 15%%", shape, mean, 10*rate)
		}
		spread[shape] = (squares/(seconds/10) - mean*mean) / mean // 1 for poisson
	}
	if s := spread["poisson"]; s < 0.9 || s > 1.1 {
		t.Errorf("poisson: variance over mean: got %g, want 0.9 to 1.1", s)
	}
	for shape, s := range spread {
		if shape != "poisson" && s < 3 {
			t.Errorf("%s: variance over mean: got %g, want at least 3", shape, s)
		}
	}
}

func TestGaps(t *testing.T) {
	for _, cv := range []float64{0.5, 1, 4} {
		p := Pattern{Shape: "gamma", CV: cv}
		times := p.arrivals(newRandom(3, 0), 5, 10_000)
		sum, squares, last := 0.0, 0.0, 0.0
		for _, at := range times {
			sum += at - last
			squares += (at - last) * (at - last)
			last = at
		}
		n := float64(len(times))
		mean := sum / n
		if got := math.Sqrt(squares/n-mean*mean) / mean; math.Abs(got/cv-1) > 0.1 || math.Abs(mean*5-1) > 0.1 {
			t.Errorf("coefficient of variation %g, mean %g: want %g, 0.2", got, mean, cv)
		}
	}
}

func TestPatternChecked(t *testing.T) {
	for _, change := range []func(*Pattern){
		func(p *Pattern) { p.CV = 0 }, func(p *Pattern) { p.CV = math.NaN() }, func(p *Pattern) { p.Period = 0 },
		func(p *Pattern) { p.Burst = p.Period + 1 }, func(p *Pattern) { p.Burst = 0 }, func(p *Pattern) { p.Factor = 0.5 },
	} {
		p := Defaults()
		change(&p)
		if p.Check() == nil {
			t.Errorf("check of %+v: got no error, want one", p)
		}
	}
}

func TestMixed(t *testing.T) {
	m := Mixed{Pattern: Defaults(), Functions: 10, Rate: 100, Duration: 100, Zipf: 1}
	m.Shape = "poisson"
	w := m.Generate(1)
	sorted(t, w, 100*time.Second)
	var counts [10]float64
	for _, row := range w.Rows {
		counts[row.Function]++
	}
	if r := counts[0] / counts[9]; r < 7 || r > 14 {
		t.Errorf("invocations of the first function over those of the tenth: got %g, want 7 to 14", r)
	}
	for _, f := range w.Functions {
		if f.Warm < 20*time.Millisecond || f.Warm > 2*time.Second || f.Cold < f.Warm+time.Second || f.MemMiB < 100 || f.MemMiB > 4096 || f.Load <= 0 {
			t.Errorf("got %+v, want times, memory and load in the ranges of the mix", f)
		}
	}
}

// TestLALB checks for 325 requests per minute, a different model for each function, and sizes
// from the whole table.
func TestLALB(t *testing.T) {
	for _, n := range []int{15, 25, 35} {
		l := DefaultLALB()
		l.WorkingSet = n
		w := l.Generate(5)
		sorted(t, w, 6*time.Minute)
		perMinute, models := map[time.Duration]int{}, map[string]trace.Function{}
		for _, row := range w.Rows {
			perMinute[row.At/time.Minute]++
		}
		for minute := range time.Duration(6) {
			if perMinute[minute] != 325 {
				t.Errorf("working set %d, minute %d: got %d requests, want 325", n, minute, perMinute[minute])
			}
		}
		least, most := math.Inf(1), 0.0
		for _, f := range w.Functions {
			models[f.Model] = f
			least, most = min(least, f.MemMiB), max(most, f.MemMiB)
			if f.Cold != f.Warm+f.Load {
				t.Errorf("function %+v: got a cold time of %v, want the load and the inference, %v", f, f.Cold, f.Warm+f.Load)
			}
		}
		if len(models) != n || least != 1269 || most < 3900 {
			t.Errorf("working set %d: got %d models of %g to %g MiB, want %d of 1269 to at least 3900 MiB", n, len(models), least, most, n)
		}
	}
}

// TestMQFQ checks that the mix has the paper's rate of requests and utilization of the GPU.
func TestMQFQ(t *testing.T) {
	q := DefaultMQFQ()
	q.Duration = 20_000
	for seed := range uint64(5) {
		w := q.Generate(seed)
		sorted(t, w, 20_000*time.Second)
		busy := 0.0
		for _, row := range w.Rows {
			busy += w.Functions[row.Function].Warm.Seconds()
		}
		rate := float64(len(w.Rows)) / q.Duration
		if u := busy / q.Duration; math.Abs(u-0.7) > 0.03 || math.Abs(rate-2.69) > 0.05 || len(w.Functions) != 19 {
			t.Errorf("seed %d: got %d functions, a utilization of %g and %g requests a second; want 19, 0.7 ± 0.03 and 2.69 ± 0.05", seed, len(w.Functions), u, rate)
		}
	}
}

// TestAzure checks the published facts: the shares of the most popular functions and of the others,
// and the numbers of requests per minute.
func TestAzure(t *testing.T) {
	a := DefaultAzure()
	a.WorkingSet = a.Functions
	list := a.workingSetShares()
	top := 0.0
	for _, share := range list[:15] {
		top += share
	}
	if math.Abs(top-0.56) > 1e-9 || list[15] >= 1e-4 || list[14] <= list[15] {
		t.Errorf("shares: got %g for the first 15, %g and %g for the next, want 0.56, and less than 0.0001", top, list[15], list[16])
	}
	a.WorkingSet = 35
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
	w := a.Generate(1)
	sorted(t, w, 6*time.Minute)
	counts := make([][35]int, 6)
	for _, row := range w.Rows {
		counts[row.At/time.Minute][row.Function]++
	}
	for minute, c := range counts {
		total := 0
		for f, n := range c {
			total += n
			if n < 1 || f > 0 && n > c[f-1] {
				t.Errorf("minute %d: function %d has %d requests, want at least 1, and at most those of the function before", minute, f, n)
			}
		}
		if total != 325 {
			t.Errorf("minute %d: got %d requests, want 325", minute, total)
		}
	}
	a.WorkingSet = 326
	if err := a.Check(); err == nil {
		t.Error("326 functions with at least one of 325 requests each: got no error, want one")
	}
}

// TestKaaS checks the costs of both kinds of tasks, and both forms of arrivals.
func TestKaaS(t *testing.T) {
	k := DefaultKaaS()
	k.App, k.Clients = "bert", 3
	w := k.Generate(1)
	if f := w.Functions[2]; f.Warm != 92*time.Millisecond || f.Cold != f.Warm+f.Load || f.Load < 100*time.Millisecond || f.Load > 102*time.Millisecond {
		t.Errorf("a kernel task: got %+v, want 92 ms, and about 101 ms more for a start", f)
	}
	if len(w.Rows) != 12 || w.Rows[11] != (trace.Row{Function: 2}) {
		t.Errorf("got %d rows and %+v last, want 12, all at 0", len(w.Rows), w.Rows[len(w.Rows)-1])
	}
	k.Worker, k.Rate, k.Duration = "etask", 100, 60
	online := k.Generate(1)
	if got := online.Functions[0].Cold - w.Functions[0].Cold; got != 400*time.Millisecond {
		t.Errorf("start of a process: got %v, want 400 ms", got)
	}
	sorted(t, online, time.Minute)
	if n := len(online.Rows); n < 5700 || n > 6300 {
		t.Errorf("got %d requests in a minute, want about 6000", n)
	}
}
