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
	var atWork *AtWorkError
	if _, err := exclusive(t.Context(), env, run, time.Millisecond); !errors.As(err, &atWork) || atWork.PID != os.Getpid() || !atWork.Locked() {
		t.Errorf("Exclusive while another process holds the lock: got the error %v, want an AtWorkError of process %d", err, os.Getpid())
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
		t.Error("AtWork while the lock is held: got false, want true")
	}
	release()
	if err := <-done; err != nil {
		t.Errorf("Exclusive after the release: %v", err)
	}
	if AtWork(run) || AtWork(filepath.Join(run, "none")) {
		t.Error("AtWork while the lock is not held: got true, want false")
	}
	if remaining, err := os.ReadDir(run); err != nil || len(remaining) != 0 {
		t.Errorf("files in the run directory at the end: got %v, %v; want none", remaining, err)
	}
	if err := os.Chmod(run, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := Exclusive(t.Context(), env, run); err == nil || !ports.Unavailable(err) || !strings.Contains(err.Error(), "writable by other users") {
		t.Errorf("run directory that others can write to: got the error %v, want one that says so", err)
	}
}

// TestExclusiveNamesHolder checks that a waiting command prints a note with the other process.
func TestExclusiveNamesHolder(t *testing.T) {
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
		t.Errorf("note of a waiting command: got %q, want one with the process", text)
	}
	_ = lock.Remove()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
