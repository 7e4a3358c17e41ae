package tokend

import (
	"context"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/wire"
)

// Events holds callbacks of Enter, which runs them in its own goroutines, possibly several at a time.
type Events struct {
	Unmanaged func(wire.Unmanaged)     // a process runs in the slice without the preload library
	Faulted   func(wire.InstanceFault) // a process cannot use CUDA any more
	Restarted func(failed error)       // the daemon had ended and was restarted, or failed to restart
}

// firstWatch is the pause before the first request for unmanaged processes. The daemon searches for
// them once a second, and again at the end of the slice, so the request would only delay the start
// of the command.
var firstWatch = time.Second / 2 // a variable for tests

// Enter registers a slice that ends at the latest when this process ends. The returned
// function ends it earlier, after the callbacks for all processes that ended before. Its caller sets
// mayRun if processes of the slice may still be running: if so, the daemon searches for unmanaged
// ones among them.
func Enter(ctx context.Context, c *Client, r wire.Registration, events Events) (answer wire.Registered, end func(mayRun bool), err error) {
	answer, err = c.Register(ctx, r)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if ctx.Err() != nil {
			releaseSlice(ctx, c, r.Instance) // the daemon may have registered it despite the cancellation
		}
		return answer, nil, err
	}
	// Not under ctx: a command may continue after a signal.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	watch := NewWatch(c, r.Instance, events.Unmanaged)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-running.Done():
		case <-time.After(firstWatch):
			watch.Run(running)
		}
	})
	faults := &faultWatch{client: c, instance: r.Instance, report: events.Faulted}
	watching.Go(func() { faults.run(running) })
	if answer.IdleExit { // otherwise the daemon is a service that others manage
		go c.Supervise(running, r.Instance, time.Second, events.Restarted)
	}
	return answer, func(mayRun bool) {
		stop()
		watching.Wait()
		releaseSlice(ctx, c, r.Instance, func(ctx context.Context) { watch.Flush(ctx, mayRun) }, faults.query)
	}, nil
}

// releaseTimeout is the time limit for the daemon to end a slice.
const releaseTimeout = 2 * time.Second

// releaseSlice unregisters the slice; the daemon keeps it until the last process that uses it has
// ended. Before that, it runs the last queries concurrently: one may make the daemon search for
// unmanaged processes while they still descend from this process.
//
// releaseSlice ignores errors, because the daemon drops instances without an owner. A daemon that
// did not answer in time treats this process as killed and ends the remaining processes.
func releaseSlice(ctx context.Context, c *Client, id string, last ...func(context.Context)) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	var querying sync.WaitGroup
	for _, query := range last {
		querying.Go(func() { query(ctx) })
	}
	querying.Wait()
	_ = c.Release(ctx, id)
}

const (
	faultInterval = time.Second     // pause between queries of an instance's faults
	faultTimeout  = 2 * time.Second // time limit of the daemon's answer
)

// FaultsByInstance returns the faults by instance ID. It returns an empty map if the daemon
// does not answer.
func FaultsByInstance(ctx context.Context, c *Client) map[string]wire.InstanceFault {
	ctx, cancel := context.WithTimeout(ctx, faultTimeout)
	defer cancel()
	faults, _ := c.Faults(ctx)
	out := map[string]wire.InstanceFault{}
	for _, f := range faults {
		out[f.Instance] = f
	}
	return out
}

// faultWatch reports the faults of an instance's processes once there are any. At most one goroutine
// may use it at a time.
type faultWatch struct {
	client   *Client
	instance string
	report   func(wire.InstanceFault)
	reported bool
}

// run queries the faults every faultInterval until it has reported some or ctx ends.
func (w *faultWatch) run(ctx context.Context) {
	tick := time.NewTicker(faultInterval)
	defer tick.Stop()
	for !w.reported {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			w.query(ctx)
		}
	}
}

// query reports the faults, unless it has reported some before.
func (w *faultWatch) query(ctx context.Context) {
	if w.reported {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, faultTimeout)
	defer cancel()
	faults, _ := w.client.FaultsOf(ctx, w.instance) // without a daemon, no faults are known
	for _, f := range faults {
		w.reported = true
		w.report(f)
	}
}
