package profile

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gfaas/gfaas/pkg/command/cli/clitest"
)

func TestMain(m *testing.M) {
	// Parallel tests mostly wait, so more of them than processors can run. The command line takes precedence.
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
			env.Setenv("GFAAS_PRECISION", "0") // keeps trials short on a busy host
			env.Setenv("GFAAS_PARK", "false")  // except in scripts about it
			env.Setenv("GFAAS_GOODPUT", "false")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "interrupt": interrupt, "lines": lines, "tear": appendIncompleteLine, "hold": hold, "serve": serve, "gateway": serveGateway, "applied": applied,
		},
	})
}

// command returns a command with the script's environment.
func command(ts *testscript.TestScript, args []string) *exec.Cmd {
	path, err := exec.LookPath(ts.Getenv("PATH")[:strings.IndexByte(ts.Getenv("PATH"), ':')] + "/" + args[0])
	ts.Check(err)
	cmd := exec.Command(path, args[1:]...)
	cmd.Dir = ts.Getenv("WORK")
	for _, name := range []string{"PATH", "WORK", "GFAAS_RUN_DIR", "XDG_CONFIG_HOME", "FAKE_STOPPED", "FAKE_OTHERS", "GFAAS_DURATION", "GFAAS_WARMUP", "GFAAS_PRECISION", "GFAAS_STATE", "GFAAS_PARK", "GFAAS_GOODPUT", "TMPDIR", "SSL_CERT_FILE"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	cmd.Stdout, cmd.Stderr = ts.Stdout(), ts.Stderr()
	return cmd
}

// unanswered matches the error of gfaas-profile load if no request finished and none failed.
var unanswered = regexp.MustCompile(`(?m)^gfaas-profile: error: no request finished in [0-9a-z.]+$`)

// exits implements the script command exits N COMMAND…, which checks the exit status. On a busy machine, no request of
// a short load may finish in time; the command is then repeated.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	for deadline := time.Now().Add(patience); ; {
		var stdout, stderr bytes.Buffer
		cmd := command(ts, args[1:])
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		got := clitest.Status(ts, cmd.Run())
		if got != want && unanswered.Match(stderr.Bytes()) && time.Now().Before(deadline) {
			continue
		}
		_, err := stdout.WriteTo(ts.Stdout())
		_, err2 := stderr.WriteTo(ts.Stderr())
		ts.Check(errors.Join(err, err2))
		if got != want {
			ts.Fatalf("exit status %d, want %d", got, want)
		}
		return
	}
}

// interrupt implements the script command interrupt FILE LINES N COMMAND…. It interrupts the command when the file has
// LINES lines, and checks that it ends with status N.
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
		time.Sleep(5 * time.Millisecond) // poll
	}
	ts.Check(cmd.Process.Signal(syscall.SIGINT))
	if got := clitest.Status(ts, cmd.Wait()); got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// lines implements the script command lines FILE N, which checks the number of lines.
func lines(ts *testscript.TestScript, _ bool, args []string) {
	if got := strconv.Itoa(count(ts.MkAbs(args[0]))); got != args[1] {
		ts.Fatalf("%s has %s lines, want %s", args[0], got, args[1])
	}
}

func count(path string) int {
	data, _ := os.ReadFile(path)
	return bytes.Count(data, []byte("\n"))
}

// appendIncompleteLine implements the script command tear FILE TEXT, which appends an incomplete line, as a crash would leave.
func appendIncompleteLine(ts *testscript.TestScript, _ bool, args []string) {
	f, err := os.OpenFile(ts.MkAbs(args[0]), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	ts.Check(err)
	_, err = f.WriteString(args[1])
	ts.Check(errors.Join(err, f.Close()))
}

// hold implements the script command hold GPU. It locks the GPU, like another run, until the script ends.
func hold(ts *testscript.TestScript, _ bool, args []string) {
	release, err := lockGPUs(ts.Getenv("GFAAS_RUN_DIR"), [][]string{args}, 1)
	ts.Check(err)
	ts.Defer(release)
}
