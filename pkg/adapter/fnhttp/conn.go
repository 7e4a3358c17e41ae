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

// conn is a connection to an instance. What is done on it is done by who calls: an
// http.Transport has two goroutines for each connection, and to hand a small call to
// one and its answer back from the other takes longer than all else.
type conn struct {
	net.Conn
	pool    *pool
	address string
	in      *bufio.Reader
	out     *bufio.Writer
	left    int64           // bytes that may be read yet
	unsent  error           // of the last write that failed, of this call
	wrote   chan error      // what came of a request that is written beside; nil if none is
	unsure  bool            // where the answer of this call ends is not certain
	idle    time.Time       // since when
	leave   func() bool     // ends the watch over the context of the call
	ctx     context.Context // of the call

	writing sync.Mutex // held while something is
	written int64      // bytes
}

const (
	maxHead  = 10 << 20 // bytes of an answer's head, as in http.Transport
	maxEarly = 16       // answers 1xx before an answer

	// shortBody is up to which length a request fits what the kernel keeps of a
	// connection, so that it can be written before anything is read.
	shortBody = 8 << 10
)

var errHead = errors.New("the head of the answer is too large")

func (k *conn) Read(p []byte) (int, error) {
	if k.left <= 0 {
		return 0, errHead
	}
	n, err := k.Conn.Read(p[:min(int64(len(p)), k.left)])
	k.left -= int64(n)
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

// sent says whether anything was written of the call, of which nothing more can be: its
// connection is closed, or nobody writes. Who reads may see the end of a connection
// before who writes was told that a write went well.
func (k *conn) sent() bool {
	k.writing.Lock()
	defer k.writing.Unlock()
	return k.written > 0
}

// progress is how far a call came that got no answer.
func (k *conn) progress() ports.Progress {
	switch {
	case k.left < maxHead:
		return ports.Answered
	case k.sent():
		return ports.Sent
	}
	return ports.NotSent
}

// silent says whether the connection is open and nothing came on it.
func (k *conn) silent() bool {
	raw, err := k.Conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return false
	}
	var got error
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, got = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return true
	})
	return err == nil && errors.Is(got, unix.EAGAIN)
}

// call sends a request and returns its answer as soon as the head of that is there.
func (k *conn) call(ctx context.Context, request *http.Request) (*http.Response, error) {
	k.written = 0
	k.left = maxHead
	k.ctx = ctx
	k.leave = context.AfterFunc(ctx, func() { _ = k.Conn.Close() })
	k.wrote, k.unsure = nil, false
	if request.Body == nil || request.Body == http.NoBody || request.GetBody != nil && request.ContentLength <= shortBody {
		if err := k.send(request); err != nil {
			if !k.sent() {
				return nil, k.failed(err)
			}
			k.wrote = make(chan error, 1)
			k.wrote <- err
			k.hurry(err)
		}
	} else {
		k.wrote = make(chan error, 1)
		go func() {
			err := k.send(request)
			k.wrote <- err
			if err != nil {
				k.hurry(err)
			}
		}()
	}
	answer, err := k.answer(request)
	if err != nil {
		return nil, k.failed(err)
	}
	k.left = math.MaxInt64
	if k.wrote != nil && len(k.wrote) == 0 {
		k.unsure = true // the instance may take the rest of the request for another one
	}
	switch {
	case answer.StatusCode == http.StatusSwitchingProtocols:
		answer.Body = &upgraded{k}
	case answer.Body == http.NoBody:
		// What the instance sends after such an answer would be the next call's.
		k.leave()
		_ = k.Conn.Close()
	default:
		answer.Body = &body{from: answer.Body, conn: k, answer: answer}
	}
	return answer, nil
}

// send writes a request. What a body could not be written for net/http takes for a
// failure to read it, and hides.
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

// lastWords is for how long who took no more of a request may still answer it.
const lastWords = 500 * time.Millisecond

// hurry has a request that could not be written to its end not be waited for: who
// takes no more of it may have said why.
func (k *conn) hurry(err error) {
	var failed *net.OpError
	if errors.As(err, &failed) {
		_ = k.SetReadDeadline(time.Now().Add(lastWords))
		return
	}
	_ = k.Conn.Close() // its body did not come
}

// ofConnection lists the fields that are removed from 1xx answers because they describe
// the connection, a body, or where to connect (Alt-Svc applies to the whole origin).
var ofConnection = []string{"Alt-Svc", "Connection", "Content-Length", "Keep-Alive", "Proxy-Connection", "Trailer", "Transfer-Encoding", "Upgrade"}

// answer reads the head of the answer, after those that come before it.
func (k *conn) answer(request *http.Request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(request.Context())
	for range maxEarly {
		_, _ = k.in.Peek(1)
		begin, _ := k.in.Peek(k.in.Buffered())
		plain := chunksAlone(begin)
		answer, err := http.ReadResponse(k.in, request)
		if err != nil {
			return nil, err
		}
		if !answer.ProtoAtLeast(1, 1) || len(answer.TransferEncoding) > 0 && !plain {
			k.unsure = true
		}
		if answer.StatusCode < 100 {
			return nil, fmt.Errorf("the answer's status is %s", answer.Status)
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

// chunksAlone reports whether the head of an answer, if it is chunked, has no
// Content-Length beside that: net/http removes the field. It needs the whole head.
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

// failed is why a call got no answer, or not all of it.
func (k *conn) failed(err error) error {
	k.leave()
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

// release keeps the connection for the next call after the body of an answer was read
// to its end, unless it is not certain that the next byte begins another answer: the
// instance sent more than the answer, an answer 1xx, which may have had a body, or an
// answer whose length can be read in two ways, or it answered before it had been sent
// all of the request.
func (k *conn) release(answer *http.Response) {
	usable := k.leave() && !answer.Close && !k.unsure && k.in.Buffered() == 0
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
	from   io.ReadCloser
	conn   *conn
	answer *http.Response
	some   bool  // a byte was read
	err    error // of the last read
}

func (b *body) Read(p []byte) (n int, err error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err = b.from.Read(p)
	b.some = b.some || n > 0
	switch {
	case err == io.EOF:
		b.conn.unsure = b.conn.unsure || !b.some
		b.conn.release(b.answer)
	case err != nil:
		err = b.conn.failed(err)
	}
	b.err = err
	return n, err
}

var errClosed = errors.New("the answer was closed")

func (b *body) Close() error {
	if b.err == nil {
		b.err = errClosed
		b.conn.leave()
		_ = b.conn.Conn.Close()
	}
	return nil
}

// upgraded is a connection that speaks something else from now on.
type upgraded struct{ *conn }

// CloseWrite says that no more comes, and leaves open what comes back.
func (u *upgraded) CloseWrite() error {
	if c, ok := u.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return nil
}

func (u *upgraded) Read(p []byte) (int, error) { return u.in.Read(p) }

func (u *upgraded) Close() error {
	u.leave()
	return u.Conn.Close()
}

// pool keeps connections to instances open.
type pool struct {
	dialer net.Dialer
	keep   time.Duration // for how long one is kept idle

	mu    sync.Mutex
	idle  map[string][]*conn // by address, in the order in which they became idle
	sweep *time.Timer        // nil while none is idle
}

const (
	mostIdle = 1024 // to one instance

	// idleTime is for how long a connection is kept idle: less than servers keep theirs
	// (2 s of gunicorn, 5 s of uvicorn and node, and more), so that none closes one while a
	// call is on its way, which nobody could tell from a call that it took and dropped. A
	// new connection on one machine takes a tenth of a millisecond.
	idleTime = 1500 * time.Millisecond
)

// get is a connection to an instance, an idle one if there is one.
func (p *pool) get(ctx context.Context, h *instance.Handle) (*conn, error) {
	for k := p.take(h.Address); k != nil; k = p.take(h.Address) {
		if k.silent() {
			return k, nil
		}
		_ = k.Conn.Close()
	}
	c, err := p.dialer.DialContext(ctx, "tcp", h.Address)
	if err != nil {
		return nil, err
	}
	if err := checkPeer(*h, c); err != nil {
		_ = c.Close()
		return nil, err
	}
	k := &conn{Conn: c, pool: p, address: h.Address}
	k.in, k.out = bufio.NewReader(k), bufio.NewWriter(k)
	return k, nil
}

// take takes out the one that was used last, unless all have been idle for too long.
func (p *pool) take(address string) *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.idle[address]
	if len(all) == 0 {
		return nil
	}
	k := all[len(all)-1]
	if time.Since(k.idle) >= p.keep {
		return nil
	}
	all[len(all)-1] = nil
	p.idle[address] = all[:len(all)-1]
	return k
}

// put keeps a connection; false if there are enough.
func (p *pool) put(k *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle == nil {
		p.idle = map[string][]*conn{}
	}
	if len(p.idle[k.address]) >= mostIdle {
		return false
	}
	k.idle = time.Now()
	k.ctx, k.leave = nil, nil
	p.idle[k.address] = append(p.idle[k.address], k)
	if p.sweep == nil {
		p.sweep = time.AfterFunc(p.keep, func() { p.close(p.keep) })
	}
	return true
}

// close closes those that have been idle for so long.
func (p *pool) close(least time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sweep != nil {
		p.sweep.Stop()
		p.sweep = nil
	}
	now := time.Now()
	for address, all := range p.idle {
		n := 0
		for n < len(all) && now.Sub(all[n].idle) >= least {
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
		p.sweep = time.AfterFunc(p.keep/2, func() { p.close(least) })
	}
}

// invoke sends a request to an instance. What went wrong is a *ports.CallError.
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
