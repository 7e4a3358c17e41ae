package model

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	policy "github.com/gfaas/gfaas/pkg/policy/model"
)

// reap gives up what the dead hold. The system has told of their end by the time
// that anybody can know of it; whoever asks for room then must not find it taken
// because a goroutine here has not had its turn.
func (d *Daemon) reap() {
	d.mu.Lock()
	var conns []*conn
	for c := range d.conns {
		if c.holding() {
			conns = append(conns, c)
		}
	}
	var ended []policy.Event
	for id, process := range d.processes {
		if over(process, unix.POLLIN) {
			ended = append(ended, policy.Leave{Request: id})
		}
	}
	d.stepLocked(ended...) // what the watcher of the process says later is nothing new
	d.mu.Unlock()
	for _, c := range conns {
		if over(c.socket, unix.POLLHUP) {
			c.leave()
		}
	}
}

// over says whether one of these events has come to a file; whatever cannot be
// asked any more is over.
func over(f interface {
	SyscallConn() (syscall.RawConn, error)
}, event int16) (is bool) {
	raw, err := f.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		at := []unix.PollFd{{Fd: int32(fd), Events: event}}
		n, err := unix.Poll(at, 0)
		is = err == nil && n > 0 && at[0].Revents&event != 0
	})
	return is || err != nil
}

var _ interface {
	SyscallConn() (syscall.RawConn, error)
} = (*os.File)(nil)

// holding says whether the connection holds anything.
func (c *conn) holding() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.holds) > 0
}
