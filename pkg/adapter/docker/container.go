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

// Pauses between attempts to reach an engine that does not answer.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
)

// State returns the container's state, as the engine reports it.
func (r *Runtime) State(ctx context.Context, h instance.Handle) (instance.State, error) {
	info, err := r.engine.ContainerInspect(ctx, h.Container)
	if cerrdefs.IsNotFound(err) {
		return instance.State{ExitCode: -1, Detail: "gone"}, nil
	}
	if err != nil {
		return instance.State{}, explain("inspect container "+shortID(h.Container), err)
	}
	state := info.State
	switch {
	case state.Restarting, state.Running && info.RestartCount > 0:
		n := max(info.RestartCount, 1)
		return instance.State{Running: true, ExitCode: -1, Detail: restartText(n, state), Restarts: n, Restarting: state.Restarting}, nil
	case state.Running:
		return instance.State{Running: true, ExitCode: -1, Detail: state.Status}, nil
	case state.OOMKilled:
		return instance.State{ExitCode: state.ExitCode, Detail: "killed: out of host memory", Restarts: info.RestartCount}, nil
	case state.Error != "":
		return instance.State{ExitCode: state.ExitCode, Detail: state.Error, Restarts: info.RestartCount}, nil
	case state.ExitCode == 0:
		return instance.State{Detail: "ended", Restarts: info.RestartCount}, nil
	}
	return instance.State{ExitCode: state.ExitCode, Detail: fmt.Sprintf("exited with status %d", state.ExitCode), Restarts: info.RestartCount}, nil
}

// Wait returns the container's final state after it has ended. While the engine is
// unreachable, Wait retries, since the containers may still be running.
func (r *Runtime) Wait(ctx context.Context, h instance.Handle) (instance.State, error) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		answered, failed := r.engine.ContainerWait(ctx, h.Container, container.WaitConditionNotRunning)
		select {
		case <-answered:
		case <-failed: // also if the container was removed
		}
		if state, err := r.State(ctx, h); err == nil && !state.Running {
			return state, nil
		}
		retry := time.NewTimer(pause)
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return instance.State{}, ctx.Err()
		}
	}
}

// Find returns the containers of the instance with an ID, or of all instances if id is
// empty. It selects them by label, and by the mounted socket folder, which belongs to this
// run directory.
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

// Version returns the engine's version.
func (r *Runtime) Version(ctx context.Context) (string, error) {
	v, err := r.engine.ServerVersion(ctx)
	return v.Version, explain("query the Docker engine", err)
}

// errUnlimited reports that no limits apply to an instance.
var errUnlimited = errors.New("runs without the preload library, so nothing would limit it: " +
	"the loader in its image could not load libgfaas.so")

// Unlimited returns an error if the container's process has not loaded the preload library:
// if the loader cannot load it, it only prints a warning to the instance's log. Unlimited
// returns nil if the process cannot be inspected; such a process never connects to the
// token daemon, which gfaas-tokend status shows.
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

// PID returns the PID of the container's first process in this PID namespace. It returns 0
// if the container has no process, or if the engine runs in another PID namespace (on
// another machine or in a virtual machine).
func (r *Runtime) PID(ctx context.Context, h instance.Handle) (int, error) {
	info, err := r.engine.ContainerInspect(ctx, h.Container)
	if err != nil {
		return 0, explain("inspect the container", err)
	}
	groups, err := procfs.Cgroups(info.State.Pid)
	if err != nil || !inContainer(groups, h.Container) {
		return 0, nil
	}
	return info.State.Pid, nil
}

// onMPS reports whether a container uses an MPS daemon.
func (r *Runtime) onMPS(ctx context.Context, h instance.Handle) bool {
	ctx, cancel := detached(ctx)
	defer cancel()
	info, err := r.engine.ContainerInspect(ctx, h.Container)
	return err == nil && slices.ContainsFunc(info.Config.Env, func(entry string) bool {
		return strings.HasPrefix(entry, "CUDA_MPS_PIPE_DIRECTORY=")
	})
}

// processes returns the PIDs of the container's processes in this PID namespace.
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

// inContainer reports whether one of a process's control groups belongs to a container.
func inContainer(groups []procfs.Cgroup, id string) bool {
	return slices.ContainsFunc(groups, func(g procfs.Cgroup) bool { return strings.Contains(g.Path, id) })
}

// Stop sends the image's stop signal, kills the container after grace (in whole seconds,
// rounded up), and removes it with its anonymous volumes. If ctx is cancelled, it removes
// the container at once. Before it kills an MPS client, Stop ends the client's work on the
// GPU.
func (r *Runtime) Stop(ctx context.Context, h instance.Handle, grace time.Duration) error {
	if h.Container == "" {
		return errors.New("the instance has no container")
	}
	onMPS := r.onMPS(ctx, h)
	if ctx.Err() == nil && grace > 0 {
		seconds := int(math.Ceil(min(grace.Seconds(), math.MaxInt32)))
		stopCtx, cancel := context.WithCancel(ctx)
		if onMPS { // the engine must send only the signal and not kill the client
			stopCtx, cancel = context.WithTimeout(ctx, time.Duration(seconds)*time.Second)
			seconds = -1
		}
		err := r.engine.ContainerStop(stopCtx, h.Container, container.StopOptions{Timeout: &seconds})
		cancel()
		if cerrdefs.IsNotFound(err) {
			return nil
		}
		// Forced removal handles all other errors or reports its own.
	}
	tidy, cancel := detached(ctx)
	defer cancel()
	if onMPS {
		if pids, err := r.processes(tidy, h); err == nil {
			_ = mps.Terminate(tidy, r.config.RunDir, pids) // a daemon that fails to do it cannot keep them alive
		}
	}
	return r.engine.remove(tidy, h.Container)
}
