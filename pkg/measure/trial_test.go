package measure

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/testbed/testbedtest"
	"github.com/gfaas/gfaas/pkg/profile"
)

// recorder is a Progress that passes notes and trials for the goodput to functions.
type recorder struct{ note, tried func(text string) }

func (*recorder) Next(Point, string)   {}
func (*recorder) Measuring(Point)      {}
func (*recorder) Trying(Point, string) {}
func (*recorder) Measured(profile.Row) {}
func (*recorder) Failed(Point, error)  {}

func (r *recorder) Note(text string) {
	if r.note != nil {
		r.note(text)
	}
}

func (r *recorder) Tried(_ Point, text string) {
	if r.tried != nil {
		r.tried(text)
	}
}

func newTrial(f *testbedtest.GPUs, fault string) trial {
	return trial{
		Job: Job{GPU: "sim", Body: []byte("in"), StartTimeout: time.Minute, Load: load.Options{
			Spec: load.Spec{Kind: load.Closed, Workers: 8}, Warmup: 2 * time.Second, Duration: 10 * time.Second,
		}},
		testbed: f, progress: &recorder{},
		fn: function.Function{Name: "f", GPUMem: gpu.GiB, Env: map[string]string{"FAKE_MS": "4", "FAKE_FAULT": fault}},
	}
}

func TestTrialFigures(t *testing.T) {
	for _, c := range []profile.Config{
		{SMPct: 12, Quota: 0.2, Batch: 1}, {SMPct: 12, Quota: 1, Batch: 4}, {SMPct: 50, Quota: 0.6, Batch: 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &testbedtest.GPUs{}
			row, err := newTrial(f, "").measure(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			service := 4 / (c.SMPct / 100 * c.Quota) // of one request, in ms
			for what, pair := range map[string][2]float64{
				"throughput": {row.ThroughputRPS, float64(c.Batch) * 1000 / service},
				"p95":        {row.P95MS, 8 * service}, "warm": {row.WarmMS, service}, "cold": {row.ColdMS, service},
				"memory": {row.GPUMemMiB, 100 + c.SMPct}, "trial": {row.TrialS, 10},
			} {
				if math.Abs(pair[0]-pair[1]) > 0.02*pair[1] {
					t.Errorf("%v: %s = %v, want %v", c, what, pair[0], pair[1])
				}
			}
			want := gpu.Slice{SMPct: c.SMPct, QuotaRequest: c.Quota, QuotaLimit: c.Quota, Mem: gpu.GiB}
			if len(f.Started) != 1 || f.Started[0] != want || f.Running != 0 {
				t.Errorf("started %v, %d run", f.Started, f.Running)
			}
			if row.PowerW < 13 { // a look a second, says the fake
				t.Errorf("%v: %v looks at the GPU in 12 s, want at least 13", c, row.PowerW)
			}
			if row.Function != "f" || row.GPU != "sim" || row.Config != c || row.Samples == 0 || row.Errors != 0 {
				t.Errorf("row %+v", row)
			}
			if len(f.Requests) != 1 {
				t.Errorf("requests %v, expected one kind", f.Requests)
			}
		})
	}
}

func TestInterruptStopsInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		f := &testbedtest.GPUs{}
		_, err := newTrial(f, "").measure(ctx, profile.Config{SMPct: 12, Quota: 0.2, Batch: 1})
		if !errors.Is(err, context.DeadlineExceeded) || f.Running != 0 {
			t.Errorf("%v, %d run", err, f.Running)
		}
	})
}

func TestUnstoppableInstanceKeepsRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		row, err := newTrial(&testbedtest.GPUs{}, "stop").measure(t.Context(), profile.Config{SMPct: 50, Quota: 1, Batch: 1})
		var stuck *StopError
		if !errors.As(err, &stuck) || row.ThroughputRPS == 0 {
			t.Errorf("%+v, %v", row, err)
		}
	})
}

func TestNoAnswerIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// 4 ms on the whole GPU are 80 s here.
		tr := newTrial(&testbedtest.GPUs{}, "")
		tr.StartTimeout = 5 * time.Minute
		_, err := tr.measure(t.Context(), profile.Config{SMPct: 0.1, Quota: 0.05, Batch: 1})
		if err == nil || err.Error() != "no request finished in 10s\nit printed last:\n  line one\n  line two" {
			t.Error(err)
		}
	})
}

// An instance that stops answering must not block an unattended run.
func TestTrialOfStalledInstanceEnds(t *testing.T) {
	for fault, want := range map[string]string{
		"stalls": "no request finished in 10s",
		"mute":   "the instance is ready but has not described its requests within 1m0s",
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			tr := newTrial(&testbedtest.GPUs{}, fault)
			tr.Goodput, tr.SLO = true, 50*time.Millisecond
			tr.Functions = []function.Function{tr.fn}
			_, err := tr.measure(ctx, profile.Config{SMPct: 50, Quota: 1, Batch: 1})
			if err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s: %v", fault, err)
			}
		})
	}
}

func TestModelMem(t *testing.T) {
	model, file := &function.Model{Name: "m", Size: 98 * gpu.MiB}, &function.Model{Name: "m", File: "m.safetensors"}
	for _, c := range []struct {
		model                 *function.Model
		trial, imported, want float64
	}{
		{nil, 500, 0, 0}, {model, 500, 0, 98}, {model, 40, 0, 40}, {model, 0, 0, 98}, {model, 500, 70, 98},
		{nil, 500, 70, 0}, {file, 500, 70, 70}, {file, 500, 0, 0},
	} {
		if got := modelMem(function.Function{Model: c.model}, c.trial, c.imported); got != c.want {
			t.Errorf("%v of %v MiB: %v, want %v", c.model, c.trial, got, c.want)
		}
	}
}

// A slice that becomes slower during its trial is measured for longer, and is unstable.
func TestUnstableTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(&testbedtest.GPUs{}, "tires")
		tr.Load.Precision = 0.05
		var notes []string
		tr.progress = &recorder{note: func(text string) { notes = append(notes, text) }}
		row, err := tr.measure(t.Context(), profile.Config{SMPct: 50, Quota: 1, Batch: 1})
		if err != nil || row.Unstable != 1 || row.TrialS < 10 || row.ThroughputCIRPS <= 0 {
			t.Errorf("%+v, %v", row, err)
		}
		if len(notes) != 1 || !strings.Contains(notes[0], "for f at sm_pct 50, quota 1, batch 1: unstable: the throughput still changed by -") {
			t.Errorf("notes %q", notes)
		}
	})
}

func TestEndedInstanceHasNoRow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &testbedtest.GPUs{}
		_, err := newTrial(f, "ends").measure(t.Context(), profile.Config{SMPct: 50, Quota: 1, Batch: 1})
		want := "the instance ended during the trial: signal: segmentation fault\nit printed last:\n  line one\n  line two"
		if err == nil || err.Error() != want || f.Running != 0 {
			t.Errorf("%v; %d run", err, f.Running)
		}
	})
}

func TestTrialWithOthersOnTheGPU(t *testing.T) {
	for _, share := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := &testbedtest.GPUs{}
			tr := newTrial(f, "")
			tr.ShareGPU = share
			time.AfterFunc(5*time.Second, func() { f.SetOthers("resnet-0") })
			time.AfterFunc(8*time.Second, func() { f.SetOthers() })
			_, err := tr.measure(t.Context(), profile.Config{SMPct: 50, Quota: 1, Batch: 1})
			if refused := err != nil && strings.HasPrefix(err.Error(), "resnet-0 also used the GPU during the trial"); refused == share {
				t.Errorf("share %v: %v", share, err)
			}
		})
	}
}

func TestLeakRemark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(&testbedtest.GPUs{}, "leaks")
		var notes []string
		tr.progress = &recorder{note: func(text string) { notes = append(notes, text) }}
		row, err := tr.measure(t.Context(), profile.Config{SMPct: 50, Quota: 1, Batch: 1})
		if err != nil || row.GPUMemMiB < 1300 || len(notes) != 1 || !strings.Contains(notes[0], "may leak memory") {
			t.Errorf("%+v, %v, notes %q", row, err, notes)
		}
	})
	for _, used := range [][]float64{
		nil, {1, 2, 3}, {100, 500, 500, 500, 500, 500, 500}, {100, 100, 101, 102, 103, 104}, {100, 200, 300, 200, 400, 500, 600},
	} {
		if got := leak(used); got != nil {
			t.Errorf("%v: %q", used, got)
		}
	}
}

// Weights of the model daemon count as memory of the instance and as memory of the model.
func TestImportedWeights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(&testbedtest.GPUs{Imported: 70}, "")
		tr.fn.Model = &function.Model{Name: "m", File: "m.safetensors"}
		row, err := tr.measure(t.Context(), profile.Config{SMPct: 50, Quota: 1, Batch: 1})
		if err != nil || row.ModelMemMiB != 70 || math.Abs(row.GPUMemMiB-(100+50+70)) > 2 {
			t.Errorf("%v MiB, %v of them the model's, %v", row.GPUMemMiB, row.ModelMemMiB, err)
		}
	})
}
