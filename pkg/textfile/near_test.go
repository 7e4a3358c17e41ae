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
