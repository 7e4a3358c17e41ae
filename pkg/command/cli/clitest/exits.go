// Package clitest holds the setup (Run) and the commands (Exits, Await and others) that the script tests of all
// commands share.
package clitest

import (
	"errors"
	"maps"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// Run runs the test scripts in the folder testdata with an empty configuration folder. Scripts can use the command
// exits and the commands in more.
func Run(t *testing.T, more map[string]func(ts *testscript.TestScript, neg bool, args []string)) {
	commands := map[string]func(*testscript.TestScript, bool, []string){"exits": Exits}
	maps.Copy(commands, more)
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Setenv("XDG_CONFIG_HOME", env.WorkDir+"/config")
			return nil
		},
		Cmds: commands,
	})
}

// Exits implements the script command `exits N COMMAND…`, which checks that COMMAND ends with the exit status N.
func Exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits N COMMAND…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := Status(ts, ts.Exec(args[1], args[2:]...)); got != want {
		ts.Fatalf("%v: exit status %d, want %d", args[1:], got, want)
	}
}

// Status returns the exit status of a command from its error. It fails the script if the command did not run.
func Status(ts *testscript.TestScript, err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	ts.Check(err)
	return 0
}
