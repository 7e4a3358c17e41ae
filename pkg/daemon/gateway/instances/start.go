package instances

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

const (
	exitTimeout       = time.Second / 10 // longest time from the end of a process's connection to its exit
	engineExitTimeout = 10 * time.Second // the same for a container, whose exit a busy Docker engine reports late
)

// Start implements dispatch.Shell.
func (m *Manager) Start(ctx context.Context, i *dispatch.Instance, fn function.Function, s dispatch.Sharing) {
	m.tasks.Go(func() { m.start(ctx, i, fn, s) })
}

func (m *Manager) start(ctx context.Context, i *dispatch.Instance, fn function.Function, s dispatch.Sharing) {
	began := time.Now()
	r, err := m.launch(ctx, i.Record(), fn, s)
	if err == nil {
		m.meter.started(i)
	} else {
		err = m.meter.shortOfMemory(i, err)
	}
	switch {
	case err == nil && i.Started(r):
		m.log.Info("instance started", "function", r.Function, "instance", r.ID, "gpu", strings.Join(r.GPUs, ","), "took", time.Since(began).Round(time.Millisecond).String())
		m.tasks.Go(func() { m.watch(i) })
		m.tasks.Go(func() { m.describe(i) })
		m.update(r)
	case err != nil && i.NotStarted(err):
		if m.life.Err() == nil {
			attrs := []any{"function", r.Function, "instance", r.ID, "err", err}
			if hint := ports.Hint(err); hint != "" {
				attrs = append(attrs, "hint", hint)
			}
			m.log.Error("cannot start an instance", attrs...)
		}
	default: // the start was cancelled
		if err == nil {
			m.discard(r)
		}
		m.log.Info("start cancelled: the function was changed or removed", "function", r.Function, "instance", r.ID)
		i.Stopped()
	}
}

// launch starts an instance of a function. It writes the record first, so that the next
// gateway finds the instance if this one is killed. After an error, it has removed the
// instance or continues to remove it in another task; if the start was cancelled, it waits
// for the removal.
func (m *Manager) launch(ctx context.Context, r instance.Record, fn function.Function, s dispatch.Sharing) (instance.Record, error) {
	reserving, cancel := context.WithTimeout(m.life, stateTimeout)
	err := m.cfg.Catalog.Reserve(reserving, r)
	cancel()
	if err != nil {
		return r, err
	}
	started, err := m.cfg.Starter.Start(ctx, fn, instance.Placement{ID: r.ID, GPUs: r.GPUs, Slice: r.Slice, Oversubscribe: s.Oversubscribe, AllSMs: s.AllSMs,
		Note: func(r instance.Record) error {
			r.Owner = instance.Gateway
			return m.cfg.Catalog.Update(m.life, r)
		}})
	started.Owner = instance.Gateway
	if err == nil {
		return started, nil
	}
	var failed *ports.StartError
	switch remains := errors.As(err, &failed) && failed.Remains; {
	case remains && ctx.Err() != nil:
		m.discard(started)
	case remains:
		m.tasks.Go(func() { m.discard(started) })
	default:
		m.forget(r.ID)
	}
	return r, err
}

// Stop implements dispatch.Shell.
func (m *Manager) Stop(i *dispatch.Instance) {
	m.tasks.Go(func() {
		m.discard(i.Record())
		i.Stopped()
	})
}

// watch waits until an instance exits on its own, and then handles the exit.
func (m *Manager) watch(i *dispatch.Instance) {
	if state, ended := m.awaitEnd(i.Record()); ended {
		m.handleExit(i, state)
	}
}

// awaitEnd waits until an instance or a job ends, and returns its final state. It returns false at the end of m's life.
func (m *Manager) awaitEnd(r instance.Record) (state instance.State, ended bool) {
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		state, err := m.cfg.Starter.Wait(m.life, r)
		if err == nil || m.life.Err() != nil {
			return state, m.life.Err() == nil
		}
		m.log.Warn("cannot watch an instance or a job", "instance", r.ID, "err", err)
		pause(m.life, retry)
	}
}

// unknownEnd is the state of an instance whose exit was not observed.
var unknownEnd = instance.State{ExitCode: -1, Detail: "ended"}

// handleExit handles an instance that has handleExit on its own.
func (m *Manager) handleExit(i *dispatch.Instance, state instance.State) {
	if !i.Died() {
		return
	}
	r := i.Record()
	m.log.Error("instance ended", "instance", r.ID, "function", r.Function, "how", state.Detail)
	if r.Owner != instance.Gateway {
		m.restarts.restartIfRequired(r, state)
		return
	}
	m.tasks.Go(func() { m.discard(r) })
	if !i.RestartsAfter(state) {
		return
	}
	if wait, ok := i.Replace(); ok {
		m.log.Warn("another instance will replace it", "instance", r.ID, "function", r.Function, "in", wait.String())
	}
}

// Suspect waits briefly for the exit of an instance whose connection closed early. The caller keeps
// the slot of the failed call meanwhile, so that no other call is sent to the instance. Without the
// wait, another call could still connect: an exiting process accepts connections for an instant, and
// the port of a container belongs to Docker, which accepts connections until it notices the exit.
func (m *Manager) Suspect(i *dispatch.Instance) {
	r, patience := i.Record(), exitTimeout
	if r.Runtime != instance.Process {
		patience = engineExitTimeout
	}
	ctx, cancel := context.WithTimeout(m.life, patience)
	defer cancel()
	if state, err := m.cfg.Starter.Wait(ctx, r); err == nil {
		m.handleExit(i, state)
	}
}

// Unreachable handles an instance whose address accepts no connection. An instance of a
// plan may accept connections later, and is then adopted again.
func (m *Manager) Unreachable(i *dispatch.Instance) {
	if !i.Died() {
		return
	}
	r := i.Record()
	m.log.Warn("instance does not answer", "instance", r.ID, "function", r.Function)
	if r.Owner == instance.Gateway {
		m.tasks.Go(func() { m.discard(r) })
	} else {
		m.tasks.Go(func() { m.readopt(r) })
	}
}

// readopt adopts an instance of a plan once it accepts connections again.
func (m *Manager) readopt(r instance.Record) {
	for retry := firstRetry; pause(m.life, retry); retry = min(2*retry, lastRetry) {
		var gone *ports.GoneError
		if err := m.cfg.Starter.Adopt(m.life, r); errors.As(err, &gone) {
			m.restarts.restartIfRequired(r, unknownEnd)
			return
		}
		dialer := net.Dialer{Timeout: firstRetry}
		conn, err := dialer.DialContext(m.life, "tcp", r.Handle.Address)
		if err != nil {
			continue
		}
		_ = conn.Close()
		m.follower.takeOver(m.life, r)
		return
	}
}
