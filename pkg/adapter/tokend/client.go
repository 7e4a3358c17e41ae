// Package tokend is the client of the token daemon's control socket (see pkg/wire for the
// protocol). It can also start the daemon (Ensure, Starting, Supervise), register a slice for
// the lifetime of a process (Enter), and read the registrations in a run directory without
// the daemon (Registrations, Jobs). The gateway, gfaas run, gfaas-kerneld and gfaas-modeld
// use it.
//
// A Client trusts only run directories of its own user and daemons of its own user or of
// root.
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
	"syscall"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/gpuclaim"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/owndir"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// maxAnswer is the size limit of an answer, in bytes.
const maxAnswer = 16 << 20

// Socket returns the path of the control socket in a run directory.
func Socket(runDir string) string { return filepath.Join(runDir, "token.sock") }

// ClientSocketDir returns the folder of the socket token.sock that processes with the
// preload library connect to.
func ClientSocketDir(runDir string) string { return filepath.Join(runDir, "client") }

// InstanceSocketDir returns the folder of an instance's own socket, token.sock, which
// accepts only that instance. Mount the folder into a container, not the socket, because a
// restarted daemon creates a new socket.
func InstanceSocketDir(runDir, instance string) string {
	return filepath.Join(ClientSocketDir(runDir), instance)
}

// CheckRunDir returns an error if a run directory is unusable: its path is too long for
// sockets, or CheckOwner refuses it.
func CheckRunDir(runDir string) error {
	runDir, err := filepath.Abs(runDir)
	if err != nil {
		return err
	}
	path := filepath.Join(ClientSocketDir(runDir), "token.sock")
	if len(path) > wire.MaxSocketPath {
		return unavailable(fmt.Errorf("the path %s is too long for a socket: %d bytes, at most %d", path, len(path), wire.MaxSocketPath),
			"set GFAAS_RUN_DIR to a shorter path")
	}
	return CheckOwner(runDir)
}

// CheckOwner returns an error if a run directory exists but belongs to another user or is
// writable by other users, because they could put links or sockets into it.
func CheckOwner(runDir string) error {
	root, err := owndir.Open(runDir)
	var refused *owndir.Error
	switch {
	case errors.As(err, &refused), errors.Is(err, fs.ErrPermission): // ErrPermission: the parent folder belongs to another user
		return &owndir.RunDirError{Err: err, Remedy: joinOwner(runDir)}
	case err != nil:
		return nil // callers detect other errors when they use the directory
	}
	return root.Close()
}

// joinOwner returns how to use the token daemon of another user in that user's run directory, or an empty
// string if none listens there.
func joinOwner(runDir string) string {
	runDir, err := filepath.Abs(runDir)
	if err != nil {
		return ""
	}
	info, err := os.Lstat(runDir)
	if err != nil || !info.IsDir() {
		return ""
	}
	uid := int(info.Sys().(*syscall.Stat_t).Uid)
	if uid == os.Geteuid() || !procfs.Listening(Socket(runDir)) {
		return ""
	}
	return "a token daemon runs there; " + gpuclaim.Join(uid, runDir)
}

// Error reports that the daemon refused a request. If no daemon can be used, requests fail
// with a *ports.UnavailableError instead.
type Error struct {
	Message string
	Status  int // HTTP status of the answer
}

func (e *Error) Error() string { return e.Message }

// Unavailable reports whether the daemon is shutting down.
func (e *Error) Unavailable() bool { return e.Status == http.StatusServiceUnavailable }

// unavailable returns the error of a daemon that cannot be used.
func unavailable(err error, remedy string) error {
	return &ports.UnavailableError{Err: err, Remedy: remedy}
}

// Client sends requests to one daemon.
type Client struct {
	socket  string
	runDir  string                      // the directory whose owner is checked; empty if only the socket is known
	restart func(context.Context) error // starts a daemon if none answers; may be nil
}

// Dial returns a client of the daemon of a run directory, which must be the user's own. It
// does not connect yet.
func Dial(runDir string) *Client {
	c := DialSocket(Socket(runDir))
	c.runDir = runDir
	return c
}

// DialSocket returns a client of the daemon at a control socket.
func DialSocket(socket string) *Client { return &Client{socket: socket} }

// dial connects to the daemon and checks that it belongs to the user or to root.
func (c *Client) dial(ctx context.Context) (*net.UnixConn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
	if err != nil {
		return nil, err
	}
	if err := checkPeer(conn.(*net.UnixConn)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// checkPeer returns an error if the daemon runs neither as the current user nor as root. The
// socket alone proves nothing: in a folder of another user, any program can have created it.
func checkPeer(conn *net.UnixConn) error {
	peer, err := procfs.Peer(conn)
	if err != nil {
		return err
	}
	if own := uint32(os.Geteuid()); peer.Uid != own && peer.Uid != 0 {
		return fmt.Errorf("process %d of uid %d listens there, expected a process of yours or of root: %w", peer.Pid, peer.Uid, fs.ErrPermission)
	}
	return nil
}

// hangTime is how long a request may take before the client checks that the daemon answers
// at all.
const hangTime = 2 * time.Second

// Register registers an instance and returns the settings that its processes need.
func (c *Client) Register(ctx context.Context, r wire.Registration) (answer wire.Registered, err error) {
	post := func(ctx context.Context) error { return c.do(ctx, http.MethodPost, "/v1/instances", r, &answer) }
	if c.restart != nil {
		err = c.withRestart(ctx, post)
	} else {
		err = post(ctx)
	}
	if err != nil {
		return answer, fmt.Errorf("register %s: %w", r.Instance, err)
	}
	return answer, nil
}

// withRestart calls request. If there is no daemon, it starts one and calls request again. If
// the first request takes longer than hangTime, withRestart calls restart meanwhile, which starts
// a daemon if none answers. If restart fails, withRestart cancels request, and the error of
// restart is the cause.
func (c *Client) withRestart(ctx context.Context, request func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watch := time.AfterFunc(hangTime, func() {
		if err := c.restart(ctx); err != nil {
			cancel(err)
		}
	})
	defer watch.Stop()
	err := request(ctx)
	if ctx.Err() != nil || !ports.Unavailable(err) {
		return err
	}
	if err := c.restart(ctx); err != nil {
		return err
	}
	return request(ctx)
}

// Change changes the slice of a registered instance.
func (c *Client) Change(ctx context.Context, id string, change wire.Change) error {
	return c.onInstance(ctx, "change", http.MethodPatch, id, "", change)
}

// Unregister removes an instance from the daemon. Processes of the instance that still run can
// no longer use the GPU: their gates stay closed. Unregister returns nil if the instance is
// unknown.
func (c *Client) Unregister(ctx context.Context, id string) error {
	return ignoreNotFound(c.onInstance(ctx, "unregister", http.MethodDelete, id, "", nil))
}

// Release notifies the daemon that the instance's owner (wire.Registration.OwnerPID) is about
// to exit normally. The daemon kills no process of the instance. It removes the instance
// when the last process ends, or at once if there is none. Release returns nil if the instance
// is unknown.
func (c *Client) Release(ctx context.Context, id string) error {
	return ignoreNotFound(c.onInstance(ctx, "leave", http.MethodDelete, id, "/owner", nil))
}

// CheckParking returns an error if the memory of instances on simulated or real GPUs cannot
// be parked.
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

// Park moves all GPU memory of an instance's processes to the host and blocks their driver
// calls until Unpark. It returns when that is complete. After an error, the instance may be
// unusable.
func (c *Client) Park(ctx context.Context, id string) error {
	return c.onInstance(ctx, "park", http.MethodPut, id, "/parked", nil)
}

// Unpark reverses Park. It returns nil if the instance is not parked or unknown. After an
// error, the instance may be unusable.
func (c *Client) Unpark(ctx context.Context, id string) error {
	return ignoreNotFound(c.onInstance(ctx, "unpark", http.MethodDelete, id, "/parked", nil))
}

// Swapper moves the managed memory of instances: the preload library of their processes does it, as
// with GFAAS_OVERSUBSCRIBE.
type Swapper struct{ *Client }

// Park moves all memory of an instance to the host. It returns an error if the instance has work or
// if some memory stays on the GPU. The memory returns with Unpark, or before the instance's next work.
func (s Swapper) Park(ctx context.Context, id string) error {
	return s.onInstance(ctx, "move the memory of", http.MethodPut, id, "/swapped", nil)
}

// Unpark moves the memory of an instance to the GPU, unless the instance has work that does so.
func (s Swapper) Unpark(ctx context.Context, id string) error {
	return s.onInstance(ctx, "move the memory of", http.MethodDelete, id, "/swapped", nil)
}

// onInstance sends a request about an instance. path is relative to the instance's own.
func (c *Client) onInstance(ctx context.Context, operation, method, id, path string, in any) error {
	if err := c.do(ctx, method, "/v1/instances/"+url.PathEscape(id)+path, in, nil); err != nil {
		return fmt.Errorf("%s %s: %w", operation, id, err)
	}
	return nil
}

// Status returns the state of all GPUs and clients.
func (c *Client) Status(ctx context.Context) (s wire.Status, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/status", nil, &s)
	return s, err
}

// Devices returns the memory of all GPUs of the machine, as their drivers report it.
func (c *Client) Devices(ctx context.Context) ([]wire.DeviceMemory, error) {
	var out wire.Devices
	err := c.do(ctx, http.MethodGet, "/v1/devices", nil, &out)
	return out.GPUs, err
}

// Faults returns the fatal CUDA errors of all instances: after such an error, every CUDA call of
// the process fails. Faults returns no errors if the daemon does not support the request.
func (c *Client) Faults(ctx context.Context) ([]wire.InstanceFault, error) {
	return c.faults(ctx, "/v1/faults")
}

// FaultsOf returns the faults of one instance, including all reports that its processes
// sent before they ended.
func (c *Client) FaultsOf(ctx context.Context, id string) ([]wire.InstanceFault, error) {
	return c.faults(ctx, "/v1/faults?instance="+url.QueryEscape(id))
}

func (c *Client) faults(ctx context.Context, path string) ([]wire.InstanceFault, error) {
	var out wire.Faults
	err := ignoreNotFound(c.do(ctx, http.MethodGet, path, nil, &out))
	return out.Faults, err
}

// ignoreNotFound returns err, or nil if err is the status 404.
func ignoreNotFound(err error) error {
	var refused *Error
	if errors.As(err, &refused) && refused.Status == http.StatusNotFound {
		return nil
	}
	return err
}

// do sends a request with in as JSON and decodes the answer into out; both may be nil.
func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	x, err := c.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer x.close()
	text, err := io.ReadAll(io.LimitReader(x.answer.Body, maxAnswer))
	if err != nil {
		return c.unreachable(ctx, err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("cannot read the answer of the token daemon at %s: %w", c.socket, err)
	}
	return nil
}

// exchange is a request and the head of its answer, which has a status 2xx.
type exchange struct {
	conn   *net.UnixConn
	answer *http.Response
	stop   func() bool // makes the connection independent of the request's context
}

func (x *exchange) close() {
	x.stop()
	_ = x.conn.Close()
}

// send sends a request with in as JSON, unless in is nil, on a new connection. It returns an error if the run directory
// does not belong to the user. It does not use http.Transport, which would start two goroutines and keep an idle
// connection: a daemon that shuts down would wait for that connection.
func (c *Client) send(ctx context.Context, method, path string, in any) (*exchange, error) {
	if c.runDir != "" {
		if err := CheckOwner(c.runDir); err != nil {
			return nil, err
		}
	}
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://tokend"+path, body)
	if err != nil {
		return nil, err
	}
	req.Close = true
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	x := &exchange{conn: conn, stop: context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })}
	if err = req.Write(conn); err == nil {
		x.answer, err = http.ReadResponse(bufio.NewReader(conn), req)
	}
	switch {
	case err != nil:
		err = c.unreachable(ctx, err)
	case x.answer.StatusCode/100 != 2:
		var problem wire.Problem
		text, _ := io.ReadAll(io.LimitReader(x.answer.Body, maxAnswer))
		if json.Unmarshal(text, &problem) != nil || problem.Message == "" {
			problem.Message = "unexpected status " + x.answer.Status
		}
		err = &Error{problem.Message, x.answer.StatusCode}
	default:
		return x, nil
	}
	x.close()
	return nil, err
}

// unreachable returns the error of a failed connection. It distinguishes a cancelled
// request from a daemon that is not running.
func (c *Client) unreachable(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != ctx.Err() { // cancelled with a cause, as by withRestart
		return cause
	}
	if ctx.Err() != nil {
		return fmt.Errorf("token daemon at %s: %w", c.socket, ctx.Err())
	}
	if errors.Is(err, fs.ErrPermission) {
		return unavailable(fmt.Errorf("token daemon at %s: %w", c.socket, err), owndir.Hint)
	}
	if err := CheckRunDir(filepath.Dir(c.socket)); err != nil {
		return err
	}
	return unavailable(fmt.Errorf("no token daemon at %s: %w", c.socket, err),
		"start one with 'gfaas-tokend', or start a program with 'gfaas run'")
}

// answers reports whether a daemon serves the socket.
func (c *Client) answers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, hangTime)
	defer cancel()
	_, err := c.Status(ctx)
	return err == nil
}
