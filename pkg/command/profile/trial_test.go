package profile

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/profile"
)

func aTrial(f *fake, fault string) trial {
	return trial{
		machine: f, model: "sim", gpus: []string{"sim"}, body: []byte("in"), startTimeout: time.Minute, note: func(string) {},
		fn: function.Function{Name: "f", GPUMem: gpu.GiB, Env: map[string]string{"FAKE_MS": "4", "FAKE_FAULT": fault}},
		load: load.Options{
			Spec: load.Spec{Kind: load.Closed, Workers: 8}, Warmup: 2 * time.Second, Duration: 10 * time.Second,
		},
	}
}

func TestTrialMeasuresTheSlice(t *testing.T) {
	for _, c := range []profile.Config{
		{SMPct: 12, Quota: 0.2, Batch: 1}, {SMPct: 12, Quota: 1, Batch: 4}, {SMPct: 50, Quota: 0.6, Batch: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{}
			row, err := aTrial(f, "").measure(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			service := 4 / (c.SMPct / 100 * c.Quota) // of one request, in ms
			for what, pair := range map[string][2]float64{
				"throughput": {row.ThroughputRPS, 1000 / service},
				"p95":        {row.P95MS, 8 * service}, "warm": {row.WarmMS, service}, "cold": {row.ColdMS, service},
				"memory": {row.GPUMemMiB, 100 + c.SMPct}, "trial": {row.TrialS, 10},
			} {
				if math.Abs(pair[0]-pair[1]) > 0.02*pair[1] {
					t.Errorf("%v: %s = %v, want %v", c, what, pair[0], pair[1])
				}
			}
			want := gpu.Slice{SMPct: c.SMPct, QuotaRequest: c.Quota, QuotaLimit: c.Quota, Mem: gpu.GiB}
			if len(f.started) != 1 || f.started[0] != want || f.running != 0 {
				t.Errorf("started %v, %d run", f.started, f.running)
			}
			if row.Function != "f" || row.GPU != "sim" || row.Config != c || row.Samples == 0 || row.Errors != 0 {
				t.Errorf("row %+v", row)
			}
			if len(f.bodies) != 1 {
				t.Errorf("requests %v, expected one kind", f.bodies)
			}
		})
	}
}

func TestInterruptedTrialStopsItsInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		f := &fake{}
		_, err := aTrial(f, "").measure(ctx, profile.Config{SMPct: 12, Quota: 0.2, Batch: 1})
		if !errors.Is(err, context.DeadlineExceeded) || f.running != 0 {
			t.Errorf("%v, %d run", err, f.running)
		}
	})
}

func TestTrialThatCannotStopKeepsItsRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		row, err := aTrial(&fake{}, "stop").measure(t.Context(), profile.Config{SMPct: 50, Quota: 1, Batch: 1})
		var stuck *stopError
		if !errors.As(err, &stuck) || row.ThroughputRPS == 0 {
			t.Errorf("%+v, %v", row, err)
		}
	})
}

func TestSmallSliceIsAnErrorNotARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// 4 ms on the whole GPU are 80 s here.
		tr := aTrial(&fake{}, "")
		tr.startTimeout = 5 * time.Minute
		_, err := tr.measure(t.Context(), profile.Config{SMPct: 0.1, Quota: 0.05, Batch: 1})
		if err == nil || err.Error() != "no request finished in 10s\nit printed last:\n  line one\n  line two" {
			t.Error(err)
		}
	})
}

func TestRemarkNamesTheReason(t *testing.T) {
	for want, res := range map[string]load.Result{
		"": {Samples: 10},
		"3 requests had no answer when the trial ended, 2 of them not sent yet: the load is more than the instance sustains": {Errors: 4, Cut: 1, Unsent: 2},
		"4 requests failed, the last with: status 500": {Errors: 4, LastFailed: errors.New("status 500")},
	} {
		if got := remark(res); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
