package docker

import (
	"context"
	"errors"
	"math"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"

	"github.com/gfaas/gfaas/pkg/instance"
)

// Stop asks the container to end with the image's stop signal, ends it after
// grace (in whole seconds, rounded up), and removes it with its anonymous
// volumes. When ctx is cancelled it removes it at once.
func (r *Runtime) Stop(ctx context.Context, h instance.Handle, grace time.Duration) error {
	if h.Container == "" {
		return errors.New("no container is named")
	}
	if ctx.Err() == nil && grace > 0 {
		seconds := int(math.Ceil(min(grace.Seconds(), math.MaxInt32)))
		err := r.engine.ContainerStop(ctx, h.Container, container.StopOptions{Timeout: &seconds})
		if cerrdefs.IsNotFound(err) {
			return nil
		}
		// Whatever else went wrong, removal by force deals with it or says so.
	}
	tidy, cancel := detached(ctx)
	defer cancel()
	return r.remove(tidy, h.Container)
}
