package inbound

import (
	"context"
	"net/http"
)

// Framed lets a handler answer before it has read the request's body, and leave any part of
// the body unread. Framed then discards a short remainder, or closes the connection after the
// answer. The server therefore never parses bytes of a body as another request. Requests
// must have a *Conn in their context.
//
// The server's request keeps its original body, from which the server knows whether the
// body was read completely. The handler gets a copy of the request with an *Upload as its
// body.
func (in *Intake) Framed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := r.Context().Value(connectionKey{}).(*Conn)
		ambiguous := conn.ambiguous(r)
		if (r.Body == nil || r.Body == http.NoBody) && !ambiguous {
			conn.complete()
			next.ServeHTTP(w, r)
			return
		}
		x := &exchange{closes: ambiguous, request: *r}
		x.writer = HeadWriter{ResponseWriter: w, Preparer: x}
		if r.Body != nil && r.Body != http.NoBody {
			x.upload.init(in, w, r, in.cfg.MaxBody)
			x.upload.conn, x.upload.host = conn, conn.host
			x.request.Body = &x.upload
			defer x.upload.Close() // also if the handler panics
		}
		conn.current = x
		next.ServeHTTP(&x.writer, &x.request)
		x.writer.begin() // the handler may have left the head of the answer to the server
		if x.closes {
			conn.unread.Store(true) // the server does not read further requests, which may have arrived
			conn.enter(PhaseHead)   // the server closes the connection after a while
		}
	})
}

// exchange is a request and its answer, in one allocation.
type exchange struct {
	writer  HeadWriter
	upload  Upload
	request http.Request // the handler's copy
	closes  bool         // close the connection after this request
}

// hasBody reports whether the request has a body.
func (x *exchange) hasBody() bool { return x.upload.from != nil }

// MustClose reports whether the connection of a request must be closed after it, because the
// request is ambiguous or its body was not read completely.
func MustClose(ctx context.Context) bool {
	conn := ConnOf(ctx)
	if conn == nil || conn.current == nil {
		return false
	}
	x := conn.current
	return x.closes || x.hasBody() && !x.upload.whole.Load()
}

// Prepare decides, before the head of the answer is written, whether the connection can be reused. It
// discards the remaining body, and adds "Connection: close" if the connection cannot be reused.
func (x *exchange) Prepare(h http.Header) {
	if x.hasBody() && !x.upload.skip() {
		x.closes = true
	}
	if x.closes {
		h.Set("Connection", "close")
	}
}

// HeadWriter calls Prepare with the header of an answer, once, before the head of the final answer is written.
type HeadWriter struct {
	http.ResponseWriter
	Preparer interface{ Prepare(h http.Header) }
	begun    bool
}

// Unwrap supports http.ResponseController.
func (w *HeadWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *HeadWriter) WriteHeader(status int) {
	if status >= http.StatusOK {
		w.begin()
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *HeadWriter) Write(p []byte) (int, error) {
	w.begin()
	return w.ResponseWriter.Write(p)
}

// FlushError supports http.ResponseController.
func (w *HeadWriter) FlushError() error {
	w.begin()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// begin calls Prepare if it has not been called.
func (w *HeadWriter) begin() {
	if !w.begun {
		w.begun = true
		w.Preparer.Prepare(w.Header())
	}
}
