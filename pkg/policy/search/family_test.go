package search

import (
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

type random struct{ splitmix.Source }

func (r *random) between(low, high float64) float64 { return logBetween(low, high, r.Unit()) }

func (r *random) normal() float64 {
	return math.Sqrt(-2*math.Log(1-r.Unit())) * math.Cos(2*math.Pi*r.Unit())
}

// kinds lists families of synthetic functions: the execution time as a function of the
// batch size b and the SM share s. No family follows a curve that fast assumes.
var kinds = map[string]func(r *random) func(b, s float64) float64{
	// Time to launch plus time to compute.
	"sum": func(r *random) func(b, s float64) float64 {
		launch, fixed, serial := r.between(0.3, 60), r.between(0.01, 3), r.between(0.005, 1)
		return func(b, s float64) float64 { return launch + serial*b + (fixed+b)/s }
	},
	// SMs beyond a certain share have no effect.
	"early": func(r *random) func(b, s float64) float64 {
		launch, enough := r.between(0.3, 60), r.between(0.1, 1)
		return func(b, s float64) float64 { return launch + (0.2+b)/min(s, enough) }
	},
	// A single request runs other kernels, which take 0.6 of the time.
	"other": func(r *random) func(b, s float64) float64 {
		launch, fixed := r.between(0.3, 60), r.between(0.01, 1)
		return func(b, s float64) float64 {
			if b == 1 {
				return launch + 0.6*(fixed+1)/s
			}
			return launch + (fixed+b)/s
		}
	},
	// Batching saves no time.
	"singles": func(r *random) func(b, s float64) float64 {
		serial := r.between(0.01, 2)
		return func(b, s float64) float64 { return b * (serial + 1/s) }
	},
	// Blocks run in whole waves on 80 SMs.
	"waves": func(r *random) func(b, s float64) float64 {
		blocks, launch := r.between(20, 4000), r.between(0.1, 10)
		return func(b, s float64) float64 {
			return launch + math.Ceil(blocks*b/math.Ceil(80*s))*80/blocks
		}
	},
}

// syntheticRows returns the profile of a synthetic function. Its execution time has a noise
// of 3%. Its p95 grows with a random power of 1/quota, with another noise of 3%.
func syntheticRows(kind string, seed int) []profile.Row {
	r := random{splitmix.Source(seed)}
	time, power := kinds[kind](&r), r.Unit()
	var rows []profile.Row
	for sm := 5.0; sm <= 100; sm += 5 {
		for _, b := range []int{1, 2, 4, 8} {
			ms := time(float64(b), sm/100) * math.Exp(0.03*r.normal())
			for _, q := range []float64{0.2, 0.4, 0.6, 0.8, 1} {
				rows = append(rows, profile.Row{Function: fmt.Sprint(kind, seed),
					Config: profile.Config{SMPct: sm, Quota: q, Batch: b}, ThroughputRPS: 1000 * float64(b) * q / ms,
					P95MS: ms * math.Pow(q, -power) * math.Exp(0.03*r.normal())})
			}
		}
	}
	return rows
}

// score holds the results of a search for many functions: the number of trials, and the
// fraction by which the choice is below the best configuration.
type score struct{ trials, regret []float64 }

// add runs a search on a function. The objective is sloFactor times the least latency.
func (s *score) add(t tester, strategy string, rows []profile.Row, sloFactor float64) {
	space, table := spaceOf(rows), map[profile.Config]profile.Row{}
	minLatency, best := math.Inf(1), 0.0
	for _, r := range rows {
		table[r.Config] = r
		if r.ThroughputRPS > 0 {
			minLatency = min(minLatency, r.P95MS)
		}
	}
	goal := Goal{SLOMS: sloFactor * minLatency}
	for _, r := range rows {
		if goal.Meets(r) {
			best = max(best, r.Efficacy())
		}
	}
	trials, choice := drive(t, strategy, space, goal, table)
	regret := 1.0
	if choice.OK {
		regret = 1 - choice.Row.Efficacy()/best
	}
	s.trials, s.regret = append(s.trials, float64(len(trials))), append(s.regret, regret)
}

func quantile(values []float64, fraction float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(fraction*float64(len(sorted))), len(sorted)-1)]
}

// TestFastIsNearOptimumOnUnassumedCurves checks that fast is near the optimum after few
// trials, even on functions that do not follow the curves that it assumes. The bounds are
// its current results plus a margin, so that the test fails after a change that makes it
// much worse.
func TestFastIsNearOptimumOnUnassumedCurves(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			var s score
			for seed := range 6 {
				rows := syntheticRows(kind, seed)
				s.add(t, "fast", rows, 1.5)
				s.add(t, "fast", rows, 3)
			}
			if mean, most := mean(s.trials), slices.Max(s.trials); mean > 9 || most > float64(assumed.maxTrials) {
				t.Errorf("got %.1f trials on average and %v at most, want at most 9 and %v", mean, most, assumed.maxTrials)
			}
			if m, mean := quantile(s.regret, 0.5), mean(s.regret); m > 0.03 || mean > 0.06 {
				t.Errorf("got a regret of %.3f at the median and %.3f on average, want at most 0.03 and 0.06", m, mean)
			}
		})
	}
}

func mean(values []float64) (sum float64) {
	for _, v := range values {
		sum += v / float64(len(values))
	}
	return sum
}

// BenchmarkSearch reports the number of trials and the regret (1 - efficacy / best
// efficacy) of every search, with the objective at 1.5 and 3 times the least latency. It
// uses synthetic functions and, if GFAAS_PROFILE names a file, a recorded profile.
func BenchmarkSearch(b *testing.B) {
	families := map[string][][]profile.Row{}
	for kind := range kinds {
		for seed := range 20 {
			families[kind] = append(families[kind], syntheticRows(kind, 100+seed))
		}
	}
	if path := os.Getenv("GFAAS_PROFILE"); path != "" {
		file, err := os.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		defer file.Close()
		rows, err := profile.Read(file, path)
		if err != nil {
			b.Fatal(err)
		}
		families["recorded"] = byFunction(rows)
	}
	for family, functions := range families {
		for _, strategy := range Names() {
			b.Run(family+"/"+strategy, func(b *testing.B) {
				var s score
				for b.Loop() {
					s = score{}
					for _, rows := range functions {
						s.add(b, strategy, rows, 1.5)
						s.add(b, strategy, rows, 3)
					}
				}
				b.ReportMetric(quantile(s.trials, 0.5), "trials-p50")
				b.ReportMetric(quantile(s.trials, 0.95), "trials-p95")
				b.ReportMetric(100*quantile(s.regret, 0.5), "regret%-p50")
				b.ReportMetric(100*quantile(s.regret, 0.95), "regret%-p95")
			})
		}
	}
}

// byFunction groups rows by function, in the order in which the functions first occur.
func byFunction(rows []profile.Row) (out [][]profile.Row) {
	at := map[string]int{}
	for _, r := range rows {
		i, ok := at[r.Function]
		if !ok {
			i = len(out)
			at[r.Function] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], r)
	}
	return out
}
