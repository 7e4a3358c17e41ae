package model

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	tokens "github.com/gfaas/gfaas/pkg/wire"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// Slices is the port to the token daemon, which counts memory against the limits of slices.
type Slices interface {
	// Count counts the memory of a store until the result is closed. It returns nil
	// without an error if the process that stores is in no slice of that GPU. The error
	// is a *wire.Error if the slice's limit or the token daemon refuses the store; any
	// other error means that the store could not be counted for now.
	Count(ctx context.Context, s tokens.Stored) (Counted, error)
}

// Counted is memory that counts against a slice.
type Counted interface {
	Done() <-chan struct{} // closed when the memory no longer counts
	Close()                // ends the counting, at the latest soon after it returns
}

const (
	countTime    = 2 * time.Second        // longest wait for an answer of the token daemon
	minCountWait = 20 * time.Millisecond  // first pause between attempts to have a store counted
	maxCountWait = 250 * time.Millisecond // longest such pause
)

// charge is the counting of one store against its client's slice, until the commit. A nil
// charge counts nothing.
type charge struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// chargeStore makes the token daemon count a store before its memory is allocated. It returns an
// error if the store is refused. If no token daemon answers, the store proceeds, and counts as
// soon as one answers. The charge is nil if the client is in no slice.
func (c *core) chargeStore(client context.Context, pid int, start uint64, name string, bytes gpu.Bytes) (*charge, error) {
	if c.cfg.Slices == nil || pid == 0 {
		return nil, nil
	}
	s := tokens.Stored{PID: pid, Start: start, GPU: c.cfg.GPUName, Bytes: bytes, Sender: os.Getpid()}
	counted, err := c.count(client, s)
	var refused *wire.Error
	switch {
	case errors.As(err, &refused):
		return nil, wire.Errorf(refused.Code, "store model %s: %s", name, refused.Message)
	case client.Err() != nil:
		if counted != nil {
			counted.Close()
		}
		return nil, client.Err()
	case err == nil && counted == nil:
		return nil, nil
	}
	ctx, stop := context.WithCancel(c.ctx)
	counting := &charge{stop, make(chan struct{})}
	s.Allocated = true // a later Count must not refuse it
	c.work.Go(func() {
		defer close(counting.done)
		defer stop()
		c.recount(ctx, counted, s, err)
	})
	return counting, nil
}

// count sends one request to the token daemon and waits at most countTime.
func (c *core) count(ctx context.Context, s tokens.Stored) (Counted, error) {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	return c.cfg.Slices.Count(ctx, s)
}

// recount counts a store again whenever the counting ends, for example after a restart of the
// token daemon, until ctx ends. If counted is nil, err is the reason why the store does not count
// yet.
func (c *core) recount(ctx context.Context, counted Counted, s tokens.Stored, err error) {
	logged := false
	for wait := minCountWait; ; {
		if counted != nil {
			wait, logged = minCountWait, false
			select {
			case <-counted.Done():
			case <-ctx.Done():
			}
			counted.Close()
		} else if !logged && !noDaemon(err) {
			c.log.Warn("a store does not count against the memory limit of its slice", "pid", s.PID, "bytes", int64(s.Bytes), "err", err)
			logged = true
		}
		timer := time.NewTimer(wait)
		wait = min(2*wait, maxCountWait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		if counted, err = c.count(ctx, s); err == nil && counted == nil {
			return // the client is no longer in a slice
		}
	}
}

// noDaemon reports whether an error means that no token daemon runs.
func noDaemon(err error) bool {
	var unavailable interface{ Unavailable() bool }
	return errors.As(err, &unavailable) && unavailable.Unavailable()
}

// stop ends the counting without waiting for it.
func (c *charge) stop() {
	if c != nil {
		c.cancel()
	}
}

// end ends the counting and waits until the memory no longer counts.
func (c *charge) end() {
	if c.stop(); c != nil {
		<-c.done
	}
}
