// Package tokend speaks to the token daemon's control socket, and starts the
// daemon where there is none.
package tokend

import (
	"bufio"
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
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/owndir"
	"github.com/gfaas/gfaas/pkg/wire"
)

// maxAnswer is the largest answer that is read, in bytes.
const maxAnswer = 16 << 20

// Socket is the control socket of a run directory.
func Socket(runDir string) string { return filepath.Join(runDir, "token.sock") }

// ClientSocketDir is the folder of the socket that processes under the preload
// library connect to, token.sock.
func ClientSocketDir(runDir string) string { return filepath.Join(runDir, "client") }

// InstanceSocketDir is the folder of an instance's own socket, token.sock, at
// which nobody else comes in. Mount the folder into a container, not the
// socket: a restarted daemon makes a new one.
func InstanceSocketDir(runDir, instance string) string {
	return filepath.Join(ClientSocketDir(runDir), instance)
}

// CheckRunDir says whether a run directory can be used: sockets fit into it, since
// the system bounds their paths, and CheckOwner has nothing against it.
func CheckRunDir(runDir string) error {
	runDir, err := filepath.Abs(runDir)
	if err != nil {
		return err
	}
	path := filepath.Join(ClientSocketDir(runDir), "token.sock")
	if len(path) > wire.MaxSocketPath {
		return &Error{
			Err:     fmt.Errorf("the path %s is too long for a socket: %d bytes, at most %d", path, len(path), wire.MaxSocketPath),
			Missing: true, Remedy: "set GFAAS_RUN_DIR to a shorter path",
		}
	}
	return CheckOwner(runDir)
}

// RunDirError returns the error of a run directory that cannot be made or used. Its
// hint names the variable that chooses another.
func RunDirError(err error) error {
	return &Error{Err: fmt.Errorf("run directory: %w", err), Missing: true, Remedy: ownRunDir}
}

// CheckOwner says whether a run directory, if it is there, is the user's own and
// nobody else can write to it: others could put links in it, and answer there.
func CheckOwner(runDir string) error {
	root, err := owndir.Open(runDir)
	var refused *owndir.Error
	switch {
	case errors.As(err, &refused), errors.Is(err, fs.ErrPermission): // or in a folder of another user's, which hides it
		return RunDirError(err)
	case err != nil:
		return nil // what else is the matter, who uses it finds out
	}
	return root.Close()
}

// Error is a failure to reach the daemon, or its refusal.
type Error struct {
	Err     error
	Status  int // of the HTTP answer; 0 when there was none
	Missing bool
	Remedy  string
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Unavailable says that there is no daemon.
func (e *Error) Unavailable() bool { return e.Missing }

// Hint says what to do about it.
func (e *Error) Hint() string { return e.Remedy }

// Client speaks to one daemon.
type Client struct {
	socket string
	runDir string                      // whose owner is looked at; empty of a socket that was named
	revive func(context.Context) error // starts the daemon again if it has left
}

// Dial is a client of the daemon of that run directory, which must be the user's
// own. Nothing is sent yet.
func Dial(runDir string) *Client {
	c := DialSocket(Socket(runDir))
	c.runDir = runDir
	return c
}

// DialSocket is a client of the daemon at that control socket.
func DialSocket(socket string) *Client { return &Client{socket: socket} }

// dial connects to the daemon, if it is one of the user's.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
	if err != nil {
		return nil, err
	}
	if err := checkPeer(conn.(*net.UnixConn)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// checkPeer refuses a daemon of another user, root's aside: in a folder that is not
// the user's own anybody can have put a socket.
func checkPeer(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if own := uint32(os.Geteuid()); peer.Uid != own && peer.Uid != 0 {
		return fmt.Errorf("process %d of user %d listens there, not one of yours: %w", peer.Pid, peer.Uid, fs.ErrPermission)
	}
	return nil
}

// hangTime is how long a daemon may take for an answer until it is looked at whether
// it answers at all.
const hangTime = 2 * time.Second

// Register makes an instance known to the daemon, which says what else its
// processes need.
func (c *Client) Register(ctx context.Context, r wire.Registration) (answer wire.Registered, err error) {
	post := func(ctx context.Context) error { return c.do(ctx, http.MethodPost, "/v1/instances", r, &answer) }
	if c.revive != nil {
		err = c.reviving(ctx, post)
	} else {
		err = post(ctx)
	}
	if err != nil {
		return answer, fmt.Errorf("register %s: %w", r.Instance, err)
	}
	return answer, nil
}

// reviving asks the daemon, and starts one where there is none. One that does not
// answer in time fails as if it were to be started, unless it is only slow with this.
func (c *Client) reviving(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(hangTime, func() {
		if err := c.revive(ctx); err != nil {
			cancel(err)
		}
	})
	defer watch.Stop()
	err := ask(ctx)
	var gone *Error
	if ctx.Err() != nil || !errors.As(err, &gone) || !gone.Missing {
		return err
	}
	if err := c.revive(ctx); err != nil {
		return err
	}
	return ask(ctx)
}

// Change changes the slice of an instance that is known.
func (c *Client) Change(ctx context.Context, id string, change wire.Change) error {
	if err := c.do(ctx, http.MethodPatch, "/v1/instances/"+url.PathEscape(id), change, nil); err != nil {
		return fmt.Errorf("change %s: %w", id, err)
	}
	return nil
}

// Unregister makes the daemon forget an instance and gate its processes for
// good. An instance that is not known is no error.
func (c *Client) Unregister(ctx context.Context, id string) error {
	err := c.do(ctx, http.MethodDelete, "/v1/instances/"+url.PathEscape(id), nil, nil)
	var refused *Error
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unregister %s: %w", id, err)
	}
	return nil
}

// Leave tells the daemon that an instance's owner ends in order: the instance goes
// with the last of its processes, at once if there is none. An instance that is not
// known is no error.
func (c *Client) Leave(ctx context.Context, id string) error {
	err := c.do(ctx, http.MethodDelete, "/v1/instances/"+url.PathEscape(id)+"/owner", nil, nil)
	var refused *Error
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return fmt.Errorf("leave %s: %w", id, err)
	}
	return nil
}

// CheckParking says why what instances hold on GPUs, simulated or real ones, cannot
// wait on the host, if so.
func (c *Client) CheckParking(ctx context.Context, simulated bool) error {
	path := "/v1/parking"
	if simulated {
		path += "?gpu=sim"
	}
	if err := c.do(ctx, http.MethodGet, path, nil, nil); err != nil {
		return fmt.Errorf("park memory: %w", err)
	}
	return nil
}

// Park has all that an instance's processes hold on GPUs wait on the host, and the
// processes' calls of the driver with it, until Unpark. It returns when that is so.
// After an error the instance may be good for nothing any more.
func (c *Client) Park(ctx context.Context, id string) error {
	if err := c.do(ctx, http.MethodPut, "/v1/instances/"+url.PathEscape(id)+"/parked", nil, nil); err != nil {
		return fmt.Errorf("park %s: %w", id, err)
	}
	return nil
}

// Unpark brings back what Park has moved; an instance that is not parked, or not known,
// is no error. After an error the instance may be good for nothing any more.
func (c *Client) Unpark(ctx context.Context, id string) error {
	err := c.do(ctx, http.MethodDelete, "/v1/instances/"+url.PathEscape(id)+"/parked", nil, nil)
	var refused *Error
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound { // of a daemon that parks nothing, too
		return nil
	}
	if err != nil {
		return fmt.Errorf("unpark %s: %w", id, err)
	}
	return nil
}

// Status asks how all GPUs and clients stand.
func (c *Client) Status(ctx context.Context) (s wire.Status, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/status", nil, &s)
	return s, err
}

// Faults returns the CUDA errors that have ended the use of CUDA by processes of
// instances. A daemon that does not keep them has none.
func (c *Client) Faults(ctx context.Context) ([]wire.InstanceFault, error) {
	return c.faults(ctx, "/v1/faults")
}

// FaultsOf is Faults of one instance. All that its processes have reported before they ended
// is in it.
func (c *Client) FaultsOf(ctx context.Context, id string) ([]wire.InstanceFault, error) {
	return c.faults(ctx, "/v1/faults?instance="+url.QueryEscape(id))
}

func (c *Client) faults(ctx context.Context, path string) ([]wire.InstanceFault, error) {
	var out wire.Faults
	err := c.do(ctx, http.MethodGet, path, nil, &out)
	var refused *Error
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return nil, nil
	}
	return out.Faults, err
}

func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://tokend"+path, body)
	if err != nil {
		return err
	}
	if c.runDir != "" {
		if err := CheckOwner(c.runDir); err != nil {
			return err
		}
	}
	answer, text, err := c.ask(req)
	if err != nil {
		return c.unreachable(ctx, err)
	}
	if answer.StatusCode/100 != 2 {
		return refusal(answer, text)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("answer of the token daemon at %s: %w", c.socket, err)
	}
	return nil
}

// refusal is the error of an answer that is not 2xx.
func refusal(answer *http.Response, text []byte) *Error {
	problem := wire.Problem{}
	if json.Unmarshal(text, &problem) != nil || problem.Message == "" {
		problem.Message = answer.Status
	}
	leaving := answer.StatusCode == http.StatusServiceUnavailable
	return &Error{Err: errors.New(problem.Message), Status: answer.StatusCode, Missing: leaving}
}

// ask sends one request over a connection of its own and reads the answer. An
// http.Transport would start two threads of control for it, and keep a connection
// that a daemon which leaves would wait for.
func (c *Client) ask(req *http.Request) (answer *http.Response, text []byte, err error) {
	ctx := req.Context()
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	req.Close = true
	if err := req.Write(conn); err != nil {
		return nil, nil, err
	}
	if answer, err = http.ReadResponse(bufio.NewReader(conn), req); err != nil {
		return nil, nil, err
	}
	text, err = io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	return answer, text, errors.Join(err, answer.Body.Close())
}

// unreachable tells a daemon that is not there from a caller that gave up.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != ctx.Err() { // not just ended
		return cause
	}
	if ctx.Err() != nil {
		return fmt.Errorf("token daemon at %s: %w", c.socket, ctx.Err())
	}
	if errors.Is(err, fs.ErrPermission) {
		return &Error{Err: fmt.Errorf("token daemon at %s: %w", c.socket, err), Missing: true, Remedy: ownRunDir}
	}
	if err := CheckRunDir(filepath.Dir(c.socket)); err != nil {
		return err
	}
	return &Error{
		Err: fmt.Errorf("no token daemon at %s: %w", c.socket, err), Missing: true,
		Remedy: "start one with 'gfaas-tokend', or start a program with 'gfaas run'",
	}
}

// answers says whether a daemon serves the socket.
func (c *Client) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, hangTime)
	defer cancel()
	_, err := c.Status(ctx)
	return err == nil
}
