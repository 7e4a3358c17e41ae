package launch

import (
	"context"
	"errors"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/instance"
)

// errNotHooked is of an instance that nothing limits.
var errNotHooked = errors.New("runs without the preload library, so nothing would limit it: " +
	"the loader in its image could not load libgfaas.so")

// checkHooked refuses an instance whose process does not have the preload
// library in it: one that the loader cannot load costs no more than a warning
// in the instance's log. What cannot be seen from here passes; such a process
// never says hello to the token daemon, which gfaas-tokend status shows.
func checkHooked(ctx context.Context, rt instance.Runtime, h instance.Handle) error {
	elsewhere, ok := rt.(interface {
		PID(context.Context, instance.Handle) (int, error)
	})
	if !ok {
		return nil
	}
	pid, err := elsewhere.PID(ctx, h)
	if err != nil || pid == 0 {
		return err
	}
	if hooked, known := preload.Hooked(pid); known && !hooked {
		return errNotHooked
	}
	return nil
}
