package gateway

import (
	"context"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// connectionKey is what a request's context has its connection under.
type connectionKey struct{}

func withConnection(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, c)
}

// watchCaller calls left once the caller of a request has closed its connection, until
// the context ends. The server hears of that by itself only when it has read all of the
// request: of a long body that waits for its place it has not. What the sockets do not
// hold is seen by nobody: the end comes after it.
func watchCaller(ctx context.Context, left func()) {
	c, ok := ctx.Value(connectionKey{}).(syscall.Conn)
	if !ok {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	for gone := false; err == nil && !gone; {
		if !pause(ctx, callerPause) {
			return
		}
		err = raw.Control(func(fd uintptr) {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
			n, _ := unix.Poll(poll, 0) // what fails is looked at again
			gone = n > 0
		})
	}
	left()
}

// callerPause is how often it is looked whether a caller is there.
const callerPause = 100 * time.Millisecond
