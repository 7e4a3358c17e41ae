// Package instances starts, adopts, restarts, parks and stops the instances of a gateway,
// and keeps their records in the state file. Its Manager is the Shell of a
// dispatch.Dispatcher, and handles the problems that proxy.Call notices. pkg/daemon/gateway
// creates it.
//
// The gateway's own instances (Owner is instance.Gateway) are started, replaced and stopped
// here. Instances of a plan (gfaas up) are adopted. If they end, they are restarted if their
// functions set restart; they are never stopped for good.
package instances

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/status"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Config configures a Manager.
type Config struct {
	Log     *slog.Logger
	Starter ports.Starter
	Invoker ports.Invoker // asks model servers for their context length, if set
	Catalog ports.Catalog

	// Alone must be set. It waits until no other process starts or stops instances of plans, and
	// prevents that until release is called.
	Alone func(context.Context) (release func(), err error)

	// AtWork must be set. It reports whether another process starts or stops instances of plans.
	AtWork func() bool

	// Usage, if set, asks the token daemon for the GPU usage of its instances.
	Usage func(context.Context) (wire.Status, error)

	// Faults, if set, asks the token daemon for instances that can no longer use CUDA
	// because of a CUDA error.
	Faults      func(context.Context) ([]wire.InstanceFault, error)
	FaultsEvery time.Duration // interval of calls of Faults; 0 means 100 ms

	// Weights, if set, asks the model daemons for the models that they hold on GPUs.
	Weights func(context.Context) []status.Model

	// Memory, if set, asks the drivers for the usage of the memory of the GPUs. It omits GPUs for which they do not
	// report it.
	Memory func(context.Context) map[string]dispatch.Memory

	// Busy, if set, asks the driver of a GPU for its utilization, 0 to 1, for a policy that
	// adapts to it. If it is nil, Usage is the source.
	Busy   func(gpu string) (float64, error)
	Adapts bool // the policy adapts to the utilization of the GPUs

	Parker Parker // parks instances with dispatch.ParkCheckpoint, and unparks those that the previous gateway left parked
	// Swapper parks instances with dispatch.ParkSwap. An instance that gets a call before
	// Unpark moves its memory back itself.
	Swapper Parker

	Keep       bool // leave the gateway's instances running on exit
	GPUsChange bool // GPUs may be added while the gateway runs

	// Known, if set, is called once all applied functions and running instances are known.
	Known func()
}

// Parker moves an instance's GPU memory to the host and back. After an error the instance
// may be unusable.
type Parker interface {
	Park(ctx context.Context, id string) error
	Unpark(ctx context.Context, id string) error // returns nil if the instance is not parked
}

// Manager manages the instances of a gateway.
type Manager struct {
	cfg        Config
	log        *slog.Logger
	dispatcher *dispatch.Dispatcher
	created    time.Time
	life       context.Context // context of starts and watches
	tasks      sync.WaitGroup  // starts, stops and waits in progress
	failing    chan struct{}   // an instance answered 5xx; has capacity 1
	restarts   restarter
	meter      meter
	jobs       *jobs
	follower   follower
}

// New returns a Manager. The end of life ends its tasks, except stops.
func New(life context.Context, d *dispatch.Dispatcher, cfg Config) *Manager {
	m := &Manager{cfg: cfg, log: cfg.Log, dispatcher: d, created: time.Now(), life: life, failing: make(chan struct{}, 1)}
	m.restarts = restarter{Manager: m, states: map[string]*restartState{}}
	m.meter.Manager = m
	m.jobs = newJobs(m)
	m.follower = follower{Manager: m, others: map[string]instance.Handle{}, abandoned: map[string]instance.Record{}}
	return m
}

// Run follows the state file until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	m.tasks.Go(m.meter.run)
	m.tasks.Go(m.watchFaults)
	m.follower.run(ctx)
}

// Close waits until all tasks have ended, and stops the gateway's own instances unless
// Config.Keep is set. The Manager's life must have ended.
func (m *Manager) Close() {
	m.tasks.Wait()
	if m.cfg.Keep {
		return
	}
	slots := make(chan struct{}, stopsAtEnd)
	var wg sync.WaitGroup
	for _, r := range m.dispatcher.Instances.Own() {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			m.discard(r)
		})
	}
	wg.Wait()
}

const (
	stateTimeout  = 10 * time.Second // limit on a change of the state file
	stopTimeout   = 30 * time.Second // limit on stopping one instance
	stopsAtEnd    = 16               // concurrent stops in Close
	attemptsAtEnd = 2                // attempts of an operation after the Manager's life
	firstRetry    = time.Second      // first pause before a failed operation is repeated; doubles each time
	lastRetry     = 30 * time.Second
)

// pause waits for d. It returns false if ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// insist repeats an operation until it succeeds, and reports whether it did. After the end of
// the Manager's life, an attempt in progress continues, up to timeout, and up to attemptsAtEnd more
// follow.
func (m *Manager) insist(timeout time.Duration, do func(context.Context) error, failed func(error)) bool {
	atEnd := 0
	for retry := firstRetry; ; retry = min(2*retry, lastRetry) {
		if m.life.Err() != nil {
			atEnd++
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(m.life), timeout)
		err := do(ctx)
		cancel()
		if err == nil {
			return true
		}
		failed(err)
		if atEnd == attemptsAtEnd {
			return false
		}
		pause(m.life, retry)
	}
}

// write changes the state file, and repeats the change until it succeeds.
func (m *Manager) write(change func(context.Context) error) {
	m.insist(stateTimeout, func(ctx context.Context) error {
		err := change(ctx)
		if _, ok := errors.AsType[*ports.NotFoundError](err); ok { // another process has removed the record
			return nil
		}
		return err
	}, func(err error) { m.log.Error("cannot write the state", "err", err) })
}

func (m *Manager) update(r instance.Record) {
	m.write(func(ctx context.Context) error { return m.cfg.Catalog.Update(ctx, r) })
}

func (m *Manager) forget(id string) {
	m.write(func(ctx context.Context) error { return m.cfg.Catalog.Forget(ctx, id) })
}

// discard stops an instance and removes its record. If it does not succeed by the end of the
// Manager's life, the next gateway finds the record.
func (m *Manager) discard(r instance.Record) {
	stop := func(ctx context.Context) error { return m.cfg.Starter.Stop(ctx, r) }
	if m.insist(stopTimeout, stop, func(err error) { m.log.Error("cannot stop the instance", "instance", r.ID, "err", err) }) {
		m.forget(r.ID)
	}
}
