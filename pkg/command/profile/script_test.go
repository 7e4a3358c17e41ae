package profile

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gfaas/gfaas/pkg/command/cli/clitest"
)

func TestMain(m *testing.M) {
	// Those that run in parallel mostly wait, so there may be more of them than
	// processors. The command line still decides.
	_ = flag.Set("test.parallel", "8")
	testscript.Main(m, map[string]func(){"gfaas-profile": mainFake})
}

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Setenv("GFAAS_RUN_DIR", env.WorkDir+"/run")
			env.Setenv("GFAAS_STATE", env.WorkDir+"/state.db")
			env.Setenv("XDG_CONFIG_HOME", env.WorkDir+"/config")
			env.Setenv("GFAAS_PRECISION", "0") // a busy host must not make trials longer
			env.Setenv("GFAAS_PARK", "false")  // but where it is what is tried
			env.Setenv("GFAAS_GOODPUT", "false")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "interrupt": interrupt, "lines": lines, "tear": tear, "hold": hold, "serve": serve, "gateway": serveGateway, "applied": applied,
		},
	})
}

// command is a command in the script's environment.
func command(ts *testscript.TestScript, args []string) *exec.Cmd {
	path, err := exec.LookPath(ts.Getenv("PATH")[:strings.IndexByte(ts.Getenv("PATH"), ':')] + "/" + args[0])
	ts.Check(err)
	cmd := exec.Command(path, args[1:]...)
	cmd.Dir = ts.Getenv("WORK")
	for _, name := range []string{"PATH", "WORK", "GFAAS_RUN_DIR", "XDG_CONFIG_HOME", "FAKE_STOPPED", "FAKE_OTHERS", "GFAAS_DURATION", "GFAAS_WARMUP", "GFAAS_PRECISION", "GFAAS_STATE", "GFAAS_PARK", "GFAAS_GOODPUT", "TMPDIR"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	cmd.Stdout, cmd.Stderr = ts.Stdout(), ts.Stderr()
	return cmd
}

// exits N COMMAND…: the command ends with that status.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := clitest.Status(ts, command(ts, args[1:]).Run()); got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// interrupt FILE LINES N COMMAND…: the command is interrupted once the file
// has so many lines, and ends with status N.
func interrupt(ts *testscript.TestScript, _ bool, args []string) {
	have, err := strconv.Atoi(args[1])
	ts.Check(err)
	want, err := strconv.Atoi(args[2])
	ts.Check(err)
	cmd := command(ts, args[3:])
	ts.Check(cmd.Start())
	deadline := time.Now().Add(patience)
	for count(ts.MkAbs(args[0])) < have {
		if time.Now().After(deadline) {
			_ = cmd.Process.Kill()
			ts.Fatalf("%s does not get %d lines", args[0], have)
		}
		time.Sleep(5 * time.Millisecond) // between two looks
	}
	ts.Check(cmd.Process.Signal(syscall.SIGINT))
	if got := clitest.Status(ts, cmd.Wait()); got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// lines FILE N: the file has N lines.
func lines(ts *testscript.TestScript, _ bool, args []string) {
	if got := strconv.Itoa(count(ts.MkAbs(args[0]))); got != args[1] {
		ts.Fatalf("%s has %s lines, want %s", args[0], got, args[1])
	}
}

func count(path string) int {
	data, _ := os.ReadFile(path)
	return bytes.Count(data, []byte("\n"))
}

// tear FILE TEXT: the file ends in a line that a crash tore after TEXT.
func tear(ts *testscript.TestScript, _ bool, args []string) {
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	ts.Check(err)
	_, err = f.WriteString(args[1])
	ts.Check(errors.Join(err, f.Close()))
}

// hold GPU: another run measures on the GPU until the script ends.
func hold(ts *testscript.TestScript, _ bool, args []string) {
	release, err := lockGPUs(ts.Getenv("GFAAS_RUN_DIR"), args)
	ts.Check(err)
	ts.Defer(release)
}
