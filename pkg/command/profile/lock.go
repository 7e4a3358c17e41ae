package profile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/launch"
	"github.com/gfaas/gfaas/pkg/lockfile"
)

// lockGPUs takes the GPUs for this run: two runs on one GPU would measure each
// other. The locks go with the process, however it ends; release removes
// their files too.
func lockGPUs(runDir string, gpus []string) (release func(), err error) {
	if err := os.MkdirAll(runDir, 0o700); err != nil {
		return nil, noRunDir(err)
	}
	var held []*lockfile.Lock
	release = func() {
		for _, l := range held {
			_ = l.Remove()
		}
	}
	// In one order everywhere, so that two runs never wait for each other's.
	for _, name := range slices.Sorted(slices.Values(gpus)) {
		l, err := lockfile.Take(launch.MeasuredLock(runDir, name))
		var other *lockfile.HeldError
		switch {
		case errors.As(err, &other):
			err = busy(name, other.PID)
		case errors.Is(err, fs.ErrPermission):
			err = noRunDir(err)
		}
		if err != nil {
			release()
			return nil, err
		}
		held = append(held, l)
	}
	return release, nil
}

func noRunDir(err error) error {
	return cli.Fail(cli.ExitUnavailable, "set GFAAS_RUN_DIR to a folder of yours", fmt.Errorf("run directory: %w", err))
}

// lockResults locks the file of an earlier run, if there is one, until it is
// closed: of two that append to it neither would see where the other is. Not
// every file system has locks: without, there is a file and no lock.
func lockResults(path string) (l *lockfile.Lock, there bool, err error) {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil, false, nil // reading it says what is wrong, if anything
	}
	l, err = lockfile.TakeExisting(path)
	var other *lockfile.HeldError
	switch {
	case errors.As(err, &other):
		return nil, true, inUse(path)
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	}
	return l, true, nil
}

func inUse(path string) error {
	return cli.Fail(cli.ExitLocked, "wait until it is done, or name another file",
		fmt.Errorf("another gfaas-profile writes to %s: their rows would be lost", path))
}

func busy(gpuName string, holder int) error {
	by := "another gfaas-profile run"
	if holder != 0 {
		by += fmt.Sprintf(" (process %d)", holder)
	}
	return cli.Fail(cli.ExitUnavailable, "wait until it is done, or choose another GPU with --gpu",
		fmt.Errorf("%s measures on GPU %s: two at once would measure each other", by, gpuName))
}
