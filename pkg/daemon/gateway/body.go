package gateway

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
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

// sender reads a request's body from its connection: every pause is bounded, and
// so is all of it. It remembers what the caller did wrong.
type sender struct {
	from  io.Reader
	to    http.ResponseWriter // of the same connection
	pause time.Duration
	left  int64 // bytes that may still come
	limit limit

	mu    sync.Mutex
	fault *Error
}

// sender reads a request's body, of that many bytes at most.
func (g *Gateway) sender(w http.ResponseWriter, r *http.Request, most int64) *sender {
	s := &sender{from: r.Body, to: w, pause: g.cfg.BodyTimeout, left: most}
	s.limit.all, s.limit.owner = &g.limits, s
	return s
}

func (s *sender) Read(p []byte) (int, error) {
	if s.left < 0 {
		return 0, s.fail(tooLarge())
	}
	s.limit.set(s.pause)
	n, err := s.from.Read(p)
	in := s.limit.stop()
	if s.left -= int64(n); s.left < 0 {
		return 0, s.fail(tooLarge())
	}
	switch {
	case !in, errors.Is(err, os.ErrDeadlineExceeded):
		return n, s.fail(s.slow())
	case err == nil, errors.Is(err, io.EOF):
		return n, err
	}
	return n, s.fail(badRequest("the request's body: %v", err))
}

func (s *sender) slow() *Error {
	return &Error{Status: http.StatusRequestTimeout, Code: codeSlowBody, Message: "nothing of the request's body came for " + s.pause.String()}
}

func tooLarge() *Error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Code: codeTooLarge, Message: "the request's body is too large"}
}

func (s *sender) fail(e *Error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault == nil {
		s.fault = e
	}
	return s.fault
}

// wrong is what the caller did wrong, if anything.
func (s *sender) wrong() *Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault
}

// late ends a read that has waited for too long. Why is said before: the server ends
// the request's context when a read fails, before who reads is told.
func (s *sender) late() {
	_ = s.fail(s.slow())
	_ = http.NewResponseController(s.to).SetReadDeadline(time.Now())
}

// receive takes in the body, or as much of it as is kept. Of a long one the rest
// is for the request's body to give.
func (g *Gateway) receive(w http.ResponseWriter, r *http.Request) (b body, from *sender, fault *Error) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return body{whole: true}, nil, nil
	}
	if r.ContentLength > g.cfg.MaxBody {
		return b, nil, tooLarge()
	}
	from = g.sender(w, r, g.cfg.MaxBody)
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

// A body reader of a request that keeps what it is closed with: the request's own
// is closed by the server.
type readCloser struct {
	io.Reader
	io.Closer
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
