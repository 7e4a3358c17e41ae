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
	lockPollInterval = 10 * time.Millisecond
	// writeTimeout is how long AwaitWritten lets a keeper take to write the remaining output after the last
	// process has closed the pipe.
	writeTimeout = time.Second
	// lockTimeout is how long Start waits for the keeper of the instance's previous run to
	// end.
	lockTimeout = 10 * time.Second
)

// Start starts a keeper for the log in a folder and returns the pipe to print to. The
// command keeper must call Keep with its standard input and its last argument. Start
// appends to an existing log. It fails if another keeper holds the log's lock.
func Start(ctx context.Context, keeper []string, dir string) (pipe *os.File, err error) {
	var lock *os.File
	for range 10 { // removing the last other log also removes the parent folder
		if err = owndir.Ensure(filepath.Dir(dir)); err == nil {
			err = owndir.Ensure(dir)
		}
		if err == nil {
			lock, err = acquireLog(ctx, dir)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return nil, fmt.Errorf("log %s: %w", dir, err)
	}
	defer lock.Close() // the keeper has inherited it
	var ends [2]int
	// Not os.Pipe, because the printing process needs a blocking pipe.
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("log %s: %w", dir, err)
	}
	out, in := os.NewFile(uintptr(ends[0]), "log"), os.NewFile(uintptr(ends[1]), "log")
	defer out.Close()
	cmd := exec.Command(keeper[0], append(keeper[1:len(keeper):len(keeper)], dir)...)
	cmd.Dir, cmd.Stdin = "/", out
	// The keeper needs no environment, little CPU and little memory.
	cmd.Env = []string{"GOMAXPROCS=1", "GOGC=50"}
	if err := detach.Start(cmd, lock); err != nil {
		_ = in.Close()
		return nil, fmt.Errorf("start the keeper of log %s: %w", dir, err)
	}
	go func() { _ = cmd.Wait() }()
	return in, nil
}

// acquireLog acquires the log's lock, waiting up to lockTimeout, and checks that the log is
// writable.
func acquireLog(ctx context.Context, dir string) (*os.File, error) {
	root, err := open(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	lock, err := root.OpenFile(lockName, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	held := await(ctx, lockTimeout, func() bool { return lockfile.Flock(lock) == nil })
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

// AwaitWritten waits until the keeper of an ended instance has written all output and has ended, but
// at most writeTimeout, because children of the instance may keep the pipe open for longer.
func AwaitWritten(ctx context.Context, dir string) {
	root, err := open(dir)
	if err != nil {
		return
	}
	defer root.Close()
	await(ctx, writeTimeout, func() bool { return !hasKeeper(root) })
}

// hasKeeper reports whether a log has a keeper.
func hasKeeper(root *os.Root) bool {
	lock, err := root.OpenFile(lockName, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false
	}
	defer lock.Close()
	// A shared lock, so that several readers can check at the same time.
	return unix.Flock(int(lock.Fd()), unix.LOCK_SH|unix.LOCK_NB) != nil
}

// await polls done until it returns true, patience has passed or ctx ends.
func await(ctx context.Context, patience time.Duration, done func() bool) bool {
	late := time.NewTimer(patience)
	defer late.Stop()
	tick := time.NewTicker(lockPollInterval)
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

// Remove removes a log, and its parent folder after the last log. It returns nil if the log
// does not exist.
func Remove(dir string) error {
	root, err := open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range []string{currentFile, previousFile, nextFile, ResultFile, lockName} {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	err = os.Remove(dir)
	_ = os.Remove(filepath.Dir(dir))
	return err
}
