package gateway

import (
	"bufio"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// passing passes an answer on as it comes. What httputil.ReverseProxy does for
// answers of unknown length by itself is done here for the others: what is not the
// end is flushed at once, and a head whose body takes long soon.
type passing struct {
	http.ResponseWriter
	call *call
	old  bool // the caller speaks HTTP/1.0

	mu      sync.Mutex
	early   atomic.Bool // an answer 1xx is being written
	answers bool        // what comes is an instance's answer, which is to be labelled
	left    int64       // of a body of known length; 0 where there is nothing to be done
	headed  bool        // its head waits for the body
}

// Unwrap is for http.ResponseController.
func (p *passing) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// Hijack implements http.Hijacker, for upgrades. The connection it returns begins with
// what the caller sent together with its request.
func (p *passing) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(p.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	caller := conn.(*callerConn)
	caller.abrupt.Store(true)
	if early, _ := rw.Peek(rw.Reader.Buffered()); len(early) > 0 {
		return &upgradedCaller{caller, early}, rw, nil
	}
	return caller, rw, nil
}

// upgradedCaller is a caller's connection after an upgrade, with what the server had
// read of it already.
type upgradedCaller struct {
	*callerConn
	early []byte
}

// Read implements net.Conn.
func (c *upgradedCaller) Read(p []byte) (int, error) {
	if len(c.early) == 0 {
		return c.callerConn.Read(p)
	}
	n := copy(p, c.early)
	c.early = c.early[n:]
	return n, nil
}

// expect says that an instance's answer comes, and how long its body will be.
func (p *passing) expect(length int64) { p.answers, p.left = true, max(length, 0) }

// WriteHeader writes the head. It is labelled here, and not where it came: each
// header would be put into a second map.
func (p *passing) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		if p.old { // it would take this for the answer (RFC 9110, section 15.2)
			return
		}
		p.early.Store(true)
		defer p.early.Store(false)
	}
	if p.head(status) {
		p.call.g.heads.add(p)
	}
}

// head writes the head, and says whether it waits for the body.
func (p *passing) head(status int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answers && status >= http.StatusOK {
		h := p.Header()
		delete(h, "Alt-Svc") // one function does not say where callers of all connect
		p.call.labelAnswer(h)
	}
	p.ResponseWriter.WriteHeader(status)
	p.headed = p.left > 0 && status >= http.StatusOK
	return p.headed
}

// Write writes a part of the body.
func (p *passing) Write(part []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.headed = false
	n, err := p.ResponseWriter.Write(part)
	if p.left -= int64(n); p.left > 0 && err == nil {
		err = http.NewResponseController(p.ResponseWriter).Flush()
	}
	return n, err
}

// flush passes on a head whose body has not come. Who holds the lock writes that
// body, and the head with it.
func (p *passing) flush() {
	if !p.mu.TryLock() {
		return
	}
	defer p.mu.Unlock()
	if p.headed {
		p.headed = false
		_ = http.NewResponseController(p.ResponseWriter).Flush() // who writes next is told
	}
}

// over says that the answer has been passed on.
func (p *passing) over() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.headed = false
}

// heads are those that wait for their bodies. One timer is for all: to set one for
// each call would wake the runtime's poller each time.
type heads struct {
	mu      sync.Mutex
	waiting []*passing
	timer   *time.Timer // nil while none waits
}

// headWithin is how long a head may wait for its body, up to twice.
const headWithin = 3 * time.Millisecond

func (h *heads) add(p *passing) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.waiting = append(h.waiting, p)
	if h.timer == nil {
		h.timer = time.AfterFunc(headWithin, h.flush)
	}
}

// flush flushes the heads that wait, each by itself: its caller may not read, and
// others do not wait for that.
func (h *heads) flush() {
	h.mu.Lock()
	waiting := h.waiting
	h.waiting, h.timer = nil, nil
	h.mu.Unlock()
	for _, p := range waiting {
		go p.flush()
	}
}
