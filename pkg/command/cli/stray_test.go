package cli

import (
	"strings"
	"testing"
)

// TestStrayVariables: what is nearly one of our variables is told of, and nothing else.
func TestStrayVariables(t *testing.T) {
	for name, want := range map[string]string{
		"GFAAS_MAXRPS":    "GFAAS_MAXRPS, which means nothing: GFAAS_MAX_RPS?",
		"GFAAS_MAX_SPR":   "",
		"GFAAS_MAX_RP":    "GFAAS_MAX_RP, which means nothing: GFAAS_MAX_RPS?",
		"GFAAS_RUNDIR":    "GFAAS_RUNDIR, which means nothing: GFAAS_RUN_DIR?",
		"GFAAS_gpu_mem":   "GFAAS_gpu_mem, which means nothing: GFAAS_GPU_MEM?",
		"GFAAS_OF_OTHERS": "",
		"GFAAS_SIM_GPU":   "",
		"OTHER_GPUMEM":    "",
	} {
		t.Run(name, func(t *testing.T) {
			isolate(t)
			t.Setenv(name, "1")
			var p program
			_, _, stderr := p.execute(t, 0, "work")
			if want == "" && stderr != "" || !strings.Contains(stderr, want) {
				t.Errorf("%q, want %q", stderr, want)
			}
		})
	}
}
