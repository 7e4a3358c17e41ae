package docker

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/gfaas/gfaas/pkg/instance"
)

// PID is the container's first process as this machine numbers it; 0 when it
// has none, or when the engine numbers its processes otherwise, as one on
// another machine or in a virtual machine does.
func (r *Runtime) PID(ctx context.Context, h instance.Handle) (int, error) {
	info, err := r.engine.ContainerInspect(ctx, h.Container)
	if err != nil {
		return 0, explain("look at the container", err)
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", info.State.Pid))
	if err != nil || !strings.Contains(string(groups), h.Container) {
		return 0, nil
	}
	return info.State.Pid, nil
}
