package search

import (
	"math"
	"slices"
	"testing"

	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// blockRule is a function on a device of 80 SMs. Each request runs five kernels of the
// given number of blocks, 0.5 ms per block, and host code whose time is independent of
// the SM share.
type blockRule struct{ blocks, hostMS float64 }

func (f blockRule) ms(smPct float64) float64 {
	return f.hostMS + 5*0.5*math.Ceil(f.blocks/math.Ceil(80*smPct/100))
}

// measured returns the table of the function under 8 outstanding requests. Throughput and
// latency have the given noise, and the confidence intervals reflect it.
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

// span returns the distance on the axis between the least and the greatest value, in
// steps.
func span(axis, values []float64) int {
	at := func(v float64) int { i, _ := slices.BinarySearch(axis, v); return i }
	return at(slices.Max(values)) - at(slices.Min(values))
}

// TestChoicesRepeat checks that repeated searches on one function choose the same
// configuration, within one step, whatever the noise of their trials. By the block rule,
// several SM shares are equally good, and noise must not decide among them.
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
				continue // by chance, this configuration may or may not meet the objective
			}
			for _, how := range Names() {
				var requests, limits []float64
				for seed := range runs {
					_, c := drive(t, how, space, Goal{SLOMS: slo, CheckQuota: true}, f.measured(space, noise, seed+1))
					if !c.OK {
						t.Fatalf("%s of %+v, objective %v ms: got no choice (%s), want one", how, f, slo, c.Reason)
					}
					requests, limits = append(requests, c.Row.SMPct), append(limits, c.LimitSMPct)
				}
				if span(axis, requests) > 1 || span(axis, limits) > 1 {
					t.Errorf("%s of %+v, objective %v ms: got requests %v, limits %v; want each within one step", how, f, slo, requests, limits)
				}
			}
		}
	}
}

// TestNoiseIsBounded checks that two throughputs that differ by more than noise explains
// are not equal. Throughputs of unknown noise are not equal if they differ at all, except
// for rounding.
func TestNoiseIsBounded(t *testing.T) {
	row := func(rps, ci float64) profile.Row {
		return profile.Row{Config: profile.Config{SMPct: 100, Quota: 1, Batch: 1}, ThroughputRPS: rps, ThroughputCIRPS: ci}
	}
	for _, c := range []struct {
		top, r profile.Row
		want   bool
	}{
		{row(100, 1), row(98, 1), true},       // noise explains 2.1%
		{row(100, 1), row(97, 1), false},      // noise does not explain 3%
		{row(100, .01), row(99.1, .01), true}, // trials differ by 1%, however small their intervals
		{row(100, 20), row(94, 20), false},    // noise explains 5% at most
		{row(100, 0), row(99.9, 1), false},
		{row(100, 0), row(99.995, 0), true}, // rounding
	} {
		if got := equal(c.r, c.top); got != c.want {
			t.Errorf("%v of %v ± %v: %v, want %v", c.r.ThroughputRPS, c.top.ThroughputRPS, c.top.ThroughputCIRPS, got, c.want)
		}
	}
}
