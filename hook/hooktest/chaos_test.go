package hooktest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestChaos makes random calls on streams, events, captures, graphs and memory, with
// and without the library. The results are the same. The second driver answers slowly
// whether a stream is captured.
func TestChaos(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	bare := append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(build, "lib/sim"), "GFAAS_SIM_DIR="+filepath.Join(h.runDir, "sim"))
	hooked := h.register("chaos", whole)
	slow := append(append(h.register("slow", whole), hidden(t)...), "HIDDEN_PAUSE_US=200")
	for seed := 1; seed <= 20; seed++ {
		answers := func(env []string) []string {
			p := h.run(env, "check/chaos", fmt.Sprint(seed), "1000")
			if err := p.wait(); err != nil {
				t.Fatalf("program with seed %d: %v", seed, err)
			}
			return strings.Split(p.out.String(), "\n")
		}
		want := answers(bare)
		for _, env := range [][]string{hooked, slow} {
			got := answers(env)
			for i := range want {
				if i >= len(got) || got[i] != want[i] {
					t.Fatalf("seed %d, call %d: bare %q, under the library %q", seed, i, want[i], got[min(i, len(got)-1)])
				}
			}
		}
	}
}
