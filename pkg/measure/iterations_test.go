package measure

import (
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gfaas/gfaas/pkg/measure/testbed/testbedtest"
	"github.com/gfaas/gfaas/pkg/profile"
)

// jobTrial returns a trial of a job that takes 4 ms per iteration on the whole GPU and prints the output.
func jobTrial(f *testbedtest.GPUs, fault, output, pattern string) trial {
	t := newTrial(f, fault)
	t.fn.Kind, t.fn.Progress, t.fn.Env["FAKE_OUTPUT"] = "training", pattern, output
	t.Load.Precision = 0.05
	return t
}

// TestJobFigures checks that throughput and p95 of a job are those of its iterations, however it reports them.
func TestJobFigures(t *testing.T) {
	c := profile.Config{SMPct: 50, Quota: 0.5, Batch: 1} // 16 ms per iteration
	for name, job := range map[string]struct {
		fault, output, pattern string
		p95                    float64 // in ms
	}{
		"lines":                 {"", "loss 0.3", "^loss", 16},
		"numbers":               {"", "step # of 1000", "^step ([0-9]+)", 16},
		"numbers, ten at once":  {"sparse", "step #", "step ([0-9]+)", 16},
		"buffered lines":        {"buffers", "loss", "loss", 16},
		"numbers, two printers": {"ranks", "step #", "step ([0-9]+)", 16},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &testbedtest.GPUs{}
				row, err := jobTrial(f, job.fault, job.output, job.pattern).measure(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				for what, pair := range map[string][2]float64{
					"throughput": {row.ThroughputRPS, 1000. / 16}, "p95": {row.P95MS, job.p95}, "memory": {row.GPUMemMiB, 150}, "trial": {row.TrialS, 10},
				} {
					if math.Abs(pair[0]-pair[1]) > 0.02*pair[1] {
						t.Errorf("%s = %v, want %v", what, pair[0], pair[1])
					}
				}
				if row.ColdMS <= 0 || row.WarmMS != 0 || row.Unstable != 0 || row.Errors != 0 || row.Samples < 500 || len(f.Requests) != 0 || f.Running != 0 {
					t.Errorf("row %+v after requests %v; %d run", row, f.Requests, f.Running)
				}
			})
		})
	}
}

// TestJobFaults checks that a job whose iterations cannot be counted is not measured.
func TestJobFaults(t *testing.T) {
	c := profile.Config{SMPct: 100, Quota: 1, Batch: 1}
	for name, job := range map[string]struct{ fault, output, pattern, want string }{
		"no progress":      {"", "loss 0.3", "^step", "no line of output matched progress (^step) within 1m0s of the start: the job has printed 1"},
		"an early end":     {"ends", "step #", "^step", "the job was over (ended) after 19 measured iterations"},
		"falling numbers":  {"epochs", "batch #", "batch ([0-9]+)", "the number of iterations fell from 10 to 1"},
		"no numbers":       {"", "loss 0.3", "loss (.*)", `matched "0.3", expected a whole number`},
		"too large a step": {"", "#000000000", "([0-9]+)", "rose from 1000000000 to 2000000000 at once"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &testbedtest.GPUs{}
				row, err := jobTrial(f, job.fault, job.output, job.pattern).measure(t.Context(), c)
				if err == nil || !strings.Contains(err.Error(), job.want) || row != (profile.Row{}) {
					t.Errorf("got %+v and the error %v, want no row and %q", row, err, job.want)
				}
				if f.Running != 0 {
					t.Errorf("%d instances run, want none", f.Running)
				}
			})
		})
	}
}

// TestSlowJob checks that a job whose iterations are longer than the trial gives an error instead of figures.
func TestSlowJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		job := jobTrial(&testbedtest.GPUs{}, "", "step", "step")
		job.fn.Env["FAKE_MS"] = "50000"
		_, err := job.measure(t.Context(), profile.Config{SMPct: 100, Quota: 1, Batch: 1})
		if err == nil || !strings.Contains(err.Error(), "no iteration ended in") {
			t.Errorf("got the error %v, want that no iteration ended", err)
		}
	})
}
