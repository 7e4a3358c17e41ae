package profile

// exclusiveSlack is how far the throughput at the limit of a training function may be below the throughput
// of the whole GPU (Dilu, section 3.2).
const exclusiveSlack = 0.02

// Limits returns the limits of the row. If the row states only one of them, the other equals its request. If the row
// states none, both equal their requests, and stated is false.
func (r Row) Limits() (smPct, quota float64, stated bool) {
	return max(r.SMLimitPct, r.SMPct), max(r.QuotaLimit, r.Quota), r.SMLimitPct > 0 || r.QuotaLimit > 0
}

// InferenceLimits returns the limits of an inference function whose request is the row: twice the
// request (Dilu, section 3.2), where both are parts of the GPU, SM share × quota. The SM share grows
// first, up to all SMs, and then the quota, up to the whole window.
func (r Row) InferenceLimits() (smPct, quota float64) {
	if 2*r.SMPct <= 100 {
		return 2 * r.SMPct, r.Quota
	}
	return 100, min(1, 2*r.Quota*r.SMPct/100)
}

// TrainingLimits returns the limits of a training function whose request is the row. They are the
// smallest measured part of the GPU, SM share × quota, with a throughput within 2% of exclusive (Dilu,
// section 3.2): the throughput of the largest part. Of equal parts, the one with the smaller SM share is
// chosen. Only rows with the request's function, GPU model and batch count. If none of them is at least as
// large as the request and fast enough, the limits equal the request.
func TrainingLimits(rows []Row, request Row) (smPct, quota float64) {
	part := func(r Row) float64 { return r.SMPct * r.Quota }
	comparable := func(r Row) bool {
		return r.Function == request.Function && r.GPU == request.GPU && r.Batch == request.Batch && r.ThroughputRPS > 0
	}
	var whole Row
	for _, r := range rows {
		if comparable(r) && (part(r) > part(whole) || part(r) == part(whole) && r.ThroughputRPS > whole.ThroughputRPS) {
			whole = r
		}
	}
	limit := request
	found := false
	for _, r := range rows {
		if !comparable(r) || r.SMPct < request.SMPct || r.Quota < request.Quota || r.ThroughputRPS < (1-exclusiveSlack)*whole.ThroughputRPS {
			continue
		}
		if !found || part(r) < part(limit) || part(r) == part(limit) && r.SMPct < limit.SMPct {
			limit, found = r, true
		}
	}
	return limit.SMPct, limit.Quota
}
