package search

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// underLoad gives rows the goodput for an objective of so many times the least
// latency: that of a queue that is not the one that fast expects, with noise, and
// not known of one row in twenty. Their p95 becomes that of a closed loop of 8.
func underLoad(rows []profile.Row, times float64, seed int) (out []profile.Row, slo float64) {
	r := random{splitmix.Source(1000 + seed)}
	slo = math.Inf(1)
	for _, row := range rows {
		slo = min(slo, times*row.P95MS)
	}
	wait, power := r.between(0.8, 3), r.between(0.8, 1.3)
	for _, row := range rows {
		row.IdleP95MS, row.SLOMS, row.GoodputKnown = row.P95MS, slo, true
		service := 1000 * float64(row.Batch) / row.ThroughputRPS
		if slack := slo - row.IdleP95MS; slack > 0 {
			odds := math.Pow(slack/(wait*service), 1/power)
			row.GoodputRPS = row.ThroughputRPS * odds / (1 + odds) * math.Exp(0.03*r.normal())
		}
		if r.Unit() < 0.05 {
			row.GoodputKnown, row.GoodputRPS, row.Unstable = false, 0, 1
		}
		row.P95MS *= 8
		out = append(out, row)
	}
	return out, slo
}

// goodputRegret is how much less goodput per GPU fast's choice has than the best
// configuration, and after how many trials.
func goodputRegret(t *testing.T, rows []profile.Row, goal Goal) (trials, regret float64) {
	space, table, best := allOf(rows), map[profile.Config]profile.Row{}, 0.0
	worth := func(r profile.Row) float64 { return r.GoodputRPS / (r.SMPct / 100 * r.Quota) }
	for _, r := range rows {
		table[r.Config] = r
		best = max(best, worth(r))
	}
	made, choice := drive(t, "fast", space, goal, table)
	if !choice.OK {
		return float64(len(made)), 1
	}
	return float64(len(made)), 1 - worth(choice.Row)/best
}

// By the goodput fast is near the best of it after few trials, whatever the queue;
// by the throughput of what answers single requests in time it is not.
func TestFastByGoodput(t *testing.T) {
	var by, without score
	for kind := range kinds {
		for seed := range 2 {
			for _, times := range []float64{1.5, 3, 10} {
				rows, slo := underLoad(makeUp(kind, seed), times, seed)
				trials, regret := goodputRegret(t, rows, Goal{SLOMS: slo, Goodput: true})
				by.trials, by.regret = append(by.trials, trials), append(by.regret, regret)
				for i := range rows {
					rows[i].P95MS = rows[i].IdleP95MS
				}
				trials, regret = goodputRegret(t, rows, Goal{SLOMS: slo})
				without.trials, without.regret = append(without.trials, trials), append(without.regret, regret)
			}
		}
	}
	t.Logf("by goodput %.1f trials, regret %.3f at the median, %.3f on average; by throughput %.1f, %.3f, %.3f",
		mean(by.trials), quantile(by.regret, 0.5), mean(by.regret), mean(without.trials), quantile(without.regret, 0.5), mean(without.regret))
	if trials := mean(by.trials); trials > 10 {
		t.Errorf("%.1f trials on average", trials)
	}
	if m, mean := quantile(by.regret, 0.5), mean(by.regret); m > 0.03 || mean > 0.07 {
		t.Errorf("regret %.3f at the median, %.3f on average", m, mean)
	}
	if mean(without.regret) < 2*mean(by.regret) {
		t.Errorf("by throughput the regret is %.3f, by goodput %.3f", mean(without.regret), mean(by.regret))
	}
}

// Whatever goodputs rows have, and where they have none, the search ends, each
// reason is one, and what is chosen has one that is above 0 and, but for noise, the
// best that was measured.
func TestGoodputProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		space, table := sketch(t)
		goal := Goal{SLOMS: rapid.SampledFrom([]float64{1e-3, 5, 100, 1e9}).Draw(t, "objective"), Goodput: true, CheckQuota: rapid.Bool().Draw(t, "check")}
		for _, c := range space.Configs() {
			r, there := table[c]
			if !there {
				continue
			}
			r.SLOMS = rapid.SampledFrom([]float64{0, goal.SLOMS, goal.SLOMS, goal.SLOMS, 2 * goal.SLOMS}).Draw(t, "for")
			r.GoodputKnown = r.SLOMS > 0 && rapid.IntRange(0, 9).Draw(t, "known") > 0
			r.IdleP95MS = rapid.SampledFrom([]float64{0, 1e-3, 3, 50, 1e10}).Draw(t, "rest")
			if r.GoodputKnown {
				r.GoodputRPS = r.ThroughputRPS * rapid.SampledFrom([]float64{0, 1e-6, 0.7, 1, 3}).Draw(t, "goodput")
				r.GoodputCIRPS = r.GoodputRPS * rapid.SampledFrom([]float64{0, 0.02}).Draw(t, "noise")
			}
			table[c] = r
		}
		trials, choice := drive(t, "fast", space, goal, table)
		best := 0.0
		for _, one := range trials {
			if strings.Contains(one.why, "NaN") {
				t.Fatal(one.why)
			}
			if one.ok && goal.Meets(one.row) {
				best = max(best, goal.ranked(one.row).Efficacy())
			}
		}
		switch {
		case choice.OK != (best > 0):
			t.Fatalf("chosen: %v, the best has %v: %s", choice.OK, best, choice.Reason)
		case choice.OK && goal.ranked(choice.Row).Efficacy() < best*(1-mostNoise-assumed.idle):
			t.Fatalf("%+v is chosen, the best has %v", choice.Row, best)
		case strings.Contains(choice.Reason, "NaN"):
			t.Fatal(choice.Reason)
		}
	})
}

// The published searches, and fast without an objective, are as ever.
func TestGoodputIsFastsOwn(t *testing.T) {
	rows, slo := underLoad(makeUp("waves", 1), 10, 1)
	for _, how := range Names() {
		for _, goal := range []Goal{{}, {SLOMS: slo}} {
			if how == "fast" && goal.SLOMS > 0 {
				continue
			}
			table, space := map[profile.Config]profile.Row{}, allOf(rows)
			for _, r := range rows {
				table[r.Config] = r
			}
			before, was := drive(t, how, space, goal, table)
			goal.Goodput = true
			after, is := drive(t, how, space, goal, table)
			if !slices.Equal(before, after) || was != is {
				t.Errorf("%s, objective %v: %v became %v", how, goal.SLOMS, was, is)
			}
		}
	}
}

func allOf(rows []profile.Row) Space {
	space := Space{Only: []profile.Config{}}
	for _, r := range rows {
		space.Only = append(space.Only, r.Config)
		space.SMPct, space.Quota, space.Batch = append(space.SMPct, r.SMPct), append(space.Quota, r.Quota), append(space.Batch, r.Batch)
	}
	return space
}
