package launch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// runtimes opens runtimes on first use, and ends instances on them. It is safe for concurrent use.
type runtimes struct {
	open func(ctx context.Context, name string) (ports.Runtime, error)

	mu     sync.Mutex
	byName map[string]*opening
}

// opening is a runtime that is opened on first use. After a timeout, it fails at once for the duration
// silence, so that not every instance waits again.
type opening struct {
	mu      sync.Mutex
	runtime ports.Runtime
	silent  error     // the timeout
	since   time.Time // when silent was set
}

// runtimeNames lists the runtimes of this machine.
var runtimeNames = []string{instance.Process, instance.Docker}

// get returns a runtime by name and opens it on first use.
func (r *runtimes) get(ctx context.Context, name string) (ports.Runtime, error) {
	if name != instance.Swarm && !slices.Contains(runtimeNames, name) {
		return nil, fmt.Errorf("unknown runtime %q: expected %s", name, strings.Join(runtimeNames, " or "))
	}
	r.mu.Lock()
	o := r.byName[name]
	if o == nil {
		o = &opening{}
		r.byName[name] = o
	}
	r.mu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.runtime != nil {
		return o.runtime, nil
	}
	if o.silent != nil && time.Since(o.since) < unavailableTime {
		return nil, o.silent
	}
	rt, err := r.open(ctx, name)
	if err != nil {
		if ports.Unavailable(err) && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			o.silent, o.since = err, time.Now()
		}
		return nil, err
	}
	o.runtime = rt
	return rt, nil
}

// close closes all runtimes. Instances keep running.
func (r *runtimes) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var errs []error
	for _, o := range r.byName {
		if o.runtime != nil {
			errs = append(errs, o.runtime.Close())
		}
	}
	clear(r.byName)
	return errors.Join(errs...)
}

// stop ends an instance: after grace, it kills the remaining processes.
func (r *runtimes) stop(ctx context.Context, record instance.Record, grace time.Duration) error {
	if record.Handle.Runtime == "" {
		return r.stopLost(ctx, record, grace)
	}
	rt, err := r.get(ctx, record.Handle.Runtime)
	if err != nil {
		return err
	}
	return rt.Stop(ctx, record.Handle, grace)
}

// stopLost ends an instance without a handle on the runtime of the record or, if the record names none,
// on all of them. In the second case, it skips an unavailable Docker engine. In the first, it returns
// the error, because a container may exist.
func (r *runtimes) stopLost(ctx context.Context, record instance.Record, grace time.Duration) error {
	for _, name := range append([]string{instance.Swarm}, runtimeNames...) {
		if record.Runtime != name && (record.Runtime != "" || name == instance.Swarm) {
			continue
		}
		rt, err := r.get(ctx, name)
		if ports.Unavailable(err) && record.Runtime == "" {
			continue
		}
		if err != nil {
			return err
		}
		found, err := rt.Find(ctx, record.ID)
		if err != nil {
			return err
		}
		for _, f := range found {
			if err := rt.Stop(ctx, f.Handle, grace); err != nil {
				return err
			}
		}
	}
	return nil
}
