// Package modeld speaks to the model daemon's socket.
package modeld

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// Socket is the model daemon's socket in a run directory.
func Socket(runDir string) string { return filepath.Join(runDir, "model.sock") }

// TenantFolder is what a container of a tenant is given: the tenant's own socket is
// there, by the name model.sock. Mount the folder, not the socket: a restarted
// daemon makes a new one.
func TenantFolder(runDir, tenant string) string { return filepath.Join(runDir, "model", tenant) }

// Error is a failure to reach the daemon.
type Error struct {
	Err     error
	Missing bool
	Remedy  string
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Unavailable says that there is no daemon.
func (e *Error) Unavailable() bool { return e.Missing }

// Hint says what to do about it.
func (e *Error) Hint() string { return e.Remedy }

// Client is a connection to the daemon: what it gets it holds until it is released
// or closed. One request goes at a time.
type Client struct {
	socket string
	mu     sync.Mutex
	conn   *net.UnixConn
}

// Dial connects to the daemon at that socket.
func Dial(ctx context.Context, socket string) (*Client, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unixpacket", socket)
	switch {
	case err == nil:
		return &Client{socket: socket, conn: conn.(*net.UnixConn)}, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("model daemon at %s: %w", socket, ctx.Err())
	case errors.Is(err, fs.ErrPermission):
		return nil, &Error{Err: fmt.Errorf("model daemon at %s: %w", socket, err), Missing: true, Remedy: "the socket is its user's and root's"}
	}
	return nil, &Error{Err: fmt.Errorf("no model daemon at %s: %w", socket, err), Missing: true, Remedy: "start one with 'gfaas-modeld'"}
}

// Close gives up what the connection holds.
func (c *Client) Close() error { return c.conn.Close() }

// mostFiles is how many descriptors an answer has at most.
const mostFiles = 2

// Call asks the daemon and waits for its answer. The files are passed on and stay
// the caller's; those of the answer are its own. What the daemon refuses is a
// *wire.Error. A call that the context cuts short ends the connection.
func (c *Client) Call(ctx context.Context, r wire.Request, files ...*os.File) (a wire.Answer, got []*os.File, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.send(r, files); err != nil {
		return a, nil, c.gone(ctx, err)
	}
	buf, oob := make([]byte, wire.MaxAnswer), make([]byte, unix.CmsgSpace(4*mostFiles))
	n, passed, _, _, err := c.conn.ReadMsgUnix(buf, oob)
	if err == nil && n == 0 {
		err = errors.New("it ended the connection")
	}
	if err != nil {
		return a, nil, c.gone(ctx, err)
	}
	got, err = take(oob[:passed])
	if err == nil {
		err = json.Unmarshal(buf[:n], &a)
	}
	if err == nil && !a.OK {
		err = a.Error
		if a.Error == nil {
			err = errors.New("it says no, and not why")
		}
	}
	if err != nil {
		for _, f := range got {
			_ = f.Close()
		}
		var refused *wire.Error
		if !errors.As(err, &refused) {
			err = fmt.Errorf("answer of the model daemon at %s: %w", c.socket, err)
		}
		return a, nil, err
	}
	return a, got, nil
}

func (c *Client) send(r wire.Request, files []*os.File) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var rights []byte
	if len(files) > 0 {
		var fds []int
		for _, f := range files {
			fds = append(fds, int(f.Fd()))
		}
		rights = unix.UnixRights(fds...)
	}
	_, _, err = c.conn.WriteMsgUnix(text, rights, nil)
	return err
}

// gone tells a daemon that has gone from a caller that gave up.
func (c *Client) gone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("model daemon at %s: %w", c.socket, ctx.Err())
	}
	return &Error{Err: fmt.Errorf("model daemon at %s: %w", c.socket, err), Missing: true, Remedy: "see its log"}
}

// take is the descriptors that came with an answer.
func take(oob []byte) (files []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "model"))
		}
	}
	return files, nil
}

// Models lists all models, of one tenant or, for "", of all.
func (c *Client) Models(ctx context.Context, tenant string) (all []wire.Status, err error) {
	r := wire.Request{Op: wire.OpList, Tenant: tenant}
	for {
		a, _, err := c.Call(ctx, r)
		if err != nil {
			return nil, err
		}
		all = append(all, a.Models...)
		if a.More == nil || !*a.More || len(a.Models) == 0 {
			return all, nil
		}
		last := a.Models[len(a.Models)-1]
		r.After, r.AfterOf = last.Name, last.Tenant
	}
}
