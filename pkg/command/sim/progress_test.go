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

// On a terminal a long run of cluster shows how far it is, and leaves nothing
// of it; elsewhere and under --quiet it says nothing.
func TestClusterShowsProgress(t *testing.T) {
	var text strings.Builder
	text.WriteString("time_s,action,instance,function,kind,gpus,sm_request,sm_limit,mem_mib\n")
	for i := range 600 {
		fmt.Fprintf(&text, "%d,start,i%d,f,inference,1,0.1,0.1,10\n", i, i)
	}
	path := filepath.Join(t.TempDir(), "events.csv")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, c := range []struct {
		terminal bool
		args     []string
		shows    bool
	}{
		{true, nil, true}, {true, []string{"--quiet"}, false}, {false, nil, false},
	} {
		var out, errs bytes.Buffer
		env := &cli.Env{Prog: "gfaas-sim", Out: &out, Err: &errs, ErrTerminal: c.terminal}
		root := env.Tree(NewRoot)
		root.SetArgs(append([]string{"cluster", "--events", path}, c.args...))
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		if shows := strings.Contains(errs.String(), "/600"); shows != c.shows || !c.shows && errs.Len() > 0 {
			t.Errorf("%+v shows %q", c, errs.String())
		}
		if !strings.Contains(out.String(), "600") {
			t.Errorf("%+v prints %q", c, out.String())
		}
	}
}
