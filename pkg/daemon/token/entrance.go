package token

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
)

// maxUnknown is how many connections of an entrance may be open before their
// hello. For one more the oldest has to go: who says hello at once, as the
// preload library does, comes through even while others fill the place.
const maxUnknown = 256

// entrance is a socket at which processes come in.
type entrance struct {
	listener *chassis.Listener
	instance string          // whose processes may come in here; empty is anybody's
	unknown  []*net.UnixConn // whose hello has not come, oldest first
}

// wait notes a connection whose hello is awaited. Locked.
func (e *entrance) wait(conn *net.UnixConn) {
	if len(e.unknown) == maxUnknown {
		go e.unknown[0].Close() // its hello is awaited no longer
		e.unknown = slices.Delete(e.unknown, 0, 1)
	}
	e.unknown = append(e.unknown, conn)
}

// done says that the hello of a connection is awaited no more. Locked.
func (e *entrance) done(conn *net.UnixConn) {
	if at := slices.Index(e.unknown, conn); at >= 0 {
		e.unknown = slices.Delete(e.unknown, at, at+1)
	}
}

// accept awaits the hello of each process that connects.
func (d *Daemon) accept(e *entrance) error {
	for {
		conn, err := e.listener.AcceptUnix()
		switch {
		case err == nil:
			d.receive(conn, e)
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS):
			d.faults.warn("cannot accept", "err", err)
			time.Sleep(100 * time.Millisecond)
		case errors.Is(err, unix.ECONNABORTED):
		default:
			return fmt.Errorf("accept clients: %w", err)
		}
	}
}

// sendBuffer bounds the kernel memory of a connection, in bytes: a client that
// reads has at most a few messages there.
const sendBuffer = 8 << 10

// receive awaits the hello of a connection.
func (d *Daemon) receive(conn *net.UnixConn, e *entrance) {
	_ = conn.SetWriteBuffer(sendBuffer)
	if d.locked(func() {
		d.greeting[conn] = true
		d.conns.Add(1)
	}) != nil {
		_ = conn.Close()
		return
	}
	go d.greet(conn, e)
}
