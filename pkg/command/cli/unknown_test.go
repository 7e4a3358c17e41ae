package cli

import (
	"strings"
	"testing"
)

// TestUnknownVariables checks that a note names unknown variables with the prefix GFAAS_ and no others.
func TestUnknownVariables(t *testing.T) {
	for name, want := range map[string]string{
		"GFAAS_MAXRPS":      "unknown environment variable GFAAS_MAXRPS: GFAAS_MAX_RPS?",
		"GFAAS_MAX_SPR":     "unknown environment variables: GFAAS_MAX_SPR\n",
		"GFAAS_MAX_RP":      "unknown environment variable GFAAS_MAX_RP: GFAAS_MAX_RPS?",
		"GFAAS_RUNDIR":      "unknown environment variable GFAAS_RUNDIR: GFAAS_RUN_DIR?",
		"GFAAS_gpu_mem":     "unknown environment variable GFAAS_gpu_mem: GFAAS_GPU_MEM?",
		"GFAAS_OF_OTHERS":   "tool: note: unknown environment variables: GFAAS_OF_OTHERS\n",
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
				t.Errorf("note about unknown variables: got %q, want %q", stderr, want)
			}
		})
	}
}

// TestVariablesOfInstances checks that a program in a slice prints no note about the slice's variables, and that several
// unknown variables share one note.
func TestVariablesOfInstances(t *testing.T) {
	isolate(t)
	for _, name := range Variables() {
		if name != "GFAAS_CONFIG" {
			t.Setenv(name, "1")
		}
	}
	var p program
	if _, _, stderr := p.execute(t, 0, "work"); stderr != "" {
		t.Errorf("standard error in an instance: got %q, want nothing", stderr)
	}
	t.Setenv("GFAAS_ZZ", "1")
	t.Setenv("GFAAS_FOO", "1")
	if _, _, stderr := p.execute(t, 0, "work"); stderr != "tool: note: unknown environment variables: GFAAS_FOO, GFAAS_ZZ\n" {
		t.Errorf("standard error with two unknown variables: got %q, want one note that names both", stderr)
	}
}
