package model

import (
	"syscall"

	"golang.org/x/sys/unix"

	policy "github.com/gfaas/gfaas/pkg/policy/model"
)

// reap releases the holds of processes and connections that have ended, without waiting for their
// goroutines. A client that knows of such an end may ask for the memory at once, so the request
// must find it free.
func (srv *server) reap() {
	srv.mu.Lock()
	var conns []*conn
	for c := range srv.conns {
		if len(c.holds) > 0 {
			conns = append(conns, c)
		}
	}
	var events []policy.Event
	for id, process := range srv.processes {
		if eventPending(process, unix.POLLIN) {
			events = append(events, policy.Release{Request: id})
		}
	}
	srv.stepLocked(events...) // the policy ignores the second Leave of the process's watcher
	srv.mu.Unlock()
	for _, c := range conns {
		if eventPending(c.socket, unix.POLLHUP) {
			c.releaseHolds()
		}
	}
}

// eventPending reports whether event has occurred on a file. A file that cannot be polled counts as
// one with the event.
func eventPending(f interface {
	SyscallConn() (syscall.RawConn, error)
}, event int16) (pending bool) {
	raw, err := f.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: event}}
		n, err := unix.Poll(fds, 0)
		pending = err == nil && n > 0 && fds[0].Revents&event != 0
	})
	return pending || err != nil
}
