package host

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

// stopper is a Starter that only stops.
type stopper struct {
	ports.Starter
	stopped []string
}

func (s *stopper) Stop(_ context.Context, r instance.Record) error {
	if r.Handle.Runtime != "" || r.Runtime != "" || !slices.Equal(r.Registered, []string{r.ID}) {
		return fs.ErrInvalid
	}
	s.stopped = append(s.stopped, r.ID)
	return nil
}

// What a killed gfaas-profile left is ended, what one that runs measures is
// not.
func TestStopMeasured(t *testing.T) {
	runDir := filepath.Join(t.TempDir(), "a[b]") // no pattern
	if err := os.Mkdir(runDir, 0o700); err != nil {
		t.Fatal(err)
	}
	path, s := MeasuredLock(runDir, "sim:1"), &stopper{}
	lock, err := lockfile.Take(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := StopMeasured(t.Context(), s, runDir); err != nil || len(s.stopped) > 0 {
		t.Errorf("stopped %v, %v, though its lock is held", s.stopped, err)
	}
	_ = lock.Close()
	for range 2 { // the second time there is no lock
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
