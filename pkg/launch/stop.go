package launch

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Stop ends an instance and removes its resources: process or container, registration, log and
// shared memory. It succeeds if the instance has ended before. For a record without a handle, whose
// starter or runtime was killed, Stop ends every instance with that ID that the runtimes find.
func (l *Launcher) Stop(ctx context.Context, r instance.Record) error {
	err := l.runtimes.stop(ctx, r, stopGrace)
	for _, id := range r.Registered {
		if err == nil { // after an error, the instance may still run and must stay registered
			err = l.config.Tokens.Unregister(ctx, id)
		}
	}
	if err != nil {
		return fmt.Errorf("stop instance %s: %w", r.ID, err)
	}
	return l.removeFiles(r)
}

// removeFiles removes the log of an instance that has ended, and its files on the simulated device.
func (l *Launcher) removeFiles(r instance.Record) error {
	path := r.Handle.LogPath
	if path == "" {
		path = l.logPath(r.ID)
	}
	if err := l.config.RemoveLog(path); err != nil {
		return err
	}
	return l.config.Device.Release(r.ID)
}

func (l *Launcher) logPath(id string) string {
	return filepath.Join(l.config.LogDir, id)
}

// undo reverts an unfinished Start and returns its error. It has its own time limit, because the
// caller's context may have ended.
func (l *Launcher) undo(ctx context.Context, rt ports.Runtime, r instance.Record, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	failed := &ports.StartError{ID: r.ID, Err: cause}
	if r.Handle.Runtime != "" {
		failed.Log, _ = ports.Text(rt.Logs(ctx, r.Handle, ports.LogOptions{Tail: logLines})) // report the cause even without the log
	}
	l.keepFailed(ctx, rt, r)
	if r.Restarts > 0 {
		r.Handle.LogPath = "" // keep the output from before the restart
	}
	if r.Runtime != "" { // the runtime has received the request
		if err := l.runtimes.stop(ctx, r, failGrace); err != nil {
			failed.Err = errors.Join(cause, fmt.Errorf("cannot stop it: %w", err))
			failed.Remains = true
			return failed
		}
	}
	failed.OutOfMemory = l.config.OutOfMemory(ctx, r.ID) // its processes have ended, so the answer is final
	l.undoRegistration(ctx, r, failed)
	if r.Restarts > 0 {
		return failed
	}
	if err := l.removeFiles(r); err != nil {
		failed.Err, failed.Remains = errors.Join(failed.Err, err), true
	}
	return failed
}

// keepFailed stores the last lines of an instance before undo removes it. The log of a restarted
// instance continues and needs no copy.
func (l *Launcher) keepFailed(ctx context.Context, rt ports.Runtime, r instance.Record) {
	if r.Handle.Runtime == "" || r.Restarts > 0 {
		return
	}
	if err := l.config.KeepFailed(r.Function, r.ID, rt.Logs(ctx, r.Handle, ports.LogOptions{Tail: failedLines})); err != nil {
		l.config.Note("note: instance %s: cannot keep its output: %v", r.ID, err)
	}
}

// undoRegistration removes the instance's registration. If that fails, it adds the cause to failed and
// sets Remains.
func (l *Launcher) undoRegistration(ctx context.Context, r instance.Record, failed *ports.StartError) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	for _, id := range r.Registered {
		if err := l.config.Tokens.Unregister(ctx, id); err != nil {
			failed.Err, failed.Remains = errors.Join(failed.Err, err), true
		}
	}
}
