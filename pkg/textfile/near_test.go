package textfile

import (
	"strings"
	"testing"
)

func TestNear(t *testing.T) {
	words := []string{"gpu-mem", "gpus", "seed", "slo"}
	for what, want := range map[string]string{
		"gpu-mme": "gpu-mem", "gpu_mem": "gpu-mem", "gpu": "gpus", "sed": "seed", "slo": "slo",
		"colour": "", "x": "", "": "", strings.Repeat("gpus", 100): "",
	} {
		if got := Near(what, words); got != want {
			t.Errorf("near %q is %q, want %q", what, got, want)
		}
	}
}

func TestSlip(t *testing.T) {
	words := []string{"slo_ms", "gpu", "p50_ms", "p99_ms", "mem_mib", "model"}
	for name, want := range map[string]string{
		"slo_m": "slo_ms", "SLO_MS": "slo_ms", "slo ms": "slo_ms", "Slo-Ms": "slo_ms", "mem_mb": "mem_mib", "MODEL": "model",
		"GPU": "gpu", "cpu": "", "p90_ms": "", "p9_ms": "", "": "", "slo_of_all": "",
		"slo": "slo_ms", "slo_sm": "slo_ms", "slo_seconds": "slo_ms", "mem": "mem_mib", "mem_gib": "mem_mib", "memory": "", "gpu_ms": "", "p95": "",
	} {
		if got := Slip(name, words); got != want {
			t.Errorf("%q is a slip of %q, want %q", name, got, want)
		}
	}
}

func TestBegins(t *testing.T) {
	words := []string{"n", "batch", "gpu", "gpu_mem_mib", "p95_ms", "throughput_rps", "quota", "sm_pct"}
	for name, want := range map[string]string{
		"batch_size": "batch", "batches": "batch", "Batch Size": "batch", "gpu_name": "gpu", "quota_limit": "quota", "quota_pct": "quota",
		"p95": "p95_ms", "p95_s": "p95_ms", "throughput": "throughput_rps", "sm": "sm_pct", "n_max": "n",
		"note": "", "p90_ms": "", "bat": "", "": "", "my_quota": "", "samples": "",
	} {
		if got := Begins(name, words); got != want {
			t.Errorf("%q begins like %q, want %q", name, got, want)
		}
	}
	if got := Begins("gpu_memory_mib", []string{"gpu_mem_mib"}); got != "gpu_mem_mib" {
		t.Errorf("gpu_memory_mib begins like %q, want gpu_mem_mib", got)
	}
}
