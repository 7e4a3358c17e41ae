package launch

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Stop ends an instance and leaves nothing of it: no process or container, no
// registration, no log, no shared memory. An instance that is gone already is no
// error. A record without a handle stands for one whose starter was killed, or
// whose runtime was: whatever the runtimes find of it is ended.
func (l *Launcher) Stop(ctx context.Context, r instance.Record) error {
	err := l.stop(ctx, r, stopGrace)
	for _, id := range r.Registered {
		if err == nil { // what may still run stays known
			err = l.config.Tokens.Unregister(ctx, id)
		}
	}
	if err != nil {
		return fmt.Errorf("stop instance %s: %w", r.ID, err)
	}
	return l.removeFiles(r)
}

func (l *Launcher) stop(ctx context.Context, r instance.Record, grace time.Duration) error {
	if r.Handle.Runtime == "" {
		return l.stopLost(ctx, r, grace)
	}
	rt, err := l.runtime(ctx, r.Handle.Runtime)
	if err != nil {
		return err
	}
	return rt.Stop(ctx, r.Handle, grace)
}

// stopLost ends what the runtimes find of an instance: the one that was asked
// to run it, or all when that is not known. Then a Docker engine that does not
// answer is taken to have nothing of ours; else it may have a container.
func (l *Launcher) stopLost(ctx context.Context, r instance.Record, grace time.Duration) error {
	for _, name := range runtimeNames {
		if r.Runtime != "" && r.Runtime != name {
			continue
		}
		rt, err := l.runtime(ctx, name)
		if ports.Unavailable(err) && r.Runtime == "" {
			continue
		}
		if err != nil {
			return err
		}
		found, err := rt.Find(ctx, r.ID)
		if err != nil {
			return err
		}
		for _, f := range found {
			if err := rt.Stop(ctx, f.Handle, grace); err != nil {
				return err
			}
		}
	}
	return nil
}

// removeFiles removes the log of an instance that has ended, and what it left
// of the simulated device.
func (l *Launcher) removeFiles(r instance.Record) error {
	path := r.Handle.LogPath
	if path == "" {
		path = l.logPath(r.ID)
	}
	if l.config.RemoveLog != nil {
		if err := l.config.RemoveLog(path); err != nil {
			return err
		}
	}
	return l.config.Device.Release(r.ID)
}

func (l *Launcher) logPath(id string) string {
	return filepath.Join(l.config.LogDir, id)
}

// undo takes back what Start did so far and returns the error to report. It
// has its own time, since the caller's may be up.
func (l *Launcher) undo(ctx context.Context, rt ports.Runtime, r instance.Record, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	failed := &ports.StartError{ID: r.ID, Err: cause}
	if r.Handle.Runtime != "" {
		failed.Log, _ = ports.Text(rt.Logs(ctx, r.Handle, ports.LogOptions{Tail: logLines})) // its absence must not hide the cause
	}
	l.keepFailed(ctx, rt, r)
	if r.Restarts > 0 {
		r.Handle.LogPath = "" // what it printed before it ended is wanted yet
	}
	if r.Runtime != "" { // the runtime was asked
		if err := l.stop(ctx, r, failGrace); err != nil {
			failed.Err = errors.Join(cause, fmt.Errorf("and it could not be stopped: %w", err))
			failed.Remains = true
			return failed
		}
	}
	if l.config.OutOfMemory != nil { // all that its processes did is known now
		failed.OutOfMemory = l.config.OutOfMemory(ctx, r.ID)
	}
	l.undoRegistration(ctx, r, failed)
	if r.Restarts > 0 {
		return failed
	}
	if err := l.removeFiles(r); err != nil {
		failed.Err, failed.Remains = errors.Join(failed.Err, err), true
	}
	return failed
}

// keepFailed keeps the last lines of an instance that is about to be removed. The log of one
// that had been ready before goes on.
func (l *Launcher) keepFailed(ctx context.Context, rt ports.Runtime, r instance.Record) {
	if l.config.KeepFailed == nil || r.Handle.Runtime == "" || r.Restarts > 0 {
		return
	}
	if err := l.config.KeepFailed(r.Function, r.ID, rt.Logs(ctx, r.Handle, ports.LogOptions{Tail: failedLines})); err != nil {
		l.config.Note("note: %s: what it printed is not kept: %v", r.ID, err)
	}
}

// undoRegistration makes the token daemon forget the instance, and adds to the
// error of its start if that fails.
func (l *Launcher) undoRegistration(ctx context.Context, r instance.Record, failed *ports.StartError) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	for _, id := range r.Registered {
		if err := l.config.Tokens.Unregister(ctx, id); err != nil {
			failed.Err, failed.Remains = errors.Join(failed.Err, err), true
		}
	}
}
