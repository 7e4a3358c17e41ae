package host

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/lockfile"
)

func TestExclusive(t *testing.T) {
	env := &cli.Env{Prog: "gfaas", Err: &bytes.Buffer{}}
	run := filepath.Join(t.TempDir(), "run")
	release, err := Exclusive(t.Context(), env, run)
	if err != nil {
		t.Fatal(err)
	}
	var late *AtWorkError
	if _, err := exclusive(t.Context(), env, run, time.Millisecond); !errors.As(err, &late) || late.PID != os.Getpid() || !late.Locked() {
		t.Errorf("while another is at work: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		next, err := Exclusive(t.Context(), env, run)
		if err == nil {
			next()
		}
		done <- err
	}()
	if !AtWork(run) {
		t.Error("nothing is at work, while the lock is held")
	}
	release()
	if err := <-done; err != nil {
		t.Errorf("once it has ended: %v", err)
	}
	if AtWork(run) || AtWork(filepath.Join(run, "none")) {
		t.Error("something is at work, while the lock is not held")
	}
	if left, err := os.ReadDir(run); err != nil || len(left) != 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	if err := os.Chmod(run, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Exclusive(t.Context(), env, run); err == nil || !ports.Unavailable(err) || !strings.Contains(err.Error(), "writable by other users") {
		t.Errorf("where others can write: %v", err)
	}
}

// TestExclusiveTells checks that a waiting command prints a note with the other process.
func TestExclusiveTells(t *testing.T) {
	run, messages := t.TempDir(), make(chan string, 1)
	if err := os.Chmod(run, 0o700); err != nil {
		t.Fatal(err)
	}
	lock, err := lockfile.Acquire(filepath.Join(run, "instances.lock"))
	if err != nil {
		t.Fatal(err)
	}
	env := &cli.Env{Prog: "gfaas", Err: writer(func(p []byte) (int, error) { messages <- string(p); return len(p), nil })}
	done := make(chan error, 1)
	go func() {
		_, err := Exclusive(t.Context(), env, run)
		done <- err
	}()
	if text := <-messages; !strings.Contains(text, "waiting until process") {
		t.Errorf("said %q", text)
	}
	_ = lock.Remove()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
