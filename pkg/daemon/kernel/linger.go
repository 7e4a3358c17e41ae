package kernel

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// exchange is a request with a body, of which some may be unread when it is answered,
// and its answer.
//
// A server that closes a connection of which it has not read all resets it: the
// caller, who may still send, would not learn why it was refused (RFC 9112, 9.6). So
// it is answered, told that the connection ends, and then the rest is read for a
// while and dropped.
type exchange struct {
	http.ResponseWriter
	body    io.ReadCloser
	at      *http.ResponseController
	left    int64 // bytes of the body that were not read; -1: nobody knows
	asks    bool  // it is sent once it is read from
	begun   bool  // the answer
	lingers bool
}

func newExchange(w http.ResponseWriter, r *http.Request) *exchange {
	return &exchange{ResponseWriter: w, body: r.Body, at: http.NewResponseController(w), left: r.ContentLength, asks: r.Header.Get("Expect") != ""}
}

// Unwrap is for http.ResponseController.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// Read reads the body.
func (x *exchange) Read(p []byte) (int, error) {
	x.asks = false
	n, err := x.body.Read(p)
	if x.left > 0 {
		x.left -= int64(n)
	}
	if errors.Is(err, io.EOF) {
		x.left = 0
	}
	return n, err
}

// Close closes the body.
func (x *exchange) Close() error { return x.body.Close() }

// short is how much of a body the server reads before an answer, so that the
// connection can go on.
const short = 256 << 10

// WriteHeader begins the answer.
func (x *exchange) WriteHeader(status int) {
	if x.left < 0 && !x.asks && !x.begun {
		_, _ = io.CopyN(io.Discard, x, short)
	}
	if (x.left < 0 || x.left > short || x.asks && x.left > 0) && !x.begun {
		x.lingers = true
		x.Header().Set("Connection", "close")
		_ = x.at.EnableFullDuplex() // or what is short would be waited for
	}
	x.begun = true
	x.ResponseWriter.WriteHeader(status)
}

func (x *exchange) Write(p []byte) (int, error) {
	if !x.begun {
		x.WriteHeader(http.StatusOK)
	}
	return x.ResponseWriter.Write(p)
}

// linger drops what is left of a body once the answer was sent, as long as it comes,
// for so long and up to so many bytes at most.
func (x *exchange) linger(most time.Duration, bytes int64) {
	if x.lingers {
		_ = x.at.SetReadDeadline(time.Now().Add(most))
		_, _ = io.CopyN(io.Discard, x, bytes)
	}
}
