package launch

import (
	"context"

	"github.com/gfaas/gfaas/pkg/instance"
)

// Logs returns the last lines that an instance printed.
func (l *Launcher) Logs(ctx context.Context, h instance.Handle, lines int) ([]byte, error) {
	rt, err := l.runtime(ctx, h.Runtime)
	if err != nil {
		return nil, err
	}
	return rt.Logs(ctx, h, lines)
}
