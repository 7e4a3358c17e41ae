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

// place is a world that a test runs commands in.
type place struct {
	t     *testing.T
	dir   string
	env   []string
	image string // of what runs as a container, where a test says so
}

func newPlace(t *testing.T) *place {
	p := &place{t: t, dir: t.TempDir()}
	p.env = build(t).environ(p.dir)
	t.Cleanup(func() { down(p.env) })
	return p
}

func (p *place) command(args ...string) *exec.Cmd {
	cmd := exec.Command("gfaas", args...)
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), p.env...)
	// Not the foreground group of whatever terminal the tests run on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// output runs a command that must succeed.
func (p *place) output(args ...string) string {
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

func (p *place) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
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

func (p *place) getenv(name string) string {
	for _, kv := range slices.Backward(p.env) { // the last counts
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}

// functions counts the running processes of the place's function.
func (p *place) functions() (n int) {
	all, err := procfs.All() // which, unlike a glob, tells of what it could not read
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

// nothing fails the test if anything of an instance is left.
func (p *place) nothing() {
	p.t.Helper()
	if text := p.output("ps", "-o", "json"); strings.TrimSpace(text) != "[]" {
		p.t.Errorf("ps: %s", text)
	}
	if n := p.functions(); n != 0 {
		p.t.Errorf("%d processes are left", n)
	}
	for _, glob := range []string{"logs-*", "run/instances/*", "sim/*"} {
		if left, _ := filepath.Glob(filepath.Join(p.dir, glob)); len(left) > 0 {
			p.t.Errorf("left: %v", left)
		}
	}
}

// look finds a program on PATH.
func (p *place) look(name string) string {
	p.t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		p.t.Fatal(err)
	}
	return path
}
