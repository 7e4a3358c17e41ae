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
