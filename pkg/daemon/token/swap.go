package token

import (
	"context"
	"fmt"
	"net/http"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

// order is the latest Move that a process has received.
type order struct {
	number            uint32
	pending, complete bool
}

// order sends a Move to the session's process. A process with an older library has no answer to
// await: it moves its memory when it has been idle for a while.
func (c *session) order(toHost bool) {
	c.move = order{number: c.move.number + 1, pending: c.moves, complete: !c.moves}
	msg := wire.Move{Number: c.move.number}
	if toHost {
		msg.ToHost = 1
	}
	if c.moves && send(c.fd, wire.Append(nil, msg), nil) != nil {
		c.move.pending = false // it does not read its messages
	}
}

// moved records the answer to a Move. It ignores answers to earlier ones.
func (c *session) moved(frame []byte) error {
	msg, err := wire.Parse(frame)
	if err != nil {
		return err
	}
	if m := msg.(wire.Moved); c.move.pending && m.Number == c.move.number {
		c.move.pending, c.move.complete = false, m.Complete == 1
	}
	return nil
}

// swapOut makes the preload library move the instance's managed memory to the host. It returns an
// error if the instance has work, or if some of its memory stays on the GPU, such as memory that is
// not managed.
func (p *parking) swapOut(ctx context.Context, inst *instance) error {
	inst.moves.Lock()
	defer inst.moves.Unlock()
	order := func() error {
		for c := range inst.sessions() {
			if c.lease != 0 || c.requestPending {
				return errBusy
			}
		}
		for c := range inst.sessions() {
			c.order(true)
		}
		return nil
	}
	idle, cancel := context.WithTimeout(ctx, idleTime)
	defer cancel()
	if err := p.retryWhileBusy(idle, order); err != nil {
		return statusError{http.StatusConflict, err}
	}
	if err := p.awaitMoved(ctx, inst); err != nil {
		return statusError{http.StatusConflict, err}
	}
	var remains gpu.Bytes
	if err := p.locked(func() {
		for c := range inst.sessions() {
			if n := c.page.counters(c.slot); n.memUsed > n.memParked {
				remains += gpu.Bytes(min(n.memUsed-n.memParked, maxBytes))
			}
		}
	}); err != nil {
		return err
	}
	if remains > 0 {
		return statusError{http.StatusConflict, fmt.Errorf("%v of the instance's memory cannot be moved to the host", remains)}
	}
	return nil
}

// swapIn makes the preload library move the instance's managed memory to the GPU. Work that begins
// meanwhile moves the rest itself.
func (p *parking) swapIn(ctx context.Context, inst *instance) error {
	inst.moves.Lock()
	defer inst.moves.Unlock()
	if err := p.locked(func() {
		for c := range inst.sessions() {
			c.order(false)
		}
	}); err != nil {
		return err
	}
	if err := p.awaitMoved(ctx, inst); err != nil && err != errBusy {
		return statusError{http.StatusConflict, err}
	}
	return nil
}

// awaitMoved waits until all processes of an instance have answered their Moves. It returns errBusy
// if a process has not moved all of its memory.
func (p *parking) awaitMoved(ctx context.Context, inst *instance) (closing error) {
	pending, complete := 0, true
	err := poll(ctx, idleCheck, func() bool {
		pending, complete = 0, true
		closing = p.locked(func() {
			for c := range inst.sessions() {
				if c.move.pending {
					pending = max(c.pid, 1)
				}
				complete = complete && (c.move.complete || c.move.number == 0) // 0: it connected later
			}
		})
		return closing != nil || pending == 0
	})
	switch {
	case err != nil:
		return fmt.Errorf("process %d does not move its memory: %w", pending, err)
	case closing == nil && !complete:
		return errBusy
	}
	return closing
}

// retryWhileBusy calls do with the lock until it returns another error than errBusy, or nil.
func (p *parking) retryWhileBusy(ctx context.Context, do func() error) (err error) {
	_ = poll(ctx, idleCheck, func() bool {
		if closing := p.locked(func() { err = do() }); closing != nil {
			err = closing
		}
		return err != errBusy
	})
	return err
}
