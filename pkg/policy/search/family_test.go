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

// kinds of made-up functions: how the execution time of a batch b on a share s
// of the SMs comes about. None is a curve of fast's.
var kinds = map[string]func(r *random) func(b, s float64) float64{
	// A part that launches, a part that computes, one after the other.
	"sum": func(r *random) func(b, s float64) float64 {
		launch, fixed, serial := r.between(0.3, 60), r.between(0.01, 3), r.between(0.005, 1)
		return func(b, s float64) float64 { return launch + serial*b + (fixed+b)/s }
	},
	// More SMs than some number are of no use.
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
	// A batch saves nothing.
	"singles": func(r *random) func(b, s float64) float64 {
		serial := r.between(0.01, 2)
		return func(b, s float64) float64 { return b * (serial + 1/s) }
	},
	// Blocks in whole waves over 80 SMs.
	"waves": func(r *random) func(b, s float64) float64 {
		blocks, launch := r.between(20, 4000), r.between(0.1, 10)
		return func(b, s float64) float64 {
			return launch + math.Ceil(blocks*b/math.Ceil(80*s))*80/blocks
		}
	},
}

// makeUp is the table of a function of a kind: 3% noise in time, p95 growing
// as some power of the inverse quota with 3% noise of its own.
func makeUp(kind string, seed int) []profile.Row {
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

// score is how a search did over many cases.
type score struct{ trials, regret []float64 }

// add runs a search on a function with the objective at so many times the
// least latency.
func (s *score) add(t tester, how string, rows []profile.Row, times float64) {
	space, table := Space{Only: []profile.Config{}}, map[profile.Config]profile.Row{}
	least, best := math.Inf(1), 0.0
	for _, r := range rows {
		table[r.Config] = r
		space.Only = append(space.Only, r.Config)
		space.SMPct, space.Quota, space.Batch = append(space.SMPct, r.SMPct), append(space.Quota, r.Quota), append(space.Batch, r.Batch)
		if r.ThroughputRPS > 0 {
			least = min(least, r.P95MS)
		}
	}
	goal := Goal{SLOMS: times * least}
	for _, r := range rows {
		if goal.Meets(r) {
			best = max(best, r.Efficacy())
		}
	}
	trials, choice := drive(t, how, space, goal, table)
	regret := 1.0
	if choice.OK {
		regret = 1 - choice.Row.Efficacy()/best
	}
	s.trials, s.regret = append(s.trials, float64(len(trials))), append(s.regret, regret)
}

func quantile(values []float64, part float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(part*float64(len(sorted))), len(sorted)-1)]
}

// On functions that are not of its curves either, fast is near the best after
// few trials. The bounds are what it does, with some room: a change that makes
// it much worse shows.
func TestFastOnMadeUpFunctions(t *testing.T) {
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			var s score
			for seed := range 6 {
				rows := makeUp(kind, seed)
				s.add(t, "fast", rows, 1.5)
				s.add(t, "fast", rows, 3)
			}
			if mean, most := mean(s.trials), slices.Max(s.trials); mean > 9 || most > float64(assumed.trials) {
				t.Errorf("%.1f trials on average, %v at most", mean, most)
			}
			if m, mean := quantile(s.regret, 0.5), mean(s.regret); m > 0.03 || mean > 0.06 {
				t.Errorf("regret %.3f at the median, %.3f on average", m, mean)
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

// BenchmarkSearch reports trials and regret (1 - efficacy / the best) of every
// search, with the objective at 1.5 and 3 times the least latency: on made-up
// functions and, when GFAAS_PROFILE names one, on a recorded profile.
func BenchmarkSearch(b *testing.B) {
	families := map[string][][]profile.Row{}
	for kind := range kinds {
		for seed := range 20 {
			families[kind] = append(families[kind], makeUp(kind, 100+seed))
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
		for _, how := range Names() {
			b.Run(family+"/"+how, func(b *testing.B) {
				var s score
				for b.Loop() {
					s = score{}
					for _, rows := range functions {
						s.add(b, how, rows, 1.5)
						s.add(b, how, rows, 3)
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

// byFunction are the rows of each function, in the order of first rows.
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
