package gpus

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/owndir"
)

// lockAll locks GPUs with one lock file for each, in the run directory dir.
func lockAll(dir string, names []string) (release func(), err error) {
	return Lock(dir, names, func(gpu string) string { return filepath.Join(dir, gpu+".lock") })
}

func TestLockRefusesGPUInUse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	release, err := lockAll(dir, []string{"sim", "sim:1"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = lockAll(dir, []string{"0", "sim:1"})
	var e *BusyError
	if !errors.As(err, &e) || !e.Unavailable() || e.Hint() == "" || e.PID != os.Getpid() || !strings.Contains(err.Error(), "GPU sim:1") {
		t.Errorf("second lock: %v", err)
	}
	again, err := lockAll(dir, []string{"0"})
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

func TestLockRefusesDirectoryOfOthers(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	release, err := lockAll(dir, []string{"sim"})
	if err == nil {
		release()
	}
	var e *owndir.RunDirError
	if !errors.As(err, &e) || !e.Unavailable() || !strings.Contains(e.Hint(), "GFAAS_RUN_DIR") || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v", err)
	}
}

func TestConsecutive(t *testing.T) {
	for _, tc := range []struct {
		first string
		n     int
		want  []string
	}{
		{"sim", 1, []string{"sim"}}, {"sim", 0, []string{"sim"}}, {"sim", 3, []string{"sim", "sim:1", "sim:2"}},
		{"sim:2", 2, []string{"sim:2", "sim:3"}}, {"4", 2, []string{"4", "5"}},
	} {
		if got := consecutive(tc.first, tc.n); !slices.Equal(got, tc.want) {
			t.Errorf("%d from %s: %v, want %v", tc.n, tc.first, got, tc.want)
		}
	}
}

func TestGroups(t *testing.T) {
	pair := []function.Function{{Name: "a", GPUs: 1}, {Name: "b", GPUs: 2}}
	for _, tc := range []struct {
		names string
		fns   []function.Function
		want  string
	}{
		{"0", nil, "[[0]]"},
		{"sim:1", pair, "[[sim:1 sim:2]]"},
		{"0 2", pair[:1], "[[0] [2]]"},
		{"0 1 2 3", pair, "[[0 1] [2 3]]"},
		{"0 1 2", pair, "3 GPUs, expected a multiple of 2, the number of GPUs of an instance"},
	} {
		got, err := Groups(strings.Fields(tc.names), tc.fns)
		text := fmt.Sprint(got)
		if err != nil {
			text = err.Error()
		}
		if text != tc.want {
			t.Errorf("%s: %s, want %s", tc.names, text, tc.want)
		}
	}
}
