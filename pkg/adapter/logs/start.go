package logs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/detach"
	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/owndir"
)

const (
	pause = 10 * time.Millisecond
	// settling is how long a keeper may take to write what the last who could
	// print has printed.
	settling = time.Second
	// handover is how long the keeper of an instance that has ended may take to end
	// too, where the instance is started again.
	handover = 10 * time.Second
)

// Start starts the keeper, a command that calls Keep with its standard input and
// its last argument, for the log in that folder. What is printed to the pipe goes
// there. A log that is there is gone on with, unless it has a keeper.
func Start(ctx context.Context, keeper []string, dir string) (pipe *os.File, err error) {
	var lock *os.File
	for range 10 { // who removes the last log beside this one removes the folder above
		if err = owndir.Ensure(filepath.Dir(dir)); err == nil {
			err = owndir.Ensure(dir)
		}
		if err == nil {
			lock, err = begin(ctx, dir)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("log %s: %w", dir, err)
	}
	defer lock.Close() // the keeper has it too
	var ends [2]int
	// Not by os.Pipe: who prints must find it blocking, whatever Go does to its own.
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("log %s: %w", dir, err)
	}
	out, in := os.NewFile(uintptr(ends[0]), "log"), os.NewFile(uintptr(ends[1]), "log")
	defer out.Close()
	cmd := exec.Command(keeper[0], append(keeper[1:len(keeper):len(keeper)], dir)...)
	cmd.Dir, cmd.Stdin = "/", out
	// Nothing of the environment is for it; it has little to do and to remember.
	cmd.Env = []string{"GOMAXPROCS=1", "GOGC=50"}
	if err := detach.Start(cmd, lock); err != nil {
		_ = in.Close()
		return nil, fmt.Errorf("keep log %s: %w", dir, err)
	}
	go func() { _ = cmd.Wait() }()
	return in, nil
}

// begin locks a log and sees to it that it can be written to.
func begin(ctx context.Context, dir string) (*os.File, error) {
	root, err := open(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	lock, err := root.OpenFile(lockName, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	held := await(ctx, handover, func() bool { return lockfile.Hold(lock) == nil })
	if !held {
		err = errors.New("another instance writes to it")
	} else if w := (&writer{root: root}); err == nil {
		if err = w.open(); err == nil {
			err = w.file.Close()
		}
	}
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return lock, nil
}

// Settle waits until all is in the log that its instance has printed; not long,
// since what the instance has started may print on.
func Settle(ctx context.Context, dir string) {
	root, err := open(dir)
	if err != nil {
		return
	}
	defer root.Close()
	await(ctx, settling, func() bool { return !kept(root) })
}

// kept says whether a log has a keeper.
func kept(root *os.Root) bool {
	lock, err := root.OpenFile(lockName, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer lock.Close()
	// Shared: others may look at the same time.
	return unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}

// await polls for as long as a keeper may take.
func await(ctx context.Context, patience time.Duration, done func() bool) bool {
	late := time.NewTimer(patience)
	defer late.Stop()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for !done() {
		select {
		case <-late.C:
			return done()
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// Remove removes a log, and the folder it was in with the last. One that is gone
// is no error.
func Remove(dir string) error {
	root, err := open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range []string{currentFile, previousFile, nextFile, lockName} {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	err = os.Remove(dir)
	_ = os.Remove(filepath.Dir(dir))
	return err
}
