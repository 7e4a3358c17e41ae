package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// call is one call of a function: it waits for a place on an instance, is sent
// there, and is over when its answer is.
type call struct {
	g       *Gateway
	target  *target
	key     string // X-Call-Id
	path    string // escaped; empty is where the function's contract is invoked
	came    time.Time
	body    body
	from    *upload // nil without a body
	repeats int     // how often it was sent again when it may have been carried out
	status  int     // of its answer
	probe   bool    // it is a probe, which the policy knows nothing of

	// The engine's, under its lock; a caller may read them between what turn gives
	// and what it does next.
	id       int64
	state    callState
	on       *server
	arrived  time.Duration
	deadline time.Duration // until when it may wait
	sent     time.Duration // when it was dispatched
	queued   time.Duration // how long it waited, all in all
	starting time.Duration // how long its instance took to start
	loading  time.Duration // or its memory to come back: that is its own time
	found    residency.Start
	rule     string
	attempts int // how many instances may have seen it
	left     bool

	turn     chan *Error // it may go, or why not
	cancel   context.CancelCauseFunc
	limit    limit       // of the pause that may be
	begun    atomic.Bool // its answer has
	over     atomic.Bool
	upgraded *connection // nil if it is not

	proxy   httputil.ReverseProxy
	passing passing // what the answer is passed on by; nothing of a call without a connection
	answer  answerBody
}

type callState uint8

const (
	callNew callState = iota
	callWaits
	callStarts // its instance is starting
	callRuns
	callOver
)

// Why the context of a call may end, besides that its caller left.
var (
	errTimeout  = errors.New("no answer in time")
	errDied     = errors.New("the instance ended")
	errDraining = errors.New("the gateway ends")
	errIdle     = errors.New("the upgraded connection was idle")
)

// newCall is a call that has not been received yet. Target may be nil.
func (g *Gateway) newCall(r *http.Request, to *target, path string) *call {
	return g.call(to, r.Header.Get("X-Call-Id"), path)
}

func (g *Gateway) call(to *target, id, path string) *call {
	c := &call{g: g, target: to, key: callID(id), path: path, came: time.Now(), turn: make(chan *Error, 1)}
	c.limit.all, c.limit.owner = &g.limits, c
	return c
}

// callID is the id of a call: what the caller says, if it can be one, or a new one.
func callID(said string) string {
	if said != "" && len(said) <= 128 && clean(said) {
		return said
	}
	return rand.Text()
}

// clean says whether a text is of visible ASCII characters alone.
func clean(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

// serve has a call run and answers with what it gave.
func (c *call) serve(w http.ResponseWriter, r *http.Request) {
	g := c.g
	if g.draining.Load() {
		c.refuse(w, draining())
		return
	}
	if c.probe = c.target.probes.Load().Match(r.Method, c.path); c.probe && !g.engine.isWarm(c.target) {
		c.refuse(w, notLoaded(c.target))
		return
	}
	if c.probe {
		r.Header.Del("Upgrade") // an upgraded connection would be a use of the function
	}
	fault := c.receive(w, r)
	defer c.release()
	c.from.keep(int64(cap(c.body.head)))
	if fault != nil {
		c.refuse(w, fault)
		return
	}
	c.forward(w, r)
}

// receive takes in the call's body, or as much of it as is kept. The upload's keep and
// release must follow.
func (c *call) receive(w http.ResponseWriter, r *http.Request) (fault *Error) {
	c.body, c.from, fault = c.g.receive(w, r, c.target)
	return fault
}

// release gives back what the body takes.
func (c *call) release() {
	c.from.keep(0)
	c.body.file.close()
}

// forward has a call that has come run and answers with what it gave.
func (c *call) forward(w http.ResponseWriter, r *http.Request) {
	g := c.g
	if c.from != nil && !c.body.whole {
		c.from.shared.Store(true) // an answer may come before all of the body has
		ctx, left := context.WithCancel(r.Context())
		defer left()
		go watchCaller(ctx, left)
		r = r.WithContext(ctx)
		r.Body = c.from
	}
	c.proxy = httputil.ReverseProxy{Rewrite: rewrite, Transport: c, BufferPool: &g.buffers, ErrorLog: discard, ErrorHandler: c.failed}
	c.passing.ResponseWriter, c.passing.call = w, c
	g.passing.Add(1)
	defer g.passing.Add(-1)
	defer c.end(errAborted)
	defer c.passing.over()
	if !r.ProtoAtLeast(1, 1) {
		c.passing.old = true
		defer reset(w)
	}
	c.proxy.ServeHTTP(&c.passing, r)
}

// reset, deferred, has the connection of an answer that was cut be reset: an answer by
// HTTP/1.0 that does not say how long it is ends with its connection, and would look
// whole.
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

// failed answers a call that got no answer.
func (c *call) failed(w http.ResponseWriter, _ *http.Request, err error) {
	c.passing.answers = false
	if c.cancel == nil { // it is none that can be sent
		c.refuse(w, badRequest("%v", err))
		return
	}
	c.begun.Store(false) // of what came nothing is passed on
	c.refuse(w, c.problem(err))
}

var errAborted = errors.New("the answer was not passed on to its end")

// rewrite makes what a caller sent what an instance gets: the same, and who sent
// it.
func rewrite(p *httputil.ProxyRequest) {
	for _, name := range []string{"Forwarded", "X-Forwarded-For"} {
		if values := p.In.Header[name]; values != nil {
			p.Out.Header[name] = values
		}
	}
	p.Out.URL.RawQuery = p.In.URL.RawQuery // what cannot be parsed too
	p.Out.Header.Del("Expect")             // the body comes already
	if p.Out.Header["Upgrade"] != nil && (!p.In.ProtoAtLeast(1, 1) || lastOn(p.In.Context())) {
		p.Out.Header.Del("Connection") // no upgrade (RFC 9110, section 7.8)
		p.Out.Header.Del("Upgrade")
	}
	p.SetXForwarded()
}

// RoundTrip implements http.RoundTripper: it waits for the call's turn and sends
// it, again where that is allowed, and returns the answer as soon as its head is
// there.
func (c *call) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	c.cancel = cancel
	out := ports.Call{Method: r.Method, Path: c.path, Query: r.URL.RawQuery, Header: r.Header}
	r.Header["X-Call-Id"] = []string{c.key}
	if r.Host != "" {
		r.Header["Host"] = []string{r.Host}
	}
	if c.body.whole && len(c.body.head) > 0 {
		r.Header["Content-Length"] = []string{strconv.FormatInt(c.body.size(), 10)}
	} else if !c.body.whole {
		c.body.rest = r.Body
		if r.ContentLength > 0 {
			r.Header["Content-Length"] = []string{strconv.FormatInt(r.ContentLength, 10)}
		}
	}
	if c.probe {
		c.g.engine.probe(c)
	} else {
		c.g.engine.submit(c)
	}
	for {
		if err := c.wait(ctx); err != nil {
			return nil, err
		}
		answer, err := c.send(ctx, out)
		if err == nil && answer.StatusCode == http.StatusSwitchingProtocols && !switches(r.Header, answer.Header) {
			_ = answer.Body.Close()
			c.attempts++
			err := c.badAnswer("it answered 101 for a protocol that was not requested")
			c.end(err)
			return nil, err
		}
		if err == nil {
			return c.answered(answer), nil
		}
		if err := c.again(ctx, r, err); err != nil {
			c.end(err)
			return nil, err
		}
	}
}

// switches reports whether an answer 101 switches to the protocol that the request
// asked for.
func switches(request, answer http.Header) bool {
	asked, chosen := request["Upgrade"], answer["Upgrade"]
	return len(asked) == 1 && len(chosen) == 1 && asked[0] != "" && strings.EqualFold(asked[0], chosen[0])
}

// badAnswer returns the 502 for an answer of the instance that cannot be passed on.
func (c *call) badAnswer(why string) *Error {
	return &Error{Status: http.StatusBadGateway, Code: codeBadAnswer, Message: "instance " + c.on.record.ID + ": " + why}
}

// wait returns when the call may be sent, or why it may not.
func (c *call) wait(ctx context.Context) error {
	var fault *Error
	select {
	case fault = <-c.turn: // it went at once
	default:
		select {
		case fault = <-c.turn:
		case <-ctx.Done():
			c.g.engine.leave(c)
			return context.Cause(ctx)
		}
	}
	if fault != nil {
		return fault
	}
	return nil
}

// send sends the call to its instance. A connection that had ended before is
// tried again there: the instance has not seen the call.
func (c *call) send(ctx context.Context, out ports.Call) (answer *http.Response, err error) {
	c.limit.set(c.target.pause())
	for range maxStale {
		out.Body = c.body.reader()
		answer, err = c.g.cfg.Invoker.Invoke(ctx, &c.on.record, out)
		var failed *ports.CallError
		if err == nil || !errors.As(err, &failed) || failed.Progress != ports.NotSent || !c.body.whole || ctx.Err() != nil {
			break
		}
	}
	return answer, err
}

// maxStale is how many connections of an instance may turn out to have ended.
const maxStale = 8

// again says that a call got no answer, and has it wait for its turn anew if it
// may be sent again; the error is why it may not.
func (c *call) again(ctx context.Context, r *http.Request, err error) error {
	c.limit.stop()
	var failed *ports.CallError
	called := errors.As(err, &failed)
	if called && failed.Progress >= ports.Sent || !called && ctx.Err() != nil {
		c.attempts++
	}
	if c.from != nil {
		if fault := c.from.wrong(); fault != nil {
			return fault
		}
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errDied) {
		return cause
	}
	if !called {
		return badRequest("%v", err)
	}
	switch {
	case failed.Progress == ports.NotTried:
		return noConnection(c.on.record.ID, err)
	case failed.Progress == ports.NotConnected:
		c.g.engine.unreachable(c.on)
	case !died(err):
		return c.badAnswer(err.Error())
	case failed.Progress >= ports.Sent:
		c.g.suspect(c.on)
	}
	gone := &Error{Status: http.StatusBadGateway, Code: codeInstanceDied, Message: "instance " + c.on.record.ID + " gave no answer: " + err.Error()}
	if context.Cause(ctx) != nil {
		return gone // cut, with its connection
	}
	switch launch.Repeatable(failed.Progress, r.Method, r.Header, c.body.whole, c.repeats) {
	case launch.GiveUp:
		return gone
	case launch.Once:
		c.repeats++
	}
	if !c.g.engine.again(c) {
		return gone
	}
	return nil
}

// died says whether a call got no answer because its connection ended. Anything
// else is an answer that is none.
func died(err error) bool {
	var failed *ports.CallError
	if errors.As(err, &failed) && failed.Progress < ports.Sent {
		return true
	}
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNABORTED, net.ErrClosed, errDied, context.Canceled} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// problem is the answer to a call that got none.
func (c *call) problem(err error) *Error {
	e := c.cause(err)
	if c.probe && e.Code == codeInstanceDied {
		return notLoaded(c.target) // nothing protects an instance from its end because a probe is sent to it
	}
	return e
}

func (c *call) cause(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, errTimeout):
		return &Error{Status: http.StatusGatewayTimeout, Code: codeTimeout, Message: "no answer came within " + c.target.pause().String()}
	case errors.Is(err, errDied):
		return &Error{Status: http.StatusBadGateway, Code: codeInstanceDied, Message: "the instance ended before it answered"}
	case errors.Is(err, errDraining):
		return draining()
	case errors.Is(err, context.Canceled):
		return &Error{Status: statusCancelled, Code: codeCancelled, Message: "the caller left"}
	}
	return &Error{Status: http.StatusBadGateway, Code: codeBadAnswer, Message: err.Error()}
}

// statusCancelled stands for a caller that left, in what is counted.
const statusCancelled = 499

// late ends a call whose instance, or whose caller, has paused for too long.
func (c *call) late() {
	c.cut(errTimeout)
	if w := c.passing.ResponseWriter; w != nil && (c.begun.Load() || c.passing.early.Load()) { // it may be in a write that the caller does not read
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now())
	}
}

// cut ends a call that runs.
func (c *call) cut(cause error) {
	c.cancel(cause)
	if c.begun.Load() && c.upgraded != nil {
		_ = c.upgraded.ReadWriteCloser.Close()
	}
}

// answered makes an instance's answer the gateway's.
func (c *call) answered(answer *http.Response) *http.Response {
	c.attempts++
	c.status = answer.StatusCode
	if c.status >= http.StatusInternalServerError {
		c.g.failed()
	}
	if upgraded, ok := answer.Body.(io.ReadWriteCloser); ok && answer.StatusCode == http.StatusSwitchingProtocols {
		c.upgraded = newConnection(c, upgraded, answer.Header)
		answer.Body = c.upgraded
		answer.Header.Del("Alt-Svc") // it would apply to the whole origin, not to one function
		c.labelAnswer(answer.Header)
	} else {
		dropTrailers(answer)
		c.answer = answerBody{from: answer.Body, call: c, answer: answer}
		answer.Body = &c.answer
		if c.passing.ResponseWriter == nil {
			c.labelAnswer(answer.Header)
		} else {
			c.passing.expect(answer.ContentLength)
		}
	}
	c.begun.Store(true)
	return answer
}

// answerBody is the body of an answer. The instance's place is free as soon as its
// end has come, whether the caller has taken it or not.
type answerBody struct {
	from   io.ReadCloser
	call   *call
	answer *http.Response
}

// notInTrailers are fields that an answer cannot have after its body: those that speak
// of the connection or of where to connect, and those that the gateway sets.
var notInTrailers = append([]string{"Alt-Svc", "Connection", "Content-Type", "Gfaas-Instance", "Keep-Alive", "Proxy-Connection", "Upgrade", "X-Content-Type-Options"}, labels[:]...)

// dropTrailers removes notInTrailers from the trailers of an answer.
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
		b.call.limit.set(b.call.target.pause())
	case err == io.EOF:
		dropTrailers(b.answer)
		b.call.end(nil)
		b.call.limit.set(b.call.target.pause()) // for the caller to take it
	default:
		if hungUp(err) {
			b.call.g.suspect(b.call.on)
		}
		b.call.end(err)
	}
	return n, err
}

// hungUp says whether an instance's connection ended in the midst of something.
func hungUp(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

func (b *answerBody) Close() error {
	err := b.from.Close()
	b.call.end(errAborted)
	return err
}

// end says how a call that has a place on an instance ended; only the first time
// counts.
func (c *call) end(err error) {
	if c.over.CompareAndSwap(false, true) {
		if c.probe {
			c.g.engine.probed(c)
		} else {
			c.g.engine.finish(c, err)
		}
		if c.begun.Load() && c.probe {
			c.g.metrics.probed(c.target, c.status)
		} else if c.begun.Load() {
			now := time.Now()
			c.target.answered(c.g.limits.at(now), c.status, now.Sub(c.came))
			c.g.metrics.answered(c.target, c.status, c.queued, now.Sub(c.came))
		}
		if c.cancel != nil && err != nil {
			c.cancel(err)
		}
	}
	if errors.Is(err, errAborted) {
		c.limit.stop()
		if c.cancel != nil {
			c.cancel(errAborted)
		}
	}
}

// refuse answers with an error of the gateway's own.
func (c *call) refuse(w http.ResponseWriter, e *Error) {
	if c.probe {
		c.g.metrics.probed(c.target, e.Status)
	} else if c.target != nil {
		c.target.refused(e)
		c.g.metrics.refused(c.target, e, c.queued, time.Since(c.came))
	}
	c.label(w.Header(), e.Code)
	e.write(w)
}

// label says of an answer whose it is, and how it came about.
func (c *call) label(h http.Header, rule string) {
	var room [96]byte
	text := room[:0]
	text = strconv.AppendInt(text, c.came.UnixNano(), 10)
	came := len(text)
	text = millis(text, c.queued)
	queued := len(text)
	text = millis(text, c.starting+c.loading)
	starting := len(text)
	text = strconv.AppendInt(text, int64(c.attempts), 10)
	all := string(text)
	values := [...]string{c.key, all[:came], all[came:queued], all[queued:starting], c.found.String(), all[starting:], rule, noSniff}
	for i, name := range labels {
		h[name] = values[i : i+1 : i+1]
	}
}

// labelAnswer labels an instance's answer.
func (c *call) labelAnswer(h http.Header) {
	c.label(h, c.rule)
	keepType(h)
	h["Gfaas-Instance"] = []string{c.on.record.ID}
}

// labels are the headers that every answer has.
var labels = [...]string{"X-Call-Id", "X-Start-Time", "Gfaas-Queue-Ms", "Gfaas-Start-Ms", "Gfaas-Start", "Gfaas-Attempts", "Gfaas-Reason", "X-Content-Type-Options"}

// millis appends a duration in milliseconds, with three decimals.
func millis(to []byte, d time.Duration) []byte {
	return strconv.AppendFloat(to, float64(d)/float64(time.Millisecond), 'f', 3, 64)
}

// discard is a log that nobody reads.
var discard = log.New(io.Discard, "", 0)
