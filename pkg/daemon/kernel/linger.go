package kernel

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// exchange wraps the answer to a request whose body may be partly unread when the answer is
// sent.
//
// A server that closes a connection with unread data resets it. The caller, which may still
// be sending, would then not see the reason for a refusal (RFC 9112, section 9.6). So an
// exchange sends the answer with "Connection: close", and linger then reads and drops the rest
// of the body for a limited time.
type exchange struct {
	http.ResponseWriter
	body            io.ReadCloser
	control         *http.ResponseController
	unread          int64 // unread bytes of the body; -1: unknown
	expectsContinue bool  // the client waits for "100 Continue", which the first read sends
	headerSent      bool  // the answer's header was written
	lingers         bool  // linger has to read the rest of the body
}

func newExchange(w http.ResponseWriter, r *http.Request) *exchange {
	return &exchange{ResponseWriter: w, body: r.Body, control: http.NewResponseController(w), unread: r.ContentLength, expectsContinue: r.Header.Get("Expect") != ""}
}

// Unwrap supports http.ResponseController.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// Read implements io.Reader for the body.
func (x *exchange) Read(p []byte) (int, error) {
	x.expectsContinue = false
	n, err := x.body.Read(p)
	if x.unread > 0 {
		x.unread -= int64(n)
	}
	if errors.Is(err, io.EOF) {
		x.unread = 0
	}
	return n, err
}

// Close implements io.Closer for the body.
func (x *exchange) Close() error { return x.body.Close() }

// keepAliveLimit is how many unread bytes of a body net/http reads before it answers, in order to
// keep the connection open.
const keepAliveLimit = 256 << 10

// WriteHeader starts the answer. It announces the end of the connection if too much of the body
// is unread.
func (x *exchange) WriteHeader(status int) {
	if x.unread < 0 && !x.expectsContinue && !x.headerSent {
		_, _ = io.CopyN(io.Discard, x, keepAliveLimit)
	}
	if (x.unread < 0 || x.unread > keepAliveLimit || x.expectsContinue && x.unread > 0) && !x.headerSent {
		x.lingers = true
		x.Header().Set("Connection", "close")
		_ = x.control.EnableFullDuplex() // otherwise net/http would first read up to keepAliveLimit bytes
	}
	x.headerSent = true
	x.ResponseWriter.WriteHeader(status)
}

func (x *exchange) Write(p []byte) (int, error) {
	if !x.headerSent {
		x.WriteHeader(http.StatusOK)
	}
	return x.ResponseWriter.Write(p)
}

// linger reads and drops the rest of a body after the answer was sent: at most the given number
// of bytes, for at most the given time.
func (x *exchange) linger(limit time.Duration, bytes int64) {
	if x.lingers {
		_ = x.control.SetReadDeadline(time.Now().Add(limit))
		_, _ = io.CopyN(io.Discard, x, bytes)
	}
}
