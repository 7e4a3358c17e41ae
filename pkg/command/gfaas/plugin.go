package gfaas

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

var pluginName = regexp.MustCompile(`^[a-z0-9][-a-z0-9]*$`)

// runPlugin becomes the program gfaas-X for `gfaas X …`, unless X is a command
// of gfaas itself or there is no such program. When it returns ran, the
// program could not be started and status is the exit status.
func runPlugin(args []string) (status int, ran bool) {
	if len(args) == 0 || !pluginName.MatchString(args[0]) || builtIn(args[0]) {
		return 0, false
	}
	path, err := findPlugin("gfaas-" + args[0])
	if err != nil {
		return 0, false
	}
	argv := append([]string{"gfaas-" + args[0]}, args[1:]...)
	err = syscall.Exec(path, argv, os.Environ())
	fmt.Fprintf(os.Stderr, "gfaas: error: %s: %v\n", path, err)
	return cli.ExitFailure, true
}

// builtIn says whether cobra or we have a command of that name.
func builtIn(name string) bool {
	switch name {
	case "help", "completion", "__complete", "__completeNoDesc":
		return true
	}
	for _, cmd := range NewRoot(&cli.Env{Out: io.Discard, Err: io.Discard}).Commands() {
		if cmd.Name() == name || cmd.HasAlias(name) {
			return true
		}
	}
	return false
}

// findPlugin looks beside this program, then on PATH.
func findPlugin(name string) (string, error) {
	if exe, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(exe), name)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
}
