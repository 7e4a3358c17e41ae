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

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/wire"
)

// SocketOption sets an option of a socket before it is bound, as
// net.ListenConfig.Control does.
type SocketOption = func(network, address string, raw syscall.RawConn) error

// Listener is a unix socket that is removed when it is closed, and never another
// that has its path by then.
type Listener struct {
	*net.UnixListener
	path string
	file fs.FileInfo // while it listens no other file can be taken for it
	once sync.Once

	own  *slog.Logger // told of strangers; nil: whoever may connect is accepted
	said time.Time    // when it was
}

// LongPathError says that a path is too long for a unix socket's address.
type LongPathError struct{ Path string }

func (e *LongPathError) Error() string {
	return fmt.Sprintf("the path %s is too long for a socket: %d bytes, at most %d", e.Path, len(e.Path), wire.MaxSocketPath)
}

// Unavailable marks the error for the exit status.
func (e *LongPathError) Unavailable() bool { return true }

// Hint says what to do about it.
func (e *LongPathError) Hint() string { return "set GFAAS_RUN_DIR to a shorter path" }

// CheckPath says whether a socket can have that path: a *LongPathError if not.
func CheckPath(path string) error {
	if len(path) > wire.MaxSocketPath {
		return &LongPathError{path}
	}
	return nil
}

// Listen opens a socket ("unix" or "unixpacket") of that mode. In a run directory
// that is ours a socket that is there is a dead daemon's, unless somebody answers;
// anything else that is there is an error.
func Listen(network, path string, mode fs.FileMode, option SocketOption) (*Listener, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	if Answers(network, path) {
		return nil, fmt.Errorf("another daemon answers at %s", path)
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("%s is there and is no socket", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("dead socket: %w", err)
		}
	}
	inner, err := bind(network, path, mode, option)
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

// bind makes the socket, with no more rights than mode from the start: Linux gives a
// path those of the socket that is bound to it, less the umask.
func bind(network, path string, mode fs.FileMode, option SocketOption) (net.Listener, error) {
	config := net.ListenConfig{Control: func(network, address string, raw syscall.RawConn) error {
		var err error
		if failed := raw.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), uint32(mode.Perm())) }); failed != nil || err != nil {
			return errors.Join(failed, err)
		}
		if option == nil {
			return nil
		}
		return option(network, address, raw)
	}}
	return config.Listen(context.Background(), network, path)
}

// Own has nobody accepted but programs of the daemon's own user and of root, whatever
// has become of the socket's mode: others are hung up on, and the log is told, no more
// often than each minute. It is called before the first Accept.
func (l *Listener) Own(log *slog.Logger) { l.own = log }

// Accept is AcceptUnix.
func (l *Listener) Accept() (net.Conn, error) {
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// AcceptUnix waits for the next connection. One goroutine at a time may call it.
func (l *Listener) AcceptUnix() (*net.UnixConn, error) {
	for {
		conn, err := l.UnixListener.AcceptUnix()
		if err != nil || l.own == nil {
			return conn, err
		}
		peer, err := Peer(conn)
		if err == nil && (peer.Uid == 0 || int(peer.Uid) == os.Geteuid()) {
			return conn, nil
		}
		_ = conn.Close()
		if now := time.Now(); err == nil && (l.said.IsZero() || now.Sub(l.said) >= strangerSaid) {
			l.said = now
			l.own.Warn("another user connects and is hung up on", "socket", l.path, "uid", peer.Uid, "pid", peer.Pid)
		}
	}
}

// strangerSaid is for how long it is not said again that one connects.
const strangerSaid = time.Minute

// Peer is who is at the other end, as it was when it connected: a process number of 0
// is one that this process cannot see.
func Peer(conn *net.UnixConn) (cred unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return cred, err
	}
	var got *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return cred, err
	}
	if failed != nil {
		return cred, fmt.Errorf("who connects: %w", failed)
	}
	return *got, nil
}

// Close stops listening and removes the socket.
func (l *Listener) Close() error {
	l.once.Do(func() {
		if there, err := os.Lstat(l.path); err == nil && os.SameFile(there, l.file) {
			_ = os.Remove(l.path)
		}
	})
	return l.UnixListener.Close()
}

// Answers says whether somebody listens at a unix socket.
func Answers(network, path string) bool {
	conn, err := net.DialTimeout(network, path, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}
