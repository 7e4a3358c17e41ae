package instances

import (
	"cmp"
	"context"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/wire"
)

// After some CUDA errors, all further CUDA calls of a process fail, but the process still
// runs and answers on its ready path. Only the preload library sees the error; it reports
// the error to the token daemon. The manager asks the daemon for such faults. It replaces
// an own instance that has faulted. An instance of a plan is restarted if its function sets
// restart. Otherwise it is left running for examination, and gets no calls.

const (
	faultsEvery = 100 * time.Millisecond // default interval of requests to the token daemon
	faultsLeast = 20                     // fraction of it that passes at least between requests after 5xx answers, so that the next call runs on another instance
)

// watchFaults handles instances that can no longer use CUDA, until the end of m's life.
func (m *Manager) watchFaults() {
	if m.cfg.Faults == nil || !m.awaitKnown() {
		return
	}
	every := cmp.Or(m.cfg.FaultsEvery, faultsEvery)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for again := true; again; again = pause(m.life, every/faultsLeast) {
		select {
		case <-tick.C:
		case <-m.failing:
		case <-m.life.Done():
			return
		}
		limited, cancel := context.WithTimeout(m.life, usageTimeout)
		faults, err := m.cfg.Faults(limited)
		cancel()
		if err != nil {
			continue // without a daemon, there are no reports
		}
		for _, f := range faults {
			if !f.Ended {
				m.replace(f)
			}
		}
	}
}

// Failing makes watchFaults ask the token daemon at once, because an instance answered 5xx.
func (m *Manager) Failing() {
	select {
	case m.failing <- struct{}{}:
	default:
	}
}

// replace handles an instance that has faulted: an own instance is discarded and replaced;
// another is restarted or left running.
func (m *Manager) replace(f wire.InstanceFault) {
	i, cut := m.dispatcher.Instances.Faulted(f)
	if i == nil {
		return
	}
	r := i.Record()
	args := []any{"instance", r.ID, "function", r.Function, "pid", f.PID, "call", f.Call, "code", f.Code, "error", f.Name}
	if f.After != "" {
		args = append(args, "after", f.After)
	}
	m.log.Error("instance can no longer use CUDA", args...)
	if r.Owner == instance.Gateway {
		m.tasks.Go(func() { m.discard(r); cut() })
		i.Replace()
		return
	}
	if fn, _, ok := m.restarts.applied(r.Function); ok && (fn.Restart == "on-failure" || fn.Restart == "always") {
		cut()
		m.restarts.restartLater(r, true)
	}
}
