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
	// exclusiveWait limits how long a command waits for another one. It covers a gfaas up that waits for
	// instances in vain and then cleans up.
	exclusiveWait = 3 * time.Minute
	// tellAfter is the waiting time after which the command prints a note.
	tellAfter = time.Second
)

// AtWorkError reports that another command is still starting or stopping instances of the run directory.
type AtWorkError struct {
	RunDir string
	PID    int // of the other command; 0 if unknown
}

func (e *AtWorkError) Error() string {
	return fmt.Sprintf("%s is still starting or stopping instances in %s", e.holder(), e.RunDir)
}

func (e *AtWorkError) holder() string {
	if e.PID == 0 {
		return "another process"
	}
	return fmt.Sprintf("process %d", e.PID)
}

// Locked gives the error the exit status cli.ExitLocked.
func (e *AtWorkError) Locked() bool { return true }

// Hint returns the next step for the user.
func (e *AtWorkError) Hint() string { return "try again when it has ended, or stop it" }

// Exclusive waits until no other command is starting or stopping instances of the run directory, and then
// locks it. The lock ends when the caller calls release, or when this process and the children that have
// inherited the lock have ended. If the run directory does not exist and cannot be created, Exclusive
// succeeds without a lock; gfaas down may run in this state.
func Exclusive(ctx context.Context, env *cli.Env, runDir string) (release func(), err error) {
	return exclusive(ctx, env, runDir, exclusiveWait)
}

// AtWork reports whether a command holds the lock of Exclusive. It returns true if it cannot determine that.
func AtWork(runDir string) bool {
	lock, err := lockfile.AcquireExisting(lockPath(runDir))
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	_ = lock.Close()
	return false
}

func lockPath(runDir string) string { return filepath.Join(runDir, "instances.lock") }

func exclusive(ctx context.Context, env *cli.Env, runDir string, readyTimeout time.Duration) (release func(), err error) {
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
		return nil, &owndir.RunDirError{Err: err}
	}
	path := lockPath(runDir)
	lock, err := lockfile.Acquire(path)
	var held *lockfile.HeldError
	if errors.As(err, &held) {
		lock, err = await(ctx, env, path, &AtWorkError{runDir, held.PID}, readyTimeout)
	}
	if err != nil {
		return nil, err
	}
	return func() { _ = lock.Remove() }, nil
}

// await waits until the other command releases the lock, and takes it. After patience it returns other.
func await(ctx context.Context, env *cli.Env, path string, other *AtWorkError, readyTimeout time.Duration) (*lockfile.Lock, error) {
	noteTimer := time.AfterFunc(tellAfter, func() { env.Notef("note: waiting until %s has started or stopped its instances", other.holder()) })
	defer noteTimer.Stop()
	waiting, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	lock, err := lockfile.Await(waiting, path)
	if err != nil && ctx.Err() == nil && waiting.Err() != nil {
		return nil, other
	}
	return lock, err
}
