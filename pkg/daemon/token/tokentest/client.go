// Package tokentest is a reference client of the token daemon in Go: what the
// preload library does in C, for tests and for load.
package tokentest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/wire"
)

// ErrRefused is what a refusal by the daemon wraps.
var ErrRefused = errors.New("refused")

// Client is one process as the daemon sees it.
type Client struct {
	Welcome  wire.Welcome
	Ends     chan uint32   // leases that the daemon asks back
	Gone     chan struct{} // closed when the connection has ended
	conn     *net.UnixConn
	page     []byte
	slot     *wire.PageSlot
	returned uint32
	shut     atomic.Bool // the connection has ended: the gate in the page means nothing any more
}

// Dial connects a process of an instance that has that much GPU memory, for
// the first of its GPUs.
func Dial(socket, instance, secret string, memUsed uint64) (*Client, error) {
	return DialDevice(socket, instance, secret, 0, memUsed)
}

// DialDevice is Dial for any of the instance's GPUs.
func DialDevice(socket, instance, secret string, device uint32, memUsed uint64) (*Client, error) {
	return dial(socket, instance, secret, device, memUsed, wire.HelloManySlots)
}

// DialOlder is Dial for a process whose library knows wire.PageSlots slots only.
func DialOlder(socket, instance, secret string, memUsed uint64) (*Client, error) {
	return dial(socket, instance, secret, 0, memUsed, 0)
}

func dial(socket, instance, secret string, device uint32, memUsed uint64, flags uint32) (*Client, error) {
	hello := wire.Hello{PID: uint32(os.Getpid()), Device: device, MemUsed: memUsed}
	var err error
	if hello.Instance, err = wire.MakeName(instance); err != nil {
		return nil, err
	}
	if hello.Secret, err = wire.MakeName(secret); err != nil {
		return nil, err
	}
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	c := &Client{conn: conn, Ends: make(chan uint32, 16), Gone: make(chan struct{})}
	if err := c.greet(hello, flags); err != nil {
		_ = conn.Close()
		return nil, err
	}
	go c.read()
	return c, nil
}

// greet says hello and maps the page that comes with the welcome.
func (c *Client) greet(hello wire.Hello, flags uint32) error {
	if _, err := c.conn.Write(wire.SetFlags(wire.Append(nil, hello), flags)); err != nil {
		return err
	}
	buf, oob := make([]byte, wire.MaxMessage), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := c.conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return err
	}
	msg, err := wire.Parse(buf[:n])
	if err != nil {
		return err
	}
	switch msg := msg.(type) {
	case wire.Welcome:
		c.Welcome = msg
	case wire.Refused:
		return fmt.Errorf("%w: %s", ErrRefused, msg.Reason)
	default:
		return fmt.Errorf("message type %d, expected a welcome", msg.Type())
	}
	fd, err := descriptor(oob[:oobn])
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if c.page, err = unix.Mmap(fd, 0, wire.PageSizeMost, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("map the instance page: %w", err)
	}
	c.slot = (*wire.PageSlot)(unsafe.Pointer(&c.page[wire.PageSlotsOffset+int(c.Welcome.Slot)*wire.PageSlotSize]))
	return nil
}

func descriptor(oob []byte) (int, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return -1, err
	}
	for _, m := range msgs {
		if fds, err := unix.ParseUnixRights(&m); err == nil && len(fds) == 1 {
			return fds[0], nil
		}
	}
	return -1, errors.New("the welcome carries no descriptor")
}

func (c *Client) read() {
	defer close(c.Gone)
	defer c.shut.Store(true)
	buf := make([]byte, wire.MaxMessage)
	for {
		n, err := c.conn.Read(buf)
		if err != nil {
			return
		}
		msg, err := wire.Parse(buf[:n])
		if err != nil {
			return
		}
		if end, ok := msg.(wire.LeaseEnd); ok {
			c.Ends <- end.Lease
		}
	}
}

// Used returns how many slots of the instance page may have a process.
func (c *Client) Used() int {
	return int(atomic.LoadUint32(&(*wire.PageHeader)(unsafe.Pointer(&c.page[0])).Used))
}

// Send sends any message.
func (c *Client) Send(m wire.Message) error {
	_, err := c.conn.Write(wire.Append(nil, m))
	return err
}

// Request asks for a lease.
func (c *Client) Request() error {
	_, err := c.conn.Write(wire.Request{}.Append(nil))
	return err
}

// Return closes the own gate and gives a lease back.
func (c *Client) Return(lease uint32, used time.Duration, more bool) error {
	c.returned = lease
	atomic.CompareAndSwapUint32(&c.slot.Gate, lease, 0)
	m := wire.Return{Lease: lease, UsedNS: uint64(used)}
	if more {
		m.Flags = wire.ReturnWantsMore
	}
	_, err := c.conn.Write(m.Append(nil))
	return err
}

// Gate is the lease that is held, or 0. Without the daemon it is closed,
// whatever the page says.
func (c *Client) Gate() uint32 {
	if c.shut.Load() {
		return 0
	}
	return atomic.LoadUint32(&c.slot.Gate)
}

// Slot is the process's own part of the instance page.
func (c *Client) Slot() *wire.PageSlot { return c.slot }

// Header is the head of the instance page.
func (c *Client) Header() *wire.PageHeader { return (*wire.PageHeader)(unsafe.Pointer(&c.page[0])) }

// MemLimit is the limit that the instance page says, in bytes.
func (c *Client) MemLimit() uint64 { return atomic.LoadUint64(&c.Header().MemLimit) }

// Renewals is how often leases were renewed.
func (c *Client) Renewals() uint32 { return atomic.LoadUint32(&c.Header().Renewals) }

// Await sleeps at the gate until it is open. A lease that came and went while
// it slept is given back.
func (c *Client) Await(ctx context.Context) (lease uint32, err error) {
	const futexWait = 0
	timeout := unix.NsecToTimespec(int64(20 * time.Millisecond)) // to notice the context
	for {
		if lease := c.Gate(); lease != 0 {
			return lease, nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-c.Gone:
			return 0, net.ErrClosed
		case end := <-c.Ends:
			if end != c.returned {
				_ = c.Return(end, 0, true) // else the daemon's call for it crossed
			}
			continue
		default:
		}
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&c.slot.Gate)), futexWait, 0,
			uintptr(unsafe.Pointer(&timeout)), 0, 0)
	}
}

// Close ends the connection, as a process that dies does.
func (c *Client) Close() {
	_ = c.conn.Close()
	<-c.Gone
	_ = unix.Munmap(c.page)
}

// Saturate launches kernels of that length one after the other, whenever it
// holds a lease, until the context ends. It returns the time they took.
func (c *Client) Saturate(ctx context.Context, kernel time.Duration) (used time.Duration, err error) {
	if err := c.Request(); err != nil {
		return 0, err
	}
	for {
		lease, err := c.Await(ctx)
		if errors.Is(err, ctx.Err()) && ctx.Err() != nil {
			return used, nil
		}
		if err != nil {
			return used, err
		}
		start := time.Now()
		for c.Gate() == lease && ctx.Err() == nil {
			atomic.AddUint64(&c.slot.Launches, 1)
			time.Sleep(kernel)
		}
		took := time.Since(start)
		used += took
		if ctx.Err() != nil {
			return used, c.Return(lease, took, false)
		}
		select {
		case end := <-c.Ends:
			if end != lease {
				return used, fmt.Errorf("lease %d was asked back, lease %d is held", end, lease)
			}
		case <-c.Gone:
			return used, net.ErrClosed
		}
		if err := c.Return(lease, took, true); err != nil {
			return used, err
		}
	}
}

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
