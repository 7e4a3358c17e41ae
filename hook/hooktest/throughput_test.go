package hooktest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// kernels runs saturate for a second and returns the kernels per second.
func (h *host) kernels(env []string, args ...string) float64 {
	h.t.Helper()
	p := h.run(env, "victim/saturate", args...)
	if err := p.wait(); err != nil {
		h.t.Fatal(err)
	}
	var report struct {
		Launches float64
		Elapsed  float64 `json:"elapsed_s"`
	}
	if err := json.Unmarshal([]byte(p.out.String()), &report); err != nil {
		h.t.Fatalf("parse the program's report %s: %v", p.out.String(), err)
	}
	return report.Launches / report.Elapsed
}

// BenchmarkThroughput compares a program of 10 us kernels with and without the library,
// while it holds the lease of a whole GPU. The result is the ratio of kernels per
// second, as the median of pairs of alternating runs.
func BenchmarkThroughput(b *testing.B) {
	h := newHost(b)
	h.start()
	with := h.register("small", whole)
	without := append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(build, "lib/sim"), "GFAAS_SIM_DIR="+filepath.Join(h.runDir, "sim"))
	var kept []float64
	for range max(b.N, 5) {
		bare := h.kernels(without, "1", "10", "80", "0")
		kept = append(kept, h.kernels(with, "1", "10", "80", "0")/bare)
	}
	slices.Sort(kept)
	b.ReportMetric(100*(1-kept[len(kept)/2]), "%lost")
}
