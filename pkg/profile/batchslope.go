package profile

import "slices"

// BatchSlope returns how much longer each inference of a batch takes for every further one, as a fraction
// of the duration of one alone. It fits a line to the durations of batches (WarmMS) of one SM share and
// quota: of the slice, if its rows have several batch sizes, or else of the most SMs, then the largest
// quota, whose rows have. If the line has a row of batch 1, it passes through it. The rows are those of a function on
// one GPU model. BatchSlope returns false if no SM share and quota has durations of several batch sizes.
func BatchSlope(rows []Row, smPct, quota float64) (slope float64, ok bool) {
	measured := slices.DeleteFunc(slices.Clone(rows), func(r Row) bool { return r.WarmMS <= 0 })
	best := Config{}
	for _, r := range measured {
		with := func(o Row) bool { return o.SMPct == r.SMPct && o.Quota == r.Quota && o.Batch != r.Batch }
		if !slices.ContainsFunc(measured, with) {
			continue
		}
		if r.SMPct == smPct && r.Quota == quota {
			best = r.Config
			break
		}
		if r.SMPct > best.SMPct || r.SMPct == best.SMPct && r.Quota > best.Quota {
			best = r.Config
		}
	}
	if best == (Config{}) {
		return 0, false
	}
	var x, y []float64 // further inferences, and the duration of the batch
	for _, r := range measured {
		if r.SMPct == best.SMPct && r.Quota == best.Quota {
			x, y = append(x, float64(r.Batch-1)), append(y, r.WarmMS)
		}
	}
	throughX, throughY := mean(x), mean(y)
	if i := slices.Index(x, 0); i >= 0 {
		throughX, throughY = 0, y[i]
	}
	products, squares := 0., 0.
	for i := range x {
		products += (x[i] - throughX) * (y[i] - throughY)
		squares += (x[i] - throughX) * (x[i] - throughX)
	}
	perInference := max(products/squares, 0)
	alone := throughY - perInference*throughX
	return SlopeOf(alone, perInference), true
}

// MaxBatchSlope is the largest slope of a batch. With 1, a batch takes as long as its inferences one after
// another.
const MaxBatchSlope = 1

// SlopeOf returns the slope of batches in which an inference takes alone, and every further one adds
// perInference.
func SlopeOf(alone, perInference float64) float64 {
	if perInference <= 0 {
		return 0
	}
	if alone <= perInference {
		return MaxBatchSlope
	}
	return perInference / alone
}

func mean(values []float64) (mean float64) {
	for _, v := range values {
		mean += v / float64(len(values))
	}
	return mean
}
