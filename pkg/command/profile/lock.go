package profile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/launch"
)

// lockGPUs takes the GPUs for this run: two runs on one GPU would measure each
// other. The locks go with the process, however it ends; release removes
// their files too.
func lockGPUs(runDir string, gpus []string) (release func(), err error) {
	if err := os.MkdirAll(runDir, 0o700); err != nil {
		return nil, noRunDir(err)
	}
	var held []*os.File
	release = func() {
		for _, f := range held {
			_ = os.Remove(f.Name()) // while the lock is held: nobody else can have it
			_ = f.Close()
		}
	}
	// In one order everywhere, so that two runs never wait for each other's.
	for _, name := range slices.Sorted(slices.Values(gpus)) {
		f, err := lockFile(launch.MeasuredLock(runDir, name), name)
		if err != nil {
			release()
			return nil, err
		}
		held = append(held, f)
	}
	return release, nil
}

func noRunDir(err error) error {
	return cli.Fail(cli.ExitUnavailable, "set GFAAS_RUN_DIR to a folder of yours", fmt.Errorf("run directory: %w", err))
}

// lockFile locks a file that its holder may remove: the lock counts only if
// the path still leads to what was locked.
func lockFile(path, gpuName string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, fs.ErrPermission) {
			return nil, noRunDir(err)
		}
		if err != nil {
			return nil, err
		}
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			holder, _ := os.ReadFile(path)
			_ = f.Close()
			return nil, busy(gpuName, strings.TrimSpace(string(holder)))
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		if current(f, path) {
			err = errors.Join(f.Truncate(0), write(f, strconv.Itoa(os.Getpid())+"\n"))
			return f, err
		}
		_ = f.Close()
	}
}

// lockResults locks the file of an earlier run, if there is one, until it is
// closed: of two that append to it neither would see where the other is.
func lockResults(path string) (*os.File, error) {
	for {
		if there, err := os.Stat(path); err != nil || !there.Mode().IsRegular() {
			return nil, nil // reading it says what is wrong, if anything
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		// Not every file system has locks.
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
			_ = f.Close()
			return nil, inUse(path)
		}
		if current(f, path) {
			return f, nil
		}
		_ = f.Close()
	}
}

func inUse(path string) error {
	return cli.Fail(cli.ExitLocked, "wait until it is done, or name another file",
		fmt.Errorf("another gfaas-profile writes to %s: their rows would be lost", path))
}

func write(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

func current(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(open, there)
}

func busy(gpuName, holder string) error {
	by := "another gfaas-profile run"
	if holder != "" {
		by += " (process " + holder + ")"
	}
	return cli.Fail(cli.ExitUnavailable, "wait until it is done, or choose another GPU with --gpu",
		fmt.Errorf("%s measures on GPU %s: two at once would measure each other", by, gpuName))
}
