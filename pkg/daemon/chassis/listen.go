package chassis

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Listener is a unix socket whose Close removes its file, unless another file has replaced
// it at the path.
type Listener struct {
	*net.UnixListener
	path      string
	file      fs.FileInfo // the socket's file; its inode cannot be reused while the socket is open
	closeOnce sync.Once

	own        *slog.Logger // logs refused clients of other users; nil accepts all clients
	lastLogged time.Time    // time of the last such log entry
}

// CheckPath returns a *ports.UnavailableError if the path is too long for a unix socket.
func CheckPath(path string) error {
	if len(path) <= wire.MaxSocketPath {
		return nil
	}
	return &ports.UnavailableError{
		Err:    fmt.Errorf("the path %s is too long for a socket: %d bytes, at most %d", path, len(path), wire.MaxSocketPath),
		Remedy: "set GFAAS_RUN_DIR to a shorter path",
	}
}

// Listen opens a socket ("unix" or "unixpacket") with the given mode. It removes a socket
// at the path that does not answer, since in a run directory of ours that belongs to a dead
// daemon. It returns an error if a daemon answers at the path or if the path is another
// kind of file.
func Listen(network, path string, mode fs.FileMode) (*Listener, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	if Answers(network, path) {
		return nil, fmt.Errorf("another daemon answers at %s", path)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("%s exists and is not a socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("remove the unused socket: %w", err)
		}
	}
	inner, err := bind(network, path, mode)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	l := &Listener{UnixListener: inner.(*net.UnixListener), path: path}
	err = os.Chmod(path, mode)
	if err == nil {
		l.file, err = os.Lstat(path)
	}
	if err != nil {
		_ = inner.Close()
		return nil, fmt.Errorf("socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}

// bind creates the socket with at most the permissions of mode from the start: on Linux,
// the file of a bound socket gets the socket's own mode, reduced by the umask.
func bind(network, path string, mode fs.FileMode) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		failed := raw.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), uint32(mode.Perm())) })
		return errors.Join(failed, err)
	}}
	return config.Listen(context.Background(), network, path)
}

// Own restricts the socket to processes of the daemon's own user and of root, whatever the
// mode of its file. Connections of other users are closed and logged, at most once a
// minute. Call it before the first Accept.
func (l *Listener) Own(log *slog.Logger) { l.own = log }

// Accept calls AcceptUnix.
func (l *Listener) Accept() (net.Conn, error) {
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// AcceptUnix waits for the next connection, of a permitted user if Own was called. One
// goroutine at a time may call it.
func (l *Listener) AcceptUnix() (*net.UnixConn, error) {
	for {
		conn, err := l.UnixListener.AcceptUnix()
		if err != nil || l.own == nil {
			return conn, err
		}
		peer, err := procfs.Peer(conn)
		if err == nil && (peer.Uid == 0 || int(peer.Uid) == os.Geteuid()) {
			return conn, nil
		}
		_ = conn.Close()
		if now := time.Now(); err == nil && (l.lastLogged.IsZero() || now.Sub(l.lastLogged) >= refusedLogEvery) {
			l.lastLogged = now
			l.own.Warn("refused a connection of another user", "socket", l.path, "uid", peer.Uid, "pid", peer.Pid)
		}
	}
}

// refusedLogEvery is the shortest time between two log entries about connections of other
// users.
const refusedLogEvery = time.Minute

// Close stops listening and removes the socket's file.
func (l *Listener) Close() error {
	l.closeOnce.Do(func() {
		if there, err := os.Lstat(l.path); err == nil && os.SameFile(there, l.file) {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}

// Answers reports whether a process accepts connections at a unix socket.
func Answers(network, path string) bool {
	conn, err := net.DialTimeout(network, path, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}
