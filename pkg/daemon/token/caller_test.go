package token

import (
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/wire"
)

// caller is the client's side of a round trip. It uses blocking system calls in its own thread,
// like the preload library.
type caller struct {
	fd   int
	gate *uint32 // nil: the answer is a message
	buf  [wire.MaxMessage]byte
}

func connectTo(t testing.TB, path string) *caller {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return &caller{fd: fd}
}

// greet registers the caller as a process of an instance.
func (c *caller) greet(t testing.TB, instance string) {
	hello := wire.Hello{}
	hello.Instance, _ = wire.MakeName(instance)
	hello.Secret, _ = wire.MakeName("secret of " + instance)
	c.send(t, wire.Append(nil, hello))
	oob := make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(c.fd, c.buf[:], oob, 0)
	if err != nil {
		t.Fatal(err)
	}
	msg, err := wire.Parse(c.buf[:n])
	welcome, ok := msg.(wire.Welcome)
	if err != nil || !ok {
		t.Fatalf("answer to the hello: got %v, %v; want a welcome", msg, err)
	}
	control, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&control[0])
	if err != nil {
		t.Fatal(err)
	}
	page, err := unix.Mmap(fds[0], 0, wire.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	_ = unix.Close(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(page) })
	c.gate = &(*wire.PageSlot)(unsafe.Pointer(&page[wire.PageSlotsOffset+int(welcome.Slot)*wire.PageSlotSize])).Gate
}

func (c *caller) send(t testing.TB, frame []byte) {
	if _, err := unix.Write(c.fd, frame); err != nil {
		t.Fatal(err)
	}
}

// await waits for the answer, which is a message or an open gate. It returns the lease of the gate.
func (c *caller) await(t testing.TB) uint32 {
	if c.gate == nil {
		if _, err := unix.Read(c.fd, c.buf[:]); err != nil {
			t.Fatal(err)
		}
		return 0
	}
	for {
		if lease := atomic.LoadUint32(c.gate); lease != 0 {
			return lease
		}
		const futexWait = 0
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(c.gate)), futexWait, 0, 0, 0, 0)
	}
}

// roundTrip sends a request and waits for the answer.
func (c *caller) roundTrip(t testing.TB) (elapsed time.Duration, lease uint32) {
	start := time.Now()
	c.send(t, request)
	lease = c.await(t)
	return time.Since(start), lease
}

var request = wire.Append(nil, wire.Request{})

// returnLease returns a lease as the preload library does.
func (c *caller) returnLease(t testing.TB, lease uint32, wantsMore bool) {
	atomic.CompareAndSwapUint32(c.gate, lease, 0)
	m := wire.Return{Lease: lease}
	if wantsMore {
		m.Flags = wire.ReturnWantsMore
	}
	c.send(t, wire.Append(nil, m))
}

// tryReturn returns a lease to a daemon that may have ended the connection.
func (c *caller) tryReturn(lease uint32) error {
	_, err := unix.Write(c.fd, wire.Append(nil, wire.Return{Lease: lease}))
	return err
}
