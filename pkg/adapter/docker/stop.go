package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"

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

// Logs returns the last lines that the container printed; none when it is
// gone.
func (r *Runtime) Logs(ctx context.Context, h instance.Handle, lines int) ([]byte, error) {
	if lines <= 0 {
		return nil, nil
	}
	stream, err := r.engine.ContainerLogs(ctx, h.Container, container.LogsOptions{
		ShowStdout: true, ShowStderr: true, Tail: strconv.Itoa(lines),
	})
	if cerrdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, explain("read the log of container "+short(h.Container), err)
	}
	defer stream.Close()
	var text bytes.Buffer
	if _, err := stdcopy.StdCopy(&text, &text, stream); err != nil {
		return nil, fmt.Errorf("read the log of container %s: %w", short(h.Container), err)
	}
	return text.Bytes(), nil
}
