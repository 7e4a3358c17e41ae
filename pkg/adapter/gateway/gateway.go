// Package gateway speaks to a gateway (gfaas serve), at its control socket or at
// an address.
package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/owndir"
	"github.com/gfaas/gfaas/pkg/status"
)

// mostAnswer is the largest answer of the gateway's own that is read, in bytes.
const mostAnswer = 64 << 20

// Socket is the control socket of a run directory.
func Socket(runDir string) string { return filepath.Join(runDir, "gateway.sock") }

// Error is a failure to reach a gateway, or an answer of its own that is one.
type Error struct {
	Err     error
	Status  int    // of the answer; 0 when there was none
	Code    string // of the answer, as queue-full
	Missing bool   // there is no gateway
	Remedy  string
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Unavailable says that there is no gateway.
func (e *Error) Unavailable() bool { return e.Missing }

// Hint says what to do about it.
func (e *Error) Hint() string { return e.Remedy }

// Client speaks to one gateway.
type Client struct {
	at   string // for people
	base *url.URL
	http *http.Client
}

// Dial is a client of the gateway of a run directory. Nothing is sent yet.
func Dial(runDir string) *Client {
	socket := Socket(runDir)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		// In a folder that others can write to, they could answer.
		root, err := owndir.Open(runDir)
		var refused *owndir.Error
		switch {
		case errors.As(err, &refused):
			return nil, fmt.Errorf("run directory: %w", err)
		case err == nil:
			_ = root.Close()
		}
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return newClient(socket, &url.URL{Scheme: "http", Host: "gateway"}, &http.Transport{DialContext: dial})
}

// DialURL is a client of the gateway at an address like http://127.0.0.1:8080,
// with user and password in it where those are needed.
func DialURL(address string) (*Client, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("expected an address like http://127.0.0.1:8080")
	}
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, "/"), strings.TrimSuffix(u.RawPath, "/")
	transport := http.DefaultTransport.(*http.Transport).Clone()
	return newClient(u.Redacted(), u, transport), nil
}

func newClient(at string, base *url.URL, t *http.Transport) *Client {
	const many = 1 << 12 // callers at once keep a connection each
	t.MaxIdleConns, t.MaxIdleConnsPerHost, t.DisableCompression = many, many, true
	return &Client{at, base, &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// Answers says whether somebody listens there.
func (c *Client) Answers(ctx context.Context) bool {
	answer, err := c.Send(ctx, http.MethodGet, "/healthz", nil, nil)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// Close closes the connections that no call uses.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Send sends a request to a path, which may have a query, and returns the answer
// whatever its status. Host and Content-Length are taken from the header. The
// caller closes the answer's body. The error is an *Error or ctx's.
func (c *Client) Send(ctx context.Context, method, path string, header http.Header, body io.Reader) (*http.Response, error) {
	u := *c.base
	r, err := http.NewRequestWithContext(ctx, method, u.String()+path, body)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		r.Header[http.CanonicalHeaderKey(name)] = values
	}
	if host := r.Header.Get("Host"); host != "" {
		r.Host = host
		r.Header.Del("Host")
	}
	if n, err := strconv.ParseInt(r.Header.Get("Content-Length"), 10, 64); err == nil {
		r.ContentLength = n
		r.Header.Del("Content-Length")
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	return answer, nil
}

// Ask sends a value as JSON, if there is one, and reads the answer into another.
// An answer that is an error is an *Error.
func (c *Client) Ask(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	header := http.Header{}
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body, header = bytes.NewReader(text), http.Header{"Content-Type": {"application/json"}}
	}
	answer, err := c.Send(ctx, method, path, header, body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode/100 != 2 {
		return Refusal(answer)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, mostAnswer))
	if err != nil {
		return c.unreachable(ctx, err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return &Error{Err: fmt.Errorf("gateway at %s: its answer cannot be read: %w", c.at, err)}
	}
	return nil
}

// Refusal is the error that an answer of a gateway's own is.
func Refusal(answer *http.Response) *Error {
	var body struct {
		Error struct{ Code, Message, Hint string }
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, mostAnswer))
	if err != nil || json.Unmarshal(text, &body) != nil || body.Error.Message == "" {
		body.Error.Message = "the gateway answered " + answer.Status
	}
	e := &Error{Err: errors.New(body.Error.Message), Status: answer.StatusCode, Code: body.Error.Code, Remedy: body.Error.Hint}
	e.Missing = body.Error.Code == "draining"
	return e
}

// Status is how everything stands.
func (c *Client) Status(ctx context.Context) (s status.Status, err error) {
	return s, c.Ask(ctx, http.MethodGet, "/system/status", nil, &s)
}

// unreachable tells a gateway that is not there from a caller that gave up.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("gateway at %s: %w", c.at, ctx.Err())
	}
	var inner *url.Error
	if errors.As(err, &inner) {
		err = inner.Err // it names the address, password and all
	}
	if errors.Is(err, fs.ErrPermission) {
		return &Error{Err: fmt.Errorf("gateway at %s: %w", c.at, err), Missing: true, Remedy: "set GFAAS_RUN_DIR to a folder of yours"}
	}
	var at *net.OpError
	if !errors.As(err, &at) || at.Op != "dial" {
		return &Error{Err: fmt.Errorf("gateway at %s: %w", c.at, err)}
	}
	return &Error{Err: fmt.Errorf("no gateway at %s: %w", c.at, err), Missing: true, Remedy: "start one with 'gfaas serve'"}
}
