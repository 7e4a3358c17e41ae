package profile

import (
	"bytes"
	"strings"
	"testing"
)

const report = `Concurrency,Inferences/Second,Client Send,Server Queue,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency
1,70.5,200,60,0,14000,18000,20500,21000
4,85,300,30000,1,47000,56000,59000,60000
`

func TestReadPerfAnalyzer(t *testing.T) {
	got, err := ReadPerfAnalyzer(strings.NewReader(report), "r.csv")
	want := Measurement{Load: 1, ThroughputRPS: 70.5, P50MS: 14, P95MS: 20.5, P99MS: 21, Line: 2}
	if err != nil || len(got) != 2 || got[0] != want {
		t.Errorf("%+v, %v, want first %+v", got, err, want)
	}
	for text, want := range map[string]string{
		"":                                      "r.csv:1: ",
		"Concurrency\n1\n":                      "r.csv:1: Inferences/Second: the header has no such column",
		"Inferences/Second,p95 latency\n1,0\n":  `r.csv:2: p95 latency: "0"`,
		"Inferences/Second,p95 latency\nx,10\n": `r.csv:2: Inferences/Second: "x" is not a number`,
	} {
		if _, err := ReadPerfAnalyzer(strings.NewReader(text), "r.csv"); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got error %v, want %s", text, err, want)
		}
	}
}

// FuzzReadPerfAnalyzer checks that the rows that ReadPerfAnalyzer returns are
// valid rows of a profile.
func FuzzReadPerfAnalyzer(f *testing.F) {
	f.Add([]byte(report))
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := ReadPerfAnalyzer(bytes.NewReader(data), "r.csv")
		for _, m := range rows {
			row := Row{Function: "f", Config: Config{SMPct: 1, Quota: 1, Batch: 1}, ThroughputRPS: m.ThroughputRPS, P50MS: m.P50MS, P95MS: m.P95MS, P99MS: m.P99MS}
			var text bytes.Buffer
			if err == nil && Write(&text, []Row{row}) == nil {
				if _, err := Read(&text, "p.csv"); err != nil {
					t.Errorf("profile row of the measurement %+v: got error %v, want none", m, err)
				}
			}
		}
	})
}
