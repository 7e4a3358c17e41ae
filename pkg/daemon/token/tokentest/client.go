// Package tokentest is a reference client of the token daemon in Go. It does the same as the C
// preload library, for tests and load generators.
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

// ErrRefused is wrapped by errors about a refusal by the daemon.
var ErrRefused = errors.New("refused")

// Client is a connected process of an instance.
type Client struct {
	Welcome  wire.Welcome
	Revoked  chan uint32 // leases that the daemon revokes
	Moves    chan wire.Move
	Closed   chan struct{} // closed when the connection has ended
	conn     *net.UnixConn
	page     []byte
	slot     *wire.PageSlot
	returned uint32
	shut     atomic.Bool // the connection has ended, and the gate in the page is invalid
}

// Options describes a process that connects.
type Options struct {
	Device  uint32  // index of the GPU among the instance's GPUs
	MemUsed uint64  // bytes of GPU memory that it has
	Older   bool    // its library supports only wire.PageSlots slots, and no moves
	Grant   *string // sent before the hello; nil: none
}

// Dial connects a process that has memUsed bytes of GPU memory to an instance, for the first of its
// GPUs.
func Dial(socket, instance, secret string, memUsed uint64) (*Client, error) {
	return DialWith(socket, instance, secret, Options{MemUsed: memUsed})
}

// DialWith connects a process to an instance.
func DialWith(socket, instance, secret string, o Options) (*Client, error) {
	hello := wire.Hello{PID: uint32(os.Getpid()), Device: o.Device, MemUsed: o.MemUsed}
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
	c := &Client{conn: conn, Revoked: make(chan uint32, 16), Moves: make(chan wire.Move, 16), Closed: make(chan struct{})}
	if o.Grant != nil {
		_, err = conn.Write(wire.AppendGrant(nil, *o.Grant))
	}
	if err == nil {
		err = c.greet(hello, o.Older)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	go c.read()
	return c, nil
}

// greet sends the hello and maps the page that the welcome carries.
func (c *Client) greet(hello wire.Hello, older bool) error {
	flags := wire.HelloManySlots | wire.HelloMoves
	if older {
		flags = 0
	}
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
		return fmt.Errorf("message of type %d, expected a welcome", msg.Type())
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
	return -1, errors.New("the welcome has no file descriptor")
}

func (c *Client) read() {
	defer close(c.Closed)
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
		switch msg := msg.(type) {
		case wire.LeaseEnd:
			c.Revoked <- msg.Lease
		case wire.Move:
			c.Moves <- msg
		}
	}
}

// Used returns the number of slots in use in the instance page.
func (c *Client) Used() int {
	return int(atomic.LoadUint32(&(*wire.PageHeader)(unsafe.Pointer(&c.page[0])).Used))
}

// Send sends a message of any type.
func (c *Client) Send(m wire.Message) error {
	_, err := c.conn.Write(wire.Append(nil, m))
	return err
}

// Request requests a lease.
func (c *Client) Request() error {
	_, err := c.conn.Write(wire.Append(nil, wire.Request{}))
	return err
}

// Values of Return's argument wantsMore.
const (
	WantsMore   = true
	WantsNoMore = false
)

// Return closes the client's gate and returns a lease.
func (c *Client) Return(lease uint32, used time.Duration, wantsMore bool) error {
	c.returned = lease
	atomic.CompareAndSwapUint32(&c.slot.Gate, lease, 0)
	m := wire.Return{Lease: lease, UsedNS: uint64(used)}
	if wantsMore {
		m.Flags = wire.ReturnWantsMore
	}
	_, err := c.conn.Write(wire.Append(nil, m))
	return err
}

// Gate returns the lease that the client holds, or 0. It returns 0 after the connection has ended,
// because the page is no longer valid.
func (c *Client) Gate() uint32 {
	if c.shut.Load() {
		return 0
	}
	return atomic.LoadUint32(&c.slot.Gate)
}

// Slot returns the client's slot in the instance page.
func (c *Client) Slot() *wire.PageSlot { return c.slot }

// Header returns the header of the instance page.
func (c *Client) Header() *wire.PageHeader { return (*wire.PageHeader)(unsafe.Pointer(&c.page[0])) }

// MemLimit returns the limit in the instance page, in bytes.
func (c *Client) MemLimit() uint64 { return atomic.LoadUint64(&c.Header().MemLimit) }

// Renewals returns the number of renewals of leases.
func (c *Client) Renewals() uint32 { return atomic.LoadUint32(&c.Header().Renewals) }

// Await sleeps at the gate until it is open and returns the lease. If a lease was granted and revoked
// meanwhile, Await returns it to the daemon.
func (c *Client) Await(ctx context.Context) (lease uint32, err error) {
	for {
		if lease := c.Gate(); lease != 0 {
			return lease, nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-c.Closed:
			return 0, net.ErrClosed
		case end := <-c.Revoked:
			if end != c.returned {
				_ = c.Return(end, 0, WantsMore) // otherwise the revocation crossed an earlier return
			}
			continue
		default:
		}
		sleepAt(&c.slot.Gate, 0)
	}
}

// sleepAt sleeps at a word of the page while it has a value, at most 20 ms.
func sleepAt(word *uint32, value uint32) {
	const futexWait = 0
	timeout := unix.NsecToTimespec(int64(20 * time.Millisecond)) // to notice the context
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(value),
		uintptr(unsafe.Pointer(&timeout)), 0, 0)
}

// Close ends the connection, as the death of a process does.
func (c *Client) Close() {
	_ = c.conn.Close()
	<-c.Closed
	_ = unix.Munmap(c.page)
}

// Saturate launches kernels with the given blocks and length one after another while it holds a lease and has a
// budget, until the context ends. It returns their total time.
func (c *Client) Saturate(ctx context.Context, blocks uint64, kernel time.Duration) (used time.Duration, err error) {
	if err := c.Request(); err != nil {
		return 0, err
	}
	for {
		lease, err := c.Await(ctx)
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return used, nil
		}
		if err != nil {
			return used, err
		}
		start := time.Now()
		for c.spend(ctx, lease, blocks) {
			time.Sleep(kernel)
		}
		kernelTime := time.Since(start)
		used += kernelTime
		if ctx.Err() != nil {
			return used, c.Return(lease, kernelTime, WantsNoMore)
		}
		select {
		case end := <-c.Revoked:
			if end != lease {
				return used, fmt.Errorf("lease %d was revoked, but the client holds lease %d", end, lease)
			}
		case <-c.Closed:
			return used, net.ErrClosed
		}
		if err := c.Return(lease, kernelTime, WantsMore); err != nil {
			return used, err
		}
	}
}

// Metered reports whether the instance page limits its processes to budgets of blocks.
func (c *Client) Metered() bool {
	return atomic.LoadUint32(&c.Header().Flags)&wire.PageMetered != 0
}

// spend charges the blocks of one kernel to the budget, and waits for a budget if necessary. It
// returns false if the gate closes or the context ends meanwhile.
func (c *Client) spend(ctx context.Context, lease uint32, blocks uint64) bool {
	for ctx.Err() == nil {
		seen := atomic.LoadUint32(&c.slot.Refill)
		if c.Gate() != lease {
			return false
		}
		if !c.Metered() || atomic.LoadUint64(&c.slot.Blocks) < atomic.LoadUint64(&c.slot.Budget) {
			atomic.AddUint64(&c.slot.Blocks, blocks)
			atomic.AddUint64(&c.slot.Launches, 1)
			return true
		}
		sleepAt(&c.slot.Refill, seen)
	}
	return false
}
