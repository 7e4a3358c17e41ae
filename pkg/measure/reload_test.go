package measure

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/measure/figures"
	"github.com/gfaas/gfaas/pkg/measure/testbed/testbedtest"
	"github.com/gfaas/gfaas/pkg/profile"
)

func TestLoadMSIsTheReloadTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &testbedtest.GPUs{}
		tr := newTrial(f, "")
		tr.progress = &recorder{note: func(text string) { t.Errorf("note %q", text) }}
		ms, err := tr.loadMS(t.Context(), 1)
		if err != nil || ms != figures.Millis(testbedtest.ReloadTime) {
			t.Errorf("%v ms, %v; want %v", ms, err, testbedtest.ReloadTime)
		}
		if f.Parking != 1 || f.Running != 0 || f.Requests["1 in"] != 1+maxWarmRequests+parkedRequests {
			t.Errorf("%d instances, %d run, requests %v", f.Parking, f.Running, f.Requests)
		}
	})
}

func TestNoteOnUnknownLoadMS(t *testing.T) {
	for _, c := range []struct {
		fault string
		mem   gpu.Bytes
		want  string
	}{
		{"", 0, "load_ms of f is not measured: the function has no gpu_mem"},
		{"pools", gpu.GiB, "load_ms of f is not measured: only 50 of the instance's 200 MiB were parked while it was idle"},
		{"memory", gpu.GiB, "load_ms of f is not measured: the instance holds no GPU memory between requests"},
		{"parkless", gpu.GiB, "load_ms of f is not measured: ended before it was ready"},
		{"quick", gpu.GiB, "load_ms of f is not measured: a request took 4 ms with parked memory and 4 ms without: the difference is too small to measure"},
		{"ends", gpu.GiB, "load_ms of f is not measured: the instance ended during the trial: signal: segmentation fault"},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &testbedtest.GPUs{}
			tr := newTrial(f, c.fault)
			tr.fn.GPUMem = c.mem
			if c.fault == "ends" {
				tr.fn.Env["FAKE_MS"] = "3000"
			}
			var notes []string
			tr.progress = &recorder{note: func(text string) { notes = append(notes, text) }}
			ms, err := tr.loadMS(t.Context(), 1)
			if ms != 0 || err != nil || f.Running != 0 || len(notes) != 1 || !strings.HasPrefix(notes[0], c.want) {
				t.Errorf("%s: %v ms, %v, %d run, notes %q", c.fault, ms, err, f.Running, notes)
			}
		})
	}
}

func TestLoadMSWithOthersOnTheGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &testbedtest.GPUs{}
		f.SetOthers("resnet-0")
		tr := newTrial(f, "")
		var notes []string
		tr.progress = &recorder{note: func(text string) { notes = append(notes, text) }}
		if ms, err := tr.loadMS(t.Context(), 1); ms != 0 || err != nil || len(notes) != 1 || !strings.Contains(notes[0], "resnet-0 also used the GPU") {
			t.Errorf("%v ms, %v, notes %q", ms, err, notes)
		}
		tr.ShareGPU = true
		if ms, err := tr.loadMS(t.Context(), 1); ms != figures.Millis(testbedtest.ReloadTime) || err != nil {
			t.Errorf("%v ms, %v", ms, err)
		}
	})
}

// TestLoadMSIsMeasuredOncePerFunction checks that all rows of a function contain the same load_ms, from an
// earlier run or, without one, from the first measurement.
func TestLoadMSIsMeasuredOncePerFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gpus := []*testbedtest.GPUs{{}, {}}
		a, b := named("a", ""), named("b", "")
		a.GPUMem, b.GPUMem = gpu.GiB, gpu.GiB
		r := newRunner(t, "grid", gpus, a, b)
		r.Park = true
		old := profile.Row{Function: "b", Config: profile.Config{SMPct: 10, Quota: 1, Batch: 1}, LoadMS: 7}
		r.Earlier = map[Point]profile.Row{{"b", old.Config}: old}
		err := r.run(t.Context())
		if err != nil || gpus[0].Parking+gpus[1].Parking != 1 {
			t.Errorf("%v, %d and %d instances", err, gpus[0].Parking, gpus[1].Parking)
		}
		want := map[string]float64{"a": figures.Millis(testbedtest.ReloadTime), "b": 7}
		for _, row := range r.Rows {
			if row.LoadMS != want[row.Function] {
				t.Errorf("row %+v", row)
			}
		}
	})
}

// promptWriter is a RowWriter that expects each row at the moment at which an instance stops.
type promptWriter struct {
	*testing.T
	gpus []*testbedtest.GPUs
	rows int
}

func (p *promptWriter) Append(row profile.Row) error {
	p.rows++
	if row.LoadMS == 0 || !slices.ContainsFunc(p.gpus, (*testbedtest.GPUs).JustStopped) {
		p.Errorf("row %+v is written at %v", row, time.Now())
	}
	return nil
}

// A row is complete and written when it is measured, so that a kill during the measurement
// of load_ms loses no row.
func TestRowsDoNotWaitForLoadMS(t *testing.T) {
	for n := range 2 {
		synctest.Test(t, func(t *testing.T) {
			machines := []*testbedtest.GPUs{{}, {}}[:n+1]
			a, b := named("a", ""), named("b", "")
			a.GPUMem, b.GPUMem = gpu.GiB, gpu.GiB
			r := newRunner(t, "grid", machines, a, b)
			r.Park = true
			rows := &promptWriter{T: t, gpus: machines}
			r.Journal = rows
			err := r.run(t.Context())
			if err != nil || rows.rows != r.Size() {
				t.Errorf("%d machines: %v, %d rows", len(machines), err, rows.rows)
			}
		})
	}
}

// TestUnstoppableInstanceOfLoadMSEndsRun checks that no trial runs while an instance cannot be stopped.
func TestUnstoppableInstanceOfLoadMSEndsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := named("f", "lingers")
		f.GPUMem = gpu.GiB
		gpus := &testbedtest.GPUs{}
		r := newRunner(t, "grid", []*testbedtest.GPUs{gpus}, f)
		r.Park = true
		err := r.run(t.Context())
		var stuck *StopError
		if !errors.As(err, &stuck) || len(gpus.Started) != 0 || len(r.Rows)+len(r.Failures) != 0 {
			t.Errorf("%v, rows %+v, started %v", err, r.Rows, gpus.Started)
		}
	})
}

// After an interrupt no instance runs, and no row lacks load_ms.
func TestInterruptDuringLoadMS(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := named("f", "")
		f.GPUMem = gpu.GiB
		gpus := &testbedtest.GPUs{}
		r := newRunner(t, "grid", []*testbedtest.GPUs{gpus}, f)
		r.Park = true
		ctx, cancel := contextUntil(t, func() bool { return gpus.HasParked() })
		defer cancel()
		err := r.run(ctx)
		if err == nil || len(r.Rows) != 0 || gpus.Running != 0 {
			t.Errorf("%v, rows %+v, %d run", err, r.Rows, gpus.Running)
		}
	})
}

// A missing container engine is reported once, by the trial that follows.
func TestLoadMSWithoutEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTrial(&testbedtest.GPUs{}, "engine")
		tr.progress = &recorder{note: func(text string) { t.Errorf("note %q", text) }}
		if ms, err := tr.loadMS(t.Context(), 1); ms != 0 || err != nil {
			t.Errorf("%v ms, %v; want 0", ms, err)
		}
	})
}

// contextUntil returns a context that ends when the condition holds.
func contextUntil(t *testing.T, ok func() bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for !ok() && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}()
	return ctx, cancel
}
