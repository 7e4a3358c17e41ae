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

// withGoodputs adds synthetic goodputs to rows. The objective is sloFactor times the least
// p95 of the rows. The goodputs follow another queueing model than fast assumes, have
// noise, and are unknown for one row in twenty. The p95 of each row becomes that of a
// closed loop of 8 workers.
func withGoodputs(rows []profile.Row, sloFactor float64, seed int) (out []profile.Row, slo float64) {
	r := random{splitmix.Source(1000 + seed)}
	slo = math.Inf(1)
	for _, row := range rows {
		slo = min(slo, sloFactor*row.P95MS)
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

// goodputRegret returns the number of trials that fast needs, and the fraction by which
// the goodput per GPU of its choice is below that of the best configuration.
func goodputRegret(t *testing.T, rows []profile.Row, goal Goal) (trials, regret float64) {
	space, table, best := spaceOf(rows), map[profile.Config]profile.Row{}, 0.0
	goodputPerGPU := func(r profile.Row) float64 { return r.GoodputRPS / (r.SMPct / 100 * r.Quota) }
	for _, r := range rows {
		table[r.Config] = r
		best = max(best, goodputPerGPU(r))
	}
	trialsRun, choice := drive(t, "fast", space, goal, table)
	if !choice.OK {
		return float64(len(trialsRun)), 1
	}
	return float64(len(trialsRun)), 1 - goodputPerGPU(choice.Row)/best
}

// TestFastFindsHighestGoodput checks that if fast searches by goodput, its choice is close
// to the highest goodput per GPU after few trials, although the goodputs do not follow its
// queueing model. If it searches by throughput among the configurations whose single
// requests meet the objective, its choice is at least twice as far away.
func TestFastFindsHighestGoodput(t *testing.T) {
	var byGoodput, byThroughput score
	for kind := range kinds {
		for seed := range 2 {
			for _, sloFactor := range []float64{1.5, 3, 10} {
				rows, slo := withGoodputs(syntheticRows(kind, seed), sloFactor, seed)
				trials, regret := goodputRegret(t, rows, Goal{SLOMS: slo, Goodput: true})
				byGoodput.trials, byGoodput.regret = append(byGoodput.trials, trials), append(byGoodput.regret, regret)
				for i := range rows {
					rows[i].P95MS = rows[i].IdleP95MS
				}
				trials, regret = goodputRegret(t, rows, Goal{SLOMS: slo})
				byThroughput.trials, byThroughput.regret = append(byThroughput.trials, trials), append(byThroughput.regret, regret)
			}
		}
	}
	t.Logf("by goodput: %.1f trials, regret %.3f (median), %.3f (mean); by throughput: %.1f trials, regret %.3f (median), %.3f (mean)",
		mean(byGoodput.trials), quantile(byGoodput.regret, 0.5), mean(byGoodput.regret),
		mean(byThroughput.trials), quantile(byThroughput.regret, 0.5), mean(byThroughput.regret))
	if trials := mean(byGoodput.trials); trials > 10 {
		t.Errorf("by goodput: got %.1f trials on average, want at most 10", trials)
	}
	if m, mean := quantile(byGoodput.regret, 0.5), mean(byGoodput.regret); m > 0.03 || mean > 0.07 {
		t.Errorf("by goodput: got a regret of %.3f at the median and %.3f on average, want at most 0.03 and 0.07", m, mean)
	}
	if got, limit := mean(byThroughput.regret), 2*mean(byGoodput.regret); got < limit {
		t.Errorf("by throughput: got a regret of %.3f on average, want at least %.3f, twice the regret by goodput", got, limit)
	}
}

// TestFastChoosesBestMeasuredGoodput checks that for any goodputs, unknown ones included,
// the search ends, and no reason contains NaN. The chosen goodput is above 0 and, apart from
// noise, the best that was measured.
func TestFastChoosesBestMeasuredGoodput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		space, table := drawTable(t)
		goal := Goal{SLOMS: rapid.SampledFrom([]float64{1e-3, 5, 100, 1e9}).Draw(t, "objective"), Goodput: true, CheckQuota: rapid.Bool().Draw(t, "check")}
		for _, c := range space.Configs() {
			r, measured := table[c]
			if !measured {
				continue
			}
			r.SLOMS = rapid.SampledFrom([]float64{0, goal.SLOMS, goal.SLOMS, goal.SLOMS, 2 * goal.SLOMS}).Draw(t, "objective of the row")
			r.GoodputKnown = r.SLOMS > 0 && rapid.IntRange(0, 9).Draw(t, "known") > 0
			r.IdleP95MS = rapid.SampledFrom([]float64{0, 1e-3, 3, 50, 1e10}).Draw(t, "idle p95")
			if r.GoodputKnown {
				r.GoodputRPS = r.ThroughputRPS * rapid.SampledFrom([]float64{0, 1e-6, 0.7, 1, 3}).Draw(t, "goodput")
				r.GoodputCIRPS = r.GoodputRPS * rapid.SampledFrom([]float64{0, 0.02}).Draw(t, "noise")
			}
			table[c] = r
		}
		trials, choice := drive(t, "fast", space, goal, table)
		best := 0.0
		for _, trial := range trials {
			if strings.Contains(trial.reason, "NaN") {
				t.Fatalf("got the reason %q for a trial, want none with NaN", trial.reason)
			}
			if trial.ok && goal.Meets(trial.row) {
				best = max(best, goal.ranked(trial.row).Efficacy())
			}
		}
		switch {
		case choice.OK != (best > 0):
			t.Fatalf("got a choice: %v, want one: %v, since the best goodput per GPU is %v: %s", choice.OK, best > 0, best, choice.Reason)
		case choice.OK && goal.ranked(choice.Row).Efficacy() < best*(1-maxNoise-assumed.minQuotaGain):
			t.Fatalf("got the choice %+v, want a goodput per GPU close to the best, %v", choice.Row, best)
		case strings.Contains(choice.Reason, "NaN"):
			t.Fatalf("got the reason %q for the choice, want none with NaN", choice.Reason)
		}
	})
}

// TestOnlyFastSearchesByGoodput checks that Goal.Goodput changes neither the published
// searches nor fast without an objective.
func TestOnlyFastSearchesByGoodput(t *testing.T) {
	rows, slo := withGoodputs(syntheticRows("waves", 1), 10, 1)
	for _, name := range Names() {
		for _, goal := range []Goal{{}, {SLOMS: slo}} {
			if name == "fast" && goal.SLOMS > 0 {
				continue
			}
			table, space := map[profile.Config]profile.Row{}, spaceOf(rows)
			for _, r := range rows {
				table[r.Config] = r
			}
			wantTrials, want := drive(t, name, space, goal, table)
			goal.Goodput = true
			gotTrials, got := drive(t, name, space, goal, table)
			if !slices.Equal(gotTrials, wantTrials) || got != want {
				t.Errorf("%s, objective %v: got %v after %v with Goodput, want %v after %v", name, goal.SLOMS, got, gotTrials, want, wantTrials)
			}
		}
	}
}

// spaceOf returns a space that consists of the configurations of rows.
func spaceOf(rows []profile.Row) Space {
	space := Space{Only: []profile.Config{}}
	for _, r := range rows {
		space.Only = append(space.Only, r.Config)
		space.SMPct, space.Quota, space.Batch = append(space.SMPct, r.SMPct), append(space.Quota, r.Quota), append(space.Batch, r.Batch)
	}
	return space
}
