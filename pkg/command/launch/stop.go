package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Stop ends an instance and leaves nothing of it: no process or container, no
// registration, no log, no shared memory. An instance that is gone already is no error. A
// Started without a handle stands for one whose starter was killed, or whose
// runtime was: whatever the runtimes find of it is ended.
func (l *Launcher) Stop(ctx context.Context, s Started) error {
	var first error
	if s.Handle.Runtime == "" {
		first = l.stopLost(ctx, s, stopGrace)
	} else {
		first = l.stopHandle(ctx, s.Handle, stopGrace)
	}
	if first != nil {
		return fmt.Errorf("stop instance %s: %w", s.ID, first)
	}
	for _, id := range s.Registered {
		if err := l.unregister(ctx, id); err != nil {
			return fmt.Errorf("stop instance %s: %w", s.ID, err)
		}
	}
	return l.removeFiles(s)
}

func (l *Launcher) stopHandle(ctx context.Context, h instance.Handle, grace time.Duration) error {
	rt, err := l.runtime(ctx, h.Runtime)
	if err != nil {
		return err
	}
	return rt.Stop(ctx, h, grace)
}

// stopLost ends what the runtimes find of an instance: the one that was asked
// to run it, or all when that is not known. Then a Docker engine that does not
// answer is taken to have nothing of ours; else it may have a container.
func (l *Launcher) stopLost(ctx context.Context, s Started, grace time.Duration) error {
	for _, name := range runtimeNames {
		if s.Runtime != "" && s.Runtime != name {
			continue
		}
		rt, err := l.runtime(ctx, name)
		if cli.Unavailable(err) && s.Runtime == "" {
			continue
		}
		if err != nil {
			return err
		}
		handles, err := rt.Find(ctx, s.ID)
		if err != nil {
			return err
		}
		for _, h := range handles {
			if err := rt.Stop(ctx, h, grace); err != nil {
				return err
			}
		}
	}
	return nil
}

// unregister makes the token daemon forget an id. A daemon that is not there
// would know the id again when it comes back, so it is started to forget.
func (l *Launcher) unregister(ctx context.Context, id string) error {
	err := l.dial().Unregister(ctx, id)
	if !cli.Unavailable(err) {
		return err
	}
	if l.options.tokens == nil {
		l.mu.Lock()
		l.tokens = nil
		l.mu.Unlock()
	}
	tokens, err := l.daemon(ctx)
	if err != nil {
		return err
	}
	return tokens.Unregister(ctx, id)
}

// removeFiles removes the log of an instance that has ended, and what it left
// of the simulated device.
func (l *Launcher) removeFiles(s Started) error {
	path := s.Handle.LogPath
	if path == "" {
		path = l.logPath(s.ID)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// The folder goes with its last log.
	_ = os.Remove(filepath.Dir(l.logPath(s.ID)))
	return errors.Join(simgpu.Release(s.ID), simgpu.Sweep())
}

func (l *Launcher) logPath(id string) string {
	return filepath.Join(l.options.RunDir, "logs", id+".log")
}

// undo takes back what Start did so far and returns the error to report. It
// has its own time, since the caller's may be up.
func (l *Launcher) undo(ctx context.Context, rt ports.Runtime, s Started, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	failed := &StartError{ID: s.ID, Err: cause}
	var err error
	switch {
	case s.Handle.Runtime != "":
		failed.Log, _ = rt.Logs(ctx, s.Handle, logLines) // its absence must not hide the cause
		err = rt.Stop(ctx, s.Handle, failGrace)
	case s.Runtime != "":
		err = l.stopLost(ctx, s, failGrace)
	}
	if err != nil {
		failed.Err = errors.Join(cause, fmt.Errorf("and it could not be stopped: %w", err))
		failed.Remains = true
		return failed
	}
	l.undoRegistration(ctx, s, failed)
	if err := l.removeFiles(s); err != nil {
		failed.Err, failed.Remains = errors.Join(failed.Err, err), true
	}
	return failed
}

// undoRegistration makes the token daemon forget the instance, and adds to the
// error of its start if that fails.
func (l *Launcher) undoRegistration(ctx context.Context, s Started, failed *StartError) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	for _, id := range s.Registered {
		if err := l.unregister(ctx, id); err != nil {
			failed.Err, failed.Remains = errors.Join(failed.Err, err), true
		}
	}
}
