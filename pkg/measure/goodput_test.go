package measure

import (
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/measure/testbed/testbedtest"
	"github.com/gfaas/gfaas/pkg/profile"
)

// trials is a TrialWriter.
type trials struct{ all []profile.Trial }

func (l *trials) Append(t profile.Trial) error {
	l.all = append(l.all, t)
	return nil
}

// withObjective returns a trial that measures the goodput for an objective and
// appends descriptions of its trials to notes.
func withObjective(f *testbedtest.GPUs, fault string, slo time.Duration, notes *[]string) trial {
	tr := newTrial(f, fault)
	tr.Goodput, tr.Load.Precision = true, 0.05
	tr.fn.SLO = slo
	tr.Functions = []function.Function{tr.fn}
	tr.progress = &recorder{tried: func(text string) { *notes = append(*notes, text) }}
	return tr
}

// The simulated instance is a queue with one server and constant service times, for which
// the largest rate with p95 within 5 service times is 71% of its throughput.
func TestGoodput(t *testing.T) {
	for _, c := range []profile.Config{{SMPct: 50, Quota: 1, Batch: 1}, {SMPct: 25, Quota: 0.8, Batch: 4}} {
		synctest.Test(t, func(t *testing.T) {
			service := 4 / (c.SMPct / 100 * c.Quota) // of one invocation, in ms
			var notes []string
			slo := time.Duration(5 * service * float64(time.Millisecond))
			f := &testbedtest.GPUs{}
			tr := withObjective(f, "", slo, &notes)
			log := &trials{}
			tr.log = log
			row, err := tr.measure(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if len(log.all) != len(notes) {
				t.Errorf("%d trials are kept, want %d", len(log.all), len(notes))
			}
			for _, k := range log.all {
				within := k.P95MS <= k.SLOMS
				if k.Config != c || k.SLOMS != row.SLOMS || k.Samples < 100 || within != (k.OfferedRPS < row.GoodputRPS) && math.Abs(k.OfferedRPS/row.GoodputRPS-1) > 0.08 {
					t.Errorf("goodput %v, kept %+v", row.GoodputRPS, k)
				}
			}
			want := 0.71 * float64(c.Batch) * 1000 / service
			if !row.GoodputKnown || math.Abs(row.GoodputRPS-want) > 0.08*want || row.GoodputCIRPS <= 0 || row.Unstable != 0 {
				t.Errorf("%v: goodput %v ± %v, want %v, by %q", c, row.GoodputRPS, row.GoodputCIRPS, want, notes)
			}
			if row.SLOMS != 5*service || math.Abs(row.IdleP95MS-service) > 0.01*service {
				t.Errorf("%v: objective %v ms, at rest %v ms, want %v and %v", c, row.SLOMS, row.IdleP95MS, 5*service, service)
			}
			if len(notes) < 2 || len(notes) > 8 || !strings.HasPrefix(notes[0], "goodput trial 1 at ") {
				t.Errorf("%q", notes)
			}
			if math.Abs(row.ThroughputRPS-float64(c.Batch)*1000/service) > 0.02*row.ThroughputRPS || len(f.Started) != 1 {
				t.Errorf("%v: throughput %v on %d instances", c, row.ThroughputRPS, len(f.Started))
			}
			if rps, _, ok := row.Goodput(row.SLOMS); !ok || rps != row.GoodputRPS {
				t.Errorf("%v, %v", rps, ok)
			}
		})
	}
}

func TestNoGoodputWithoutObjective(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var notes []string
		row, err := withObjective(&testbedtest.GPUs{}, "", 0, &notes).measure(t.Context(), profile.Config{SMPct: 50, Quota: 1, Batch: 1})
		if err != nil || row.GoodputKnown || row.SLOMS != 0 || row.IdleP95MS != 0 || len(notes) != 0 {
			t.Errorf("%+v, %v, %q", row, err, notes)
		}
	})
}

// With a dozen requests per trial, p95 and with it the goodput is unknown.
func TestUnknownGoodputIsUnstable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told, notes []string
		tr := withObjective(&testbedtest.GPUs{}, "", 5*time.Second, &told)
		tr.fn.Env["FAKE_MS"] = "1000"
		tr.Load.Precision = 0.05
		tr.progress = &recorder{note: func(text string) { notes = append(notes, text) }}
		row, err := tr.measure(t.Context(), profile.Config{SMPct: 50, Quota: 1, Batch: 1})
		if err != nil || row.GoodputKnown || row.GoodputRPS != 0 || row.Unstable != 1 || row.SLOMS != 5000 {
			t.Errorf("%+v, %v, %q", row, err, told)
		}
		if len(notes) == 0 || !strings.Contains(notes[len(notes)-1], "unstable: the goodput is unknown: ") {
			t.Errorf("notes %q", notes)
		}
	})
}

func TestGoodputWithOthersOnTheGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var notes []string
		f := &testbedtest.GPUs{}
		tr := withObjective(f, "", 40*time.Millisecond, &notes)
		time.AfterFunc(20*time.Second, func() { f.SetOthers("resnet-0") })
		_, err := tr.measure(t.Context(), profile.Config{SMPct: 50, Quota: 1, Batch: 1})
		if err == nil || !strings.HasPrefix(err.Error(), "resnet-0 also used the GPU during the search for the goodput") {
			t.Error(err)
		}
	})
}
