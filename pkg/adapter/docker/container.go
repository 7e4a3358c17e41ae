package docker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// Pauses before an engine that went away is asked again.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// State tells whether the container still runs.
func (r *Runtime) State(ctx context.Context, h instance.Handle) (instance.State, error) {
	info, err := r.engine.ContainerInspect(ctx, h.Container)
	if cerrdefs.IsNotFound(err) {
		return instance.State{ExitCode: -1, Detail: "gone"}, nil
	}
	if err != nil {
		return instance.State{}, explain("look at container "+short(h.Container), err)
	}
	state := info.State
	switch {
	case state.Restarting, state.Running && info.RestartCount > 0:
		n := max(info.RestartCount, 1)
		return instance.State{Running: true, ExitCode: -1, Detail: often(n, state), Restarts: n}, nil
	case state.Running:
		return instance.State{Running: true, ExitCode: -1, Detail: state.Status}, nil
	case state.OOMKilled:
		return instance.State{ExitCode: state.ExitCode, Detail: "killed: out of host memory"}, nil
	case state.Error != "":
		return instance.State{ExitCode: state.ExitCode, Detail: state.Error}, nil
	case state.ExitCode == 0:
		return instance.State{Detail: "ended"}, nil
	}
	return instance.State{ExitCode: state.ExitCode, Detail: fmt.Sprintf("exited with status %d", state.ExitCode)}, nil
}

// Wait returns when the engine says that the container has ended. An engine that
// goes away meanwhile is waited for: its containers may live on.
func (r *Runtime) Wait(ctx context.Context, h instance.Handle) (instance.State, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		answered, failed := r.engine.ContainerWait(ctx, h.Container, container.WaitConditionNotRunning)
		select {
		case <-answered:
		case <-failed: // also of a container that is gone
		}
		if state, err := r.State(ctx, h); err == nil && !state.Running {
			return state, nil
		}
		again := time.NewTimer(pause)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return instance.State{}, ctx.Err()
		}
	}
}

// Find returns the containers of an instance of that id, or of all, by their
// labels. One is of this run directory if it has the instance's socket from there.
func (r *Runtime) Find(ctx context.Context, id string) ([]instance.Record, error) {
	label := instance.LabelInstance
	if id != "" {
		label += "=" + id
	}
	list, err := r.engine.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", label))})
	if err != nil {
		return nil, explain("list containers", err)
	}
	var out []instance.Record
	for _, c := range list {
		id := c.Labels[instance.LabelInstance]
		socket, err := filepath.Abs(tokend.InstanceSocketDir(r.config.RunDir, id))
		if err != nil {
			return nil, err
		}
		if !instance.ValidID(id) || !slices.ContainsFunc(c.Mounts, func(m container.MountPoint) bool { return m.Source == socket }) {
			continue
		}
		h := instance.Handle{Runtime: instance.Docker, Container: c.ID, Started: time.Unix(c.Created, 0)}
		for _, p := range c.Ports {
			if p.PublicPort != 0 {
				h.Address = net.JoinHostPort(p.IP, strconv.Itoa(int(p.PublicPort)))
			}
		}
		out = append(out, instance.Record{ID: id, Function: c.Labels[instance.LabelFunction], Runtime: instance.Docker, Handle: h})
	}
	return out, nil
}

// Version is the engine's.
func (r *Runtime) Version(ctx context.Context) (string, error) {
	v, err := r.engine.ServerVersion(ctx)
	return v.Version, explain("ask the Docker engine", err)
}

// errUnlimited is of an instance that nothing limits.
var errUnlimited = errors.New("runs without the preload library, so nothing would limit it: " +
	"the loader in its image could not load libgfaas.so")

// Unlimited is an error when the container's process does not have the preload
// library in it: one that the loader cannot load costs no more than a warning in
// the instance's log. What cannot be seen from here passes; such a process never
// says hello to the token daemon, which gfaas-tokend status shows.
func (r *Runtime) Unlimited(ctx context.Context, h instance.Handle) error {
	pid, err := r.PID(ctx, h)
	if err != nil || pid == 0 {
		return err
	}
	if hooked, known := preload.Hooked(pid); known && !hooked {
		return errUnlimited
	}
	return nil
}

// PID is the container's first process as this machine numbers it; 0 when it
// has none, or when the engine numbers its processes otherwise, as one on
// another machine or in a virtual machine does.
func (r *Runtime) PID(ctx context.Context, h instance.Handle) (int, error) {
	info, err := r.engine.ContainerInspect(ctx, h.Container)
	if err != nil {
		return 0, explain("look at the container", err)
	}
	groups, err := procfs.Cgroups(info.State.Pid)
	if err != nil || !inContainer(groups, h.Container) {
		return 0, nil
	}
	return info.State.Pid, nil
}

// onMPS reports whether a container was given an MPS daemon.
func (r *Runtime) onMPS(ctx context.Context, h instance.Handle) bool {
	ctx, cancel := detached(ctx)
	defer cancel()
	info, err := r.engine.ContainerInspect(ctx, h.Container)
	return err == nil && slices.ContainsFunc(info.Config.Env, func(entry string) bool {
		return strings.HasPrefix(entry, "CUDA_MPS_PIPE_DIRECTORY=")
	})
}

// processes lists the container's processes as this machine numbers them.
func (r *Runtime) processes(ctx context.Context, h instance.Handle) ([]int, error) {
	if pid, err := r.PID(ctx, h); err != nil || pid == 0 {
		return nil, err
	}
	pids, err := procfs.PIDs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	return slices.DeleteFunc(pids, func(pid int) bool {
		groups, err := procfs.Cgroups(pid)
		return err != nil || !inContainer(groups, h.Container)
	}), nil
}

// inContainer reports whether one of a process's control groups is of a container.
func inContainer(groups []procfs.Cgroup, id string) bool {
	return slices.ContainsFunc(groups, func(g procfs.Cgroup) bool { return strings.Contains(g.Path, id) })
}

// Stop asks the container to end with the image's stop signal, ends it after
// grace (in whole seconds, rounded up), and removes it with its anonymous
// volumes. When ctx is cancelled it removes it at once. The GPU work of clients of MPS is
// ended before the container is killed.
func (r *Runtime) Stop(ctx context.Context, h instance.Handle, grace time.Duration) error {
	if h.Container == "" {
		return errors.New("no container is named")
	}
	onMPS := r.onMPS(ctx, h)
	if ctx.Err() == nil && grace > 0 {
		seconds := int(math.Ceil(min(grace.Seconds(), math.MaxInt32)))
		asked, cancel := context.WithCancel(ctx)
		if onMPS { // the engine is to ask it to end, and not to kill it
			asked, cancel = context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
			seconds = -1
		}
		err := r.engine.ContainerStop(asked, h.Container, container.StopOptions{Timeout: &seconds})
		cancel()
		if cerrdefs.IsNotFound(err) {
			return nil
		}
		// Whatever else went wrong, removal by force deals with it or says so.
	}
	tidy, cancel := detached(ctx)
	defer cancel()
	if onMPS {
		if pids, err := r.processes(tidy, h); err == nil {
			_ = mps.Terminate(tidy, r.config.RunDir, pids) // a daemon that fails to do it cannot keep them alive
		}
	}
	return r.remove(tidy, h.Container)
}
