package profile

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// older is a file in the format from before goodputs existed.
const older = `function,gpu,sm_pct,quota,batch,throughput_rps,p50_ms,p95_ms,p99_ms,gpu_mem_mib,model_mem_mib,gpu_util_pct,sm_occupancy_pct,errors,samples,trial_s,warm_ms,cold_ms,load_ms,throughput_ci_rps,p95_ci_ms,unstable,power_w
resnet,V100,12,0.4,1,30.5,18,20.5,21,1427,98,55.5,,0,305,10,17.2,812,,0.6,1.1,0,120.5
bert,,100,1,8,0,,0,,,,,,,,,,,,,,,
`

func TestProfileWithoutGoodputIsWrittenAsBefore(t *testing.T) {
	rows, err := Read(strings.NewReader(older), "p.csv")
	if err != nil {
		t.Fatal(err)
	}
	if rows[0].GoodputKnown || rows[0].SLOMS != 0 {
		t.Errorf("row without a goodput: got %+v, want GoodputKnown false and SLOMS 0", rows[0])
	}
	if _, _, ok := rows[0].Goodput(69); ok {
		t.Error("Goodput of a row without a goodput: got ok, want not ok")
	}
	var text bytes.Buffer
	if err := Write(&text, rows); err != nil || text.String() != older {
		t.Errorf("profile after reading and writing: got %v and\n%s\nwant\n%s", err, &text, older)
	}
}

func TestGoodputIsWritten(t *testing.T) {
	config := Config{SMPct: 12, Quota: 0.4, Batch: 1}
	rows := []Row{
		{Function: "a", Config: config, ThroughputRPS: 30, P95MS: 20, SLOMS: 69, GoodputKnown: true, GoodputRPS: 21.5, GoodputCIRPS: 0.9, IdleP95MS: 18.2},
		{Function: "b", Config: config, ThroughputRPS: 30, P95MS: 20, SLOMS: 10, GoodputKnown: true}, // no rate meets the objective
		{Function: "c", Config: config, ThroughputRPS: 30, P95MS: 20, SLOMS: 10, Unstable: 1, TrialS: 10},
		{Function: "d", Config: config, ThroughputRPS: 30, P95MS: 20},
	}
	var text bytes.Buffer
	if err := Write(&text, rows); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{",power_w,goodput_rps,goodput_ci_rps,slo_ms,idle_p95_ms\n", ",21.5,0.9,69,18.2\n", ",,0,,10,\n", ",1,,,,10,\n", ",,,,\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("profile: want it to contain %q, got\n%s", want, &text)
		}
	}
	again, err := Read(&text, "p.csv")
	if err != nil {
		t.Fatal(err)
	}
	for i := range again {
		again[i].Line = 0
	}
	if !slices.Equal(again, rows) {
		t.Errorf("rows after writing and reading: got %+v, want %+v", again, rows)
	}
	for i, known := range []bool{true, true, false, false} {
		if _, _, ok := again[i].Goodput(rows[i].SLOMS); ok != known {
			t.Errorf("Goodput of %s at its objective: got known %v, want %v", rows[i].Function, ok, known)
		}
		if _, _, ok := again[i].Goodput(100); ok {
			t.Errorf("%s: Goodput at 100 ms, an objective that was not measured: got ok, want not ok", rows[i].Function)
		}
	}
}

func TestGoodputNeedsItsObjective(t *testing.T) {
	_, err := Read(strings.NewReader("function,sm_pct,quota,throughput_rps,p95_ms,goodput_rps\na,1,1,1,1,1\n"), "p.csv")
	if err == nil || !strings.Contains(err.Error(), "p.csv:2: slo_ms: empty, expected the objective of the goodput in goodput_rps") {
		t.Errorf("a goodput without slo_ms: got error %v, want p.csv:2: slo_ms: empty, expected the objective of the goodput in goodput_rps", err)
	}
}
