package profile

import "testing"

func TestInferenceLimits(t *testing.T) {
	for _, c := range []struct{ sm, quota, smLimit, quotaLimit float64 }{
		{24, 1, 48, 1},
		{30, 0.4, 60, 0.4},
		{50, 0.3, 100, 0.3},
		{80, 0.5, 100, 0.8}, // 0.4 of the GPU becomes 0.8
		{100, 0.3, 100, 0.6},
		{100, 0.7, 100, 1},
		{60, 1, 100, 1},
	} {
		sm, quota := Row{Config: Config{SMPct: c.sm, Quota: c.quota}}.InferenceLimits()
		if sm != c.smLimit || quota != c.quotaLimit {
			t.Errorf("request %v%%, %v: got limit %v%%, %v, want %v%%, %v", c.sm, c.quota, sm, quota, c.smLimit, c.quotaLimit)
		}
	}
}

// TestTrainingLimits checks that the limit of training is the smallest part of the GPU that is within 2% of
// exclusive, in the dimension that the profile varies.
func TestTrainingLimits(t *testing.T) {
	row := func(sm, quota, rps float64) Row {
		return Row{Function: "train", Config: Config{sm, quota, 8}, ThroughputRPS: rps}
	}
	other := func(r Row, change func(*Row)) Row { change(&r); return r }
	bySM := []Row{row(20, 1, 40), row(40, 1, 81), row(60, 1, 98), row(80, 1, 99.5), row(100, 1, 100)}
	byQuota := []Row{row(100, 0.2, 20), row(100, 0.6, 85), row(100, 0.8, 98.5), row(100, 1, 100)}
	for name, c := range map[string]struct {
		rows      []Row
		request   Row
		sm, quota float64
	}{
		"SM shares":                     {bySM, bySM[1], 60, 1},
		"quotas":                        {byQuota, byQuota[1], 100, 0.8},
		"both":                          {append(byQuota, bySM...), row(20, 0.6, 12), 60, 1}, // 0.6 of the GPU, less than 0.8
		"request beyond the limit":      {bySM, bySM[3], 80, 1},
		"exclusive only":                {[]Row{bySM[1], bySM[4]}, bySM[1], 100, 1},
		"only the request":              {bySM[1:2], bySM[1], 40, 1},
		"whole GPU failed":              {[]Row{bySM[1], bySM[2], row(100, 1, 0)}, bySM[1], 60, 1},
		"request failed":                {nil, row(40, 1, 0), 40, 1},
		"rows of another batch":         {append([]Row{other(row(50, 1, 100), func(r *Row) { r.Batch = 1 })}, bySM...), bySM[1], 60, 1},
		"rows of another GPU model":     {append([]Row{other(row(50, 1, 100), func(r *Row) { r.GPU = "A100" })}, bySM...), bySM[1], 60, 1},
		"rows of another function":      {append([]Row{other(row(50, 1, 100), func(r *Row) { r.Function = "f" })}, bySM...), bySM[1], 60, 1},
		"equal parts, smaller SM share": {[]Row{row(40, 0.5, 50), row(80, 0.5, 100), row(40, 1, 100), row(100, 1, 101)}, row(40, 0.5, 50), 40, 1},
	} {
		if sm, quota := TrainingLimits(c.rows, c.request); sm != c.sm || quota != c.quota {
			t.Errorf("%s: got limits %v%%, %v, want %v%%, %v", name, sm, quota, c.sm, c.quota)
		}
	}
}
