package profile

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/profile"
)

func TestLoadTimeIsThatOfParkedMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		tr := aTrial(f, "")
		tr.note = func(text string) { t.Errorf("note %q", text) }
		ms, err := tr.loadMS(t.Context(), 1)
		if err != nil || ms != millis(reloadTime) {
			t.Errorf("%v ms, %v; want %v", ms, err, reloadTime)
		}
		if f.parking != 1 || f.running != 0 || f.bodies["1 in"] != 1+warmRequests+parkRounds {
			t.Errorf("%d instances, %d run, requests %v", f.parking, f.running, f.bodies)
		}
	})
}

// What cannot be measured has no figure but a reason.
func TestNoLoadTimeHasAReason(t *testing.T) {
	for _, c := range []struct {
		fault string
		mem   gpu.Bytes
		want  string
	}{
		{"", 0, "load_ms of f is not measured: its file sets no gpu_mem"},
		{"pools", gpu.GiB, "load_ms of f is not measured: of its 200 MiB only 50 went to the host while it had no work"},
		{"memory", gpu.GiB, "load_ms of f is not measured: it holds no GPU memory between requests"},
		{"parkless", gpu.GiB, "load_ms of f is not measured: ended before it was ready"},
		{"quick", gpu.GiB, "load_ms of f is not measured: with its memory parked a request took 4 ms, without 4: too little is moved to tell"},
		{"ends", gpu.GiB, "load_ms of f is not measured: the instance ended during the trial: signal: segmentation fault"},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{}
			tr := aTrial(f, c.fault)
			tr.fn.GPUMem = c.mem
			if c.fault == "ends" {
				tr.fn.Env["FAKE_MS"] = "3000"
			}
			var notes []string
			tr.note = func(text string) { notes = append(notes, text) }
			ms, err := tr.loadMS(t.Context(), 1)
			if ms != 0 || err != nil || f.running != 0 || len(notes) != 1 || !strings.HasPrefix(notes[0], c.want) {
				t.Errorf("%s: %v ms, %v, %d run, notes %q", c.fault, ms, err, f.running, notes)
			}
		})
	}
}

func TestOthersSpoilTheLoadTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.meet("resnet-0")
		tr := aTrial(f, "")
		var notes []string
		tr.note = func(text string) { notes = append(notes, text) }
		if ms, err := tr.loadMS(t.Context(), 1); ms != 0 || err != nil || len(notes) != 1 || !strings.Contains(notes[0], "resnet-0 ran on the GPU too") {
			t.Errorf("%v ms, %v, notes %q", ms, err, notes)
		}
		tr.share = true
		if ms, err := tr.loadMS(t.Context(), 1); ms != millis(reloadTime) || err != nil {
			t.Errorf("%v ms, %v", ms, err)
		}
	})
}

// It is measured once a function, whichever machine is first, and stands in all of
// its rows; what an earlier run measured is taken.
func TestLoadTimeIsMeasuredOnceAFunction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machines := []*fake{{}, {}}
		a, b := named("a", ""), named("b", "")
		a.GPUMem, b.GPUMem = gpu.GiB, gpu.GiB
		r := aRunner(t, "grid", machines, a, b)
		r.park = true
		old := profile.Row{Function: "b", Config: profile.Config{SMPct: 10, Quota: 1, Batch: 1}, LoadMS: 7}
		r.old = map[point]profile.Row{{"b", old.Config}: old}
		err := r.run(t.Context())
		r.progress.close()
		if err != nil || machines[0].parking+machines[1].parking != 1 {
			t.Errorf("%v, %d and %d instances", err, machines[0].parking, machines[1].parking)
		}
		want := map[string]float64{"a": millis(reloadTime), "b": 7}
		for _, row := range r.rows {
			if row.LoadMS != want[row.Function] {
				t.Errorf("row %+v", row)
			}
		}
	})
}

// prompt is a journal of rows that must be as old as the stop of an instance.
type prompt struct {
	*testing.T
	machines []*fake
	rows     int
}

func (p *prompt) Append(row profile.Row) error {
	p.rows++
	if row.LoadMS == 0 || !slices.ContainsFunc(p.machines, (*fake).justMeasured) {
		p.Errorf("row %+v is written at %v", row, time.Now())
	}
	return nil
}

func (p *prompt) Close() error { return nil }

// A row is whole and written the moment it is measured: a kill while load_ms is
// measured loses none.
func TestNoRowWaitsForTheLoadTime(t *testing.T) {
	for n := range 2 {
		synctest.Test(t, func(t *testing.T) {
			machines := []*fake{{}, {}}[:n+1]
			a, b := named("a", ""), named("b", "")
			a.GPUMem, b.GPUMem = gpu.GiB, gpu.GiB
			r := aRunner(t, "grid", machines, a, b)
			r.park = true
			rows := &prompt{T: t, machines: machines}
			r.journal = rows
			err := r.run(t.Context())
			r.progress.close()
			if err != nil || rows.rows != r.points() {
				t.Errorf("%d machines: %v, %d rows", len(machines), err, rows.rows)
			}
		})
	}
}

// An instance that cannot be stopped ends the run before anything is measured
// beside it.
func TestLoadTimeThatCannotStopEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := named("f", "lingers")
		f.GPUMem = gpu.GiB
		machine := &fake{}
		r := aRunner(t, "grid", []*fake{machine}, f)
		r.park = true
		err := r.run(t.Context())
		r.progress.close()
		var stuck *stopError
		if !errors.As(err, &stuck) || len(machine.started) != 0 || len(r.rows)+len(r.failures) != 0 {
			t.Errorf("%v, rows %+v, started %v", err, r.rows, machine.started)
		}
	})
}

// An interrupt while it is measured leaves nothing behind and no row without it.
func TestInterruptedLoadTimeEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := named("f", "")
		f.GPUMem = gpu.GiB
		machine := &fake{}
		r := aRunner(t, "grid", []*fake{machine}, f)
		r.park = true
		ctx, cancel := contextUntil(t, func() bool { return machine.parks() > 0 })
		defer cancel()
		err := r.run(ctx)
		r.progress.close()
		if err == nil || len(r.rows) != 0 || machine.running != 0 {
			t.Errorf("%v, rows %+v, %d run", err, r.rows, machine.running)
		}
	})
}

// What every instance needs and is not there is told once, as the run's error.
func TestNothingToMeasureTheLoadTimeOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := aTrial(&fake{}, "engine")
		tr.note = func(text string) { t.Errorf("note %q", text) }
		if ms, err := tr.loadMS(t.Context(), 1); ms != 0 || err != nil {
			t.Errorf("%v ms, %v", ms, err)
		}
	})
}

// contextUntil ends when something holds.
func contextUntil(t *testing.T, holds func() bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for !holds() && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		cancel()
	}()
	return ctx, cancel
}
