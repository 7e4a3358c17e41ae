package fnhttp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// conn is a connection to an instance. The caller's goroutine performs the I/O:
// http.Transport uses two goroutines per connection, and for small calls the hand-over to
// them and back takes longer than everything else.
type conn struct {
	net.Conn
	raw       syscall.RawConn    // of Conn
	peek      func(uintptr) bool // peeks at the data of Conn, for silent
	peeked    error              // result of the last peek
	pool      *pool
	address   string
	in        *bufio.Reader
	out       *bufio.Writer
	remaining int64           // number of bytes that may still be read
	unsent    error           // error of the last failed write of this call
	wrote     chan error      // result of a request that was not written completely before reading; nil if it was
	unsure    bool            // the end of this call's answer is uncertain
	idle      time.Time       // since when the connection is idle
	unwatch   func() bool     // stops watching the call's context
	ctx       context.Context // the call's context

	writing sync.Mutex // held during a write
	written int64      // bytes of this call
}

const (
	maxHead  = 10 << 20 // size limit of an answer's head in bytes, as in http.Transport
	maxEarly = 16       // limit on 1xx answers before the final answer

	// shortBody is the size of a request body, in bytes, that fits the kernel's socket
	// buffers, so that it can be written before the answer is read.
	shortBody = 8 << 10
)

var errHead = errors.New("the head of the answer is too large")

func (k *conn) Read(p []byte) (int, error) {
	if k.remaining <= 0 {
		return 0, errHead
	}
	n, err := k.Conn.Read(p[:min(int64(len(p)), k.remaining)])
	k.remaining -= int64(n)
	return n, err
}

func (k *conn) Write(p []byte) (int, error) {
	k.writing.Lock()
	defer k.writing.Unlock()
	n, err := k.Conn.Write(p)
	k.written += int64(n)
	if err != nil {
		k.unsent = err
	}
	return n, err
}

// sent reports whether any byte of the call was written. No write may follow: the
// connection is closed or the writer has finished. It takes the lock because a reader may
// see the end of the connection before the writer has recorded a successful write.
func (k *conn) sent() bool {
	k.writing.Lock()
	defer k.writing.Unlock()
	return k.written > 0
}

// progress returns how far a call without an answer proceeded.
func (k *conn) progress() ports.Progress {
	switch {
	case k.remaining < maxHead:
		return ports.Answered
	case k.sent():
		return ports.Sent
	}
	return ports.NotSent
}

// silent reports whether the connection is open and has no unread data.
func (k *conn) silent() bool {
	return k.raw.Read(k.peek) == nil && k.peeked == unix.EAGAIN
}

// call sends a request and returns the answer when its head has arrived.
func (k *conn) call(ctx context.Context, request *http.Request) (*http.Response, error) {
	k.written = 0
	k.remaining = maxHead
	k.ctx = ctx
	k.unwatch = context.AfterFunc(ctx, func() { _ = k.Conn.Close() })
	k.wrote, k.unsure = nil, false
	if request.Body == nil || request.Body == http.NoBody || request.GetBody != nil && request.ContentLength <= shortBody {
		if err := k.send(request); err != nil {
			if !k.sent() {
				return nil, k.failed(err)
			}
			k.wrote = make(chan error, 1)
			k.wrote <- err
			k.limitAnswerWait(err)
		}
	} else {
		k.wrote = make(chan error, 1)
		go func() {
			err := k.send(request)
			k.wrote <- err
			if err != nil {
				k.limitAnswerWait(err)
			}
		}()
	}
	answer, err := k.answer(request)
	if err != nil {
		return nil, k.failed(err)
	}
	k.remaining = math.MaxInt64
	if k.wrote != nil && len(k.wrote) == 0 {
		k.unsure = true // the instance may read the rest of the request as a new request
	}
	switch {
	case answer.StatusCode == http.StatusSwitchingProtocols:
		answer.Body = &upgraded{k}
	case answer.Body == http.NoBody:
		// Further bytes from the instance would be read as the next call's answer.
		k.unwatch()
		_ = k.Conn.Close()
	default:
		answer.Body = &body{from: answer.Body, conn: k, answer: answer}
	}
	return answer, nil
}

// send writes a request. It returns the connection's error, which net/http hides behind an
// error of reading the body.
func (k *conn) send(request *http.Request) error {
	k.unsent = nil
	err := request.Write(k.out)
	if err == nil {
		err = k.out.Flush()
	}
	if k.unsent != nil {
		return k.unsent
	}
	return err
}

// lastWords is how long an instance that stopped reading a request may still answer it.
const lastWords = 500 * time.Millisecond

// limitAnswerWait ends the wait for an answer after a request was not written completely. If the
// connection failed, the instance may have answered why, so limitAnswerWait allows lastWords for
// reading that. If reading the body failed, it closes the connection.
func (k *conn) limitAnswerWait(err error) {
	if _, ok := errors.AsType[*net.OpError](err); ok {
		_ = k.SetReadDeadline(time.Now().Add(lastWords))
		return
	}
	_ = k.Conn.Close() // reading the body failed
}

// ofConnection lists the fields that are removed from 1xx answers because they describe
// the connection, a body, or where to connect (Alt-Svc applies to the whole origin).
var ofConnection = []string{"Alt-Svc", "Connection", "Content-Length", "Keep-Alive", "Proxy-Connection", "Trailer", "Transfer-Encoding", "Upgrade"}

// answer reads the head of the final answer. It passes 1xx answers to the request's
// httptrace.
func (k *conn) answer(request *http.Request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(request.Context())
	for range maxEarly {
		_, _ = k.in.Peek(1)
		head, _ := k.in.Peek(k.in.Buffered())
		plain := chunksAlone(head)
		answer, err := http.ReadResponse(k.in, request)
		if err != nil {
			return nil, err
		}
		if !answer.ProtoAtLeast(1, 1) || len(answer.TransferEncoding) > 0 && !plain {
			k.unsure = true
		}
		if answer.StatusCode < 100 {
			return nil, fmt.Errorf("invalid status of the answer: %s", answer.Status)
		}
		if answer.StatusCode >= 200 || answer.StatusCode == http.StatusSwitchingProtocols {
			return answer, nil
		}
		k.unsure = true
		for _, name := range ofConnection {
			answer.Header.Del(name)
		}
		if trace != nil && trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(answer.StatusCode, textproto.MIMEHeader(answer.Header)); err != nil {
				return nil, err
			}
		}
	}
	return nil, errHead
}

// chunksAlone reports whether head contains the whole head of an answer and no
// Content-Length. net/http removes that field from the header of a chunked answer.
func chunksAlone(head []byte) bool {
	end := bytes.Index(head, []byte("\r\n\r\n"))
	if end < 0 {
		return false
	}
	const length = "content-length:"
	for line := head[:end]; ; {
		next := bytes.IndexByte(line, '\n')
		if next < 0 {
			return true
		}
		line = line[next+1:]
		if len(line) >= len(length) && line[0]|0x20 == length[0] && bytes.EqualFold(line[:len(length)], []byte(length)) {
			return false
		}
	}
}

// failed closes the connection and returns why a call got no answer or an incomplete one.
func (k *conn) failed(err error) error {
	k.unwatch()
	_ = k.Conn.Close()
	if k.ctx.Err() != nil {
		return context.Cause(k.ctx)
	}
	select {
	case wrong := <-k.wrote:
		if wrong != nil {
			return wrong
		}
	default:
	}
	return err
}

// release returns the connection to the pool after the body of an answer was read
// completely. It closes the connection instead if the next byte might not begin a new
// answer: the instance sent more than the answer, sent a 1xx answer (which may have had a
// body) or an answer of ambiguous length, or answered before it had received the whole
// request.
func (k *conn) release(answer *http.Response) {
	usable := k.unwatch() && !answer.Close && !k.unsure && k.in.Buffered() == 0
	if k.wrote != nil {
		select {
		case err := <-k.wrote:
			usable = usable && err == nil
		default:
			usable = false
		}
	}
	if !usable || !k.pool.put(k) {
		_ = k.Conn.Close()
	}
}

// body is the body of an answer.
type body struct {
	from    io.ReadCloser
	conn    *conn
	answer  *http.Response
	started bool  // at least one byte was read
	err     error // error of the last read
}

func (b *body) Read(p []byte) (n int, err error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err = b.from.Read(p)
	b.started = b.started || n > 0
	switch {
	case err == io.EOF:
		b.conn.unsure = b.conn.unsure || !b.started
		b.conn.release(b.answer)
	case err != nil:
		err = b.conn.failed(err)
	}
	b.err = err
	return n, err
}

// Received implements ports.Received.
func (b *body) Received() bool {
	return b.answer.ContentLength >= 0 && b.answer.ContentLength <= int64(b.conn.in.Buffered())
}

var errClosed = errors.New("the answer was closed")

func (b *body) Close() error {
	if b.err == nil {
		b.err = errClosed
		b.conn.unwatch()
		_ = b.conn.Conn.Close()
	}
	return nil
}

// upgraded is a connection that has switched to another protocol.
type upgraded struct{ *conn }

// CloseWrite closes the sending direction only.
func (u *upgraded) CloseWrite() error {
	if c, ok := u.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

func (u *upgraded) Read(p []byte) (int, error) { return u.in.Read(p) }

func (u *upgraded) Close() error {
	u.unwatch()
	return u.Conn.Close()
}

// pool holds idle connections to instances.
type pool struct {
	idleTimeout time.Duration // how long a connection stays idle before it is closed

	mu    sync.Mutex
	idle  map[string][]*conn // by address, in the order in which they became idle
	sweep *time.Timer        // nil if no connection is idle
}

const (
	maxIdle = 1024 // per instance

	// idleTime is shorter than the keep-alive times of common servers (2 s in gunicorn, 5 s
	// in uvicorn and Node.js). Otherwise a server could close a connection while a call is
	// on its way, and the gateway could not distinguish that from a call that the server
	// read and dropped. A new connection on the same machine takes 0.1 ms.
	idleTime = 1500 * time.Millisecond
)

// get returns a connection to an instance, preferably an idle one.
func (p *pool) get(ctx context.Context, h *instance.Handle) (*conn, error) {
	for k := p.popIdle(h.Address); k != nil; k = p.popIdle(h.Address) {
		if k.silent() {
			return k, nil
		}
		_ = k.Conn.Close()
	}
	c, err := dial(ctx, h)
	if err != nil {
		return nil, err
	}
	return p.newConn(c, h.Address)
}

// newConn takes over a connection to an instance.
func (p *pool) newConn(c net.Conn, address string) (*conn, error) {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	k := &conn{Conn: c, raw: raw, pool: p, address: address}
	var first [1]byte
	k.peek = func(fd uintptr) bool {
		_, _, k.peeked = unix.Recvfrom(int(fd), first[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return true
	}
	k.in, k.out = bufio.NewReader(k), bufio.NewWriter(k)
	return k, nil
}

// popIdle removes and returns the most recently used idle connection, or nil if all have been
// idle too long.
func (p *pool) popIdle(address string) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.idle[address]
	if len(all) == 0 {
		return nil
	}
	k := all[len(all)-1]
	if time.Since(k.idle) >= p.idleTimeout {
		return nil
	}
	all[len(all)-1] = nil
	p.idle[address] = all[:len(all)-1]
	return k
}

// put adds an idle connection. It returns false if the pool has maxIdle for this instance.
func (p *pool) put(k *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle == nil {
		p.idle = map[string][]*conn{}
	}
	if len(p.idle[k.address]) >= maxIdle {
		return false
	}
	k.idle = time.Now()
	k.ctx, k.unwatch = nil, nil
	p.idle[k.address] = append(p.idle[k.address], k)
	if p.sweep == nil {
		p.sweep = time.AfterFunc(p.idleTimeout, func() { p.close(p.idleTimeout) })
	}
	return true
}

// close closes connections that have been idle for at least the given time.
func (p *pool) close(minIdle time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
	now := time.Now()
	for address, all := range p.idle {
		n := 0
		for n < len(all) && now.Sub(all[n].idle) >= minIdle {
			_ = all[n].Conn.Close()
			n++
		}
		if n == len(all) {
			delete(p.idle, address)
			continue
		}
		p.idle[address] = slices.Clone(all[n:])
	}
	if len(p.idle) > 0 {
		p.sweep = time.AfterFunc(p.idleTimeout/2, func() { p.close(minIdle) })
	}
}

// invoke sends a request to an instance. Errors are of type *ports.CallError.
func (p *pool) invoke(ctx context.Context, h *instance.Handle, request *http.Request) (*http.Response, error) {
	k, err := p.get(ctx, h)
	progress := ports.NotConnected
	switch {
	case err == nil:
		var answer *http.Response
		if answer, err = k.call(ctx, request); err == nil {
			return answer, nil
		}
		progress = k.progress()
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case !unreachable(err):
		progress = ports.NotTried
	}
	return nil, &ports.CallError{Progress: progress, Err: fmt.Errorf("%s http://%s: %w", request.Method, h.Address, err)}
}
