package profile

import (
	"bytes"
	"encoding/csv"
	"slices"
	"strings"
	"testing"
)

const someTrials = `function,gpu,sm_pct,quota,batch,offered_rps,answered_rps,p95_ms,p95_ci_ms,slo_ms,misses,samples
resnet,L4,12,0.4,2,25.5,25,48.5,3,69,4,510
resnet,L4,12,0.4,2,40,31,,,69,800,800
`

func TestReadTrials(t *testing.T) {
	got, err := ReadTrials(strings.NewReader(someTrials), "t.csv")
	want := []Trial{
		{Function: "resnet", GPU: "L4", Config: Config{12, 0.4, 2}, OfferedRPS: 25.5, AnsweredRPS: 25, P95MS: 48.5, P95CIMS: 3, SLOMS: 69, Misses: 4, Samples: 510, Line: 2},
		{Function: "resnet", GPU: "L4", Config: Config{12, 0.4, 2}, OfferedRPS: 40, AnsweredRPS: 31, SLOMS: 69, Misses: 800, Samples: 800, Line: 3},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v, %v; want %v", got, err, want)
	}
	const head = "function,sm_pct,quota,offered_rps,p95_ms,slo_ms,misses,samples\n"
	for text, want := range map[string]string{
		"":                          "t.csv:1: ",
		"function\n":                "t.csv:1: sm_pct: the header has no such column",
		head + "f,1,1,0,1,1,1,1\n":  "t.csv:2: offered_rps: ",
		head + "f,1,1,1,0,1,1,1\n":  "t.csv:2: p95_ms: ",
		head + "f,1,1,1,1,,1,1\n":   "t.csv:2: slo_ms: ",
		head + "f,1,1,1,1,1,2,1\n":  "t.csv:2: misses: more than samples",
		head + "f,1,2,1,1,1,1,1\n":  "t.csv:2: quota: ",
		head + "f,1,1,1,-1,1,1,1\n": "t.csv:2: p95_ms: ",
	} {
		if _, err := ReadTrials(strings.NewReader(text), "t.csv"); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got error %v, want %s", text, err, want)
		}
	}
}

// FuzzReadTrials checks that a file that ReadTrials accepts is equal after being
// written and read again.
func FuzzReadTrials(f *testing.F) {
	f.Add([]byte(someTrials))
	f.Fuzz(func(t *testing.T, data []byte) {
		first, err := ReadTrials(bytes.NewReader(data), "t.csv")
		if err != nil {
			return
		}
		var text bytes.Buffer
		w := csv.NewWriter(&text)
		_ = w.Write(TrialHeader())
		for i, trial := range first {
			_ = w.Write(trial.Record())
			first[i].Line = i + 2
		}
		w.Flush()
		if second, err := ReadTrials(&text, "t.csv"); err != nil || !slices.Equal(first, second) {
			t.Errorf("trials after writing and reading: got %+v, %v; want %+v", second, err, first)
		}
	})
}
