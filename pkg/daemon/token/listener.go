package token

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	instances "github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// maxUnknown is how many connections of a listener may be open before their
// hello. For one more the oldest has to go: who says hello at once, as the
// preload library does, comes through even while others use them all up.
const maxUnknown = 256

// listener is a socket that processes connect to.
type listener struct {
	socket   *chassis.Listener
	instance string          // whose processes may connect here; empty is any
	unknown  []*net.UnixConn // whose hello has not come, oldest first
}

// wait notes a connection whose hello is awaited. Locked.
func (l *listener) wait(conn *net.UnixConn) {
	if len(l.unknown) == maxUnknown {
		go l.unknown[0].Close() // its hello is awaited no longer
		l.unknown = slices.Delete(l.unknown, 0, 1)
	}
	l.unknown = append(l.unknown, conn)
}

// done says that the hello of a connection is awaited no more. Locked.
func (l *listener) done(conn *net.UnixConn) {
	if at := slices.Index(l.unknown, conn); at >= 0 {
		l.unknown = slices.Delete(l.unknown, at, at+1)
	}
}

// accept awaits the hello of each process that connects.
func (d *Daemon) accept(l *listener) error {
	for {
		conn, err := l.socket.AcceptUnix()
		switch {
		case err == nil:
			d.receive(conn, l)
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS):
			d.faults.warn("cannot accept", "err", err)
			time.Sleep(100 * time.Millisecond)
		case errors.Is(err, unix.ECONNABORTED):
		default:
			return fmt.Errorf("accept clients: %w", err)
		}
	}
}

// sendBuffer bounds the kernel memory of a connection, in bytes: a client that
// reads has at most a few messages there.
const sendBuffer = 8 << 10

// receive awaits the hello of a connection.
func (d *Daemon) receive(conn *net.UnixConn, l *listener) {
	_ = conn.SetWriteBuffer(sendBuffer)
	if d.locked(func() {
		d.greeting[conn] = true
		d.conns.Add(1)
	}) != nil {
		_ = conn.Close()
		return
	}
	go d.greet(conn, l)
}

// instanceListener is an instance's own, client/INSTANCE/token.sock. Its folder is
// what a container is given: there it finds no other instance's socket, and a
// hello there must be of the instance. The folder stays while the instance is
// known, whatever becomes of the daemon, so that where it is mounted the next
// daemon's socket appears.
type instanceListener struct {
	listener
	dir    string
	folder *os.File // what the socket is bound in: the path may be too long for an address
}

// openListener makes the folder of an instance and listens in it.
func (d *Daemon) openListener(id string) (*instanceListener, error) {
	l := &instanceListener{listener: listener{instance: id}, dir: filepath.Join(d.clientDir(), id)}
	dirMode, mode := fs.FileMode(0o700), fs.FileMode(0o600)
	if len(d.cfg.ClientUIDs) > 0 {
		dirMode, mode = 0o711, 0o666 // others may connect too, if they get here; SO_PEERCRED tells which
	}
	if err := os.Mkdir(l.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("instance's folder: %w", err)
	}
	if err := os.Chmod(l.dir, dirMode); err != nil {
		return nil, fmt.Errorf("instance's folder: %w", err)
	}
	var err error
	if l.folder, err = os.Open(l.dir); err != nil {
		return nil, fmt.Errorf("instance's folder: %w", err)
	}
	path := procfs.OpenFile(l.folder.Fd()) + "/token.sock"
	if l.socket, err = chassis.Listen("unixpacket", path, mode, refuseRights); err != nil {
		_ = l.folder.Close()
		return nil, fmt.Errorf("instance's folder %s: %w", l.dir, err)
	}
	return l, nil
}

// acceptAt accepts the processes of an instance. Locked, so that whoever ends the
// daemon closes its listener.
func (d *Daemon) acceptAt(l *instanceListener) {
	d.conns.Add(1)
	go func() {
		defer d.conns.Done()
		if err := d.accept(&l.listener); err != nil {
			d.log.Error("an instance's socket is lost", "instance", l.instance, "err", err)
		}
	}()
}

// openListeners opens those of the instances known from before, and removes the
// folders of instances that are not known any more. Locked.
func (d *Daemon) openListeners() {
	folders, err := os.ReadDir(d.clientDir())
	if err != nil {
		d.log.Error("cannot look for folders of instances", "err", err)
	}
	for _, f := range folders {
		if f.IsDir() && instances.ValidID(f.Name()) && d.instances[f.Name()] == nil {
			removeFolder(filepath.Join(d.clientDir(), f.Name()))
		}
	}
	for id, inst := range d.instances {
		if inst.listener, err = d.openListener(id); err != nil {
			d.log.Error("an instance has no socket of its own", "instance", id, "err", err)
			continue
		}
		d.acceptAt(inst.listener)
	}
}

// close stops listening and removes the socket; the folder stays.
func (l *instanceListener) close() {
	if l == nil {
		return
	}
	_ = l.socket.Close()
	_ = l.folder.Close()
}

// remove takes the folder away too.
func (l *instanceListener) remove() {
	if l == nil {
		return
	}
	mine, err := l.folder.Stat()
	l.close()
	if there, gone := os.Lstat(l.dir); err == nil && gone == nil && os.SameFile(mine, there) {
		removeFolder(l.dir)
	}
}

// removeFolder removes what openListener makes, and what starters of containers put
// beside it, and nothing else.
func removeFolder(dir string) {
	for _, name := range []string{"token.sock", "ld.so.preload", "slice", "docker.env"} {
		_ = os.Remove(filepath.Join(dir, name))
	}
	_ = os.Remove(dir)
}
