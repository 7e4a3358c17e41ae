package profile

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

const small = `function,sm_pct,quota,batch,throughput_rps,p95_ms,gpu,gpu_mem_mib,note
resnet,12,0.4,1,30.5,20.5,V100,1427,x
resnet,24,0.4,1,40,15,V100,1427,
resnet,24,0.4,1,60,15,A100,1427,
`

func TestRead(t *testing.T) {
	rows, err := Read(strings.NewReader(small), "p.csv")
	if err != nil {
		t.Fatal(err)
	}
	want := Row{Function: "resnet", GPU: "V100", Config: Config{SMPct: 12, Quota: 0.4, Batch: 1},
		ThroughputRPS: 30.5, P95MS: 20.5, GPUMemMiB: 1427, Line: 2}
	if len(rows) != 3 || rows[0] != want {
		t.Errorf("got %+v, want 3 rows, the first %+v", rows, want)
	}
}

func TestBatchIsOneUnlessGiven(t *testing.T) {
	rows, err := Read(strings.NewReader("function,sm_pct,quota,throughput_rps,p95_ms\na,1,1,1,1\n"), "p.csv")
	if err != nil || rows[0].Batch != 1 {
		t.Errorf("got %+v, %v; want a row with batch 1", rows, err)
	}
}

func TestReadFaults(t *testing.T) {
	const head = "function,sm_pct,quota,batch,throughput_rps,p95_ms\n"
	for what, c := range map[string]struct{ text, want string }{
		"same configuration":  {head + "a,1,1,1,1,1\na,2,1,1,1,1\na,1.0,1,1,2,2\n", `p.csv:4: function: "a at sm_pct 1, quota 1, batch 1" is on line 2 already`},
		"quota above 1":       {head + "a,1,1.5,1,1,1\n", `p.csv:2: quota: "1.5" is out of range, expected more than 0`},
		"SM above 100":        {head + "a,101,1,1,1,1\n", `p.csv:2: sm_pct: "101" is out of range`},
		"SM 0":                {head + "a,0,1,1,1,1\n", "p.csv:2: sm_pct: "},
		"batch 0":             {head + "a,1,1,0,1,1\n", `p.csv:2: batch: "0" is out of range, expected a whole number from 1`},
		"batch not whole":     {head + "a,1,1,1.5,1,1\n", `p.csv:2: batch: "1.5" is not a whole number`},
		"batch too large":     {head + "a,1,1,9999999,1,1\n", "p.csv:2: batch: "},
		"negative throughput": {head + "a,1,1,1,-1,1\n", "p.csv:2: throughput_rps: "},
		"no latency":          {head + "a,1,1,1,1,0\n", "p.csv:2: p95_ms: 0, expected more than 0 because throughput_rps is above 0"},
		"SM limit below":      {"function,sm_pct,quota,throughput_rps,p95_ms,sm_limit_pct\na,30,1,1,1,60\na,40,1,1,1,30\n", "p.csv:3: sm_limit_pct: 30 is below the request, expected at least 40, the sm_pct of the row"},
		"quota limit below":   {"function,sm_pct,quota,throughput_rps,p95_ms,quota_limit\na,30,0.5,1,1,0.4\n", "p.csv:2: quota_limit: 0.4 is below the request, expected at least 0.5, the quota of the row"},
		"quota limit above 1": {"function,sm_pct,quota,throughput_rps,p95_ms,quota_limit\na,30,0.5,1,1,2\n", `p.csv:2: quota_limit: "2" is out of range`},
		"SM limit 0":          {"function,sm_pct,quota,throughput_rps,p95_ms,sm_limit_pct\na,30,1,1,1,0\n", `p.csv:2: sm_limit_pct: "0" is out of range`},
		"no column":           {"function,sm_pct,quota,throughput_rps\n", "p.csv:1: p95_ms: the header has no such column"},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := Read(strings.NewReader(c.text), "p.csv")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

// TestLimits checks that a row has the limits that it states: an empty cell is the request if the row states the other
// limit, and no limit otherwise.
func TestLimits(t *testing.T) {
	rows, err := Read(strings.NewReader("function,sm_pct,quota,throughput_rps,p95_ms,quota_limit,sm_limit_pct\n"+
		"a,20,0.4,1,1,0.8,50\na,30,0.4,1,1,0.8,\na,40,0.4,1,1,,80\na,50,0.4,1,1,,\n"), "p.csv")
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		sm, quota float64
		stated    bool
	}{{50, 0.8, true}, {30, 0.8, true}, {80, 0.4, true}, {50, 0.4, false}} {
		if sm, quota, stated := rows[i].Limits(); sm != want.sm || quota != want.quota || stated != want.stated {
			t.Errorf("limits of row %d: got %v, %v, %v, want %+v", i, sm, quota, stated, want)
		}
	}
	var text bytes.Buffer
	if err := Write(&text, rows); err != nil {
		t.Fatal(err)
	}
	again, err := Read(&text, "p.csv")
	if err != nil || !reflect.DeepEqual(again, rows) {
		t.Errorf("written and read again: got %+v, %v, want %+v", again, err, rows)
	}
	if header := FormOf(rows[3:]).Header(); reflect.DeepEqual(header, Whole.Header()) || len(header) != len(basicColumns) {
		t.Errorf("header without limits: got %v, want only the columns of every profile", header)
	}
}

func TestThroughputMayBeZero(t *testing.T) {
	if _, err := Read(strings.NewReader("function,sm_pct,quota,throughput_rps,p95_ms,errors\na,1,1,0,0,12\n"), "p.csv"); err != nil {
		t.Errorf("a row with a throughput of 0: got error %v, want none", err)
	}
}

func TestRecordFollowsHeader(t *testing.T) {
	for _, form := range []Form{{}, {Limits: true}, Whole} {
		if got, want := len(form.Record(Row{})), len(form.Header()); got != want {
			t.Errorf("fields of a record: got %d, want %d, one for each column", got, want)
		}
	}
	known := map[string]bool{}
	for _, c := range columns {
		known[c.Name] = true
	}
	for _, name := range Whole.Header() {
		if !known[name] {
			t.Errorf("column %s is written and not read, want both", name)
		}
		delete(known, name)
	}
	if len(known) > 0 {
		t.Errorf("columns %v are read and not written, want none", known)
	}
}

// FuzzRead checks that a file that Read accepts is equal after Write and Read.
func FuzzRead(f *testing.F) {
	f.Add([]byte(small))
	f.Add([]byte("function,sm_pct,quota,throughput_rps,p95_ms,slo_ms,goodput_rps\na,1,1,1,1,5,0\nb,1,1,1,1,,\n"))
	f.Add([]byte("function,sm_pct,quota,throughput_rps,p95_ms\n\"a,\"\"b\",1e-3,.5,1e-9,1e12\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := Read(bytes.NewReader(data), "p.csv")
		if err != nil {
			return
		}
		var text bytes.Buffer
		if err := Write(&text, first); err != nil {
			t.Fatal(err)
		}
		second, err := Read(&text, "p.csv")
		if err != nil {
			t.Fatal(err)
		}
		for i := range first {
			first[i].Line = i + 2
		}
		if len(first) != len(second) || len(first) > 0 && !reflect.DeepEqual(first, second) {
			t.Errorf("rows after writing and reading: got %+v, want %+v", second, first)
		}
	})
}
