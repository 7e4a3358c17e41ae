package fnhttp

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Client sends calls to instances and keeps connections to them open.
type Client struct {
	pool pool
	http *http.Client // for requests other than calls
}

var _ ports.Invoker = (*Client)(nil)

// NewClient returns a Client without connections.
func NewClient() *Client {
	return &Client{pool: pool{idleTimeout: idleTime}, http: &http.Client{Transport: newTransport(), CheckRedirect: noRedirect}}
}

// Close closes the idle connections.
func (c *Client) Close() {
	c.pool.close(0)
	c.http.CloseIdleConnections()
}

var dialer = net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}

// dial connects to an instance and checks that the peer is the instance.
func dial(ctx context.Context, h *instance.Handle) (net.Conn, error) {
	conn, err := dialer.DialContext(ctx, "tcp", h.Address)
	if err != nil {
		return nil, err
	}
	if err := checkPeer(*h, conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

func newTransport() *http.Transport {
	return &http.Transport{
		// No proxy: instances are on this machine or addressed directly.
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return dial(ctx, &instance.Handle{Address: address})
		},
		IdleConnTimeout:    idleTime,
		DisableCompression: true,
	}
}

// noRedirect makes the client return redirects to the caller.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Invoke sends a call to the instance, at the contract's path unless the call has one. An
// auto or empty contract means http. If the instance has ended, or a program of another
// user listens at its address, Invoke sends nothing and returns an error.
func (c *Client) Invoke(ctx context.Context, r *instance.Record, call ports.Call) (*http.Response, error) {
	request, err := newRequest(ctx, r, call)
	if err != nil {
		return nil, err
	}
	return c.pool.invoke(ctx, &r.Handle, request)
}

func newRequest(ctx context.Context, r *instance.Record, call ports.Call) (*http.Request, error) {
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
	to, err := requestURL(r.Handle.Address, call.Path, call.Query)
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
			return nil, fmt.Errorf("invalid Content-Length %q", text)
		}
		request.ContentLength = length
	}
	if request.Header.Get("Content-Type") == "" && call.Method == http.MethodPost && (found[0].name == KServeV2 || found[0].name == OpenAI) {
		request.Header = maps.Clone(request.Header)
		request.Header.Set("Content-Type", "application/json")
	}
	return request, nil
}

// canonical returns h with canonical header names, and h itself if they already are.
// net/http ignores the fields Host and Content-Length when it writes a request.
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

// requestURL returns a URL that preserves the caller's escaping of path and query.
func requestURL(address, path, query string) (*url.URL, error) {
	odd := func(r rune) bool { return r <= ' ' || r == 0x7f || r == '#' }
	if !strings.HasPrefix(path, "/") || strings.ContainsFunc(path, odd) || strings.Contains(path, "?") {
		return nil, fmt.Errorf("invalid request path %q", path)
	}
	if strings.ContainsFunc(query, odd) {
		return nil, fmt.Errorf("invalid request query %q", query)
	}
	plain, err := url.PathUnescape(path)
	if err != nil {
		return nil, fmt.Errorf("invalid request path %q: %w", path, err)
	}
	to := &url.URL{Scheme: "http", Host: address, Path: plain, RawPath: path, RawQuery: query}
	if to.EscapedPath() != path && !strings.HasPrefix(path, "//") {
		to.Opaque = path
	}
	return to, nil
}
