package token

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// poller reads the messages of all sessions. One goroutine sleeps in the kernel until a message
// arrives or the alarm expires, and handles it before it sleeps again, so that an answer takes as
// long as a bare echo. With one goroutine per session, the runtime's poller would be woken first and
// then a thread for the goroutine, and many sessions would queue for the lock.
type poller struct {
	epoll    int
	alarm    *alarm             // alarm of the schedulers; at shutdown it wakes poll
	sessions map[int32]*session // by descriptor; guarded by the core's lock
}

func newPoller(alarm *alarm) (*poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	p := &poller{epoll: epoll, alarm: alarm, sessions: map[int32]*session{}}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, alarm.fd, readable(alarm.fd)); err != nil {
		p.close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return p, nil
}

// readable returns the epoll event for a descriptor that can be read or has ended.
func readable(fd int) *unix.EpollEvent { return &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)} }

func (p *poller) close() { _ = unix.Close(p.epoll) }

// welcome sends the welcome to a client and starts to read its messages. It uses a duplicate of the
// descriptor, because the runtime's poller uses the original. The caller holds the lock.
func (p *poller) welcome(c *session, conn *net.UnixConn, welcome wire.Welcome) error {
	err := use(conn, func(fd int) (err error) {
		c.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("connection: %w", err)
	}
	err = send(c.fd, wire.Append(nil, welcome), c.page.file)
	if err == nil {
		err = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, c.fd, readable(c.fd))
	}
	if err != nil {
		_ = unix.Close(c.fd)
		return err
	}
	p.sessions[int32(c.fd)] = c
	return nil
}

// drop closes a client's connection. Only the goroutine of poll calls it, so that a descriptor in use
// is not reused for another client. The caller holds the lock.
func (p *poller) drop(c *session) {
	delete(p.sessions, int32(c.fd))
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, c.fd, nil)
	go closeAndDiscard(c.fd)
}

// pause stops reading a client's messages for the given time.
func (p *poller) pause(state *core, c *session, length time.Duration) {
	_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_MOD, c.fd, &unix.EpollEvent{Fd: int32(c.fd)})
	time.AfterFunc(length, func() {
		_ = state.locked(func() {
			if p.sessions[int32(c.fd)] == c {
				_ = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_MOD, c.fd, readable(c.fd))
			}
		})
	})
}

// poll handles messages and the alarm until the daemon shuts down. Its buffer is longer than any
// valid message, so that longer messages are detected.
func (s *sessions) poll() error {
	buf := make([]byte, wire.MaxMessage+1)
	oob := make([]byte, unix.CmsgSpace(4*procfs.MaxRights))
	events := make([]unix.EpollEvent, 64)
	p := s.poller
	for {
		n, err := unix.EpollWait(p.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("poll clients: %w", err)
		}
		for _, ev := range events[:max(n, 0)] {
			if int(ev.Fd) != p.alarm.fd {
				n, err := receive(int(ev.Fd), buf, oob)
				s.received(ev.Fd, buf[:max(n, 0)], err)
				continue
			}
			_, _ = unix.Read(p.alarm.fd, buf) // the number of times it has expired
			if s.locked(s.registry.gpus.expired) != nil {
				s.dropAll()
				return nil
			}
		}
	}
}

// dropAll closes all connections at shutdown.
func (s *sessions) dropAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.poller.sessions {
		s.poller.drop(c)
	}
}

// received handles a record of a client, or the end of its connection.
func (s *sessions) received(fd int32, frame []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.poller.sessions[fd]
	if s.closed || c == nil || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return
	}
	var pause time.Duration
	switch {
	case err != nil:
	case len(frame) == 0:
		err = io.EOF
	default:
		pause, err = s.handle(c, frame)
	}
	switch {
	case err != nil:
		s.registry.removeSession(c)
		s.poller.drop(c)
		s.logEnd(c.pid, c.uid, err)
	case pause > 0:
		s.poller.pause(s.core, c, pause)
	}
}

// logEnd logs the end of a connection if it ended with an unexpected error.
func (s *sessions) logEnd(pid int, uid uint32, err error) {
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.ECONNRESET) {
		s.faults.warn("client connection ended", "pid", pid, "uid", uid, "err", err)
	}
}
