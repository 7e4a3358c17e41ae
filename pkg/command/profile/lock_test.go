package profile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

func TestGPUIsMeasuredByOneRunAtATime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	release, err := lockGPUs(dir, []string{"sim", "sim:1"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = lockGPUs(dir, []string{"0", "sim:1"})
	var e *cli.Error
	if !errors.As(err, &e) || e.Exit != cli.ExitUnavailable || e.Hint == "" || !strings.Contains(err.Error(), "GPU sim:1") {
		t.Errorf("second lock: %v", err)
	}
	again, err := lockGPUs(dir, []string{"0"})
	if err != nil {
		t.Errorf("the refused run kept GPU 0: %v", err)
	} else {
		again()
	}
	release()
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

// Holders that remove the file while others open it never hold it together.
func TestLockFileMayBeRemovedWhileOthersTry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var holders, held atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 300 {
				f, err := lockFile(path, "sim")
				if err != nil {
					continue
				}
				if holders.Add(1) != 1 {
					t.Error("two hold the lock")
				}
				held.Add(1)
				holders.Add(-1)
				_ = os.Remove(path)
				_ = f.Close()
			}
		})
	}
	all.Wait()
	if held.Load() == 0 {
		t.Error("nobody ever held it")
	}
}
