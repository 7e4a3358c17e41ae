package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/owndir"
)

const (
	// exclusiveWait is how long a command waits for another: an up that fails has
	// had its patience, and then undoes what it did.
	exclusiveWait = 3 * time.Minute
	// tellAfter is how long it waits without a word.
	tellAfter = time.Second
)

// AtWorkError says that another command that starts and stops instances of the
// run directory did not end in time.
type AtWorkError struct {
	RunDir string
	PID    int // of the other, if it is known; else 0
}

func (e *AtWorkError) Error() string {
	return fmt.Sprintf("%s is still starting or stopping instances in %s", e.who(), e.RunDir)
}

func (e *AtWorkError) who() string {
	if e.PID == 0 {
		return "another process"
	}
	return fmt.Sprintf("process %d", e.PID)
}

// Locked marks the error for the exit status.
func (e *AtWorkError) Locked() bool { return true }

// Hint says what to do about it.
func (e *AtWorkError) Hint() string { return "try again when it has ended, or end it" }

// Exclusive waits until no other command starts or stops instances of the run
// directory, and keeps others from it until release is called, or this process
// and what it is about to start, which have the lock too, have ended. Without a run
// directory, as gfaas down may be, there is nobody to wait for.
func Exclusive(ctx context.Context, env *cli.Env, runDir string) (release func(), err error) {
	return exclusive(ctx, env, runDir, exclusiveWait)
}

// AtWork reports whether a command that has taken Exclusive of the run directory is at
// work. Where it cannot be told, one may be.
func AtWork(runDir string) bool {
	lock, err := lockfile.TakeExisting(lockPath(runDir))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	_ = lock.Close()
	return false
}

func lockPath(runDir string) string { return filepath.Join(runDir, "instances.lock") }

func exclusive(ctx context.Context, env *cli.Env, runDir string, patience time.Duration) (release func(), err error) {
	if err := tokend.CheckRunDir(runDir); err != nil {
		return nil, err
	}
	err = owndir.Ensure(runDir)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(runDir); err != nil {
			return func() {}, nil
		}
	}
	if err != nil {
		return nil, tokend.RunDirError(err)
	}
	path := lockPath(runDir)
	lock, err := lockfile.Take(path)
	var held *lockfile.HeldError
	if errors.As(err, &held) {
		lock, err = await(ctx, env, path, &AtWorkError{runDir, held.PID}, patience)
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Remove() }, nil
}

// await takes the lock once the other lets it go.
func await(ctx context.Context, env *cli.Env, path string, other *AtWorkError, patience time.Duration) (*lockfile.Lock, error) {
	tell := time.AfterFunc(tellAfter, func() { env.Notef("note: waiting until %s has started or stopped its instances", other.who()) })
	defer tell.Stop()
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	lock, err := lockfile.Await(waiting, path)
	if err != nil && ctx.Err() == nil && waiting.Err() != nil {
		return nil, other
	}
	return lock, err
}
