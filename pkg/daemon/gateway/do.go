package gateway

import (
	"context"
	"net/http"
	"net/url"
)

// Request is a call that does not come over a connection.
type Request struct {
	Function string
	Method   string // empty is POST
	Path     string // escaped; empty is where the function's contract is invoked
	Query    string
	Header   http.Header // nil is none; not changed
	Body     []byte
	ID       string // X-Call-Id; empty is a new one
}

// Do runs a call through the queues, as one that came over HTTP, and returns its
// answer as soon as its head is there. The caller closes the body; the end of ctx
// cuts it. The error is an *Error, or ctx's.
func (g *Gateway) Do(ctx context.Context, r Request) (*http.Response, error) {
	t := (*g.names.Load())[r.Function]
	if t == nil {
		return nil, noFunction(r.Function)
	}
	c := g.call(t, r.ID, r.Path)
	c.body = body{head: r.Body, whole: true}
	request := &http.Request{Method: orElse(r.Method, http.MethodPost), URL: &url.URL{RawQuery: r.Query}, Header: http.Header{}}
	for name, values := range r.Header {
		request.Header[http.CanonicalHeaderKey(name)] = values
	}
	answer, err := c.RoundTrip(request.WithContext(ctx))
	if err != nil {
		c.end(errAborted)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, c.problem(err)
	}
	return answer, nil
}
