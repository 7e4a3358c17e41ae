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

// Client sends calls to instances, and keeps connections to them open.
type Client struct {
	pool pool
	http *http.Client // for what is asked of an instance beside calls
}

var _ ports.Invoker = (*Client)(nil)

// NewClient returns a Client without connections.
func NewClient() *Client {
	return &Client{pool: pool{dialer: dialer, keep: idleTime}, http: &http.Client{Transport: newTransport(), CheckRedirect: noRedirect}}
}

// Close closes the connections that no call uses.
func (c *Client) Close() {
	c.pool.close(0)
	c.http.CloseIdleConnections()
}

var dialer = net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}

func newTransport() *http.Transport {
	return &http.Transport{
		// No proxy: instances are on this machine or addressed directly.
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			if err := checkPeer(instance.Handle{}, conn); err != nil {
				_ = conn.Close()
				return nil, err
			}
			return conn, nil
		},
		IdleConnTimeout:    idleTime,
		DisableCompression: true,
	}
}

// noRedirect hands the caller what the function answered.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Invoke sends a call to the instance's address, by its contract where it names
// no path. An auto or empty contract is http. Nothing is sent to who listens at
// the address of an instance that has ended, or belongs to another user.
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
