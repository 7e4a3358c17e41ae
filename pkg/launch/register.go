package launch

import (
	"context"
	"fmt"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Register makes the token daemon know an instance that another engine starts: its
// processes show the secret. One that is known gets its slice from now on; while it
// runs it can have no other secret and no other GPU.
func (l *Launcher) Register(ctx context.Context, fn function.Function, p instance.Placement, secret string) (wire.Registered, error) {
	if err := check(p); err != nil {
		return wire.Registered{}, fmt.Errorf("instance %s: %w", p.ID, err)
	}
	if simulated(p.GPUs) {
		if l.config.Simulated != nil {
			l.simulated.Do(l.config.Simulated)
		}
		if err := l.config.Device.Keep(p.ID); err != nil {
			return wire.Registered{}, fmt.Errorf("the simulated device's folder: %w", err)
		}
	}
	answer, err := l.config.Tokens.Register(ctx, registration(fn, p, secret))
	if err == nil && answer.Note != "" {
		l.config.Note("note: %s: %s", p.ID, answer.Note)
	}
	l.warn(answer)
	return answer, err
}

// warn passes on what is wrong with a GPU, once.
func (l *Launcher) warn(answer wire.Registered) {
	if answer.Warning == "" {
		return
	}
	if _, said := l.warned.LoadOrStore(answer.Warning, true); !said {
		l.config.Note("warning: %s", answer.Warning)
	}
}

// Unregister makes the token daemon forget an instance that Register made it know.
// Its processes, if any, stay behind closed gates.
func (l *Launcher) Unregister(ctx context.Context, id string) error {
	if err := l.config.Tokens.Unregister(ctx, id); err != nil {
		return err
	}
	return l.config.Device.Release(id)
}
