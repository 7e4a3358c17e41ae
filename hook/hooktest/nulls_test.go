package hooktest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestNulls calls every function with only zeros, as the first call of a process and in
// a context. The result is the driver's. Functions that the driver lacks can also be
// called, without a crash.
func TestNulls(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	answers := func(env []string) []string {
		p := h.run(env, "check/nulls")
		if err := p.wait(); err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(p.out.String()), "\n")
	}
	bare := answers(append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(build, "lib/sim"), "GFAAS_SIM_DIR="+filepath.Join(h.runDir, "sim")))
	hooked := answers(h.register("nulls", whole))
	if len(bare) < 1000 || len(bare) != len(hooked) {
		t.Fatalf("lines of check/nulls: got %d, and %d with the library; want equal numbers of at least 1000", len(bare), len(hooked))
	}
	for i, line := range bare {
		call, missing := strings.CutSuffix(line, " absent")
		ok := hooked[i] == line
		if missing {
			ok = strings.HasPrefix(hooked[i], call) && !strings.Contains(hooked[i], "signal")
		}
		if !ok || strings.Contains(line, "signal") {
			t.Errorf("call with null pointers: got %q with the library, want %q as without it, and no signal", hooked[i], line)
		}
	}
}
