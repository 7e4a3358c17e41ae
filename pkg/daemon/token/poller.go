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

// poller reads what all clients send. One goroutine sleeps in the kernel until
// any of them sends something, or a scheduler is to be woken, and acts on that
// before it sleeps again: an answer then comes as soon as from a bare echo. With a
// goroutine for each, the runtime's poller would be woken, then a thread for the
// goroutine, and with many clients they would queue for the daemon's lock; and its
// timers come up to a millisecond late, which is an eighth of a short turn.
type poller struct {
	epoll   int
	ended   int               // an eventfd: readable when the daemon ends
	timer   int               // a timerfd: readable when a scheduler is to be woken
	fires   time.Duration     // when that fires; 0 is not set; guarded by the daemon's lock
	clients map[int32]*client // by descriptor; guarded by the daemon's lock
	safe    atomic.Bool       // the kernel refuses descriptors that come with records
}

func newPoller() (*poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	ended, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(epoll)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	timer, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(epoll)
		_ = unix.Close(ended)
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	p := &poller{epoll: epoll, ended: ended, timer: timer, clients: map[int32]*client{}}
	safe, err := rightsAreRefused()
	p.safe.Store(safe)
	for _, fd := range []int{ended, timer} {
		if err == nil {
			err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, readable(fd))
		}
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return p, nil
}

// readable is the wish to be told when something comes in. An end of the
// connection is told in any case.
func readable(fd int) *unix.EpollEvent { return &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)} }

func (p *poller) close() {
	for _, fd := range []int{p.epoll, p.ended, p.timer} {
		_ = unix.Close(fd)
	}
}

// wakeAt has the timer fire then, unless it does earlier as it is and can be set
// again then: most grants put off a wake that is set, and setting a timer costs more
// than they do. Locked.
func (p *poller) wakeAt(now, at time.Duration) {
	if p.fires == 0 || at < p.fires {
		p.fires = at
		_ = unix.TimerfdSettime(p.timer, 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(at-now, 1)))}, nil)
	}
}

// welcome sends a client the welcome and reads what it sends from now on, through
// a descriptor of its own: the runtime's poller has the other. Locked.
func (p *poller) welcome(c *client, conn *net.UnixConn, welcome wire.Welcome) error {
	err := use(conn, func(fd int) (err error) {
		c.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("connection: %w", err)
	}
	err = send(c.fd, wire.Append(nil, welcome), c.alloc.page.file)
	if err == nil {
		err = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, c.fd, readable(c.fd))
	}
	if err != nil {
		_ = unix.Close(c.fd)
		return err
	}
	p.clients[int32(c.fd)] = c
	return nil
}

// drop closes a client's connection. Only the poller's own goroutine does that, so
// that no descriptor is another client's while it is used. Locked.
func (p *poller) drop(c *client) {
	delete(p.clients, int32(c.fd))
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, c.fd, nil)
	if p.safe.Load() {
		_ = unix.Close(c.fd)
		return
	}
	go discardAll(c.fd)
}

// pause does not read what a client sends for a while.
func (p *poller) pause(d *Daemon, c *client, length time.Duration) {
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_MOD, c.fd, &unix.EpollEvent{Fd: int32(c.fd)})
	time.AfterFunc(length, func() {
		_ = d.locked(func() {
			if p.clients[int32(c.fd)] == c {
				_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_MOD, c.fd, readable(c.fd))
			}
		})
	})
}

// poll reads and acts on what clients send until the daemon ends. The buffer is
// longer than any message, so that one that is too long shows.
func (d *Daemon) poll() error {
	buf := make([]byte, wire.MaxMessage+1)
	oob := make([]byte, unix.CmsgSpace(4*mostRights))
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(d.poller.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll clients: %w", err)
		}
		for _, ev := range events[:max(n, 0)] {
			n, err := d.poller.read(int(ev.Fd), buf, oob)
			if int(ev.Fd) == d.poller.timer {
				_ = d.locked(d.fired)
				continue
			}
			if !d.received(ev.Fd, buf[:max(n, 0)], err) {
				return nil
			}
		}
	}
}

// read reads a record of a client, that the daemon ends, or that the timer has fired.
func (p *poller) read(fd int, buf, oob []byte) (int, error) {
	if p.safe.Load() || fd == p.ended || fd == p.timer {
		return unix.Read(fd, buf)
	}
	return receive(fd, buf, oob)
}

// received acts on one record of a client, or on the end of its connection. The
// answer is false at the daemon's end.
func (d *Daemon) received(fd int32, frame []byte, err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		for _, c := range d.poller.clients {
			d.poller.drop(c)
		}
		return false
	}
	c := d.poller.clients[fd]
	if c == nil || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return true
	}
	var pause time.Duration
	switch {
	case err != nil:
	case len(frame) == 0:
		err = io.EOF
	default:
		pause, err = d.handle(c, frame)
	}
	switch {
	case err != nil:
		d.leave(c)
		d.poller.drop(c)
		d.ends(c.pid, c.uid, err)
	case pause > 0:
		d.poller.pause(d, c, pause)
	}
	return true
}

// ends logs the end of a connection that did not just end.
func (d *Daemon) ends(pid int, uid uint32, err error) {
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.ECONNRESET) {
		d.faults.warn("client connection ended", "pid", pid, "uid", uid, "err", err)
	}
}

// hangUp ends a client's connection; the poller finds that and takes it out.
func (c *client) hangUp() { _ = unix.Shutdown(c.fd, unix.SHUT_RDWR) }

// Nobody here takes descriptors that peers pass. But who drops the last
// reference to one closes it, and a TCP connection that lingers makes that take
// as long as its owner wished, for all whose messages the same thread reads. So the kernel
// refuses them, from 6.16 on. Before that they are received, and closed in a
// goroutine of their own.

// mostRights is how many descriptors a record can carry: the kernel's SCM_MAX_FD.
const mostRights = 253

// errRights ends the connection of a client that passes descriptors.
var errRights = errors.New("it passes descriptors")

// refuseRights has the kernel refuse them, if it can, on a socket and on all
// connections that come in at it.
func refuseRights(_, _ string, raw syscall.RawConn) error {
	var err error
	if failed := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0)
	}); failed != nil {
		return failed
	}
	if errors.Is(err, unix.ENOPROTOOPT) {
		return nil
	}
	return err
}

// rightsAreRefused says whether the kernel can.
func rightsAreRefused() (bool, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	_, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS)
	return err == nil, nil
}

// receive reads a record, and fails if descriptors came with it.
func receive(fd int, buf, oob []byte) (int, error) {
	n, passed, _, _, err := unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
	if err == nil && passed > 0 {
		discard(oob[:passed])
		return 0, errRights
	}
	return n, err
}

// discard closes descriptors that came in, without waiting for that.
func discard(oob []byte) {
	messages, _ := unix.ParseSocketControlMessage(oob)
	var all []int
	for _, c := range messages {
		fds, _ := unix.ParseUnixRights(&c)
		all = append(all, fds...)
	}
	go func() {
		for _, fd := range all {
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			_ = unix.Close(fd)
		}
	}()
}

// discardAll closes a connection with all that its peer has still said.
func discardAll(fd int) {
	drain(fd)
	_ = unix.Close(fd)
}

// drain ends a connection and takes what its peer has still said.
func drain(fd int) {
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	buf, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4*mostRights))
	for {
		n, err := receive(fd, buf, oob)
		if err == nil && n == 0 || err != nil && !errors.Is(err, errRights) && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
