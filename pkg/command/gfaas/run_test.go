package gfaas

import (
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/mps/mpstest"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/gpu"
)

func TestRunNames(t *testing.T) {
	for command, want := range map[string]string{
		"/usr/bin/python3.11": "python3-11-", "./[": "run-", "train me.py": "train-me-py-", strings.Repeat("x", 99): strings.Repeat("x", 32) + "-",
	} {
		a, err := (&runOptions{}).instance(command)
		b, _ := (&runOptions{}).instance(command)
		if err != nil || !strings.HasPrefix(a, want) || a == b {
			t.Errorf("names of two runs of %s: got %q and %q, %v; want %s… and two that differ", command, a, b, err, want)
		}
	}
}

// TestOnMPS checks which programs count as clients of MPS. The kernel must not kill such a client together with gfaas
// run, because its GPU work has to end first.
func TestOnMPS(t *testing.T) {
	mpstest.Install(t)
	owners := t.TempDir()
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", owners)
	for name, c := range map[string]struct {
		pipes     string
		simulated bool
		owners    bool // the owner's daemon runs
		want      bool
	}{
		"private daemon":                 {pipes: "/run/pipes", want: true},
		"no daemon":                      {},
		"owner's daemon":                 {owners: true, want: true},
		"owner's daemon, simulated GPU":  {owners: true, simulated: true},
		"private and the owner's daemon": {pipes: "/run/pipes", owners: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.owners {
				mpstest.Start(t, owners)
			}
			if got := onMPS(preload.Grant{MPSPipeDir: c.pipes}, gpu.Device{Simulated: c.simulated}); got != c.want {
				t.Errorf("program is a client of MPS: got %v, want %v", got, c.want)
			}
		})
	}
}
