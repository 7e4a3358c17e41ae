package instances

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// restarter restarts instances of plans.
type restarter struct {
	*Manager

	mu     sync.Mutex
	states map[string]*restartState // by ID of the instance; guarded by mu
}

// restartState is the state of the restarts of one instance.
type restartState struct {
	backoff  dispatch.Backoff
	running  bool // a task is restarting the instance, or pauses before it does so
	starting bool // the instance is starting now
}

// withState calls do with the state of an instance's restarts, and holds s.mu meanwhile.
func (s *restarter) withState(id string, do func(state *restartState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.states[id] == nil {
		s.states[id] = &restartState{}
	}
	do(s.states[id])
}

// applied returns the definition of an applied function, and the context of its version, which ends when
// the function changes or is removed. It returns false if no such function is applied.
func (s *restarter) applied(name string) (fn function.Function, life context.Context, ok bool) {
	if f := s.dispatcher.Function(name); f != nil {
		return f.Applied()
	}
	return fn, nil, false
}

// restartIfRequired starts a task that restarts an instance of a plan, if the restart policy of its
// function requires that for an instance that ended in the given state (see restartLater).
func (s *restarter) restartIfRequired(r instance.Record, end instance.State) {
	if fn, _, ok := s.applied(r.Function); ok && dispatch.Restartable(fn, r.Runtime, end) {
		s.restartLater(r, false)
	}
}

// restartLater starts a task that restarts an instance of a plan after a pause, with the slice and the
// turns of its record, unless such a task is running already. The task tries again until it succeeds or
// the record shows that another process has replaced the instance. A change of the function ends a
// pause. If faulted is true, the instance is still running but cannot use CUDA any more, so the task
// stops it first.
func (s *restarter) restartLater(r instance.Record, faulted bool) {
	running := false
	s.withState(r.ID, func(state *restartState) { running, state.running = state.running, true })
	if running {
		return
	}
	s.tasks.Go(func() {
		restarted := s.restartUntilSuccess(r, faulted)
		// From here on, restartLater may be called for the next end of the instance.
		s.withState(r.ID, func(state *restartState) { state.running = false })
		if restarted != nil {
			s.log.Info("instance restarted", "instance", r.ID, "function", r.Function, "restarts", restarted.Restarts)
			s.update(*restarted) // follower.run sees the change and adopts the instance
		}
	})
}

// restartUntilSuccess restarts an instance until it succeeds. It returns the new record, or nil if
// the instance must not be restarted any longer.
func (s *restarter) restartUntilSuccess(r instance.Record, faulted bool) *instance.Record {
	ran := time.Since(r.Handle.Started)
	for {
		_, life, ok := s.applied(r.Function)
		if !ok {
			return nil
		}
		var wait time.Duration
		s.withState(r.ID, func(state *restartState) { wait = state.backoff.Next(ran) })
		ran = 0 // later attempts count as restarts of an instance that ended at once
		s.log.Warn("instance will be restarted", "instance", r.ID, "function", r.Function, "in", wait.String())
		if !pause(life, wait) { // the function has changed
			s.withState(r.ID, func(state *restartState) { state.backoff = dispatch.Backoff{} })
		}
		if s.life.Err() != nil {
			return nil
		}
		restarted, err := s.restart(r, faulted)
		switch {
		case err == nil:
			return &restarted
		case errors.Is(err, errUnneeded):
			return nil
		}
		s.log.Error("cannot restart the instance", "instance", r.ID, "function", r.Function, "err", err)
		faulted = faulted && restarted.Handle == r.Handle
		r = restarted
	}
}

// errUnneeded is the error of a restart that is not needed any longer: another process has stopped or
// restarted the instance, the instance is running, or its function is removed or sets no restart policy.
var errUnneeded = errors.New("another process has stopped or restarted it")

// restart restarts an instance that has ended or faulted. It returns the new record or, if it fails, the
// last record that was written. Until the record of the restart is written, it prevents other processes
// from starting or stopping instances of plans (Config.Alone).
func (s *restarter) restart(r instance.Record, faulted bool) (instance.Record, error) {
	release, err := s.cfg.Alone(s.life)
	if err != nil {
		return r, err
	}
	release = sync.OnceFunc(release)
	defer release()
	ctx, cancel := context.WithTimeout(s.life, stateTimeout)
	defer cancel()
	l, err := s.cfg.Catalog.List(ctx)
	if err != nil {
		return r, err
	}
	fn, err := l.Function(r.Function)
	now := recordOf(l.Instances, r.ID)
	if err != nil || now == nil || now.Handle != r.Handle || fn.Restart == "no" || fn.Restart == "" {
		return r, errUnneeded
	}
	r = *now
	var gone *ports.GoneError
	switch err := s.cfg.Starter.Adopt(ctx, r); {
	case err == nil && faulted:
	case err == nil: // it is running
		return r, errUnneeded
	case !errors.As(err, &gone): // unknown whether it is running
		return r, err
	}
	last := r
	s.withState(r.ID, func(state *restartState) { state.starting = true })
	defer s.withState(r.ID, func(state *restartState) { state.starting = false })
	restarted, err := s.cfg.Starter.Restart(s.life, fn, r, func(noted instance.Record) error {
		noted.Owner = r.Owner
		err := s.cfg.Catalog.Update(s.life, noted)
		if err == nil {
			last = noted
		}
		release()
		return err
	})
	if err != nil {
		return last, err
	}
	return restarted, nil
}

// recordOf returns the record with that ID, or nil.
func recordOf(records []instance.Record, id string) *instance.Record {
	if n := slices.IndexFunc(records, func(r instance.Record) bool { return r.ID == id }); n >= 0 {
		return &records[n]
	}
	return nil
}
