package gateway

import (
	"bytes"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// callerConn is a caller's connection below the HTTP server. It adds three things that
// the server lacks:
//
//   - It closes in an order in which the caller can read the last answer. The kernel
//     resets a connection that is closed with unread data, and the caller then loses
//     the answer. So Close sends the end of the answer, reads what the caller still
//     sends for a while, and closes afterwards (RFC 9112, section 9.6).
//   - It remembers the Content-Length and Transfer-Encoding fields of a request head,
//     of which the server removes the one that does not count.
//   - It knows what it is waiting for, so that it can give way to another connection
//     (callers).
type callerConn struct {
	net.Conn
	callers  *callers
	host     *callerHost
	refused  bool // counts in callers.busy; callers.mu
	state    atomic.Int32
	since    atomic.Int64           // when the state began, in the time of limits
	incoming atomic.Pointer[upload] // the body that is being received

	unread   atomic.Bool // bytes arrived that may belong to a request that was not read to its end
	abrupt   atomic.Bool // Close does not linger
	closed   atomic.Bool
	received atomic.Int64 // bytes read
	fields   fieldScanner
	lengthAt atomic.Int64 // received after the last Content-Length field
	codingAt atomic.Int64 // received after the last Transfer-Encoding field
	headFrom atomic.Int64 // the head of the current request starts here or later
	between  atomic.Bool  // no read yet since the last request was handled

	answer *framedWriter // of the current request, if it needs one; the handler's
}

const (
	serverBuffer = 4 << 10 // bytes that net/http reads at once, and may have read ahead

	lingerPause = 2 * time.Second  // longest silence of the caller before its connection is closed
	lingerTime  = 10 * time.Second // longest time until its connection is closed
)

// Phases of a connection, in the order in which connections give way.
const (
	phaseLingers int32 = iota - 2 // everything was answered; it is about to be closed
	phaseIdle                     // between two requests
	phaseHead                     // no request has come yet
	phaseBody                     // the body of a request is being received
	phaseRuns                     // a request is being answered
)

// phase returns the phase that a connection is in.
func (c *callerConn) phase() int32 {
	if state := c.state.Load(); state != phaseRuns {
		return state
	}
	if c.incoming.Load() != nil {
		return phaseBody
	}
	return phaseRuns
}

// enter notes that a phase begins.
func (c *callerConn) enter(phase int32) {
	c.since.Store(int64(c.callers.all.now()))
	c.state.Store(phase)
}

// Read implements net.Conn. The server calls it from one goroutine at a time.
func (c *callerConn) Read(p []byte) (int, error) {
	from := c.received.Load()
	if c.between.Load() && c.between.CompareAndSwap(true, false) {
		// The server fills its buffer behind what it has read ahead of the next head.
		c.headFrom.Store(from - int64(max(serverBuffer-len(p), 0)))
	}
	n, err := c.Conn.Read(p)
	if n <= 0 {
		return n, err
	}
	c.unread.Store(true)
	if n <= serverBuffer { // longer reads go past the server's buffer and contain no head
		c.fields.scan(p[:n], func(name string, end int) {
			if name == contentLength {
				c.lengthAt.Store(from + int64(end))
			} else {
				c.codingAt.Store(from + int64(end))
			}
		})
	}
	c.received.Store(from + int64(n))
	return n, err
}

// complete notes that the current request was read to its end.
func (c *callerConn) complete() { c.unread.Store(false) }

// idle records that the server has ended the current request, and its background read
// with it: the next Read is for the head of another request.
func (c *callerConn) idle() {
	c.answer = nil
	c.between.Store(true)
	c.enter(phaseIdle)
}

// connectionState implements http.Server.ConnState.
func connectionState(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateIdle:
		conn.(*callerConn).idle()
	case http.StateActive: // the head of a request was read
		conn.(*callerConn).state.Store(phaseRuns)
	}
}

// ambiguous reports whether two recipients of the current request may disagree about
// where its body ends: a request with both Content-Length and Transfer-Encoding, or
// an HTTP/1.0 request with Transfer-Encoding. The connection must not be used after
// such a request (RFC 9112, section 6.1).
//
// It may also count lines that arrived in the same read as the head: those of the body
// or of another request. The connection is then closed without need.
func (c *callerConn) ambiguous(r *http.Request) bool {
	from := c.headFrom.Load()
	if c.codingAt.Load() <= from {
		return false
	}
	return !r.ProtoAtLeast(1, 1) || c.lengthAt.Load() > from
}

// Close implements net.Conn. If the caller may still be sending, it returns at once
// and the connection lingers.
func (c *callerConn) Close() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if c.closed.Swap(true) || c.abrupt.Load() || !c.unread.Load() && !c.pending() || !ok || half.CloseWrite() != nil {
		return c.end()
	}
	c.enter(phaseLingers)
	go c.linger()
	return nil
}

// end closes the connection at once.
func (c *callerConn) end() error {
	err := c.Conn.Close()
	c.callers.closed(c)
	return err
}

// pending reports whether the kernel holds bytes that were not read.
func (c *callerConn) pending() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	if raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) != nil || err != nil {
		return false
	}
	return n > 0
}

// linger discards what the caller sends until it closes the connection, is silent for
// lingerPause, or lingerTime has passed. It then closes the connection.
func (c *callerConn) linger() {
	defer c.end()
	buf := lingerBuffers.Get().(*[serverBuffer]byte)
	defer lingerBuffers.Put(buf)
	for end := time.Now().Add(lingerTime); time.Now().Before(end); {
		pause := time.Now().Add(lingerPause)
		if pause.After(end) {
			pause = end
		}
		if c.SetReadDeadline(pause) != nil {
			return
		}
		if _, err := c.Conn.Read(buf[:]); err != nil {
			return
		}
	}
}

var lingerBuffers = sync.Pool{New: func() any { return new([serverBuffer]byte) }}

// SetLinger sets SO_LINGER and makes Close close the connection at once.
func (c *callerConn) SetLinger(seconds int) error {
	c.abrupt.Store(true)
	if conn, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		return conn.SetLinger(seconds)
	}
	return nil
}

// CloseWrite shuts down the sending side, for upgraded connections.
func (c *callerConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// SyscallConn implements syscall.Conn.
func (c *callerConn) SyscallConn() (syscall.RawConn, error) {
	if conn, ok := c.Conn.(syscall.Conn); ok {
		return conn.SyscallConn()
	}
	return nil, syscall.ENOTSUP
}

const (
	contentLength    = "content-length:"
	transferEncoding = "transfer-encoding:"
)

// fieldScanner finds the lines that start with the names of the two fields that say
// how long a body is, in a stream of any parts.
type fieldScanner struct {
	line [len(transferEncoding)]byte // the current line's beginning
	n    int
}

// scan calls found with the name of each field whose line ends in part, and with the
// number of bytes of part up to that end.
func (s *fieldScanner) scan(part []byte, found func(name string, end int)) {
	for at := 0; at < len(part); {
		line := part[at:]
		end := bytes.IndexByte(line, '\n')
		if end >= 0 {
			line = line[:end]
		}
		if s.n > 0 || end < 0 { // it began in an earlier part, or goes on in a later one
			s.n += copy(s.line[s.n:], line)
			line = s.line[:s.n]
		}
		if end < 0 {
			return
		}
		at += end + 1
		s.n = 0
		for _, name := range [...]string{contentLength, transferEncoding} {
			if len(line) >= len(name) && line[0]|0x20 == name[0] && bytes.EqualFold(line[:len(name)], []byte(name)) {
				found(name, at)
			}
		}
	}
}
