package docker

import (
	"context"
	"path/filepath"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/instance"
)

// Find returns the containers of an instance of that id, for when its starter
// was killed before it wrote a handle down. They can be stopped; their address
// is not known. Containers of another run directory are not ours.
func (r *Runtime) Find(ctx context.Context, id string) ([]instance.Handle, error) {
	socket, err := filepath.Abs(tokend.InstanceSocketDir(r.config.RunDir, id))
	if err != nil {
		return nil, err
	}
	list, err := r.engine.ContainerList(ctx, container.ListOptions{
		All: true, Filters: filters.NewArgs(filters.Arg("label", labelInstance+"="+id)),
	})
	if err != nil {
		return nil, explain("list containers", err)
	}
	var out []instance.Handle
	for _, c := range list {
		for _, m := range c.Mounts {
			if m.Source == socket {
				out = append(out, instance.Handle{Runtime: Name, Container: c.ID})
				break
			}
		}
	}
	return out, nil
}

// Version is the engine's.
func (r *Runtime) Version(ctx context.Context) (string, error) {
	v, err := r.engine.ServerVersion(ctx)
	return v.Version, explain("ask the Docker engine", err)
}
