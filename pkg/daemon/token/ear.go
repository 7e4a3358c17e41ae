package token

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/wire"
)

// ear hears all processes that were let in. One goroutine sleeps in the kernel
// until any of them speaks, and acts on what it says before it sleeps again:
// what a process waits for is then as near as it would be with a bare echo. Were
// there a goroutine for each, the runtime's poller would be woken, a thread for
// the goroutine, and with many processes they would queue for the daemon's lock.
type ear struct {
	epoll int
	bell  int               // becomes readable when the daemon ends
	hears map[int32]*member // by descriptor; guarded by the daemon's lock
	safe  atomic.Bool       // the kernel refuses descriptors that come with records
}

func newEar() (*ear, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(epoll)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	e := &ear{epoll: epoll, bell: bell, hears: map[int32]*member{}}
	err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, bell, listens(bell))
	safe := false
	if err == nil {
		safe, err = rightsAreRefused()
	}
	e.safe.Store(safe)
	if err != nil {
		e.close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return e, nil
}

// listens is the wish to be told when something comes in. An end of the
// connection is told in any case.
func listens(fd int) *unix.EpollEvent { return &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)} }

func (e *ear) close() {
	_ = unix.Close(e.epoll)
	_ = unix.Close(e.bell)
}

// welcome tells a process that it is in and hears it from now on, through a
// descriptor of its own: the runtime's poller has the other. Locked.
func (e *ear) welcome(m *member, conn *net.UnixConn, welcome wire.Welcome) error {
	err := use(conn, func(fd int) (err error) {
		m.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("connection: %w", err)
	}
	err = send(m.fd, wire.Append(nil, welcome), m.seat.page.file)
	if err == nil {
		err = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, m.fd, listens(m.fd))
	}
	if err != nil {
		_ = unix.Close(m.fd)
		return err
	}
	e.hears[int32(m.fd)] = m
	return nil
}

// drop closes a process's connection. Only the ear's own goroutine does that, so
// that no descriptor means another process while it is used. Locked.
func (e *ear) drop(m *member) {
	delete(e.hears, int32(m.fd))
	_ = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_DEL, m.fd, nil)
	if e.safe.Load() {
		_ = unix.Close(m.fd)
		return
	}
	go discardAll(m.fd)
}

// rest does not listen to a process for a while.
func (e *ear) rest(d *Daemon, m *member, length time.Duration) {
	_ = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_MOD, m.fd, &unix.EpollEvent{Fd: int32(m.fd)})
	time.AfterFunc(length, func() {
		_ = d.locked(func() {
			if e.hears[int32(m.fd)] == m {
				_ = unix.EpollCtl(e.epoll, unix.EPOLL_CTL_MOD, m.fd, listens(m.fd))
			}
		})
	})
}

// hear hears all processes until the daemon ends. The buffer is longer than any
// message, so that one that is too long shows.
func (d *Daemon) hear() error {
	buf := make([]byte, wire.MaxMessage+1)
	oob := make([]byte, unix.CmsgSpace(4*mostRights))
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(d.ear.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("hear clients: %w", err)
		}
		for _, ev := range events[:max(n, 0)] {
			n, err := d.ear.read(int(ev.Fd), buf, oob)
			if !d.heardFrom(ev.Fd, buf[:max(n, 0)], err) {
				return nil
			}
		}
	}
}

// read reads a record of a process, or the bell.
func (e *ear) read(fd int, buf, oob []byte) (int, error) {
	if e.safe.Load() || fd == e.bell {
		return unix.Read(fd, buf)
	}
	return receive(fd, buf, oob)
}

// heardFrom acts on one record of a process, or on its end; the daemon's end is
// answered with false.
func (d *Daemon) heardFrom(fd int32, frame []byte, err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		for _, m := range d.ear.hears {
			d.ear.drop(m)
		}
		return false
	}
	m := d.ear.hears[fd]
	if m == nil || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return true
	}
	var rest time.Duration
	switch {
	case err != nil:
	case len(frame) == 0:
		err = io.EOF
	default:
		rest, err = d.heard(m, frame)
	}
	switch {
	case err != nil:
		d.leave(m)
		d.ear.drop(m)
		d.ends(m.pid, m.uid, err)
	case rest > 0:
		d.ear.rest(d, m, rest)
	}
	return true
}

// ends logs the end of a connection that did not just end.
func (d *Daemon) ends(pid int, uid uint32, err error) {
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.ECONNRESET) {
		d.faults.warn("client connection ended", "pid", pid, "uid", uid, "err", err)
	}
}

// hangUp ends a process's connection; the ear finds that and takes it out.
func (m *member) hangUp() { _ = unix.Shutdown(m.fd, unix.SHUT_RDWR) }
