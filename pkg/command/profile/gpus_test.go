package profile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
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

func TestGPUsAreNotTakenWhereOthersWrite(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	release, err := lockGPUs(dir, []string{"sim"})
	if err == nil {
		release()
	}
	var e *cli.Error
	if !errors.As(err, &e) || e.Exit != cli.ExitUnavailable || !strings.Contains(e.Hint, "GFAAS_RUN_DIR") || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v", err)
	}
}

func TestModelOfTheDevice(t *testing.T) {
	dir := t.TempDir()
	if got := modelAt(dir, 0); got != "" {
		t.Errorf("without devices: %q", got)
	}
	add := func(bus, model string) {
		path := filepath.Join(dir, bus)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "information"), []byte("Model: \t\t "+model+"\nIRQ: 7\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	add("0000:01:00.0", "NVIDIA H200")
	add("0000:02:00.0", "NVIDIA H200")
	if got := modelAt(dir, 1); got != "NVIDIA H200" {
		t.Errorf("two alike: %q", got)
	}
	if got := modelAt(dir, 2); got != "" {
		t.Errorf("a device that is not there: %q", got)
	}
	add("0000:03:00.0", "NVIDIA L4")
	if got := modelAt(dir, 0); got != "" {
		t.Errorf("different ones: %q", got)
	}
}

func TestGPUNames(t *testing.T) {
	for _, tc := range []struct {
		first string
		n     int
		want  []string
	}{
		{"sim", 1, []string{"sim"}}, {"sim", 0, []string{"sim"}}, {"sim", 3, []string{"sim", "sim:1", "sim:2"}},
		{"sim:2", 2, []string{"sim:2", "sim:3"}}, {"4", 2, []string{"4", "5"}},
	} {
		if got := gpuNames(tc.first, tc.n); !slices.Equal(got, tc.want) {
			t.Errorf("%d from %s: %v", tc.n, tc.first, got)
		}
	}
}

func TestGPUGroups(t *testing.T) {
	pair := []function.Function{{Name: "a", GPUs: 1}, {Name: "b", GPUs: 2}}
	for _, tc := range []struct {
		list string
		fns  []function.Function
		want string
	}{
		{"0", nil, "[[0]]"},
		{"sim:1", pair, "[[sim:1 sim:2]]"},
		{"0, 2", pair[:1], "[[0] [2]]"},
		{"0,1,2,3", pair, "[[0 1] [2 3]]"},
		{"0,1,2", pair, "--gpu 0,1,2: 3 GPUs, expected a multiple of the 2 that an instance spans"},
		{"0,00", nil, "--gpu 0,00: 0 is given twice"},
		{"0,,1", nil, "--gpu: "},
	} {
		got, err := gpuGroups(tc.list, tc.fns)
		text := fmt.Sprint(got)
		if err != nil {
			text = err.Error()
		}
		if !strings.HasPrefix(text, tc.want) {
			t.Errorf("%s: %s, want %s", tc.list, text, tc.want)
		}
	}
}
