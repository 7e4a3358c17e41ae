package fnhttp

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Client sends calls to instances, and keeps connections to them open.
type Client struct{ http *http.Client }

var _ ports.Invoker = (*Client)(nil)

// NewClient returns a Client without connections.
func NewClient() *Client {
	return &Client{&http.Client{Transport: newTransport(), CheckRedirect: noRedirect}}
}

// Close closes the connections that no call uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func newTransport() *http.Transport {
	const manyClients = 1024
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		// No proxy: instances are on this machine or addressed directly.
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err == nil {
				err = checkPeer(ctx, conn)
			}
			if err != nil {
				if conn != nil {
					_ = conn.Close()
				}
				return nil, err
			}
			return &counted{Conn: conn}, nil
		},
		MaxIdleConns:        0,
		MaxIdleConnsPerHost: manyClients,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true,
	}
}

// counted is a connection that knows how much was written to it.
type counted struct {
	net.Conn
	written atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n))
	return n, err
}

// noRedirect hands the caller what the function answered.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Invoke sends a call to the instance's address, by its contract where it names
// no path. An auto or empty contract is http. Nothing is sent to who listens at
// the address of an instance that has ended, or belongs to another user.
func (c *Client) Invoke(ctx context.Context, r instance.Record, call ports.Call) (*http.Response, error) {
	var conn *counted
	var before int64
	request, err := newRequest(httptrace.WithClientTrace(context.WithValue(ctx, calling{}, r.Handle), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			conn = info.Conn.(*counted)
			before = conn.written.Load()
		},
	}), r, call)
	if err != nil {
		return nil, err
	}
	// Not by the client: it would copy the head for redirects, which nobody follows.
	answer, err := c.http.Transport.RoundTrip(request)
	if err != nil {
		err = fmt.Errorf("%s http://%s: %w", request.Method, r.Handle.Address, err)
	}
	switch {
	case err == nil:
		return answer, nil
	case conn == nil:
		return nil, &ports.CallError{Progress: ports.NotConnected, Err: err}
	case conn.written.Load() == before:
		return nil, &ports.CallError{Progress: ports.NotSent, Err: err}
	}
	return nil, &ports.CallError{Progress: ports.Sent, Err: err}
}

func newRequest(ctx context.Context, r instance.Record, call ports.Call) (*http.Request, error) {
	found, err := find(r.Contract)
	if err != nil {
		return nil, err
	}
	if call.Method == "" {
		call.Method = http.MethodPost
	}
	if call.Path == "" {
		call.Path = found[0].invoke(r.Function)
	}
	to, err := target(r.Handle.Address, call.Path, call.Query)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, call.Method, "/", call.Body)
	if err != nil {
		return nil, err
	}
	request.URL, request.Header = to, canonical(call.Header)
	if request.Host = request.Header.Get("Host"); request.Host == "" {
		request.Host = r.Handle.Address
	}
	if text := request.Header.Get("Content-Length"); text != "" {
		length, err := strconv.ParseInt(text, 10, 64)
		if err != nil || length < 0 {
			return nil, fmt.Errorf("Content-Length %q is not a length", text)
		}
		request.ContentLength = length
	}
	if request.Header.Get("Content-Type") == "" && call.Method == http.MethodPost && (found[0].name == KServeV2 || found[0].name == OpenAI) {
		request.Header = maps.Clone(request.Header)
		request.Header.Set("Content-Type", "application/json")
	}
	once(request)
	return request, nil
}

// canonical is a header with its names as net/http has them; itself, where they
// are. What there is of Host and Content-Length net/http does not write.
func canonical(h http.Header) http.Header {
	for name := range h {
		if http.CanonicalHeaderKey(name) != name {
			other := make(http.Header, len(h))
			for name, values := range h {
				other[http.CanonicalHeaderKey(name)] = values
			}
			return other
		}
	}
	if h == nil {
		return http.Header{}
	}
	return h
}

// target is the address, path and query as they are: what a caller escaped in its
// own way stays so.
func target(address, path, query string) (*url.URL, error) {
	odd := func(r rune) bool { return r <= ' ' || r == 0x7f || r == '#' }
	if !strings.HasPrefix(path, "/") || strings.ContainsFunc(path, odd) || strings.Contains(path, "?") {
		return nil, fmt.Errorf("%q is not a path of a request", path)
	}
	if strings.ContainsFunc(query, odd) {
		return nil, fmt.Errorf("%q is not a query of a request", query)
	}
	plain, err := url.PathUnescape(path)
	if err != nil {
		return nil, fmt.Errorf("%q is not a path of a request: %w", path, err)
	}
	to := &url.URL{Scheme: "http", Host: address, Path: plain, RawPath: path, RawQuery: query}
	if to.EscapedPath() != path && !strings.HasPrefix(path, "//") {
		to.Opaque = path
	}
	return to, nil
}

// once keeps net/http from sending the request again by itself when a connection
// that was used before ends without an answer, as it does with one that changes
// nothing or has an Idempotency-Key: it cannot where a body may have been read.
func once(request *http.Request) {
	_, key := request.Header["Idempotency-Key"]
	_, otherKey := request.Header["X-Idempotency-Key"]
	switch request.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
	default:
		if !key && !otherKey {
			return
		}
	}
	request.GetBody = nil
	if request.Body == nil || request.Body == http.NoBody {
		request.Body = io.NopCloser(strings.NewReader(""))
	}
}
