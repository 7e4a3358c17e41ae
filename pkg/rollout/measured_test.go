package rollout

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/lockfile"
)

// stopOnlyStarter is a Starter that implements only Stop.
type stopOnlyStarter struct {
	ports.Starter
	stopped []string
}

func (s *stopOnlyStarter) Stop(_ context.Context, r instance.Record) error {
	if r.Handle.Runtime != "" || r.Runtime != "" || !slices.Equal(r.Registered, []string{r.ID}) {
		return fs.ErrInvalid
	}
	s.stopped = append(s.stopped, r.ID)
	return nil
}

// TestStopMeasured checks that the instance of a killed gfaas-profile is stopped, and the instance of a running one is not.
func TestStopMeasured(t *testing.T) {
	runDir := filepath.Join(t.TempDir(), "a[b]") // must not act as a pattern
	if err := os.Mkdir(runDir, 0o700); err != nil {
		t.Fatal(err)
	}
	path, s := MeasuredLock(runDir, "sim:1"), &stopOnlyStarter{}
	lock, err := lockfile.Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := StopMeasured(t.Context(), s, runDir); err != nil || len(s.stopped) > 0 {
		t.Errorf("stopped %v, %v, though its lock is held; want none", s.stopped, err)
	}
	_ = lock.Close()
	for range 2 { // the second call finds no lock
		if err := StopMeasured(t.Context(), s, runDir); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(s.stopped, []string{"profile-sim-1"}) || s.stopped[0] != MeasuredID("sim:1") {
		t.Errorf("stopped %v", s.stopped)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the lock is left: %v", err)
	}
}
