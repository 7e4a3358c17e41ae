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

// Slices counts memory against the limits of slices: the token daemon does.
type Slices interface {
	// Count counts the memory of a store until the Counted is closed. It returns nil
	// without an error if the process that stores is in no slice of that GPU. A
	// *wire.Error refuses the store; any other error says that nothing counts now.
	Count(ctx context.Context, s tokens.Stored) (Counted, error)
}

// Counted is memory that counts against a slice.
type Counted interface {
	Ended() <-chan struct{} // closed when it does not count any more
	Close()                 // returns when it does not, or soon after
}

const (
	countTime    = 2 * time.Second // for the token daemon to answer
	minCountWait = 20 * time.Millisecond
	maxCountWait = 250 * time.Millisecond // between attempts to have a store counted
)

// charge is memory that a client stores and has not committed, as it counts against the
// client's slice. A nil charge counts against none.
type charge struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

// chargeStore has a store counted before its memory is taken, or returns why the client may
// not have so much. While no token daemon answers, the store goes on, and counts as soon
// as one does.
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
	s.Held = true // from now on
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

// keepCounted has a store counted again by each token daemon that comes, until the
// context ends. The error is why it does not count yet, if so.
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
			return // it is in no slice any more
		}
	}
}

// missing reports whether an error says that there is no token daemon.
func missing(err error) bool {
	var gone interface{ Unavailable() bool }
	return errors.As(err, &gone) && gone.Unavailable()
}

// stop has the memory count no longer, soon.
func (c *charge) stop() {
	if c != nil {
		c.cancel()
	}
}

// end is stop, and waits for it.
func (c *charge) end() {
	if c.stop(); c != nil {
		<-c.ended
	}
}
