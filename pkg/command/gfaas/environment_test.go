package gfaas

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/procfs"
)

const patience = time.Minute

// environment is an environment in which a test runs commands.
type environment struct {
	t     *testing.T
	dir   string
	env   []string
	image string // image of the function, for tests with containers
}

func newEnvironment(t *testing.T) *environment {
	p := &environment{t: t, dir: t.TempDir()}
	p.env = build(t).environ(p.dir)
	t.Cleanup(func() { down(p.env) })
	return p
}

func (p *environment) command(args ...string) *exec.Cmd {
	cmd := exec.Command("gfaas", args...)
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), p.env...)
	// Stay out of the foreground process group of the tests' terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// output runs a command that must succeed.
func (p *environment) output(args ...string) string {
	p.t.Helper()
	text, err := p.command(args...).Output()
	if err != nil {
		var exited *exec.ExitError
		if errors.As(err, &exited) {
			err = fmt.Errorf("%w\n%s", err, exited.Stderr)
		}
		p.t.Fatalf("gfaas %v: %v", args, err)
	}
	return string(text)
}

func (p *environment) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func eventually(t *testing.T, condition string, ok func() bool) {
	t.Helper()
	if !poll(ok) {
		t.Fatalf("timed out: %s", condition)
	}
}

// poll evaluates a condition until it is true, and returns false if it stays false for the time of patience. The
// pauses grow with the time that the condition takes, up to 100 ms: one that starts a program must not use up the
// processors that the other tests need.
func poll(ok func() bool) bool {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		began := time.Now()
		if ok() {
			return true
		}
		time.Sleep(min(max(5*time.Millisecond, 3*time.Since(began)), 100*time.Millisecond))
	}
	return false
}

func exitStatus(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

func (p *environment) getenv(name string) string {
	for _, kv := range slices.Backward(p.env) { // the last entry takes precedence
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

// functions counts the running processes of the environment's function.
func (p *environment) functions() (n int) {
	all, err := procfs.Stats() // unlike a glob, reports unreadable entries
	if err != nil {
		p.t.Fatal(err)
	}
	for _, s := range all {
		if target, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", s.PID)); err == nil && target == p.getenv("FUNCTION") {
			n++
		}
	}
	return n
}

// checkNothingRemains fails the test if any part of an instance remains.
func (p *environment) checkNothingRemains() {
	p.t.Helper()
	if text := p.output("ps", "-o", "json"); strings.TrimSpace(text) != "[]" {
		p.t.Errorf("gfaas ps: got %s, want no instances", text)
	}
	if n := p.functions(); n != 0 {
		p.t.Errorf("processes of functions: got %d, want 0", n)
	}
	for _, glob := range []string{"logs-*", "run/instances/*", "sim/*"} {
		if remaining, _ := filepath.Glob(filepath.Join(p.dir, glob)); len(remaining) > 0 {
			p.t.Errorf("remaining files %s: got %v, want none", glob, remaining)
		}
	}
}

// lookPath finds a program on PATH.
func (p *environment) lookPath(name string) string {
	p.t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		p.t.Fatal(err)
	}
	return path
}
