package inbound

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

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
)

// Body is the body of a call. It keeps its head in memory, so that the call can be sent
// again. The tail of a long body is either streamed or kept in a file.
type Body struct {
	head  []byte
	whole bool      // head and file hold the complete body, or will after Spool's reader was read
	file  *spilled  // the bytes after head, if they are kept
	tail  io.Reader // the bytes after head, if they are streamed
	parts [][]byte  // the complete body, in place of head, if it was joined from other bodies
	edits []Edit    // changes of the received body
}

// Joined returns a body that consists of parts of other bodies. It does not account for their memory.
func Joined(parts [][]byte) Body { return Body{whole: true, parts: parts} }

// Bytes returns the complete body, or false if not all of it is in memory as it will be sent.
func (b *Body) Bytes() ([]byte, bool) {
	return b.head, b.whole && b.file == nil && b.parts == nil && b.edits == nil
}

// Whole reports whether the complete body is kept, so that the call can be sent again.
func (b *Body) Whole() bool { return b.whole }

// Memory returns the size of the body's buffer in bytes.
func (b *Body) Memory() int64 { return int64(cap(b.head)) }

// Stream sets the reader of the bytes after the head.
func (b *Body) Stream(tail io.Reader) { b.tail = tail }

// Spool returns a reader of the whole body. length is the length of the body in bytes, or
// negative if unknown. If the body is longer than its head, reading it writes the tail to a
// file. Whole returns true from now on, but the caller must read to the end before it sends the
// body. A read may fail with the error that SpoolFault returns.
func (in *Intake) Spool(b *Body, u *Upload, length int64) (io.Reader, *refusal.Error) {
	all := io.Reader(bytes.NewReader(b.head))
	if b.whole {
		return all, nil
	}
	file, fault := in.spills.open(u, max(length-int64(len(b.head)), -1))
	if fault != nil {
		return nil, fault
	}
	b.file, b.whole = file, true
	return io.MultiReader(all, io.TeeReader(u, file)), nil
}

// SpoolFault returns the reason why the tail of the body could not be written to its file,
// or nil.
func (b *Body) SpoolFault() *refusal.Error {
	if b.file == nil {
		return nil
	}
	return b.file.fault
}

// Release deletes the body's file, if there is one.
func (b *Body) Release() { b.file.close() }

// Size returns the length of the kept body, as it will be sent.
func (b *Body) Size() int64 {
	size := b.received()
	for _, part := range b.parts {
		size += int64(len(part))
	}
	for _, e := range b.edits {
		size += int64(len(e.Text)) - e.Length
	}
	return size
}

// Reader returns the body from its start. A streamed tail can be read only once.
func (b *Body) Reader() io.Reader {
	switch {
	case b.parts != nil:
		return JoinedReader(b.parts)
	case b.edits != nil:
		return b.edited()
	case b.file != nil:
		return io.MultiReader(bytes.NewReader(b.head), b.file.reader())
	case b.tail != nil:
		return io.MultiReader(bytes.NewReader(b.head), b.tail)
	case len(b.head) == 0:
		return nil
	}
	return bytes.NewReader(b.head)
}

// JoinedReader returns a reader of consecutive parts.
func JoinedReader(parts [][]byte) io.Reader {
	readers := make([]io.Reader, len(parts))
	for i, part := range parts {
		readers[i] = bytes.NewReader(part)
	}
	return io.MultiReader(readers...)
}

// Upload reads a request body from its caller. It limits the body's size, the length of
// each pause and, through a minimum rate, the total time spent in Read. It stores the first
// fault, such as a body that is too large or too slow. One goroutine reads at a time; Close may
// be called during a Read.
type Upload struct {
	from    io.Reader
	control http.ResponseController // of the same connection
	conn    *Conn                   // nil if the request did not arrive on a connection
	pause   time.Duration           // longest duration of one Read
	rate    int64                   // minimum bytes per second after the first pause; 0 means no minimum
	timer   *time.Timer             // calls late if a Read takes too long
	now     func() time.Duration
	expects bool // the caller sends the body only after 100 Continue

	memory    *bodyMemory
	host      *callerHost
	function  *atomic.Int64 // bytes of memory held by all bodies of the function; nil while the function is unknown
	reserved  atomic.Int64  // bytes of memory held by this upload
	readFrom  atomic.Int64  // when the current Read began, on the clock now; 0 without a Read
	rateRules atomic.Bool   // the minimum rate allows the current Read less time than pause

	reading   sync.Mutex    // held by Read
	allowed   int64         // bytes that may still arrive under the size limit
	remaining int64         // bytes still to arrive according to the request's length; negative if unknown
	arrived   int64         // bytes received
	waited    time.Duration // time spent in Read

	begun   atomic.Bool // Read has been called
	shared  atomic.Bool // Share has been called
	whole   atomic.Bool // the end of the body has been read
	stopped atomic.Bool // Close has been called

	mu       sync.Mutex
	fault    *refusal.Error
	finished bool // Finish has been called, so interrupt has no effect
}

// Upload returns the body of a request, limited to limit bytes. If r.Body is already an Upload,
// it returns that one, and changes its limit only before the first Read.
func (in *Intake) Upload(w http.ResponseWriter, r *http.Request, limit int64) *Upload {
	if u, ok := r.Body.(*Upload); ok {
		if !u.begun.Load() {
			u.allowed = limit
		}
		return u
	}
	u := new(Upload)
	u.init(in, w, r, limit)
	return u
}

// init prepares u for the body of a request, limited to limit bytes.
func (u *Upload) init(in *Intake, w http.ResponseWriter, r *http.Request, limit int64) {
	u.from, u.control, u.pause = r.Body, *http.NewResponseController(w), in.cfg.BodyTimeout
	u.allowed, u.remaining, u.expects = limit, r.ContentLength, r.Header.Get("Expect") != ""
	u.now, u.timer = in.cfg.Now, StoppedTimer(u.late)
	u.rate, u.memory, u.host = in.cfg.BodyRate, &in.bodies, &in.callers.own
}

// Open reserves the given bytes of memory for u. It returns an error if they are not available
// within Config.MemoryTimeout. Until Finish, u may be interrupted if other uploads need memory.
// function counts the bytes of memory held by all bodies of u's function; it is nil if the
// function is not known yet. The caller must call Finish after the upload.
func (in *Intake) Open(ctx context.Context, u *Upload, function *atomic.Int64, bytes int64) *refusal.Error {
	u.function = function
	if u.conn != nil {
		u.conn.incoming.Store(u)
	}
	return u.memory.acquire(ctx, u, bytes, in.cfg.MemoryTimeout, in.cfg.Draining)
}

// addReserved adds bytes, which may be negative, to the counts of memory held by u, by the caller's
// host and by the function.
func (u *Upload) addReserved(bytes int64) {
	u.reserved.Add(bytes)
	u.host.held.Add(bytes)
	if u.function != nil {
		u.function.Add(bytes)
	}
}

// share returns the sum of the bytes of memory held by the host's bodies and by the function's
// bodies. Memory goes first to the upload with the smallest sum.
func (u *Upload) share() int64 {
	if u.function == nil {
		return u.host.held.Load()
	}
	return u.host.held.Load() + u.function.Load()
}

// Finish records that the gateway will store no further data of u, so that u can no longer be
// interrupted. It frees the reserved memory, except for the given bytes. Finish does nothing on
// a nil u.
func (u *Upload) Finish(bytes int64) {
	if u == nil {
		return
	}
	u.mu.Lock()
	u.finished = true
	u.mu.Unlock()
	if u.conn != nil {
		u.conn.incoming.Store(nil)
	}
	if unused := u.reserved.Load() - bytes; unused > 0 {
		u.addReserved(-unused)
		u.memory.release(unused)
	}
}

// interrupt ends u with a fault and returns the bytes of memory that this will free. It returns
// 0 if Finish has been called or u has failed.
func (u *Upload) interrupt(e *refusal.Error) int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.finished || u.fault != nil {
		return 0
	}
	u.fault = e
	_ = u.control.SetReadDeadline(time.Now())
	return u.reserved.Load()
}

var errStopped = errors.New("the request body is no longer read")

// Read implements io.Reader. Its errors are io.EOF, errStopped or a *refusal.Error.
func (u *Upload) Read(p []byte) (int, error) {
	u.reading.Lock()
	defer u.reading.Unlock()
	switch {
	case u.whole.Load():
		return 0, io.EOF
	case u.stopped.Load():
		return 0, errStopped
	case u.allowed < 0:
		return 0, u.fail(TooLarge())
	}
	u.begun.Store(true)
	n, inTime, err := u.read(p)
	if errors.Is(err, io.EOF) {
		u.whole.Store(true)
		if u.conn != nil {
			u.conn.complete()
		}
	}
	u.remaining -= int64(n)
	if u.allowed -= int64(n); u.allowed < 0 {
		return 0, u.fail(TooLarge())
	}
	switch {
	case err == nil && inTime, errors.Is(err, io.EOF):
		return n, err
	case u.stopped.Load():
		return n, errStopped
	case !inTime, errors.Is(err, os.ErrDeadlineExceeded):
		return n, u.fail(u.slow())
	}
	return n, u.fail(refusal.Bad("cannot read the request body: %v", err))
}

// read reads once from the caller, within u's time limits. inTime is false if the read took longer.
func (u *Upload) read(p []byte) (n int, inTime bool, err error) {
	pause := u.pause
	if u.rate > 0 {
		transfer := time.Duration(float64(u.arrived) / float64(u.rate) * float64(time.Second))
		pause = min(pause, u.pause+transfer-u.waited)
	}
	u.rateRules.Store(pause < u.pause)
	begin := u.now()
	u.readFrom.Store(int64(begin))
	u.timer.Reset(pause)
	n, err = u.from.Read(p)
	u.readFrom.Store(0)
	inTime = u.timer.Stop()
	u.waited += u.now() - begin
	u.arrived += int64(n)
	return n, inTime, err
}

// CopySize returns the size of WriteTo's buffer in bytes.
func (u *Upload) CopySize() int64 {
	if u.remaining < 0 {
		return copyBuffer
	}
	return min(max(u.remaining, 1), copyBuffer)
}

// WriteTo implements io.WriterTo. Its buffer is no larger than the remaining body.
func (u *Upload) WriteTo(w io.Writer) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{u}, make([]byte, u.CopySize()))
}

// Close implements io.Closer. It interrupts a running Read, makes later ones fail, and waits
// until the running one has returned: the server must not use the connection while a Read
// does.
func (u *Upload) Close() error {
	if u.stopped.Swap(true) {
		return nil
	}
	if !u.whole.Load() {
		_ = u.control.SetReadDeadline(time.Now())
	}
	u.reading.Lock() // wait for Read
	defer u.reading.Unlock()
	return nil
}

// skip discards the remaining body so that the connection can be reused, and reports
// whether it reached the end. It stops after skipBytes or skipTime. It does not start if
// another goroutine reads the body, after a fault, or if the client still waits for 100
// Continue.
func (u *Upload) skip() bool {
	switch {
	case u.whole.Load():
		return true
	case u.stopped.Load(), u.shared.Load(), u.expects && !u.begun.Load(), u.Fault() != nil, u.remaining > skipBytes:
		return false
	}
	timer := time.AfterFunc(skipTime, func() { _ = u.control.SetReadDeadline(time.Now()) })
	_, _ = io.CopyN(io.Discard, u, skipBytes+1)
	return timer.Stop() && u.whole.Load()
}

const (
	skipBytes = 256 << 10       // most bytes that skip reads
	skipTime  = time.Second / 2 // longest time that skip takes
)

func (u *Upload) slow() *refusal.Error {
	e := &refusal.Error{Code: refusal.SlowBody, Message: "no byte of the request body arrived for " + u.pause.String()}
	if u.rateRules.Load() {
		e.Message = fmt.Sprintf("the request body arrived at less than %d bytes per second after the first %v", u.rate, u.pause)
		e.Hint = "lower the limit with gfaas serve --body-rate"
	}
	return e
}

// TooLarge returns the refusal of a request whose body is too large.
func TooLarge() *refusal.Error {
	return &refusal.Error{Code: refusal.TooLarge, Message: "the request body is too large"}
}

func (u *Upload) fail(e *refusal.Error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.fault == nil {
		u.fault = e
	}
	return u.fault
}

// Share records that a goroutine other than the handler's reads u. Then skip does not read u.
func (u *Upload) Share() { u.shared.Store(true) }

// Fault returns the caller's first fault, or nil.
func (u *Upload) Fault() *refusal.Error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.fault
}

// late interrupts a Read that exceeded its time limit. It sets the fault before the
// interruption: when the read fails, the server cancels the request's context before Read
// returns, and the fault must explain the cancellation.
func (u *Upload) late() {
	_ = u.fail(u.slow())
	_ = u.control.SetReadDeadline(time.Now())
}

// Receive reads the head of a call's body, up to about Config.Buffer bytes, and returns it in b.
// The tail of a longer body can be read from the upload, from, which is nil if the request has
// no body. function is as in Open. The caller must call from.Finish afterwards, also after a
// fault.
func (in *Intake) Receive(w http.ResponseWriter, r *http.Request, function *atomic.Int64) (b Body, from *Upload, fault *refusal.Error) {
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return Body{whole: true}, nil, nil
	}
	if r.ContentLength > in.cfg.MaxBody {
		return b, nil, TooLarge()
	}
	from = in.Upload(w, r, in.cfg.MaxBody)
	size := in.cfg.Buffer + 1 // one extra byte shows whether the body ends there
	if r.ContentLength > 0 {
		size = min(r.ContentLength, in.cfg.Buffer)
	}
	if fault := in.Open(r.Context(), from, function, size); fault != nil {
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
	if fault := from.Fault(); fault != nil {
		return b, from, fault
	}
	if err != nil {
		return b, from, refusal.Bad("cannot read the request body: %v", err)
	}
	return b, from, nil
}

// readUpTo reads until EOF, but no more than limit bytes. Its buffer grows with the data, up to
// that size.
func readUpTo(r io.Reader, limit int64) ([]byte, error) {
	b := make([]byte, 0, min(limit, 512))
	for int64(len(b)) < limit {
		if len(b) == cap(b) {
			b = append(make([]byte, 0, min(4*int64(cap(b)), limit)), b...)
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

const copyBuffer = 32 << 10 // largest buffer of WriteTo, in bytes

// StoppedTimer returns a timer that calls expired, in another goroutine, once it has been
// reset and that time has passed.
func StoppedTimer(expired func()) *time.Timer {
	timer := time.AfterFunc(time.Hour, expired)
	timer.Stop()
	return timer
}
