package cli

import (
	"strings"
	"testing"
)

// TestStrayVariables: variables with our prefix that are none of ours are told of, and
// nothing else.
func TestStrayVariables(t *testing.T) {
	for name, want := range map[string]string{
		"GFAAS_MAXRPS":      "GFAAS_MAXRPS, which means nothing: GFAAS_MAX_RPS?",
		"GFAAS_MAX_SPR":     "mean nothing: GFAAS_MAX_SPR\n",
		"GFAAS_MAX_RP":      "GFAAS_MAX_RP, which means nothing: GFAAS_MAX_RPS?",
		"GFAAS_RUNDIR":      "GFAAS_RUNDIR, which means nothing: GFAAS_RUN_DIR?",
		"GFAAS_gpu_mem":     "GFAAS_gpu_mem, which means nothing: GFAAS_GPU_MEM?",
		"GFAAS_OF_OTHERS":   "tool: note: the environment has variables that mean nothing: GFAAS_OF_OTHERS\n",
		"GFAAS_VERSION":     "GFAAS_VERSION",
		"GFAAS_SIM_GPU":     "",
		"GFAAS_SOAK":        "",
		"GFAAS_ACTIVE_HELP": "",
		"OTHER_GPUMEM":      "",
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

// TestVariablesOfInstances: a program under a slice says nothing of what it was given,
// and several that are strange are one note.
func TestVariablesOfInstances(t *testing.T) {
	isolate(t)
	for _, name := range Variables() {
		if name != "GFAAS_CONFIG" {
			t.Setenv(name, "1")
		}
	}
	var p program
	if _, _, stderr := p.execute(t, 0, "work"); stderr != "" {
		t.Errorf("in an instance: %q", stderr)
	}
	t.Setenv("GFAAS_ZZ", "1")
	t.Setenv("GFAAS_FOO", "1")
	if _, _, stderr := p.execute(t, 0, "work"); stderr != "tool: note: the environment has variables that mean nothing: GFAAS_FOO, GFAAS_ZZ\n" {
		t.Errorf("two: %q", stderr)
	}
}
