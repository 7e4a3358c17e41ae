package launch

import (
	"context"
	"fmt"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Restart starts an instance again that has ended or faulted. What of it still runs, in
// its session or its container, is ended first.
func (l *Launcher) Restart(ctx context.Context, fn function.Function, r instance.Record, note func(instance.Record) error) (instance.Record, error) {
	before := r
	before.Handle.LogPath = "" // its log goes on
	if err := l.stop(ctx, before, failGrace); err != nil {
		return r, &ports.StartError{ID: r.ID, Err: fmt.Errorf("what is left of it: %w", err)}
	}
	for _, id := range r.Registered {
		if err := l.config.Tokens.Unregister(ctx, id); err != nil {
			return r, &ports.StartError{ID: r.ID, Err: err}
		}
	}
	again, err := l.Start(ctx, fn, instance.Placement{ID: r.ID, GPUs: r.GPUs, Slice: r.Slice, Turns: r.Turns, RPS: r.RPS, Restarts: r.Restarts + 1, Note: note})
	if err != nil {
		return r, err
	}
	again.Owner = r.Owner
	return again, nil
}
