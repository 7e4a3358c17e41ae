// Package kerneld is a client of the kernel daemon (gfaas-kerneld). Client sends requests over its socket;
// NewFunction serves one request as a function over HTTP.
package kerneld

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
	"syscall"
	"time"

	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Socket returns the path of the daemon's own socket in a run directory.
func Socket(runDir string) string { return filepath.Join(runDir, "kernel.sock") }

// clientHeader names the client.
const clientHeader = "Gfaas-Client"

// Client sends requests as one client of the daemon.
type Client struct {
	socket, name string
	http         *http.Client
}

// Dial returns a client of the daemon at a socket. An empty name selects the client that
// the socket belongs to. Dial does not connect yet.
func Dial(socket, name string) *Client {
	return &Client{socket: socket, name: name, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Error is a refusal by the daemon.
type Error struct {
	Code, Message, Where string
	Status               int
}

func (e *Error) Error() string {
	text := e.Code + ": "
	if e.Where != "" {
		text += e.Where + ": "
	}
	return text + e.Message
}

// Refusal returns the daemon's code and the place in the request that it concerns.
func (e *Error) Refusal() (code, where string) { return e.Code, e.Where }

// Do sends a request with a body of the given size in bytes. The caller must close the
// answer's body. A refusal is an *Error. If no daemon can be reached, the error is a *ports.UnavailableError.
func (c *Client) Do(ctx context.Context, method, path string, body io.Reader, size int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://kerneld"+path, body)
	if err != nil {
		return nil, err
	}
	if req.ContentLength = size; size == 0 {
		req.Body = http.NoBody
	}
	if c.name != "" {
		req.Header.Set(clientHeader, c.name)
	}
	answer, err := c.http.Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, &ports.UnavailableError{
			Err: fmt.Errorf("no kernel daemon at %s", c.socket), Remedy: "start one with gfaas-kerneld",
		}
	case errors.Is(err, fs.ErrPermission):
		return nil, &ports.UnavailableError{Err: fmt.Errorf("kernel daemon: %w", errors.Unwrap(err)),
			Remedy: "only root and the user who started the daemon can connect"}
	case err != nil:
		return nil, fmt.Errorf("kernel daemon: %w", errors.Unwrap(err))
	case answer.StatusCode < 300:
		return answer, nil
	}
	defer answer.Body.Close()
	const maxBody = 1 << 20
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("kernel daemon: %w", err)
	}
	var refusal struct {
		Error struct{ Code, Message, Where string }
	}
	if json.Unmarshal(text, &refusal) != nil || refusal.Error.Code == "" {
		return nil, fmt.Errorf("kernel daemon: unexpected status %s", answer.Status)
	}
	return nil, &Error{refusal.Error.Code, refusal.Error.Message, refusal.Error.Where, answer.StatusCode}
}

// call sends a request and decodes the JSON of the answer into v, unless v is nil.
func (c *Client) call(ctx context.Context, method, path string, body []byte, v any) error {
	answer, err := c.Do(ctx, method, path, bytes.NewReader(body), int64(len(body)))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if v == nil {
		return nil
	}
	if err := json.NewDecoder(answer.Body).Decode(v); err != nil {
		return fmt.Errorf("kernel daemon: %w", err)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

// objectPath returns the URL path of an object.
func objectPath(key string) string { return "/v1/objects/" + url.PathEscape(key) }

// Run runs a request and decodes the answer into v.
func (c *Client) Run(ctx context.Context, request []byte, v any) error {
	return c.call(ctx, http.MethodPost, "/v1/run", request, v)
}

// Submit submits an asynchronous run and decodes its status into v.
func (c *Client) Submit(ctx context.Context, request []byte, v any) error {
	return c.call(ctx, http.MethodPost, "/v1/runs", request, v)
}

// AwaitRun waits for the end of an asynchronous run, for at most the given time, and decodes its status into v.
func (c *Client) AwaitRun(ctx context.Context, id string, limit time.Duration, v any) error {
	return c.call(ctx, http.MethodGet, runPath(id)+"?wait="+limit.String(), nil, v)
}

// DeleteRun cancels an asynchronous run that is queued, and deletes the results of any other.
func (c *Client) DeleteRun(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, runPath(id), nil, nil)
}

// ListRuns decodes the list of the client's asynchronous runs into v.
func (c *Client) ListRuns(ctx context.Context, v any) error {
	return c.call(ctx, http.MethodGet, "/v1/runs", nil, v)
}

func runPath(id string) string { return "/v1/runs/" + url.PathEscape(id) }

// Put stores an object of the given size in bytes.
func (c *Client) Put(ctx context.Context, key string, from io.Reader, size int64) error {
	return c.put(ctx, objectPath(key), from, size)
}

func (c *Client) put(ctx context.Context, path string, from io.Reader, size int64) error {
	answer, err := c.Do(ctx, http.MethodPut, path, from, size)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// Get writes an object's contents to a writer.
func (c *Client) Get(ctx context.Context, key string, to io.Writer) error {
	answer, err := c.Do(ctx, http.MethodGet, objectPath(key), nil, 0)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(to, answer.Body); err != nil {
		return fmt.Errorf("object %s: %w", key, err)
	}
	return nil
}

// PutModule stores code of the given size in bytes under a name.
func (c *Client) PutModule(ctx context.Context, name string, code io.Reader, size int64) error {
	return c.put(ctx, modulePath(name), code, size)
}

// RemoveModule deletes stored code.
func (c *Client) RemoveModule(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, modulePath(name), nil, nil)
}

// ListModules decodes the list of the client's stored modules into v.
func (c *Client) ListModules(ctx context.Context, v any) error {
	return c.call(ctx, http.MethodGet, "/v1/modules", nil, v)
}

func modulePath(name string) string { return "/v1/modules/" + url.PathEscape(name) }

// Remove deletes an object.
func (c *Client) Remove(ctx context.Context, key string) error {
	return c.call(ctx, http.MethodDelete, objectPath(key), nil, nil)
}

// List decodes the list of the client's objects into v.
func (c *Client) List(ctx context.Context, v any) error {
	return c.call(ctx, http.MethodGet, "/v1/objects", nil, v)
}

// Stats decodes the daemon's statistics into v.
func (c *Client) Stats(ctx context.Context, v any) error {
	return c.call(ctx, http.MethodGet, "/v1/stats", nil, v)
}
