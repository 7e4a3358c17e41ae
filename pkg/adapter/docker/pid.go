package docker

import (
	"context"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// PID is the container's first process as this machine numbers it; 0 when it
// has none, or when the engine numbers its processes otherwise, as one on
// another machine or in a virtual machine does.
func (r *Runtime) PID(ctx context.Context, h instance.Handle) (int, error) {
	info, err := r.engine.ContainerInspect(ctx, h.Container)
	if err != nil {
		return 0, explain("look at the container", err)
	}
	groups, err := procfs.Cgroups(info.State.Pid)
	if err != nil || !slices.ContainsFunc(groups, func(g procfs.Cgroup) bool { return strings.Contains(g.Path, h.Container) }) {
		return 0, nil
	}
	return info.State.Pid, nil
}
