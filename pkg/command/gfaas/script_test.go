package gfaas

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gfaas/gfaas/pkg/command/cli/clitest"
	"github.com/gfaas/gfaas/pkg/command/tokend"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"gfaas":        func() { os.Exit(Main()) },
		"gfaas-tokend": func() { os.Exit(tokend.Main()) },
	})
}

// world is a place for commands to work in: programs, libraries, and a run
// directory and state file of their own.
type world struct {
	function string // a dynamically linked HTTP function
	static   string // a statically linked program; empty where none can be made
	libDir   string
}

// build compiles what the commands work with. The libraries are stand-ins:
// what they do is tested with the libraries themselves.
func build(t *testing.T) world {
	t.Helper()
	dir := t.TempDir()
	source, err := os.ReadFile("testdata/function.c")
	if err != nil {
		t.Fatal(err)
	}
	w := world{function: filepath.Join(dir, "function"), static: filepath.Join(dir, "static")}
	instancetest.Compile(t, w.function, source, "-O1")
	instancetest.Compile(t, w.static, []byte("int main(void) { return 0; }"), "-static", "-nostdlib", "-e", "main")
	hook, _ := instancetest.BuildLibs(t)
	w.libDir = filepath.Dir(hook)
	return w
}

// environ is what commands in a folder get beside PATH.
func (w world) environ(dir string) []string {
	return []string{
		"GFAAS_LIB_DIR=" + w.libDir, "GFAAS_RUN_DIR=" + filepath.Join(dir, "run"), "GFAAS_STATE=" + filepath.Join(dir, "state.db"),
		"GFAAS_SIM_DIR=" + filepath.Join(dir, "sim"),
		"FUNCTION=" + w.function, "STATIC=" + w.static, "GFAAS_SIM_GPU=", "HOME=" + dir, "XDG_CONFIG_HOME=" + dir,
		"DOCKER_HOST=unix://" + filepath.Join(dir, "no-docker.sock"),
	}
}

// down stops what a test left running.
func down(env []string) {
	cmd := exec.Command("gfaas", "down")
	cmd.Env = append(os.Environ(), env...)
	_ = cmd.Run()
}

func TestScripts(t *testing.T) {
	w := build(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			// Scripts run side by side and look for processes of their own.
			own := w
			own.function = filepath.Join(env.WorkDir, ".function")
			if err := os.Link(w.function, own.function); err != nil {
				return err
			}
			vars := own.environ(env.WorkDir)
			env.Vars = append(env.Vars, vars...)
			env.Defer(func() { down(vars) })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": clitest.Exits, "lock": lock},
	})
}

// lock FILE keeps a file locked until the script ends.
func lock(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: lock FILE")
	}
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_CREATE|os.O_RDWR, 0o600)
	ts.Check(err)
	ts.Defer(func() { _ = f.Close() })
	ts.Check(syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
}
