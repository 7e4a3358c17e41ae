package proxy

import (
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// connection is an upgraded connection to an instance. It uses a slot on the instance until
// it is closed. So that it does not keep the instance loaded, an idle connection is closed,
// unless the function sets websocket: keep. A connection is idle while no data passes in
// either direction; pings and pongs of a WebSocket are not data.
//
// The limit on the idle time is scale.idle, the same as for an idle instance. While calls
// wait for a slot, the dispatcher may close a connection after dispatch.YieldAfter.
type connection struct {
	io.ReadWriteCloser
	call *Call
	used atomic.Int64 // when data last passed, on the clock of the dispatcher

	toCaller, toInstance frames
}

func newConnection(c *Call, upgraded io.ReadWriteCloser, header http.Header) *connection {
	conn := &connection{ReadWriteCloser: upgraded, call: c}
	if strings.EqualFold(header.Get("Upgrade"), "websocket") {
		conn.toCaller.known, conn.toInstance.known = true, true
	}
	conn.touch()
	return conn
}

// touch records that data passes, and restarts the limit on the idle time.
func (c *connection) touch() {
	c.used.Store(int64(c.call.p.cfg.Dispatcher.Now()))
	if idle := c.call.function.Calls().Idle; idle > 0 {
		c.call.limit.Reset(idle)
	} else {
		c.call.limit.Stop()
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

// CloseWrite tells the instance that the caller will send nothing more.
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
	c.call.limit.Stop()
	return err
}

// frames parses one direction of a WebSocket (RFC 6455, section 5.2) far enough to tell
// control frames from data. In another protocol, all bytes are data.
type frames struct {
	known  bool     // the protocol is WebSocket
	head   [10]byte // head of the next frame, as far as it has arrived
	n      int      // bytes in head
	skip   uint64   // remaining bytes of the current frame after its head
	isData bool     // the current frame carries data
}

// data processes the next part of the stream. It reports whether the part contains anything
// other than pings, pongs and close frames.
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
			any = any || f.isData
			continue
		}
		f.head[f.n] = part[0]
		f.n++
		part = part[1:]
		any = f.readHead() || any
	}
	return any
}

// readHead processes the head of a frame if it is complete. It reports whether the frame
// carries data.
func (f *frames) readHead() bool {
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
	f.n, f.isData = 0, f.head[0]&control == 0
	return f.isData
}

// Idle implements dispatch.Owner.
func (c *Call) Idle() (time.Duration, bool) {
	if !c.begun.Load() || c.upgraded == nil {
		return 0, false
	}
	return c.p.cfg.Dispatcher.Now() - time.Duration(c.upgraded.used.Load()), true
}
