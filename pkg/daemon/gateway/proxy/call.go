package proxy

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/inbound"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/reason"
)

// Call is one call of a function, from the head of its request to the end of its answer.
// The request's goroutine owns it. The dispatcher owns its attempt.
type Call struct {
	p          *Proxy
	function   *dispatch.Function // nil if it is not known yet
	id         string             // value of X-Call-Id
	path       string             // escaped; empty means the path that the function's contract invokes
	form       refusal.Form       // of the gateway's own errors
	arrived    time.Time
	body       inbound.Body
	upload     *inbound.Upload // nil if the request has no body
	hold       *inbound.Hold   // memory of a long body that was read completely; nil if there is none
	cookiePath string          // path of the function in the path of the request; empty: it was not called by its path
	affinity   string          // value in the request that selects the instance
	probe      bool            // the call is a probe, which the policy does not see
	repeats    int             // times that it was sent again although an instance may have executed it
	tries      int             // instances that may have received it
	status     int             // status of the instance's answer

	own      dispatch.Attempt
	attempt  *dispatch.Attempt // own, or that of a batch in which the call was the only one
	turn     dispatch.Turn     // the last turn received
	cancel   context.CancelCauseFunc
	limit    *time.Timer // limits the current pause
	begun    atomic.Bool // the answer has begun
	ended    atomic.Bool // end was called
	overdue  atomic.Bool // late was called
	upgraded *connection // nil unless the call became an upgraded connection
	batch    int         // inferences of the batch in which it was answered; 0 if there was none

	comments comments

	proxy   httputil.ReverseProxy
	passing passing
	answer  answerBody
}

// Causes with which a call cancels itself.
var (
	errTimeout = errors.New("no answer in time")
	errAborted = errors.New("the answer was cut off")
)

// ID returns the ID of the call.
func (c *Call) ID() string { return c.id }

// callID returns the caller's ID if it is valid, and otherwise a new one.
func callID(given string) string {
	if given != "" && len(given) <= 128 && Visible(given) {
		return given
	}
	return rand.Text()
}

// Visible reports whether a text consists of visible ASCII characters.
func Visible(text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' })
}

// Serve receives the call's body, runs the call and writes the answer.
func (c *Call) Serve(w http.ResponseWriter, r *http.Request) {
	if c.p.cfg.Dispatcher.Draining.IsSet() {
		c.Refuse(w, refusal.Ending())
		return
	}
	if e := c.function.Uncallable(); e != nil {
		c.Refuse(w, e)
		return
	}
	if c.probe = c.function.Calls().Probes.Match(r.Method, c.path); c.probe {
		if e := c.function.NotLoaded(); e != nil {
			c.Refuse(w, e)
			return
		}
		r.Header.Del("Upgrade") // an upgraded connection would use the function
	}
	e := c.Receive(w, r)
	defer c.Release()
	c.Received()
	if e != nil {
		c.Refuse(w, e)
		return
	}
	c.Forward(w, r)
}

// Receive receives the call's body as far as it is kept. The caller must call Received and
// Release afterwards.
func (c *Call) Receive(w http.ResponseWriter, r *http.Request) (e *refusal.Error) {
	var bodies *atomic.Int64
	if c.function != nil {
		bodies = &c.function.Bodies
	}
	c.body, c.upload, e = c.p.cfg.Intake.Receive(w, r, bodies)
	return e
}

// Content returns a reader of the whole body, which keeps all data that it reads. length is
// the request's Content-Length, or negative if it is unknown.
func (c *Call) Content(length int64) (io.Reader, *refusal.Error) {
	return c.p.cfg.Intake.Spool(&c.body, c.upload, length)
}

// ContentFault returns the reason why the body could not be read or kept, or nil.
func (c *Call) ContentFault() *refusal.Error {
	if c.upload != nil {
		if e := c.upload.Fault(); e != nil {
			return e
		}
	}
	return c.body.SpoolFault()
}

// ReceiveAll receives the call's body, and returns it. The memory of the body counts until Release, which the caller
// must call afterwards.
func (c *Call) ReceiveAll(w http.ResponseWriter, r *http.Request) ([]byte, *refusal.Error) {
	defer c.Received()
	if fault := c.Receive(w, r); fault != nil {
		return nil, fault
	}
	content, fault := c.Content(r.ContentLength)
	if fault != nil {
		return nil, fault
	}
	if whole, inMemory := c.body.Bytes(); inMemory {
		return whole, nil
	}
	if c.hold = c.p.cfg.Intake.Hold(); c.hold == nil {
		return nil, inbound.NoMemory()
	}
	text, err := c.hold.ReadAll(content, r.ContentLength, func() {})
	var e *refusal.Error
	switch fault := c.ContentFault(); {
	case fault != nil:
		return nil, fault
	case errors.As(err, &e):
		return nil, e
	case err != nil:
		return nil, refusal.Bad("cannot read the request body: %v", err)
	}
	return text, nil
}

// Replace replaces the body, which ReceiveAll has returned, by another of about the same size, whose memory it does
// not count.
func (c *Call) Replace(body []byte) {
	c.body.Release()
	c.body = inbound.Joined([][]byte{body})
}

// Received frees memory that was reserved for the body but is not used.
func (c *Call) Received() { c.upload.Finish(c.body.Memory()) }

// Release frees the memory and the file of the body.
func (c *Call) Release() {
	c.upload.Finish(0)
	c.body.Release()
	if c.hold != nil {
		c.hold.Release()
	}
}

// Edit replaces parts of the body, which must be kept completely.
func (c *Call) Edit(edits []inbound.Edit) { c.body.Replace(edits) }

// SetPath sets the path at the instance. The call's own errors keep the form that its request determined.
func (c *Call) SetPath(path string) { c.path = path }

// SetFunction sets the function of a call that was created without one.
func (c *Call) SetFunction(f *dispatch.Function) { c.function = f }

// Forward runs a call whose body was received, and writes the answer.
func (c *Call) Forward(w http.ResponseWriter, r *http.Request) {
	if c.upload != nil && !c.body.Whole() {
		c.upload.Share() // the answer may arrive before the end of the body
		ctx, closed := context.WithCancel(r.Context())
		defer closed()
		go inbound.WatchCaller(ctx, closed)
		r = r.WithContext(ctx)
		r.Body = c.upload
	}
	c.proxy = httputil.ReverseProxy{Rewrite: rewrite, Transport: c, BufferPool: &c.p.buffers, ErrorLog: discard, ErrorHandler: c.failed}
	c.passing.ResponseWriter, c.passing.call = w, c
	c.p.passing.Add(1)
	defer c.p.passing.Add(-1)
	defer c.end(errAborted)
	if !r.ProtoAtLeast(1, 1) {
		c.passing.old = true
		defer reset(w)
	}
	aborted := true
	defer func() {
		if aborted { // ReverseProxy ends a cut answer by a panic
			flushCut(w)
		}
	}()
	c.proxy.ServeHTTP(&c.passing, r)
	aborted = false
}

// flushCut sends the received part of an answer that was cut off, which may still wait in
// the server's buffer.
func flushCut(w http.ResponseWriter) {
	caller := http.NewResponseController(w)
	_ = caller.SetWriteDeadline(time.Now().Add(time.Second)) // the caller may not be reading
	_ = caller.Flush()                                       // the connection ends anyway
}

// flushInterval is the longest time for which a part of an answer waits for the next part.
const flushInterval = 5 * time.Millisecond

// reset, as a deferred function, resets the connection if the answer was cut. An HTTP/1.0
// answer without a length ends with its connection, so a cut one would look complete.
func reset(w http.ResponseWriter) {
	aborted := recover()
	if aborted == nil {
		return
	}
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		if c, ok := conn.(interface{ SetLinger(int) error }); ok {
			_ = c.SetLinger(0)
		}
		_ = conn.Close()
	}
	panic(aborted)
}

// failed writes the gateway's answer to a call that got none from an instance.
func (c *Call) failed(w http.ResponseWriter, _ *http.Request, err error) {
	c.passing.answers = false
	if c.cancel == nil { // RoundTrip was not called: the request is invalid
		c.Refuse(w, refusal.Bad("%v", err))
		return
	}
	c.begun.Store(false) // no part of the instance's answer is passed on
	c.Refuse(w, c.problem(err))
}

// rewrite turns the caller's request into the instance's, with the caller's address added.
func rewrite(p *httputil.ProxyRequest) {
	for _, name := range []string{"Forwarded", "X-Forwarded-For"} {
		if values := p.In.Header[name]; values != nil {
			p.Out.Header[name] = values
		}
	}
	p.Out.URL.RawQuery = p.In.URL.RawQuery // even if it is malformed
	p.Out.Header.Del("Expect")             // the body is already being received
	if p.Out.Header["Upgrade"] != nil && (!p.In.ProtoAtLeast(1, 1) || inbound.MustClose(p.In.Context())) {
		p.Out.Header.Del("Connection") // upgrades are not allowed here (RFC 9110, section 7.8)
		p.Out.Header.Del("Upgrade")
	}
	p.SetXForwarded()
}

// RoundTrip implements http.RoundTripper. It waits for the call's turn, sends the call
// (more than once if that is allowed), and returns the answer once its head has arrived.
func (c *Call) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	c.cancel = cancel
	out := ports.Call{Method: r.Method, Path: c.path, Query: r.URL.RawQuery, Header: r.Header}
	r.Header["X-Call-Id"] = []string{c.id}
	if r.Host != "" {
		r.Header["Host"] = []string{r.Host}
	}
	if c.body.Whole() && c.body.Size() > 0 {
		r.Header["Content-Length"] = []string{strconv.FormatInt(c.body.Size(), 10)}
	} else if !c.body.Whole() {
		c.body.Stream(r.Body)
		if r.ContentLength > 0 {
			r.Header["Content-Length"] = []string{strconv.FormatInt(r.ContentLength, 10)}
		}
	}
	if c.probe {
		c.p.cfg.Dispatcher.Probe(c.attempt, c.function, c)
	}
	c.comments.start(c, r)
	answer, assigned, err := c.tryBatch(ctx, r)
	if err == nil && answer == nil {
		answer, err = c.alone(ctx, r, out, assigned)
	}
	if c.comments.stop() && err == nil {
		answer, err = c.toEvents(answer)
	}
	if err != nil {
		c.end(err)
		return nil, err
	}
	return c.answered(answer), nil
}

// alone sends the call without others and returns the answer once its head has arrived. assigned reports whether the
// call has an instance already.
func (c *Call) alone(ctx context.Context, r *http.Request, out ports.Call, assigned bool) (*http.Response, error) {
	if !c.probe && !assigned {
		c.affinity = affinityOf(c.function.Calls().Affinity, r.Header)
		c.attempt.Affinity(c.affinity)
		c.p.cfg.Dispatcher.Submit(c.attempt, c.function, c)
	}
	if !assigned {
		if err := c.wait(ctx); err != nil {
			return nil, err
		}
	}
	answer, err := c.run(ctx, r, out)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		return answer, err
	}
	switch {
	case !switches(r.Header, answer.Header):
		err = c.badAnswer("it switched (101) to a protocol that was not requested")
	case !c.limit.Stop(): // late is closing the connection
		err = errTimeout
	default:
		return answer, nil
	}
	_ = answer.Body.Close()
	c.tries++
	return nil, err
}

// run sends the call to its instance, more than once if that is allowed, and returns the answer once its head has
// arrived.
func (c *Call) run(ctx context.Context, r *http.Request, out ports.Call) (*http.Response, error) {
	for {
		answer, err := c.send(ctx, out)
		if err == nil {
			return answer, nil
		}
		if err := c.retry(ctx, r, err); err != nil {
			return nil, err
		}
		if err := c.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// switches reports whether a 101 answer switches to the protocol that the request asked
// for.
func switches(request, answer http.Header) bool {
	asked, chosen := request["Upgrade"], answer["Upgrade"]
	return len(asked) == 1 && len(chosen) == 1 && asked[0] != "" && strings.EqualFold(asked[0], chosen[0])
}

// badAnswer returns the 502 for an instance's answer that cannot be passed on.
func (c *Call) badAnswer(why string) *refusal.Error {
	return &refusal.Error{Code: refusal.BadAnswer, Message: "instance " + c.turn.Record.ID + ": " + why}
}

// wait waits for the call's turn. It returns the reason why the call must not be sent, or
// nil.
func (c *Call) wait(ctx context.Context) error {
	select {
	case c.turn = <-c.attempt.Turn(): // already there
	default:
		select {
		case c.turn = <-c.attempt.Turn():
		case <-ctx.Done():
			c.turn = c.attempt.Abandon()
			return context.Cause(ctx)
		}
	}
	if e := c.turn.Refusal; e != nil {
		return e
	}
	return nil
}

// send sends the call to its instance. If the pooled connection turns out to be closed, the
// instance has not received the call, so send tries another connection.
func (c *Call) send(ctx context.Context, out ports.Call) (answer *http.Response, err error) {
	c.limit.Reset(c.function.Calls().Timeout)
	for range maxStale {
		out.Body = c.body.Reader()
		answer, err = c.p.cfg.Invoker.Invoke(ctx, c.turn.Record, out)
		var failed *ports.CallError
		if err == nil || !errors.As(err, &failed) || failed.Progress != ports.NotSent || !c.body.Whole() || ctx.Err() != nil {
			break
		}
	}
	return answer, err
}

// maxStale limits the closed connections that send tries.
const maxStale = 8

// retry handles a failed send. It puts the call back into the queue if the call may be sent
// again. Otherwise, it returns the reason.
func (c *Call) retry(ctx context.Context, r *http.Request, err error) error {
	c.limit.Stop()
	var failed *ports.CallError
	called := errors.As(err, &failed)
	if called && failed.Progress >= ports.Sent || !called && ctx.Err() != nil {
		c.tries++
	}
	if c.upload != nil {
		if fault := c.upload.Fault(); fault != nil {
			return fault
		}
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, dispatch.ErrDied) {
		return cause
	}
	if !called {
		return refusal.Bad("%v", err)
	}
	switch {
	case failed.Progress == ports.NotTried:
		return &refusal.Error{Code: refusal.NoConnection, Retry: time.Second,
			Message: "cannot connect to instance " + c.turn.Record.ID + ": " + err.Error()}
	case failed.Progress == ports.NotConnected:
		c.p.cfg.Instances.Unreachable(c.turn.Instance)
	case !died(err):
		return c.badAnswer(err.Error())
	case failed.Progress >= ports.Sent:
		c.p.cfg.Instances.Suspect(c.turn.Instance)
	}
	gone := &refusal.Error{Code: refusal.InstanceDied, Message: "instance " + c.turn.Record.ID + " sent no answer: " + err.Error()}
	if context.Cause(ctx) != nil {
		return gone // the dispatcher cut the call
	}
	switch launch.Repeatable(failed.Progress, r.Method, r.Header, c.body.Whole(), c.repeats) {
	case launch.NoRepeat:
		return gone
	case launch.RepeatOnce:
		c.repeats++
	}
	if !c.attempt.Retry() {
		return gone
	}
	return nil
}

// died reports whether a call got no answer because its connection ended. Other errors mean
// a malformed answer.
func died(err error) bool {
	if failed, ok := errors.AsType[*ports.CallError](err); ok && failed.Progress < ports.Sent {
		return true
	}
	return slices.ContainsFunc([]error{
		io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNABORTED,
		net.ErrClosed, dispatch.ErrDied, context.Canceled,
	}, func(end error) bool { return errors.Is(err, end) })
}

// problem returns the gateway's answer to a failed call.
func (c *Call) problem(err error) *refusal.Error {
	e := c.cause(err)
	if c.probe && e.Code == refusal.InstanceDied {
		return dispatch.RefuseProbe(c.function) // probes do not keep the policy from stopping an instance
	}
	return e
}

func (c *Call) cause(err error) *refusal.Error {
	var e *refusal.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, errTimeout):
		return &refusal.Error{Code: refusal.Timeout, Message: "no answer within " + c.function.Calls().Timeout.String()}
	case errors.Is(err, dispatch.ErrDied):
		return &refusal.Error{Code: refusal.InstanceDied, Message: "the instance ended before it answered"}
	case errors.Is(err, dispatch.ErrDraining):
		return refusal.Ending()
	case errors.Is(err, context.Canceled):
		return &refusal.Error{Code: refusal.Cancelled, Message: "the caller closed its connection"}
	}
	return &refusal.Error{Code: refusal.BadAnswer, Message: err.Error()}
}

// late ends a call after too long a pause of its instance or caller.
func (c *Call) late() {
	c.overdue.Store(true)
	c.Cut(errTimeout)
	if c.begun.Load() || c.passing.early.Load() {
		c.passing.stopWrites()
	}
}

// Cut implements dispatch.Owner.
func (c *Call) Cut(cause error) {
	if errors.Is(cause, dispatch.ErrIdle) {
		c.p.cfg.Log.Info("closing an idle upgraded connection, because calls wait", "function", c.function.Name(), "call", c.id)
	}
	c.cancel(cause)
	if c.begun.Load() && c.upgraded != nil {
		_ = c.upgraded.ReadWriteCloser.Close()
	}
}

// answered prepares an instance's answer for the caller.
func (c *Call) answered(answer *http.Response) *http.Response {
	c.tries++
	c.status = answer.StatusCode
	if c.status >= http.StatusInternalServerError {
		c.p.cfg.Instances.Failing()
	}
	if upgraded, ok := answer.Body.(io.ReadWriteCloser); ok && answer.StatusCode == http.StatusSwitchingProtocols {
		c.upgraded = newConnection(c, upgraded, answer.Header)
		answer.Body = c.upgraded
		answer.Header.Del("Alt-Svc") // it would affect the whole origin, not only one function
		c.labelAnswer(answer.Header)
	} else {
		dropTrailers(answer)
		// Without a body, a flush could precede the call's end. A body that has arrived needs none.
		if received, ok := answer.Body.(ports.Received); answer.Body != http.NoBody && !(ok && received.Received()) {
			c.proxy.FlushInterval = flushInterval
		}
		c.answer = answerBody{from: answer.Body, call: c, answer: answer}
		answer.Body = &c.answer
		c.passing.answers = true
	}
	c.begun.Store(true)
	return answer
}

// answerBody is the body of an answer. At its end, the call's slot on the instance becomes
// free, even if the caller has not received everything yet.
type answerBody struct {
	from   io.ReadCloser
	call   *Call
	answer *http.Response
}

// notInTrailers lists fields that must not appear in trailers: fields about the connection
// or its address, and fields that the gateway sets.
var notInTrailers = append([]string{"Alt-Svc", "Connection", "Content-Type", "Gfaas-Batch", "Gfaas-Instance", "Keep-Alive", "Proxy-Connection", "Upgrade", "X-Content-Type-Options"}, labels[:]...)

// dropTrailers removes the fields of notInTrailers from an answer's trailers.
func dropTrailers(answer *http.Response) {
	if len(answer.Trailer) > 0 {
		for _, name := range notInTrailers {
			delete(answer.Trailer, name)
		}
	}
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	switch {
	case err == nil:
		b.call.limit.Reset(b.call.function.Calls().Timeout)
	case err == io.EOF:
		dropTrailers(b.answer)
		b.call.end(nil)
		b.call.limit.Reset(b.call.function.Calls().Timeout) // now limits the caller's reading
	default:
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) { // the connection ended
			b.call.p.cfg.Instances.Suspect(b.call.turn.Instance)
		}
		b.call.end(err)
	}
	return n, err
}

func (b *answerBody) Close() error {
	err := b.from.Close()
	b.call.end(errAborted)
	return err
}

// end ends the call's attempt and counts the call, both once per call.
func (c *Call) end(err error) {
	if c.ended.CompareAndSwap(false, true) {
		c.attempt.Finish(err == nil)
		if c.begun.Load() && c.probe {
			c.function.Counts.Probed(c.status)
		} else if c.begun.Load() {
			c.function.Counts.Answered(c.status, c.turn.Queued, c.arrived)
		}
		if c.cancel != nil && err != nil {
			c.cancel(err)
		}
	}
	if errors.Is(err, errAborted) {
		c.limit.Stop()
		if c.cancel != nil {
			c.cancel(errAborted)
		}
	}
}

// Refuse writes the gateway's own answer and counts the call.
func (c *Call) Refuse(w http.ResponseWriter, e *refusal.Error) {
	if c.probe {
		c.function.Counts.Probed(e.HTTPStatus())
	} else if c.function != nil {
		c.function.Counts.Refused(e, c.turn.Queued, c.arrived)
	}
	if c.comments.begun {
		w = &eventWriter{c.passing.ResponseWriter, c.path, http.Header{}}
	}
	c.Label(w.Header(), queue.Reason{Code: reason.Code(e.Code)})
	e.Write(w, c.form, c.id)
}

// RefuseBadAnswer writes the gateway's own answer in place of an instance's that cannot be passed on, after the call
// has ended.
func (c *Call) RefuseBadAnswer(w http.ResponseWriter, why string) {
	e := c.badAnswer(why)
	c.Label(w.Header(), queue.Reason{Code: reason.Code(e.Code)})
	e.Write(w, c.form, c.id)
}

// Label sets the headers in labels; why is the value of Gfaas-Reason.
func (c *Call) Label(h http.Header, why queue.Reason) {
	var room [160]byte
	text := room[:0]
	text = strconv.AppendInt(text, c.arrived.UnixNano(), 10)
	arrived := len(text)
	text = millis(text, c.turn.Queued)
	queued := len(text)
	text = millis(text, c.turn.Starting)
	starting := len(text)
	text = strconv.AppendInt(text, int64(c.tries), 10)
	tries := len(text)
	text = why.Append(text)
	all := string(text)
	values := [...]string{c.id, all[:arrived], all[arrived:queued], all[queued:starting], c.turn.Found.String(), all[starting:tries], all[tries:], NoSniff}
	for i, name := range labels {
		h[name] = values[i : i+1 : i+1]
	}
}

// labelAnswer sets the gateway's headers on an instance's answer.
func (c *Call) labelAnswer(h http.Header) {
	c.Label(h, c.turn.Reason)
	keepType(h)
	h["Gfaas-Instance"] = []string{c.turn.Record.ID}
	c.setCookie(h)
	if c.batch > 0 {
		h["Gfaas-Batch"] = []string{strconv.Itoa(c.batch)}
	} else {
		delete(h, "Gfaas-Batch") // the instance may be another gateway
	}
}

// labels lists the headers that every answer has.
var labels = [...]string{"X-Call-Id", "X-Start-Time", "Gfaas-Queue-Ms", "Gfaas-Start-Ms", "Gfaas-Start", "Gfaas-Attempts", "Gfaas-Reason", "X-Content-Type-Options"}

// millis appends a duration in milliseconds with three decimals.
func millis(to []byte, d time.Duration) []byte {
	return strconv.AppendFloat(to, float64(d)/float64(time.Millisecond), 'f', 3, 64)
}

// discard is the logger of httputil.ReverseProxy. It prints nothing.
var discard = log.New(io.Discard, "", 0)
