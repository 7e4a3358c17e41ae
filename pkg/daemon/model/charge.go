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
	Ended() <-chan struct{} // closed when the memory no longer counts
	Close()                 // ends the counting, at the latest soon after it returns
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
	ended  chan struct{}
}

// chargeStore has the token daemon count a store before its memory is allocated. It returns
// an error if the store is refused. If no token daemon answers, the store goes on, and counts
// as soon as one answers. The charge is nil if the client is in no slice.
func (d *Daemon) chargeStore(c *call, bytes gpu.Bytes) (*charge, error) {
	client := c.conn
	if d.cfg.Slices == nil || client.pid == 0 {
		return nil, nil
	}
	s := tokens.Stored{PID: client.pid, Start: client.start, GPU: d.cfg.GPUName, Bytes: bytes, Sender: os.Getpid()}
	counted, err := d.count(client.ctx, s)
	var refused *wire.Error
	switch {
	case errors.As(err, &refused):
		return nil, wire.Errorf(refused.Code, "store model %s: %s", c.Name, refused.Message)
	case client.ctx.Err() != nil:
		if counted != nil {
			counted.Close()
		}
		return nil, client.ctx.Err()
	case err == nil && counted == nil:
		return nil, nil
	}
	ctx, stop := context.WithCancel(d.ctx)
	ch := &charge{stop, make(chan struct{})}
	s.Held = true // a later Count must not refuse it
	d.work.Go(func() {
		defer close(ch.ended)
		defer stop()
		d.keepCounted(ctx, counted, s, err)
	})
	return ch, nil
}

// count asks the token daemon once.
func (d *Daemon) count(ctx context.Context, s tokens.Stored) (Counted, error) {
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	return d.cfg.Slices.Count(ctx, s)
}

// keepCounted has a store counted again whenever the counting ends, as when the token
// daemon is restarted, until ctx ends. If counted is nil, err is the reason why the store
// does not count yet.
func (d *Daemon) keepCounted(ctx context.Context, counted Counted, s tokens.Stored, err error) {
	said := false
	for wait := minCountWait; ; {
		if counted != nil {
			wait, said = minCountWait, false
			select {
			case <-counted.Ended():
			case <-ctx.Done():
			}
			counted.Close()
		} else if !said && !missing(err) {
			d.log.Warn("a store does not count against the slice of its client", "pid", s.PID, "bytes", int64(s.Bytes), "err", err)
			said = true
		}
		timer := time.NewTimer(wait)
		wait = min(2*wait, maxCountWait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		if counted, err = d.count(ctx, s); err == nil && counted == nil {
			return // the client is no longer in a slice
		}
	}
}

// missing reports whether an error means that no token daemon runs.
func missing(err error) bool {
	var gone interface{ Unavailable() bool }
	return errors.As(err, &gone) && gone.Unavailable()
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
		<-c.ended
	}
}
