package gateway

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// connection is an upgraded connection to an instance. It holds its place there until it
// is closed. An idle one is closed, so that it does not keep the instance loaded, unless
// the function says websocket: keep. It is idle while nothing passes in either direction;
// of a WebSocket, pings and pongs do not count.
//
// It is closed after the time for which an idle instance is kept (scale.idle), and after
// yieldAfter if calls wait for a place and the instance does nothing else.
type connection struct {
	io.ReadWriteCloser
	call *call
	used atomic.Int64 // when something passed last, in the time of limits

	toCaller, toInstance frames
}

// yieldAfter is how long an upgraded connection must have been idle to be closed because
// calls wait.
const yieldAfter = 10 * time.Second

func newConnection(c *call, upgraded io.ReadWriteCloser, header http.Header) *connection {
	conn := &connection{ReadWriteCloser: upgraded, call: c}
	if strings.EqualFold(header.Get("Upgrade"), "websocket") {
		conn.toCaller.known, conn.toInstance.known = true, true
	}
	conn.touch()
	return conn
}

// touch notes that the connection is in use.
func (c *connection) touch() {
	c.used.Store(int64(c.call.g.limits.now()))
	if idle := c.call.target.idle.Load(); idle > 0 {
		c.call.limit.set(time.Duration(idle))
	} else {
		c.call.limit.stop()
	}
}

// Read implements io.Reader.
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.ReadWriteCloser.Read(p)
	if c.toCaller.data(p[:max(n, 0)]) {
		c.touch()
	}
	return n, err
}

// Write implements io.Writer.
func (c *connection) Write(p []byte) (int, error) {
	if c.toInstance.data(p) {
		c.touch()
	}
	return c.ReadWriteCloser.Write(p)
}

// CloseWrite tells the instance that the caller says no more.
func (c *connection) CloseWrite() error {
	if half, ok := c.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close implements io.Closer.
func (c *connection) Close() error {
	err := c.ReadWriteCloser.Close()
	c.call.end(nil)
	c.call.limit.stop()
	return err
}

// frames reads the frames of one direction of a WebSocket (RFC 6455, section 5.2) as far
// as to tell control frames from data. What is not known to be a WebSocket is all data.
type frames struct {
	known bool
	head  [10]byte // of the frame that begins: the part that is there
	n     int      // bytes of it
	skip  uint64   // bytes that are to come of the current frame after its head
	isOf  bool     // the current frame is of data
}

// data reports whether a part of the stream, which follows the last one, has anything
// that is not a ping, a pong or a close.
func (f *frames) data(part []byte) bool {
	if !f.known {
		return len(part) > 0
	}
	any := false
	for len(part) > 0 {
		if f.skip > 0 {
			n := min(f.skip, uint64(len(part)))
			f.skip -= n
			part = part[n:]
			any = any || f.isOf
			continue
		}
		f.head[f.n] = part[0]
		f.n++
		part = part[1:]
		any = f.begin() || any
	}
	return any
}

// begin reports whether the head of a frame of data is complete.
func (f *frames) begin() bool {
	if f.n < 2 {
		return false
	}
	length := uint64(f.head[1] & 0x7f)
	switch {
	case length == 126 && f.n < 4, length == 127 && f.n < 10:
		return false
	case length == 126:
		length = uint64(binary.BigEndian.Uint16(f.head[2:]))
	case length == 127:
		length = binary.BigEndian.Uint64(f.head[2:])
	}
	const mask, control = 0x80, 0x08
	if f.skip = length; f.head[1]&mask != 0 {
		f.skip += 4
	}
	f.n, f.isOf = 0, f.head[0]&control == 0
	return f.isOf
}

// yield closes idle upgraded connections, once a second, while calls wait.
func (g *Gateway) yield(ctx context.Context) {
	for pause(ctx, time.Second) {
		for _, c := range g.engine.idleWhileWaited() {
			g.log.Info("upgraded connection closed: it was idle, and calls wait", "function", c.target.name, "call", c.key)
			c.cut(errIdle)
		}
	}
}

// idleWhileWaited returns the upgraded connections to close for calls that wait: those of
// the instance that has been idle for longest, of the gateway's own instances on which nothing
// else runs and of those of a function that calls wait for.
func (e *engine) idleWhileWaited() []*call {
	e.mu.Lock()
	defer e.mu.Unlock()
	waited := map[*target]bool{}
	for _, c := range e.calls {
		if c.state == callWaits {
			waited[c.target] = true
		}
	}
	if len(waited) == 0 {
		return nil
	}
	var out []*call
	longest := time.Duration(0)
	for _, s := range e.servers {
		idle, since := s.idleConnections(e.g.limits.now())
		helps := waited[s.target] || s.own && len(idle) == len(s.calls) // a plan's instance makes no room for others
		if len(idle) > 0 && helps && since > longest {
			out, longest = idle, since
		}
	}
	return out
}

// idleConnections returns the calls on an instance that are upgraded connections which
// have been idle for yieldAfter, and how long the first of them has been. Locked.
func (s *server) idleConnections(now time.Duration) (idle []*call, longest time.Duration) {
	for _, c := range s.calls {
		if !c.begun.Load() || c.upgraded == nil || s.target.function.KeepUpgraded {
			continue
		}
		if since := now - time.Duration(c.upgraded.used.Load()); since >= yieldAfter {
			idle, longest = append(idle, c), max(longest, since)
		}
	}
	return idle, longest
}
