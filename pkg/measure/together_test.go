package measure

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/testbed/testbedtest"
	"github.com/gfaas/gfaas/pkg/profile"
)

// TestTogether compares several instances at once, which do not affect each other on the simulated GPUs, with one: the
// throughput is the sum, and the latency is the same.
func TestTogether(t *testing.T) {
	for _, spec := range []load.Spec{{Kind: load.Closed, Workers: 2}, {Kind: load.Poisson, RPS: 50}} {
		rows := map[int]profile.Row{}
		for _, n := range []int{1, 3} {
			synctest.Test(t, func(t *testing.T) {
				f := &testbedtest.GPUs{}
				tr := newTrial(f, "")
				tr.Instances, tr.Load.Spec = n, spec
				row, err := tr.measure(t.Context(), profile.Config{SMPct: 50, Quota: 1, Batch: 2})
				if err != nil {
					t.Fatal(err)
				}
				if row.Together() != n || f.MostRunning != n || f.Running != 0 || row.GPUMemMiB != 150 {
					t.Errorf("%v: got a row of %d instances of %v MiB; %d ran at once and %d run now; want %d of 150 MiB, and none", spec, row.Together(), row.GPUMemMiB, f.MostRunning, f.Running, n)
				}
				rows[n] = row
			})
		}
		if ratio := rows[3].ThroughputRPS / rows[1].ThroughputRPS; ratio < 2.8 || ratio > 3.2 {
			t.Errorf("%v: three instances have the throughput %v, one has %v; want about three times as much", spec, rows[3].ThroughputRPS, rows[1].ThroughputRPS)
		}
		if ratio := rows[3].P95MS / rows[1].P95MS; ratio < 0.75 || ratio > 1.25 {
			t.Errorf("%v: three instances have a p95 of %v ms, one has %v; want about the same", spec, rows[3].P95MS, rows[1].P95MS)
		}
	}
}

// TestTogetherFails checks that all instances are stopped after a failed start and after a failure of one.
func TestTogetherFails(t *testing.T) {
	for fault, want := range map[string]string{"start": "exit status 3", "ends": "the instance ended during the trial"} {
		synctest.Test(t, func(t *testing.T) {
			f := &testbedtest.GPUs{}
			tr := newTrial(f, fault)
			tr.Instances = 3
			_, err := tr.measure(t.Context(), profile.Config{SMPct: 12, Quota: 1, Batch: 1})
			if err == nil || !strings.Contains(err.Error(), want) || f.Running != 0 {
				t.Errorf("%s: got %v with %d instances running, want an error with %q and none", fault, err, f.Running, want)
			}
		})
	}
}

// TestEarlierInstances checks that a run resumes only rows of the same number of instances.
func TestEarlierInstances(t *testing.T) {
	tr := newTrial(nil, "")
	j := tr.Job
	j.Functions = append(j.Functions, tr.fn)
	row := profile.Row{Function: "f", GPU: "sim", Instances: 4, Line: 7}
	if _, err := j.EarlierRows([]profile.Row{row}, "p.csv"); err == nil || !strings.HasPrefix(err.Error(), "p.csv:7: instances: 4, expected 1, ") {
		t.Errorf("got %v, want an error about line 7", err)
	}
	j.Instances = 4
	if _, err := j.EarlierRows([]profile.Row{row}, "p.csv"); err != nil {
		t.Error(err)
	}
}
