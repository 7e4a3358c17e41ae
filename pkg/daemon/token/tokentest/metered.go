package tokentest

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/wire"
)

// Metered says whether the instance page holds its processes to budgets of
// blocks.
func (c *Client) Metered() bool {
	return atomic.LoadUint32(&c.Header().Flags)&wire.PageMetered != 0
}

// spend takes the blocks of one kernel off the budget, waiting for one. It
// returns false when the gate closes meanwhile.
func (c *Client) spend(ctx context.Context, lease uint32, blocks uint64) (bool, error) {
	const futexWait = 0
	timeout := unix.NsecToTimespec(int64(20 * time.Millisecond)) // to notice the context
	for {
		seen := atomic.LoadUint32(&c.slot.Refill)
		if c.Gate() != lease {
			return false, nil
		}
		if !c.Metered() || atomic.LoadUint64(&c.slot.Blocks) < atomic.LoadUint64(&c.slot.Budget) {
			atomic.AddUint64(&c.slot.Blocks, blocks)
			atomic.AddUint64(&c.slot.Launches, 1)
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-c.Gone:
			return false, net.ErrClosed
		default:
		}
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&c.slot.Refill)), futexWait, uintptr(seen),
			uintptr(unsafe.Pointer(&timeout)), 0, 0)
	}
}

// Work launches kernels of so many blocks and that length one after the other,
// whenever it holds a lease and has a budget, until the context ends.
func (c *Client) Work(ctx context.Context, blocks uint64, kernel time.Duration) error {
	if err := c.Request(); err != nil {
		return err
	}
	for {
		lease, err := c.Await(ctx)
		if err != nil {
			return ended(ctx, err)
		}
		start := time.Now()
		for {
			ok, err := c.spend(ctx, lease, blocks)
			if err != nil {
				return ended(ctx, err)
			}
			if !ok {
				break
			}
			time.Sleep(kernel)
		}
		<-c.Ends
		if err := c.Return(lease, time.Since(start), true); err != nil {
			return err
		}
	}
}

// ended is nil if the error is that the context ended.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}
