package pkg_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRapidScript: the script appends its flag to a test program's arguments if the
// program has property tests, and exits with the program's status.
func TestRapidScript(t *testing.T) {
	knows := strings.Join([]string{"rapid", "seed"}, ".") // split, so that this test program does not match
	for text, want := range map[string]string{
		"# " + knows:  "-test.v a b -flag=1\n",
		"# rapidseed": "-test.v a b\n",
	} {
		program := filepath.Join(t.TempDir(), "p.test")
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+text+"\necho \"$@\"\nexit 3\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("./rapid.sh", "-flag=1", program, "-test.v", "a b").Output()
		if exit := new(exec.ExitError); string(out) != want || !errors.As(err, &exit) || exit.ExitCode() != 3 {
			t.Errorf("%s: %q, %v, want %q", text, out, err, want)
		}
	}
}

// TestRapidScriptMemory: the script removes the compiler's GOGC from the environment of a
// test program, and sets its own value for policies and simulations.
func TestRapidScriptMemory(t *testing.T) {
	script, err := filepath.Abs("rapid.sh")
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		"policy/queue": "400", "policy/place/joint": "400", "sim": "400", "sim/twin": "400",
		".": "", "daemon/token": "", "command/sim": "",
	} {
		cmd := exec.Command(script, "-flag=1", "/bin/sh", "-c", `printf %s "$GOGC"`)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOGC=70")
		if out, err := cmd.Output(); string(out) != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", dir, out, err, want)
		}
	}
}
