// Package kerneld speaks to the kernel daemon over its socket.
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
)

// Socket is the daemon's own socket in a run directory.
func Socket(runDir string) string { return filepath.Join(runDir, "kernel.sock") }

// clientHeader names the client.
const clientHeader = "Gfaas-Client"

// Client speaks for one client of the daemon.
type Client struct {
	socket, name string
	http         *http.Client
}

// Dial is a client of the daemon at that socket. An empty name is the one that the
// socket is for. Nothing is sent yet.
func Dial(socket, name string) *Client {
	return &Client{socket: socket, name: name, http: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
}

// Close ends its connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Error is the daemon's refusal.
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

// Refusal is the daemon's code, and the place in the request.
func (e *Error) Refusal() (code, where string) { return e.Code, e.Where }

// goneError says that there is no daemon.
type goneError struct {
	err  error
	hint string
}

func (e *goneError) Error() string     { return e.err.Error() }
func (e *goneError) Unwrap() error     { return e.err }
func (e *goneError) Unavailable() bool { return true }
func (e *goneError) Hint() string      { return e.hint }

// Do sends a request and returns the answer, which the caller closes. Size is that
// of the body.
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
		return nil, &goneError{fmt.Errorf("no kernel daemon at %s", c.socket), "start one with gfaas-kerneld"}
	case errors.Is(err, fs.ErrPermission):
		return nil, &goneError{fmt.Errorf("kernel daemon: %w", errors.Unwrap(err)), "the socket is its user's and root's"}
	case err != nil:
		return nil, fmt.Errorf("kernel daemon: %w", errors.Unwrap(err))
	case answer.StatusCode < 300:
		return answer, nil
	}
	defer answer.Body.Close()
	const most = 1 << 20
	text, err := io.ReadAll(io.LimitReader(answer.Body, most))
	if err != nil {
		return nil, fmt.Errorf("kernel daemon: %w", err)
	}
	var no struct {
		Error struct{ Code, Message, Where string }
	}
	if json.Unmarshal(text, &no) != nil || no.Error.Code == "" {
		return nil, fmt.Errorf("kernel daemon: %s", answer.Status)
	}
	return nil, &Error{no.Error.Code, no.Error.Message, no.Error.Where, answer.StatusCode}
}

// call sends a request and reads the answer as JSON into v, or not at all.
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

// objectPath is the path of an object.
func objectPath(key string) string { return "/v1/objects/" + url.PathEscape(key) }

// Run runs a request; the answer goes into v.
func (c *Client) Run(ctx context.Context, request []byte, v any) error {
	return c.call(ctx, http.MethodPost, "/v1/run", request, v)
}

// Put stores an object of so many bytes.
func (c *Client) Put(ctx context.Context, key string, from io.Reader, size int64) error {
	answer, err := c.Do(ctx, http.MethodPut, objectPath(key), from, size)
	if err != nil {
		return err
	}
	return answer.Body.Close()
}

// Get writes an object.
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

// Remove deletes an object.
func (c *Client) Remove(ctx context.Context, key string) error {
	return c.call(ctx, http.MethodDelete, objectPath(key), nil, nil)
}

// List reads the client's objects into v.
func (c *Client) List(ctx context.Context, v any) error {
	return c.call(ctx, http.MethodGet, "/v1/objects", nil, v)
}

// Stats reads how the daemon stands into v.
func (c *Client) Stats(ctx context.Context, v any) error {
	return c.call(ctx, http.MethodGet, "/v1/stats", nil, v)
}
