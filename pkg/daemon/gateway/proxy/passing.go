package proxy

import (
	"bufio"
	"bytes"
	"io"
	"maps"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/inbound"
)

// passing writes a call's answer. It labels answers of instances.
type passing struct {
	http.ResponseWriter
	call    *Call
	old     bool        // the caller speaks HTTP/1.0
	early   atomic.Bool // a 1xx answer is being written
	answers bool        // the current answer is an instance's, which gets labels
	own     http.Header // the answer's header while comments may write to the caller; nil means that of the caller's answer
}

// Header implements http.ResponseWriter.
func (p *passing) Header() http.Header {
	if p.own != nil {
		return p.own
	}
	return p.ResponseWriter.Header()
}

// Unwrap supports http.ResponseController.
func (p *passing) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// Hijack implements http.Hijacker, for upgrades. The returned connection begins with the
// data that the server has already read after the request.
func (p *passing) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(p.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	caller := conn.(*inbound.Conn)
	caller.SetAbrupt()
	early, _ := rw.Peek(rw.Reader.Buffered())
	return &upgradedCaller{caller, io.MultiReader(bytes.NewReader(early), caller)}, rw, nil
}

// upgradedCaller is a caller's connection after an upgrade. Its reader begins with the data
// that the server had already read.
type upgradedCaller struct {
	*inbound.Conn
	reader io.Reader
}

// Read implements net.Conn.
func (c *upgradedCaller) Read(p []byte) (int, error) { return c.reader.Read(p) }

// WriteHeader writes the head. It sets the labels here rather than in Call.answered, where
// ReverseProxy would copy each of them into a second map.
func (p *passing) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		if p.old || p.own != nil { // HTTP/1.0 clients would take it for the final answer (RFC 9110, section 15.2)
			return
		}
		p.early.Store(true)
		defer p.early.Store(false)
	}
	// Either late sees that the answer is being passed on, or its end of the call is seen here.
	if (p.answers || p.early.Load()) && p.call.overdue.Load() {
		p.stopWrites()
	}
	if p.own != nil {
		if p.call.comments.begun { // the head was sent
			return
		}
		maps.Copy(p.ResponseWriter.Header(), p.own)
		p.own = nil
	}
	if p.answers && status >= http.StatusOK {
		h := p.Header()
		delete(h, "Alt-Svc") // one function must not redirect callers of all functions
		p.call.labelAnswer(h)
		if h["X-Accel-Buffering"] == nil && isEvents(h.Get("Content-Type")) {
			h["X-Accel-Buffering"] = []string{"no"} // nginx and others would hold events back
		}
	}
	p.ResponseWriter.WriteHeader(status)
}

// stopWrites ends all writes to the caller, which may block because the caller does not read.
func (p *passing) stopWrites() {
	if w := p.ResponseWriter; w != nil {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now())
	}
}

// NoSniff is the value of X-Content-Type-Options. It makes browsers use the Content-Type
// instead of guessing from the body whether an answer is a page or a script.
const NoSniff = "nosniff"

// keepType prevents the server from adding a Content-Type that it guesses from the body. A
// function may echo a caller's input, and as text/html that would run scripts on the
// gateway's origin.
func keepType(h http.Header) {
	if _, ok := h["Content-Type"]; !ok {
		h["Content-Type"] = nil
	}
}
