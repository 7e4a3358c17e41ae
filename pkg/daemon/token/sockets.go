package token

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/wire"
)

// lockPatience is how long a daemon that is ending may take, MPS included.
const lockPatience = 8 * time.Second

// takeDir makes the run directory and locks it against a second daemon.
func (d *Daemon) takeDir() error {
	if path := d.clientSocket(); len(path) > wire.MaxSocketPath {
		return fmt.Errorf("the path %s is too long for a socket: %d bytes, at most %d", path, len(path), wire.MaxSocketPath)
	}
	if err := os.MkdirAll(d.runDir(), 0o700); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if d.cfg.Private {
		if err := os.Chmod(d.runDir(), 0o700); err != nil {
			return fmt.Errorf("run directory: %w", err)
		}
	}
	for _, dir := range []string{d.instancesDir(), d.clientDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("run directory: %w", err)
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("run directory: %w", err)
		}
	}
	return d.takeLock()
}

// takeLock locks the run directory's lock file. A daemon that holds it without
// answering is on its way in or out and gets a moment.
func (d *Daemon) takeLock() error {
	path := filepath.Join(d.runDir(), "token.lock")
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(lockPatience); ; <-tick.C {
		f, err := tryLock(path)
		switch {
		case f != nil:
			d.lock = f
			if err := noteHolder(f); err != nil { // as on a full disk
				d.log.Warn("cannot note who holds the run directory", "err", err)
			}
			return nil
		case err != nil && !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("lock %s: %w", path, err)
		case err != nil && (answers("unix", d.cfg.Socket) || time.Now().After(deadline)):
			return fmt.Errorf("another gfaas-tokend serves %s%s", d.runDir(), holder(path))
		}
	}
}

// tryLock locks a file that the holder of the lock removes at the end: a lock
// on a file that is gone by then counts for nothing, and is neither file nor
// error here.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, err
	}
	mine, err := f.Stat()
	there, gone := os.Stat(path)
	if err == nil && gone == nil && os.SameFile(mine, there) {
		return f, nil
	}
	_ = f.Close()
	return nil, err
}

// noteHolder writes who holds the lock, for people.
func noteHolder(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := fmt.Fprintln(f, os.Getpid())
	return err
}

// holder says who holds the lock, if it says so.
func holder(path string) string {
	text, err := os.ReadFile(path)
	pid, bad := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || bad != nil {
		return ""
	}
	return fmt.Sprintf(" (process %d)", pid)
}

func (d *Daemon) unlock() {
	if d.lock != nil {
		if !d.orphaned() {
			_ = os.Remove(d.lock.Name())
		}
		_ = d.lock.Close()
		d.lock = nil
	}
}

// orphaned says whether the run directory was taken away under the daemon, as
// happens at a logout: what is there now, if anything, is another daemon's.
func (d *Daemon) orphaned() bool {
	mine, err := d.lock.Stat()
	return err == nil && !isStill(d.lock.Name(), mine)
}

// isStill says whether a path still names that file.
func isStill(path string, file fs.FileInfo) bool {
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(there, file)
}

// bound is a listener that removes its socket when it is closed, and never
// another's that has the path by then.
type bound struct {
	*net.UnixListener
	path string
	file fs.FileInfo // while it listens no other file can be taken for it
	once sync.Once
}

// Close stops listening.
func (b *bound) Close() error {
	b.once.Do(func() {
		if isStill(b.path, b.file) {
			_ = os.Remove(b.path)
		}
	})
	return b.UnixListener.Close()
}

// listen opens the sockets. With the lock held a socket that is there is a
// dead daemon's, unless someone answers.
func (d *Daemon) listen() error {
	control, err := listenUnix("unix", d.cfg.Socket, 0o600)
	if err != nil {
		return err
	}
	d.control = control
	clients, err := listenUnix("unixpacket", d.clientSocket(), 0o600)
	if err != nil {
		return err
	}
	d.common = &entrance{listener: clients}
	if d.cfg.Listen != "" {
		if d.web, err = net.Listen("tcp", d.cfg.Listen); err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
	}
	return nil
}

func answers(network, path string) bool {
	conn, err := net.DialTimeout(network, path, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

func listenUnix(network, path string, mode fs.FileMode) (*bound, error) {
	if answers(network, path) {
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
	l, err := (&net.ListenConfig{Control: refuseRights}).Listen(context.Background(), network, path)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	b := &bound{UnixListener: l.(*net.UnixListener), path: path}
	err = os.Chmod(path, mode)
	if err == nil {
		b.file, err = os.Lstat(path)
	}
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("socket: %w", err)
	}
	b.SetUnlinkOnClose(false)
	return b, nil
}

// closeSockets stops listening and removes the sockets, but for those of
// instances.
func (d *Daemon) closeSockets() {
	if d.control != nil {
		_ = d.control.Close()
	}
	if d.common != nil {
		_ = d.common.listener.Close()
	}
	if d.web != nil {
		_ = d.web.Close()
	}
}
