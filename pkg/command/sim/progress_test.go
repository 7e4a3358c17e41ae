package sim

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

// TestLongRunsShowProgress checks that long runs show their progress on a terminal, but neither
// elsewhere nor with --quiet.
func TestLongRunsShowProgress(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	var events, series strings.Builder
	events.WriteString("time_s,action,instance,function,kind,gpus,sm_request,sm_limit,mem_mib\n")
	series.WriteString("second,rps\n")
	for i := range 600 {
		fmt.Fprintf(&events, "%d,start,i%d,f,inference,1,0.1,0.1,10\n", i, i)
		fmt.Fprintf(&series, "%d,5\n", i)
	}
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	profile := file("profile.csv", "function,sm_pct,quota,throughput_rps,p95_ms,cold_ms\nf,10,1,10,5,100\n")
	for _, run := range [][]string{
		{"cluster", "--events", file("events.csv", events.String())},
		{"scale", "--rps", file("series.csv", series.String()), "--profile", profile, "--function", "f", "--scaler", "eager"},
	} {
		for _, c := range []struct {
			terminal bool
			quiet    string
			shows    bool
		}{
			{true, "--quiet=false", true}, {true, "--quiet", false}, {false, "--quiet=false", false},
		} {
			var out, errs bytes.Buffer
			env := &cli.Env{Prog: "gfaas-sim", Out: &out, Err: &errs, ErrTerminal: c.terminal}
			root := env.Tree(NewRoot)
			root.SetArgs(append(run, c.quiet))
			root.SetOut(&out)
			if err := root.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			if shows := strings.Contains(errs.String(), "/600"); shows != c.shows || !c.shows && errs.Len() > 0 {
				t.Errorf("%s %+v: standard error is %q, want a bar: %v", run[0], c, errs.String(), c.shows)
			}
			if out.Len() == 0 {
				t.Errorf("%s %+v: standard output is empty, want the result", run[0], c)
			}
		}
	}
}
