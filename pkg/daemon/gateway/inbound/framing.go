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
		x := &exchange{writer: framedWriter{ResponseWriter: w, closes: ambiguous}, request: *r}
		f := &x.writer
		if r.Body != nil && r.Body != http.NoBody {
			f.upload = &x.upload
			f.upload.init(in, w, r, in.cfg.MaxBody)
			f.upload.conn, f.upload.host = conn, conn.host
			x.request.Body = f.upload
			defer f.upload.Close() // also if the handler panics
		}
		conn.answer = f
		next.ServeHTTP(f, &x.request)
		f.prepare() // the handler may have left the head of the answer to the server
		if f.closes {
			conn.unread.Store(true) // the server does not read further requests, which may have arrived
			conn.enter(PhaseHead)   // the server closes the connection after a while
		}
	})
}

// exchange holds what Framed needs for one request, in one allocation.
type exchange struct {
	writer  framedWriter
	upload  Upload
	request http.Request // the handler's copy
}

// MustClose reports whether the connection of a request must be closed after it, because the
// request is ambiguous or its body was not read completely.
func MustClose(ctx context.Context) bool {
	conn := ConnOf(ctx)
	if conn == nil || conn.answer == nil {
		return false
	}
	f := conn.answer
	return f.closes || f.upload != nil && !f.upload.whole.Load()
}

// framedWriter decides, before the head of the answer is written, whether the connection
// can be reused.
type framedWriter struct {
	http.ResponseWriter
	upload   *Upload // nil without a body
	closes   bool    // close the connection after this request
	prepared bool    // prepare was called for the final answer
}

// Unwrap supports http.ResponseController.
func (f *framedWriter) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (f *framedWriter) WriteHeader(status int) {
	if status >= http.StatusOK {
		f.prepare()
	}
	f.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (f *framedWriter) Write(p []byte) (int, error) {
	f.prepare()
	return f.ResponseWriter.Write(p)
}

// FlushError supports http.ResponseController.
func (f *framedWriter) FlushError() error {
	f.prepare()
	return http.NewResponseController(f.ResponseWriter).Flush()
}

// prepare discards the remaining body and adds "Connection: close" if the connection
// cannot be reused. It acts only once per request.
func (f *framedWriter) prepare() {
	if f.prepared {
		return
	}
	f.prepared = true
	if f.upload != nil && !f.upload.skip() {
		f.closes = true
	}
	if f.closes {
		f.Header().Set("Connection", "close")
	}
}
