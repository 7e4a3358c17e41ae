package inbound

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is a caller's connection, below the HTTP server. It adds three features that the
// server lacks:
//
//   - Close lets the caller read the last answer. The kernel resets a connection that is closed
//     while it holds unread data, and the caller then loses the answer. Close therefore shuts
//     down the sending side, discards incoming data for a while, and then closes the connection
//     (RFC 9112, section 9.6).
//   - It records the Content-Length and Transfer-Encoding fields of a request head. If a head
//     has both, the server drops one of them.
//   - It records its phase, so that it can give way to another connection (callers).
type Conn struct {
	net.Conn
	callers  *callers
	host     *callerHost
	refused  bool // it is counted in callers.busy; guarded by callers.mu
	state    atomic.Int32
	since    atomic.Int64           // when the phase in state began, on the clock callers.now
	incoming atomic.Pointer[Upload] // the body being received

	unread          atomic.Bool // bytes have arrived that may belong to an incompletely read request
	abrupt          atomic.Bool // Close does not linger
	closed          atomic.Bool
	received        atomic.Int64 // total bytes read
	fields          fieldScanner
	lengthAt        atomic.Int64 // value of received at the end of the last Content-Length field
	codingAt        atomic.Int64 // value of received at the end of the last Transfer-Encoding field
	headFrom        atomic.Int64 // value of received at or before the start of the current request's head
	betweenRequests atomic.Bool  // no read since the last request was handled

	current *exchange // the current request, if it has a body or must be the last
}

const (
	serverBuffer = 4 << 10 // bytes that net/http reads at once and may read ahead

	lingerPause = 2 * time.Second  // longest silence of the caller before a lingering connection is closed
	lingerTime  = 10 * time.Second // longest time for which a connection lingers
)

// The phases of a connection, in the order in which connections give way.
const (
	PhaseLingers int32 = iota - 2 // everything is answered; the connection is about to be closed
	PhaseIdle                     // between two requests
	PhaseHead                     // before the first request, or after the last one
	PhaseBody                     // the body of a request is being received
	PhaseRuns                     // a request is being answered
)

// phase returns the connection's current phase.
func (c *Conn) phase() int32 {
	if state := c.state.Load(); state != PhaseRuns {
		return state
	}
	if c.incoming.Load() != nil {
		return PhaseBody
	}
	return PhaseRuns
}

// enter records that a phase begins.
func (c *Conn) enter(phase int32) {
	c.since.Store(int64(c.callers.now()))
	c.state.Store(phase)
}

// Read implements net.Conn. The server calls it from one goroutine at a time.
func (c *Conn) Read(p []byte) (int, error) {
	from := c.received.Load()
	if c.betweenRequests.CompareAndSwap(true, false) {
		// The server may have read part of the next head ahead; its buffer still holds
		// those bytes.
		c.headFrom.Store(from - int64(max(serverBuffer-len(p), 0)))
	}
	n, err := c.Conn.Read(p)
	if n <= 0 {
		return n, err
	}
	c.unread.Store(true)
	if n <= serverBuffer { // longer reads bypass the server's buffer and contain no head
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

// complete records that the current request was read to its end.
func (c *Conn) complete() { c.unread.Store(false) }

// idle records that the server has finished the current request, including its background
// read. The next Read is for the head of another request.
func (c *Conn) idle() {
	c.current = nil
	c.betweenRequests.Store(true)
	c.enter(PhaseIdle)
}

// connectionState implements http.Server.ConnState.
func connectionState(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateIdle:
		conn.(*Conn).idle()
	case http.StateActive: // the server has read the head of a request
		conn.(*Conn).state.Store(PhaseRuns)
	}
}

// ambiguous reports whether two recipients of the current request could disagree about
// where its body ends. Such a request has both Content-Length and Transfer-Encoding, or it
// is an HTTP/1.0 request with Transfer-Encoding. The connection must be closed afterwards
// (RFC 9112, section 6.1).
//
// It may also count fields of the body or of another request, if they arrived in the same
// read as the head. The connection is then closed unnecessarily.
func (c *Conn) ambiguous(r *http.Request) bool {
	from := c.headFrom.Load()
	if c.codingAt.Load() <= from {
		return false
	}
	return !r.ProtoAtLeast(1, 1) || c.lengthAt.Load() > from
}

// Close implements net.Conn. If the caller may still be sending, Close returns at once and
// the connection lingers (linger).
func (c *Conn) Close() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if c.closed.Swap(true) || c.abrupt.Load() || !c.unread.Load() && !c.pending() || !ok || half.CloseWrite() != nil {
		return c.end()
	}
	c.enter(PhaseLingers)
	go c.linger()
	return nil
}

// end closes the connection immediately.
func (c *Conn) end() error {
	err := c.Conn.Close()
	c.callers.closed(c)
	return err
}

// pending reports whether the kernel's receive buffer holds unread bytes.
func (c *Conn) pending() bool {
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

// linger discards the caller's data until the caller closes the connection, pauses for
// lingerPause, or lingerTime has passed. It then closes the connection.
func (c *Conn) linger() {
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

// SetAbrupt makes Close close the connection immediately.
func (c *Conn) SetAbrupt() { c.abrupt.Store(true) }

// SetLinger sets SO_LINGER and makes Close close the connection immediately.
func (c *Conn) SetLinger(seconds int) error {
	c.abrupt.Store(true)
	if conn, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		return conn.SetLinger(seconds)
	}
	return nil
}

// CloseWrite shuts down the sending side. Upgraded connections need it.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// SyscallConn implements syscall.Conn.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	if conn, ok := c.Conn.(syscall.Conn); ok {
		return conn.SyscallConn()
	}
	return nil, syscall.ENOTSUP
}

const (
	contentLength    = "content-length:"
	transferEncoding = "transfer-encoding:"
)

// fieldScanner finds header lines that begin with Content-Length or Transfer-Encoding, in a
// stream that arrives in arbitrary parts.
type fieldScanner struct {
	line [len(transferEncoding)]byte // beginning of the current line, if the line is split across parts
	n    int
}

// scan processes the next part of the stream. It calls found for each of the two fields
// whose line ends in this part, with the number of bytes up to the end of the line.
func (s *fieldScanner) scan(part []byte, found func(name string, end int)) {
	for at := 0; at < len(part); {
		line := part[at:]
		end := bytes.IndexByte(line, '\n')
		if end >= 0 {
			line = line[:end]
		}
		if s.n > 0 || end < 0 { // the line began in an earlier part, or continues in a later one
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

// connectionKey is the context key of a request's connection.
type connectionKey struct{}

// WatchCaller calls closed when the caller of a request closes its connection, and returns
// when ctx ends. The server itself notices a closed connection only after it has read the
// whole request, and it does not read while a long body waits. WatchCaller detects the end
// only once all data sent before it fits in the socket's receive buffer.
func WatchCaller(ctx context.Context, closed func()) {
	c := ConnOf(ctx)
	if c == nil {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	tick := time.NewTicker(callerPoll)
	defer tick.Stop()
	for hungUp := false; err == nil && !hungUp; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err = raw.Control(func(fd uintptr) {
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
			n, _ := unix.Poll(poll, 0) // on an error, the next tick tries again
			hungUp = n > 0
		})
	}
	closed()
}

// callerPoll is the interval at which WatchCaller checks the connection.
const callerPoll = 100 * time.Millisecond
