package kernel_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// The answer reports the time of each phase, in the JSON and in the header Server-Timing. The phases follow one
// another, so that their sum is at most the total. Statistics and metrics add them up.
func TestPhases(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), nil)
	const n = mib
	d.putObject("", "a", mibs(4, 1))
	request := strings.Replace(sum("a", "a", "c", n, ""), `"version":1`, `"version":1,"iterations":20`, 1)
	first := d.mustRun("", request)
	p := first.Phases
	if p.QueueMS != first.QueueMS || p.RunMS != first.GPUMS || p.LinkMS <= 0 || p.CopyInMS <= 0 || p.CopyOutMS <= 0 {
		t.Errorf("phases of the first run: got %+v, want the queue of %v, the run of %v, and more than 0 for the others", p, first.QueueMS, first.GPUMS)
	}
	if total := p.QueueMS + p.LinkMS + p.CopyInMS + p.RunMS + p.CopyOutMS; total > first.TotalMS {
		t.Errorf("sum of the phases: got %v ms, want at most the total of %v ms", total, first.TotalMS)
	}

	post, err := http.NewRequest("POST", "http://kerneld/v1/run", bytes.NewReader([]byte(request)))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := d.client.Do(post)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	var second struct {
		TotalMS float64 `json:"total_ms"`
		Phases  struct {
			Queue   float64 `json:"queue_ms"`
			Link    float64 `json:"link_ms"`
			CopyIn  float64 `json:"copy_in_ms"`
			Run     float64 `json:"run_ms"`
			CopyOut float64 `json:"copy_out_ms"`
		} `json:"phases"`
	}
	unmarshal(t, text, &second)
	s := second.Phases
	want := fmt.Sprintf("queue;dur=%.3f, link;dur=%.3f, copy-in;dur=%.3f, run;dur=%.3f, copy-out;dur=%.3f, total;dur=%.3f",
		s.Queue, s.Link, s.CopyIn, s.Run, s.CopyOut, second.TotalMS)
	if got := answer.Header.Get("Server-Timing"); got != want {
		t.Errorf("Server-Timing: got %q, want %q", got, want)
	}

	sums := d.stats().Clients[0].Phases
	if want := p.RunMS + s.Run; sums.RunMS < want*0.999 || sums.RunMS > want*1.001 || sums.CopyOutMS < p.CopyOutMS+s.CopyOut*0.999 {
		t.Errorf("phases in the statistics: got %+v, want the sums of %+v and %+v", sums, p, s)
	}
	metrics, err := d.do("", "GET", "/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, phase := range []string{"queue", "link", "copy-in", "run", "copy-out"} {
		if line := `gfaas_kernel_phase_seconds_count{phase="` + phase + `"} 2`; !strings.Contains(string(metrics), line) {
			t.Errorf("metrics: no line %s", line)
		}
	}
}
