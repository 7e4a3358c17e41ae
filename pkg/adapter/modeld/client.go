// Package modeld is the client of the model daemon, gfaas-modeld. Client sends requests of the
// protocol in pkg/wire/model; Ensure starts a daemon if none runs; HeldModel keeps a model on the GPU
// for instances; Daemons and OnGPUs report the state of running daemons. The commands gfaas,
// gfaas-modeld and gfaas-tokend use it.
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

	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/procfs"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// Socket returns the path of the model daemon's socket in a run directory.
func Socket(runDir string) string { return filepath.Join(runDir, "model.sock") }

// TenantFolder returns the folder to mount into containers of a tenant. It contains the tenant's
// socket under the name model.sock. Mount the folder and not the socket, because a restarted daemon
// creates a new socket.
func TenantFolder(runDir, tenant string) string { return filepath.Join(runDir, "model", tenant) }

// unavailable returns the error of a daemon that cannot be reached or started.
func unavailable(remedy, format string, args ...any) error {
	return &ports.UnavailableError{Err: fmt.Errorf(format, args...), Remedy: remedy}
}

// Client is a connection to the daemon. It holds the copies that it gets until it releases them or is
// closed. It is safe for concurrent use, but handles one request at a time.
type Client struct {
	socket string
	mu     sync.Mutex
	conn   *net.UnixConn
}

// Dial connects to the daemon at a socket. If no daemon can be reached, the error is a *ports.UnavailableError.
func Dial(ctx context.Context, socket string) (*Client, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unixpacket", socket)
	switch {
	case err == nil:
		return &Client{socket: socket, conn: conn.(*net.UnixConn)}, nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("model daemon at %s: %w", socket, ctx.Err())
	case errors.Is(err, fs.ErrPermission):
		const remedy = "only root and the user who started the daemon can connect"
		return nil, unavailable(remedy, "model daemon at %s: %w", socket, err)
	}
	return nil, unavailable("start one with 'gfaas-modeld'", "no model daemon at %s: %w", socket, err)
}

// Close closes the connection, which releases everything that it holds.
func (c *Client) Close() error { return c.conn.Close() }

// maxFiles is the largest number of descriptors in an answer.
const maxFiles = 2

// Call sends a request and waits for the answer. The caller keeps the ownership of files and gets that
// of the returned ones. An error is a *wire.Error if the daemon refused the request. If ctx ends during
// the call, the connection is unusable afterwards.
func (c *Client) Call(ctx context.Context, r wire.Request, files ...*os.File) (a wire.Answer, got []*os.File, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.send(r, files); err != nil {
		return a, nil, c.connError(ctx, err)
	}
	buf, oob := make([]byte, wire.MaxAnswer), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, passed, _, _, err := c.conn.ReadMsgUnix(buf, oob)
	if err == nil && n == 0 {
		err = errors.New("the daemon closed the connection")
	}
	if err != nil {
		return a, nil, c.connError(ctx, err)
	}
	got = procfs.ReceivedFiles(oob[:passed], "model")
	if err = json.Unmarshal(buf[:n], &a); err == nil && !a.OK {
		err = a.Error
		if a.Error == nil {
			err = errors.New("the request was refused without a reason")
		}
	}
	if err != nil {
		for _, f := range got {
			_ = f.Close()
		}
		var refused *wire.Error
		if !errors.As(err, &refused) {
			err = fmt.Errorf("cannot read the answer of the model daemon at %s: %w", c.socket, err)
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
	_, _, err = c.conn.WriteMsgUnix(text, procfs.Rights(files...), nil)
	return err
}

// connError returns the error for a failed connection, or for the end of ctx.
func (c *Client) connError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("model daemon at %s: %w", c.socket, ctx.Err())
	}
	return unavailable("look at the daemon's log", "model daemon at %s: %w", c.socket, err)
}

// Models lists the models that a tenant can use or, for "", all models.
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
