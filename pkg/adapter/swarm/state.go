package swarm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/swarm"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

const (
	waitPoll  = 250 * time.Millisecond // interval of checks in Wait
	stopPoll  = 50 * time.Millisecond  // interval of checks in Stop
	followEnd = time.Second            // how long the log of an ended task may take to arrive
)

// State returns the state of the instance's task. An instance whose node is not ready counts as not running.
func (r *Runtime) State(ctx context.Context, h instance.Handle) (instance.State, error) {
	s, err := r.view.since(ctx, time.Now())
	if err != nil {
		return instance.State{}, err
	}
	return r.stateIn(ctx, s, h)
}

func (r *Runtime) stateIn(ctx context.Context, s *snapshot, h instance.Handle) (instance.State, error) {
	state := s.state(h.Container)
	if state.Running || s.tasks[h.Container] == nil || !ended(s.tasks[h.Container]) {
		return state, nil
	}
	service, restarts, most, err := r.job(ctx, h)
	if service == nil || err != nil {
		return state, err
	}
	state.Restarts = restarts
	if state.ExitCode != 0 && restarts < most {
		state.Running, state.Restarting = true, true
	}
	return state, nil
}

// state returns the state of a service's latest task.
func (s *snapshot) state(service string) instance.State {
	t := s.tasks[service]
	switch {
	case t == nil:
		return instance.State{ExitCode: -1, Detail: "gone"}
	case ended(t):
		code, detail := failure(t)
		return instance.State{ExitCode: code, Detail: detail}
	case t.NodeID != "" && !ready(s.nodes[t.NodeID]):
		return instance.State{ExitCode: -1, Detail: "its node is not ready"}
	case !wanted(t):
		return instance.State{ExitCode: -1, Detail: "it is being stopped"}
	}
	return instance.State{Running: true, ExitCode: -1, Detail: string(t.Status.State)}
}

// job returns the service of a job with the number of its restarts and their limit, or nil if the instance is
// not a job.
func (r *Runtime) job(ctx context.Context, h instance.Handle) (service *swarm.Service, restarts, most int, err error) {
	err = r.insist(ctx, func(ctx context.Context) error {
		found, _, err := r.api.ServiceInspectWithRaw(ctx, h.Container, swarm.ServiceInspectOptions{})
		service = &found
		return err
	})
	if cerrdefs.IsNotFound(err) {
		return nil, 0, 0, nil
	}
	if err != nil {
		return nil, 0, 0, explain("inspect the service "+h.Container, err)
	}
	limit, job := service.Spec.Labels[labelRestarts]
	if !job {
		return nil, 0, 0, nil
	}
	most, err = strconv.Atoi(limit)
	return service, int(service.Spec.TaskTemplate.ForceUpdate), most, err
}

// Wait returns the task's final state. While no manager answers, Wait retries, since the task may still run.
// If a job has failed and may be restarted, Wait restarts it, because Swarm never does.
func (r *Runtime) Wait(ctx context.Context, h instance.Handle) (instance.State, error) {
	var failed time.Time // when the job failed
	for began := time.Now(); ; {
		// An older snapshot suffices, so that all calls of Wait can share one.
		at := time.Now().Add(-waitPoll)
		if at.Before(began) {
			at = began
		}
		s, err := r.view.since(ctx, at)
		if err == nil {
			state, err := r.stateIn(ctx, s, h)
			switch {
			case err != nil:
			case !state.Running:
				return state, nil
			case state.Restarting && failed.IsZero():
				failed = time.Now()
			case state.Restarting && time.Since(failed) >= instance.RestartPause(state.Restarts+1):
				r.restart(ctx, h, state.Restarts)
				failed = time.Time{}
			}
		}
		if !pause(ctx, waitPoll) {
			return instance.State{}, ctx.Err()
		}
	}
}

// restart starts a job's task again, unless another process has done so: then the job's number of restarts differs
// from the given one. It ignores errors, because Wait repeats it.
func (r *Runtime) restart(ctx context.Context, h instance.Handle, restarts int) {
	service, now, _, err := r.job(ctx, h)
	if err != nil || service == nil || now != restarts {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	service.Spec.TaskTemplate.ForceUpdate++
	_, _ = r.api.ServiceUpdate(ctx, h.Container, service.Version, service.Spec, swarm.ServiceUpdateOptions{})
}

// Find returns the services of the instance with an ID, or of all instances of the network if id is empty.
func (r *Runtime) Find(ctx context.Context, id string) ([]instance.Record, error) {
	list, err := r.services(ctx)
	if err != nil {
		return nil, err
	}
	s, err := r.view.since(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	var out []instance.Record
	for i := range list {
		labels := list[i].Spec.Labels
		own := labels[instance.LabelInstance]
		if !instance.ValidID(own) || id != "" && own != id {
			continue
		}
		h := instance.Handle{Runtime: instance.Swarm, Container: list[i].ID, Started: list[i].CreatedAt}
		port, serves := labels[labelPort]
		if t := s.tasks[h.Container]; t != nil && serves {
			number, err := strconv.Atoi(port)
			if err != nil {
				return nil, fmt.Errorf("label %s of service %s: %w", labelPort, list[i].Spec.Name, err)
			}
			h.Address, _ = r.address(t, number) // a task without an address cannot be called
		}
		out = append(out, instance.Record{ID: own, Function: labels[instance.LabelFunction], Runtime: instance.Swarm, Handle: h, Job: !serves})
	}
	return out, nil
}

// PID returns 0: the processes of a swarm's tasks are in other PID namespaces.
func (r *Runtime) PID(context.Context, instance.Handle) (int, error) { return 0, nil }

// Unlimited returns nil, because a manager cannot inspect processes of other nodes. Start checks the program,
// and a process that does not load the preload library never connects to the token daemon.
func (r *Runtime) Unlimited(context.Context, instance.Handle) error { return nil }

// Stop removes the instance's service, and waits until its container has ended or its node is not ready. A node
// that was cut off ends the container after it has reconnected. The container has 5 s to end after its stop
// signal, whatever grace is, because a service's grace period cannot change while it runs.
func (r *Runtime) Stop(ctx context.Context, h instance.Handle, _ time.Duration) error {
	if h.Container == "" {
		return errors.New("the instance has no service")
	}
	tidy, cancel := detached(ctx)
	defer cancel()
	return r.remove(tidy, h.Container, r.insistOwner)
}

// remove removes a service with a request that insist repeats, and waits for the end of its container.
func (r *Runtime) remove(ctx context.Context, id string, insist func(context.Context, func(context.Context) error) error) error {
	err := insist(ctx, func(ctx context.Context) error { return r.api.ServiceRemove(ctx, id) })
	if err != nil && !cerrdefs.IsNotFound(err) {
		return explain("remove the service "+id, err)
	}
	for {
		s, err := r.view.since(ctx, time.Now())
		if err == nil {
			t := s.tasks[id]
			if t == nil || ended(t) || t.NodeID == "" || !ready(s.nodes[t.NodeID]) {
				return nil
			}
		}
		if !pause(ctx, stopPoll) {
			return errors.Join(fmt.Errorf("the container of the service %s has not ended", id), err)
		}
	}
}

// Logs reads the service's log through the managers. It yields no lines after Stop, or if the node of the
// instance is not ready.
func (r *Runtime) Logs(ctx context.Context, h instance.Handle, o ports.LogOptions) ports.LogLines {
	return func(yield func(ports.LogLine, error) bool) {
		reading, cancel := context.WithCancel(ctx)
		defer cancel()
		if o.Follow { // the managers do not end the log when the task has ended
			go func() {
				if _, err := r.Wait(reading, h); err == nil && pause(reading, followEnd) {
					cancel()
				}
			}()
		}
		lines := docker.ReadLog(reading, o, "service "+h.Container, func(options container.LogsOptions) (io.ReadCloser, error) {
			return r.api.ServiceLogs(reading, h.Container, options)
		})
		for line, err := range lines {
			if err != nil && ctx.Err() == nil && reading.Err() != nil {
				return // the task has ended
			}
			if !yield(line, err) {
				return
			}
		}
	}
}
