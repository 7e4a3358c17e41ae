package gateway

import (
	"context"
	"net/http"
)

// framed lets a handler answer before it has read the body of the request. A handler
// may leave any part of the body unread: framed then reads a short rest, or makes the
// request the last one of its connection. So the bytes of a body are never parsed as
// further requests. Requests must have a *callerConn in their context.
//
// The server's own request keeps its body, by which the server knows whether all of
// it was read; the handler gets a copy with an *upload.
func (g *Gateway) framed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := r.Context().Value(connectionKey{}).(*callerConn)
		last := conn.ambiguous(r)
		if (r.Body == nil || r.Body == http.NoBody) && !last {
			conn.complete()
			next.ServeHTTP(w, r)
			return
		}
		x := &exchange{writer: framedWriter{ResponseWriter: w, last: last}, request: *r}
		f := &x.writer
		if r.Body != nil && r.Body != http.NoBody {
			f.upload = &x.upload
			f.upload.init(g, w, r, g.cfg.MaxBody)
			f.upload.conn, f.upload.host = conn, conn.host
			x.request.Body = f.upload
			defer f.upload.stop() // also if the handler panics
		}
		conn.answer = f
		next.ServeHTTP(f, &x.request)
		f.prepare() // an answer that the handler left to the server
		if f.last {
			conn.unread.Store(true) // further requests may have been sent that the server does not read
			conn.enter(phaseHead)   // the server closes it, after a while
		}
	})
}

// exchange is what framed adds to one request, in one allocation.
type exchange struct {
	writer  framedWriter
	upload  upload
	request http.Request // the handler's
}

// lastOn reports whether the connection of a request cannot be used after it: the
// request is ambiguous, or its body was not read to its end.
func lastOn(ctx context.Context) bool {
	conn, _ := ctx.Value(connectionKey{}).(*callerConn)
	if conn == nil || conn.answer == nil {
		return false
	}
	f := conn.answer
	return f.last || f.upload != nil && !f.upload.whole.Load()
}

// framedWriter decides, before the head of the answer is written, whether the connection
// is reused.
type framedWriter struct {
	http.ResponseWriter
	upload *upload // nil without a body
	last   bool    // the connection is closed after this request
	headed bool    // the head of the final answer was written
}

// Unwrap is for http.ResponseController.
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

// FlushError is for http.ResponseController.
func (f *framedWriter) FlushError() error {
	f.prepare()
	return http.NewResponseController(f.ResponseWriter).Flush()
}

// prepare skips the rest of the body, and adds "Connection: close" if the connection
// cannot be reused. Only its first call has an effect.
func (f *framedWriter) prepare() {
	if f.headed {
		return
	}
	f.headed = true
	if f.upload != nil && !f.upload.skip() {
		f.last = true
	}
	if f.last {
		f.Header().Set("Connection", "close")
	}
}
