package profile

import (
	"bytes"
	"strings"
	"testing"
)

// TestInstances checks that rows of several instances keep their number, and that readers of single instances refuse
// them.
func TestInstances(t *testing.T) {
	const file = "function,sm_pct,quota,throughput_rps,p95_ms,instances\nf,10,1,30,5,1\nf,10,1,50,5,4\nf,10,1,60,5,8\n"
	rows, err := ReadAll(strings.NewReader(file), "p.csv")
	if err != nil {
		t.Fatal(err)
	}
	if rows[0].Instances != 0 || rows[0].Together() != 1 || rows[1].Together() != 4 || rows[1].Efficacy() != 125 {
		t.Errorf("got %+v, want 1, 4 and 8 instances, and an efficacy of 125 for 4", rows)
	}
	var text bytes.Buffer
	if err := Write(&text, rows); err != nil {
		t.Fatal(err)
	}
	again, err := ReadAll(&text, "p.csv")
	if err != nil || len(again) != 3 || again[0] != rows[0] || again[2].Instances != 8 {
		t.Errorf("written and read again: %+v, %v; want the same rows", again, err)
	}
	if _, err := Read(strings.NewReader(file), "p.csv"); err == nil || !strings.HasPrefix(err.Error(), "p.csv:3: instances: 4, expected 1: ") {
		t.Errorf("read as single instances: got %v, want a fault in line 3", err)
	}
	if form := FormOf(rows[:1]); form.Instances {
		t.Error("a profile of single instances has the column instances, want none")
	}
	for cell, want := range map[string]string{"0": "p.csv:2: instances: ", "257": "p.csv:2: instances: ", "x": "p.csv:2: instances: "} {
		_, err := ReadAll(strings.NewReader("function,sm_pct,quota,throughput_rps,p95_ms,instances\nf,10,1,30,5,"+cell+"\n"), "p.csv")
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("instances %s: got %v, want a fault that begins %q", cell, err, want)
		}
	}
}
