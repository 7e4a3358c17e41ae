package launch

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/process"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/wire"
)

// seeing is a runtime that finds what a killed starter started.
type seeing struct {
	*instancetest.Fake
	id   string
	lost instance.Handle
}

func (s seeing) Find(_ context.Context, id string) ([]instance.Handle, error) {
	if id != s.id {
		return nil, nil
	}
	return []instance.Handle{s.lost}, nil
}

// What a killed gfaas-profile left is ended, what one that runs measures is
// not.
func TestStopMeasured(t *testing.T) {
	b := newBench(t, time.Minute)
	b.runDir = filepath.Join(b.runDir, "a[b]") // no pattern
	if err := os.Mkdir(b.runDir, 0o700); err != nil {
		t.Fatal(err)
	}
	b.options.RunDir = b.runDir
	id, lock := MeasuredID("sim:1"), MeasuredLock(b.runDir, "sim:1")
	p := place
	p.ID = id
	started, err := b.Start(t.Context(), serve, p)
	if err != nil {
		t.Fatal(err)
	}
	b.runtimes[process.Name] = seeing{b.process, id, started.Handle}
	f, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := b.StopMeasured(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.tokens.known[id].Instance != id {
		t.Error("stopped, though its lock is held")
	}
	_ = f.Close()
	if err := b.StopMeasured(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(lock); !os.IsNotExist(err) {
		t.Errorf("the lock is left: %v", err)
	}
	b.empty(t)
	if _, err := b.tokens.Register(t.Context(), wire.Registration{Instance: "profile-mine"}); err != nil {
		t.Fatal(err)
	}
	if err := b.StopMeasured(t.Context()); err != nil || len(b.tokens.known) != 1 {
		t.Errorf("without a lock: %v, %v known, want it left alone", err, b.tokens.known)
	}
}
