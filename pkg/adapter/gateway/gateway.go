// Package gateway is a client of the gateway (gfaas serve), at its control socket or an
// HTTP address. gfaas and gfaas-profile use it.
package gateway

import (
	"bytes"
	"cmp"
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

// mostAnswer is the size limit of the gateway's own answers, in bytes.
const mostAnswer = 64 << 20

// Socket returns the path of the gateway's control socket in a run directory.
func Socket(runDir string) string { return filepath.Join(runDir, "gateway.sock") }

// Error is a failure to reach a gateway, or an error that the gateway itself returned.
type Error struct {
	Err     error
	Status  int    // HTTP status of the answer; 0 without an answer
	Code    string // the answer's code, for example queue-full
	Missing bool   // there is no gateway
	Remedy  string
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Unavailable reports whether there is no gateway.
func (e *Error) Unavailable() bool { return e.Missing }

// Hint returns the remedy for the user.
func (e *Error) Hint() string { return e.Remedy }

// Answered reports whether the gateway answered.
func (e *Error) Answered() bool { return e.Status != 0 }

// Client sends requests to one gateway.
type Client struct {
	at   string // for messages
	base *url.URL
	http *http.Client
}

// Dial returns a client of the gateway of a run directory. It does not connect yet.
func Dial(runDir string) *Client {
	socket := Socket(runDir)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		// In a folder that other users can write to, another program could answer.
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

// DialURL returns a client of the gateway at an address like http://127.0.0.1:8080, which
// may contain a user and a password.
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
	const many = 1 << 12 // so that each concurrent caller keeps a connection
	t.MaxIdleConns, t.MaxIdleConnsPerHost, t.DisableCompression = many, many, true
	return &Client{at, base, &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// Answers reports whether a healthy gateway answers.
func (c *Client) Answers(ctx context.Context) bool {
	answer, err := c.Send(ctx, http.MethodGet, "/healthz", nil, nil)
	if err != nil {
		return false
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusOK
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Send sends a request to a path, which may have a query, and returns the answer with any
// status. It uses Host and Content-Length of header. The caller must close the answer's
// body. The error is an *Error or wraps ctx.Err().
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

// Do sends in as JSON, unless it is nil, and decodes the answer into out, unless that is
// nil. It returns an *Error if the answer is an error.
func (c *Client) Do(ctx context.Context, method, path string, in, out any) error {
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
		return &Error{Err: fmt.Errorf("gateway at %s: cannot decode its answer: %w", c.at, err)}
	}
	return nil
}

// Refusal returns the error in an answer of the gateway itself.
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

// Status returns the state of the gateway.
func (c *Client) Status(ctx context.Context) (s status.Status, err error) {
	return s, c.Do(ctx, http.MethodGet, "/system/status", nil, &s)
}

// Policy returns the name of the queueing policy.
func (c *Client) Policy(ctx context.Context) (string, error) {
	var info struct{ Policy string }
	err := c.Do(ctx, http.MethodGet, "/system/info", nil, &info)
	return info.Policy, err
}

// Call calls a function and reads the answer to its end. It returns the answer's status and
// the kind of the instance's start. A status of 400 and above is an error.
func (c *Client) Call(ctx context.Context, function string, body []byte) (status int, start string, err error) {
	answer, err := c.Send(ctx, http.MethodPost, "/function/"+url.PathEscape(function), nil, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	if answer.StatusCode >= http.StatusBadRequest && answer.Header.Get("Gfaas-Instance") == "" {
		return answer.StatusCode, "", Refusal(answer)
	}
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return 0, "", fmt.Errorf("function %s: answer cut off: %w", function, err)
	}
	if answer.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("function %s answered %s", function, answer.Status)
	}
	return answer.StatusCode, answer.Header.Get("Gfaas-Start"), err
}

// Scales returns the number of instances of each function.
func (c *Client) Scales(ctx context.Context) ([]status.Scale, error) {
	var functions []struct {
		Name              string
		Replicas          int
		AvailableReplicas int
		Labels            map[string]string
	}
	if err := c.Do(ctx, http.MethodGet, "/system/functions", nil, &functions); err != nil {
		return nil, err
	}
	list := []status.Scale{}
	for _, fn := range functions {
		s := status.Scale{Function: fn.Name, Wanted: fn.Replicas, Ready: fn.AvailableReplicas}
		_, minimum := fmt.Sscan(fn.Labels["com.openfaas.scale.min"], &s.Min)
		_, maximum := fmt.Sscan(fn.Labels["com.openfaas.scale.max"], &s.Max)
		if err := cmp.Or(minimum, maximum); err != nil {
			return nil, fmt.Errorf("the gateway does not report the scale of function %s: %w", fn.Name, err)
		}
		list = append(list, s)
	}
	return list, nil
}

// Scale sets how many instances of a function the gateway keeps ready.
func (c *Client) Scale(ctx context.Context, name string, n int) error {
	err := c.Do(ctx, http.MethodPost, "/system/scale-function/"+url.PathEscape(name), map[string]int{"replicas": n}, nil)
	if err != nil {
		return fmt.Errorf("scale %s: %w", name, err)
	}
	return nil
}

// unreachable returns the error of a failed request. It distinguishes a cancelled request
// from a gateway that is not running.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("gateway at %s: %w", c.at, ctx.Err())
	}
	if inner, ok := errors.AsType[*url.Error](err); ok {
		err = inner.Err // without the URL, which may contain a password
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
