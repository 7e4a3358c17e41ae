package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// body is what a caller sends: its head is kept, so that a call can be sent again,
// and the rest, of a long one, is streamed.
type body struct {
	head  []byte
	whole bool      // head is all
	rest  io.Reader // of a long one
}

// reader is the body from its start. The rest of a long one can be read once.
func (b *body) reader() io.Reader {
	switch {
	case b.rest != nil:
		return io.MultiReader(bytes.NewReader(b.head), b.rest)
	case len(b.head) == 0:
		return nil
	}
	return bytes.NewReader(b.head)
}

// upload reads a request body from its caller. It bounds each pause and the size, and
// remembers the caller's first fault. One goroutine reads at a time; stop may be called
// during a Read.
type upload struct {
	from    io.Reader
	control http.ResponseController // of the same connection
	conn    *callerConn             // nil if the request came over no connection
	pause   time.Duration
	limit   limit
	expects bool // the caller sends the body only after 100 Continue

	reading sync.Mutex // held by Read
	left    int64      // bytes that may still arrive
	rest    int64      // bytes that will, as the request says; negative if it does not

	begun   atomic.Bool // Read was called
	shared  atomic.Bool // another goroutine than the handler's reads it
	whole   atomic.Bool // its end was read
	stopped atomic.Bool

	mu    sync.Mutex
	fault *Error
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
	u.limit.set(u.pause)
	n, err := u.from.Read(p)
	in := u.limit.stop()
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
	return &Error{Status: http.StatusRequestTimeout, Code: codeSlowBody, Message: "nothing of the request's body came for " + u.pause.String()}
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

// receive takes in the body, or as much of it as is kept. Of a long one the rest
// is for the request's body to give.
func (g *Gateway) receive(w http.ResponseWriter, r *http.Request) (b body, from *upload, fault *Error) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return body{whole: true}, nil, nil
	}
	if r.ContentLength > g.cfg.MaxBody {
		return b, nil, tooLarge()
	}
	from = g.upload(w, r, g.cfg.MaxBody)
	most := g.cfg.Buffer
	var err error
	if n := r.ContentLength; n > 0 && n <= most {
		b.head = make([]byte, n)
		_, err = io.ReadFull(from, b.head)
		b.whole = true
	} else {
		var head bytes.Buffer
		_, err = head.ReadFrom(io.LimitReader(from, most+1))
		b.head = head.Bytes()
		b.whole = int64(len(b.head)) <= most
	}
	if fault := from.wrong(); fault != nil {
		return b, from, fault
	}
	if err != nil {
		return b, from, badRequest("the request's body: %v", err)
	}
	return b, from, nil
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
