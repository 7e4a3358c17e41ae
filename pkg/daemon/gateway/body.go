package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// body is what a caller sends: its head is kept, so that a call can be sent again. The
// rest of a long one is streamed, or kept in a file.
type body struct {
	head  []byte
	whole bool      // all of it is kept, in head and spilled
	file  *spilled  // what follows head, if it is kept
	rest  io.Reader // what follows head, if it is streamed
}

// size returns the number of bytes that are kept.
func (b *body) size() int64 {
	if b.file != nil {
		return int64(len(b.head)) + b.file.size
	}
	return int64(len(b.head))
}

// reader returns the body from its start. A rest that is streamed can be read once.
func (b *body) reader() io.Reader {
	switch {
	case b.file != nil:
		return io.MultiReader(bytes.NewReader(b.head), b.file.reader())
	case b.rest != nil:
		return io.MultiReader(bytes.NewReader(b.head), b.rest)
	case len(b.head) == 0:
		return nil
	}
	return bytes.NewReader(b.head)
}

// upload reads a request body from its caller. It bounds the size, each pause and, by a
// least rate, the whole time for which it waits, and remembers the caller's first fault.
// One goroutine reads at a time; stop may be called during a Read.
type upload struct {
	from    io.Reader
	control http.ResponseController // of the same connection
	conn    *callerConn             // nil if the request came over no connection
	pause   time.Duration
	rate    int64 // least bytes a second after the first pause; 0 is no bound
	limit   limit
	expects bool // the caller sends the body only after 100 Continue

	memory   *bodyMemory
	host     *callerHost
	function *target      // nil as long as it is not known
	claimed  atomic.Int64 // bytes of memory
	readFrom atomic.Int64 // when the current Read began, in the time of limits; 0 without one
	trickles atomic.Bool  // the current Read is bounded by the rate

	reading sync.Mutex    // held by Read
	left    int64         // bytes that may still arrive
	rest    int64         // bytes that will, as the request says; negative if it does not
	arrived int64         // bytes
	waited  time.Duration // in Read

	begun   atomic.Bool // Read was called
	shared  atomic.Bool // another goroutine than the handler's reads it
	whole   atomic.Bool // its end was read
	stopped atomic.Bool

	mu    sync.Mutex
	fault *Error
	kept  bool // all that is kept of it is here: it does not give way any more
}

// upload returns the body of a request, which may have that many bytes.
func (g *Gateway) upload(w http.ResponseWriter, r *http.Request, most int64) *upload {
	if u, ok := r.Body.(*upload); ok {
		if !u.begun.Load() {
			u.left = most
		}
		return u
	}
	u := new(upload)
	u.init(g, w, r, most)
	return u
}

// init prepares u for the body of a request, which may have that many bytes.
func (u *upload) init(g *Gateway, w http.ResponseWriter, r *http.Request, most int64) {
	u.from, u.control, u.pause = r.Body, *http.NewResponseController(w), g.cfg.BodyTimeout
	u.left, u.rest, u.expects = most, r.ContentLength, r.Header.Get("Expect") != ""
	u.limit.all, u.limit.owner = &g.limits, u
	u.rate, u.memory, u.host = g.cfg.BodyRate, &g.bodies, &g.callers.own
}

// open gives u as much memory as will be kept of it, and makes it give way to others where
// that is short. The function is nil if it is not known yet. keep must follow.
func (g *Gateway) open(ctx context.Context, u *upload, function *target, bytes int64) *Error {
	u.function = function
	if u.conn != nil {
		u.conn.incoming.Store(u)
	}
	return u.memory.claim(ctx, u, bytes, g.cfg.QueueTimeout, g.leaving)
}

// holds counts memory that u got.
func (u *upload) holds(bytes int64) {
	u.claimed.Add(bytes)
	u.host.held.Add(bytes)
	if u.function != nil {
		u.function.bodies.Add(bytes)
	}
}

// share returns the memory that the caller and the function of u have.
func (u *upload) share() int64 {
	if u.function == nil {
		return u.host.held.Load()
	}
	return u.host.held.Load() + u.function.bodies.Load()
}

// keep notes that no more is received of u than there is, and gives back the memory
// beyond so many bytes.
func (u *upload) keep(bytes int64) {
	if u == nil {
		return
	}
	u.mu.Lock()
	u.kept = true
	u.mu.Unlock()
	if u.conn != nil {
		u.conn.incoming.Store(nil)
	}
	if more := u.claimed.Load() - bytes; more > 0 {
		u.holds(-more)
		u.memory.give(more)
	}
}

// interrupt ends u with a fault, unless all that is kept is here. It returns the memory
// that will be free then.
func (u *upload) interrupt(e *Error) int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.kept || u.fault != nil {
		return 0
	}
	u.fault = e
	_ = u.control.SetReadDeadline(time.Now())
	return u.claimed.Load()
}

var errStopped = errors.New("the request body is no longer read")

// Read implements io.Reader. Errors other than io.EOF are an *Error or errStopped.
func (u *upload) Read(p []byte) (int, error) {
	u.reading.Lock()
	defer u.reading.Unlock()
	switch {
	case u.whole.Load():
		return 0, io.EOF
	case u.stopped.Load():
		return 0, errStopped
	case u.left < 0:
		return 0, u.fail(tooLarge())
	}
	u.begun.Store(true)
	n, err, in := u.read(p)
	if errors.Is(err, io.EOF) {
		u.whole.Store(true)
		if u.conn != nil {
			u.conn.complete()
		}
	}
	u.rest -= int64(n)
	if u.left -= int64(n); u.left < 0 {
		return 0, u.fail(tooLarge())
	}
	switch {
	case err == nil && in, errors.Is(err, io.EOF):
		return n, err
	case u.stopped.Load():
		return n, errStopped
	case !in, errors.Is(err, os.ErrDeadlineExceeded):
		return n, u.fail(u.slow())
	}
	return n, u.fail(badRequest("the request's body: %v", err))
}

// read reads once, within the time that u may take. It reports whether it was.
func (u *upload) read(p []byte) (n int, err error, in bool) {
	pause, trickles := u.pause, false
	if u.rate > 0 {
		allowed := u.pause + time.Duration(float64(u.arrived)/float64(u.rate)*float64(time.Second)) - u.waited
		pause, trickles = min(pause, allowed), allowed < pause
	}
	if trickles != u.trickles.Load() {
		u.trickles.Store(trickles)
	}
	begin := u.limit.set(pause)
	u.readFrom.Store(int64(begin))
	n, err = u.from.Read(p)
	u.readFrom.Store(0)
	in = u.limit.stop()
	u.waited += u.limit.all.now() - begin
	u.arrived += int64(n)
	return n, err, in
}

// copySize returns the size of the buffer that WriteTo copies by.
func (u *upload) copySize() int64 {
	if u.rest < 0 {
		return bufferSize
	}
	return min(max(u.rest, 1), bufferSize)
}

// WriteTo implements io.WriterTo: it copies by a buffer that is no larger than the body.
func (u *upload) WriteTo(w io.Writer) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{u}, make([]byte, u.copySize()))
}

// Close implements io.Closer: it stops the upload.
func (u *upload) Close() error {
	u.stop()
	return nil
}

// stop interrupts a running Read, makes later ones fail, and returns after the last Read
// has returned. The server must not use the connection before.
func (u *upload) stop() {
	if u.stopped.Swap(true) {
		return
	}
	if !u.whole.Load() {
		_ = u.control.SetReadDeadline(time.Now())
	}
	u.reading.Lock() // wait for Read
	defer u.reading.Unlock()
}

// skip discards the rest of the body so that the connection can be reused, and reports
// whether it reached the end. It gives up after skipBytes or skipTime, if another
// goroutine reads the body, after a fault, or if the client still waits for 100 Continue.
func (u *upload) skip() bool {
	switch {
	case u.whole.Load():
		return true
	case u.stopped.Load(), u.shared.Load(), u.expects && !u.begun.Load(), u.wrong() != nil, u.rest > skipBytes:
		return false
	}
	timer := time.AfterFunc(skipTime, func() { _ = u.control.SetReadDeadline(time.Now()) })
	_, _ = io.CopyN(io.Discard, u, skipBytes+1)
	return timer.Stop() && u.whole.Load()
}

const (
	skipBytes = 256 << 10
	skipTime  = time.Second / 2
)

func (u *upload) slow() *Error {
	e := &Error{Status: http.StatusRequestTimeout, Code: codeSlowBody, Message: "nothing of the request's body came for " + u.pause.String()}
	if u.trickles.Load() {
		e.Message = fmt.Sprintf("the request's body came at less than %d bytes a second, after the first %v", u.rate, u.pause)
		e.Hint = "gfaas serve --body-rate allows less"
	}
	return e
}

func tooLarge() *Error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Code: codeTooLarge, Message: "the request's body is too large"}
}

func (u *upload) fail(e *Error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.fault == nil {
		u.fault = e
	}
	return u.fault
}

// wrong returns what the caller did wrong, or nil.
func (u *upload) wrong() *Error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.fault
}

// late ends a read that has waited for too long. It notes the reason first: the server
// ends the request's context when a read fails, before Read returns.
func (u *upload) late() {
	_ = u.fail(u.slow())
	_ = u.control.SetReadDeadline(time.Now())
}

// receive takes in the body of a call, or as much of it as is kept. Of a long one the rest
// is for the request's body to give. The function is nil if it is not known yet. The
// upload's keep must follow.
func (g *Gateway) receive(w http.ResponseWriter, r *http.Request, function *target) (b body, from *upload, fault *Error) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return body{whole: true}, nil, nil
	}
	if r.ContentLength > g.cfg.MaxBody {
		return b, nil, tooLarge()
	}
	from = g.upload(w, r, g.cfg.MaxBody)
	size := g.cfg.Buffer + 1 // one more, to see whether it ends there
	if r.ContentLength > 0 {
		size = min(r.ContentLength, g.cfg.Buffer)
	}
	if fault := g.open(r.Context(), from, function, size); fault != nil {
		return b, from, fault
	}
	var err error
	if r.ContentLength > 0 {
		b.head = make([]byte, size)
		_, err = io.ReadFull(from, b.head)
		b.whole = size == r.ContentLength
	} else {
		b.head, err = readUpTo(from, size)
		b.whole = int64(len(b.head)) < size
	}
	if fault := from.wrong(); fault != nil {
		return b, from, fault
	}
	if err != nil {
		return b, from, badRequest("the request's body: %v", err)
	}
	return b, from, nil
}

// readUpTo reads to the end, or up to so many bytes, in no more memory than that.
func readUpTo(r io.Reader, most int64) ([]byte, error) {
	b := make([]byte, 0, min(most, 512))
	for int64(len(b)) < most {
		if len(b) == cap(b) {
			b = append(make([]byte, 0, min(4*int64(cap(b)), most)), b...)
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
	return b, nil
}

// buffers are what answers are copied through.
type buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return p[:]
	}
	return make([]byte, bufferSize)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(p []byte) { b.pool.Put((*[bufferSize]byte)(p)) }
