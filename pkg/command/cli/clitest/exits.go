// Package clitest holds what scripts that test commands share.
package clitest

import (
	"errors"
	"maps"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// Run runs the scripts of the folder testdata, without the settings of whoever
// runs the tests, with the command exits and those of more.
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

// Exits is a script's command `exits N COMMAND…`: the command ends with that
// status.
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

// Status is the exit status of a command that ran and ended with that error.
func Status(ts *testscript.TestScript, err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	ts.Check(err)
	return 0
}
