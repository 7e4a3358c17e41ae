package tokend

import (
	"context"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/wire"
)

// Events holds callbacks of Enter, which runs them in its own goroutines.
type Events struct {
	Unmanaged func(wire.Unmanaged) // a process runs in the slice without the preload library
	Restarted func(failed error)   // the daemon had ended and was restarted, or failed to restart
}

// Enter registers a slice that ends at the latest when this process ends. The returned
// function ends it earlier.
func Enter(ctx context.Context, c *Client, r wire.Registration, events Events) (answer wire.Registered, end func(), err error) {
	answer, err = c.Register(ctx, r)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if ctx.Err() != nil {
			releaseSlice(ctx, c, r.Instance, nil) // the daemon may have registered it despite the cancellation
		}
		return answer, nil, err
	}
	// Not under ctx: a command may continue after a signal.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	watch := NewWatch(c, r.Instance, events.Unmanaged)
	var watching sync.WaitGroup
	watching.Go(func() { watch.Run(running) })
	if answer.IdleExit { // otherwise the daemon is a service that others manage
		go c.Supervise(running, r.Instance, time.Second, events.Restarted)
	}
	return answer, func() {
		stop()
		watching.Wait()
		releaseSlice(ctx, c, r.Instance, watch)
	}, nil
}

// releaseTimeout is the time limit for the daemon to end a slice.
const releaseTimeout = 2 * time.Second

// releaseSlice unregisters the slice; the daemon keeps it until the last process that uses it has
// ended. Before that, the daemon searches for unmanaged processes once more, while they
// still descend from this process.
//
// releaseSlice ignores errors, because the daemon drops instances without an owner. A daemon that
// did not answer in time treats this process as killed and ends the remaining processes.
func releaseSlice(ctx context.Context, c *Client, id string, watch *Watch) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if watch != nil {
		watch.Flush(ctx)
	}
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

// WatchFaults calls report with the faults of an instance's processes once there are any:
// within about 1 s, or in stop, which queries once more.
func WatchFaults(ctx context.Context, c *Client, id string, report func(wire.InstanceFault)) (stop func()) {
	ctx = context.WithoutCancel(ctx) // a command may continue after a signal
	running, cancel := context.WithCancel(ctx)
	reported := false
	query := func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, faultTimeout)
		defer cancel()
		faults, _ := c.FaultsOf(ctx, id) // without a daemon, no faults are known
		for _, f := range faults {
			reported = true
			report(f)
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(faultInterval)
		defer tick.Stop()
		for !reported {
			select {
			case <-running.Done():
				return
			case <-tick.C:
				query(running)
			}
		}
	}()
	return func() {
		cancel()
		<-ended
		if !reported {
			query(ctx)
		}
	}
}
