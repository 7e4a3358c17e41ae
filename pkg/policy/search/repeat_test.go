package search

import (
	"math"
	"slices"
	"testing"

	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// blockRule is a function on a device of 80 multiprocessors: kernels of so many
// blocks of 0.5 ms, five a request, and time of the host that no SM shortens.
type blockRule struct{ blocks, hostMS float64 }

func (f blockRule) ms(smPct float64) float64 {
	return f.hostMS + 5*0.5*math.Ceil(f.blocks/math.Ceil(80*smPct/100))
}

// measured is a table of it under 8 outstanding requests, with noise of so
// much in throughput and latency, which the confidence intervals tell.
func (f blockRule) measured(space Space, noise float64, seed int) map[profile.Config]profile.Row {
	r, table := random{splitmix.Source(seed)}, map[profile.Config]profile.Row{}
	for _, c := range space.Configs() {
		ms := f.ms(c.SMPct) / c.Quota
		rps := 1000 / ms * math.Exp(noise*r.normal())
		table[c] = profile.Row{Config: c, ThroughputRPS: rps, ThroughputCIRPS: 1.96 * noise * rps,
			P95MS: 8 * ms * math.Exp(noise*r.normal()), Samples: 100}
	}
	return table
}

// span is how many steps of the axis lie between the least and the most.
func span(axis, values []float64) int {
	at := func(v float64) int { i, _ := slices.BinarySearch(axis, v); return i }
	return at(slices.Max(values)) - at(slices.Min(values))
}

// A search that is repeated on the same function chooses the same, within a
// step, whatever the noise of its trials: the block rule makes several SM shares
// equally good, and noise must not choose among them.
func TestChoicesRepeat(t *testing.T) {
	const noise, runs = 0.01, 10
	axis := []float64{6, 12, 24, 50, 60, 80, 100}
	space := Space{SMPct: axis, Quota: []float64{0.2, 0.4, 0.6, 0.8, 1}, Batch: []int{1}}
	for _, f := range []blockRule{{20, 0}, {80, 0}, {320, 0}, {1000, 0}, {20, 2}, {80, 2}, {320, 2}, {1000, 2}} {
		for _, times := range []float64{0, 1.7, 3.3} {
			slo := times * 8 * f.ms(100)
			if slices.ContainsFunc(space.Configs(), func(c profile.Config) bool {
				return math.Abs(8*f.ms(c.SMPct)/c.Quota-slo) < 5*noise*slo
			}) {
				continue // whether that one meets the objective is chance
			}
			for _, how := range Names() {
				var requests, limits []float64
				for seed := range runs {
					_, c := drive(t, how, space, Goal{SLOMS: slo, CheckQuota: true}, f.measured(space, noise, seed+1))
					if !c.OK {
						t.Fatalf("%s of %+v, objective %v ms: %s", how, f, slo, c.Reason)
					}
					requests, limits = append(requests, c.Row.SMPct), append(limits, c.LimitSMPct)
				}
				if span(axis, requests) > 1 || span(axis, limits) > 1 {
					t.Errorf("%s of %+v, objective %v ms: requests %v, limits %v", how, f, slo, requests, limits)
				}
			}
		}
	}
}

// What differs by more than noise explains is not equal, and what no trial knows
// the noise of differs by anything.
func TestNoiseIsBounded(t *testing.T) {
	row := func(rps, ci float64) profile.Row {
		return profile.Row{Config: profile.Config{SMPct: 100, Quota: 1, Batch: 1}, ThroughputRPS: rps, ThroughputCIRPS: ci}
	}
	for _, c := range []struct {
		top, r profile.Row
		want   bool
	}{
		{row(100, 1), row(98, 1), true},       // 2.1% are explained
		{row(100, 1), row(97, 1), false},      // 3% are not
		{row(100, .01), row(99.1, .01), true}, // trials differ by 1% however well each is known
		{row(100, 20), row(94, 20), false},    // 5% at most
		{row(100, 0), row(99.9, 1), false},
		{row(100, 0), row(99.995, 0), true}, // rounding
	} {
		if got := equal(c.r, c.top); got != c.want {
			t.Errorf("%v of %v ± %v: %v", c.r.ThroughputRPS, c.top.ThroughputRPS, c.top.ThroughputCIRPS, got)
		}
	}
}
