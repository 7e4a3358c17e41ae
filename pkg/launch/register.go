package launch

import (
	"context"
	"fmt"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Register registers an instance that the launcher does not start itself. The instance's processes
// authenticate with the secret. If the instance is registered already, Register updates its slice;
// its secret and its GPUs cannot change while it runs.
func (l *Launcher) Register(ctx context.Context, fn function.Function, p instance.Placement, secret string) (wire.Registered, error) {
	if err := checkPlacement(p); err != nil {
		return wire.Registered{}, fmt.Errorf("instance %s: %w", p.ID, err)
	}
	if simulated(p.GPUs) {
		l.simulated.Do(l.config.Simulated)
		if err := l.config.Device.Retain(p.ID); err != nil {
			return wire.Registered{}, fmt.Errorf("reserve the folder of the simulated GPU: %w", err)
		}
	}
	answer, err := l.config.Tokens.Register(ctx, NewRegistration(fn, p, secret))
	if err == nil {
		l.report(p.ID, answer)
	}
	return answer, err
}

// report prints the token daemon's note about an instance, and its warning about a GPU. It prints each warning only
// once.
func (l *Launcher) report(id string, answer wire.Registered) {
	if answer.Note != "" {
		l.config.Note("note: %s: %s", id, answer.Note)
	}
	if answer.Warning == "" {
		return
	}
	if _, said := l.warned.LoadOrStore(answer.Warning, true); !said {
		l.config.Note("warning: %s", answer.Warning)
	}
}

// Unregister removes the registration that Register made. The instance's remaining processes cannot
// launch GPU work any more.
func (l *Launcher) Unregister(ctx context.Context, id string) error {
	if err := l.config.Tokens.Unregister(ctx, id); err != nil {
		return err
	}
	return l.config.Device.Release(id)
}
