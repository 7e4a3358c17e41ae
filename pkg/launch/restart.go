package launch

import (
	"context"
	"fmt"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Restart starts an instance again after it has ended or become unusable. It first stops the remaining
// processes in its session or container. The log continues.
func (l *Launcher) Restart(ctx context.Context, fn function.Function, r instance.Record, note func(instance.Record) error) (instance.Record, error) {
	previous := r
	previous.Handle.LogPath = "" // keep the log
	if err := l.runtimes.stop(ctx, previous, failGrace); err != nil {
		return r, &ports.StartError{ID: r.ID, Err: fmt.Errorf("stop its remaining processes: %w", err)}
	}
	for _, id := range r.Registered {
		if err := l.config.Tokens.Unregister(ctx, id); err != nil {
			return r, &ports.StartError{ID: r.ID, Err: err}
		}
	}
	again, err := l.Start(ctx, fn, instance.Placement{ID: r.ID, GPUs: r.GPUs, Slice: r.Slice, Turns: r.Turns, RPS: r.RPS, Batch: r.Batch, Restarts: r.Restarts + 1, Note: note})
	if err != nil {
		return r, err
	}
	again.Owner = r.Owner
	return again, nil
}
