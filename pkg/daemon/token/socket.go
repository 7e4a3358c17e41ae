package token

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// instanceSocket is an instance's own socket, client/INSTANCE/token.sock. A container receives only
// this folder, so it cannot reach another instance's socket, and a hello on this socket must be for
// this instance. The folder exists while the instance is registered, even between daemons, so that
// the next daemon's socket appears where the folder is mounted.
type instanceSocket struct {
	*chassis.Listener
	instance string
	dir      string
	folder   *os.File // the socket is bound relative to it, because the path may be too long for an address
}

// openSocket creates the folder of an instance and listens in it. With ClientUIDs, the modes of
// folder and socket also admit other users.
func openSocket(cfg *Config, id string) (*instanceSocket, error) {
	l := &instanceSocket{instance: id, dir: filepath.Join(filepath.Dir(cfg.Socket), "client", id)}
	dirMode, mode := fs.FileMode(0o700), fs.FileMode(0o600)
	if len(cfg.ClientUIDs) > 0 {
		dirMode, mode = 0o711, 0o666 // the daemon checks the user with SO_PEERCRED
	}
	if err := os.Mkdir(l.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("folder of the instance's socket: %w", err)
	}
	if err := os.Chmod(l.dir, dirMode); err != nil {
		return nil, fmt.Errorf("folder of the instance's socket: %w", err)
	}
	var err error
	if l.folder, err = os.Open(l.dir); err != nil {
		return nil, fmt.Errorf("folder of the instance's socket: %w", err)
	}
	path := procfs.OpenFile(l.folder.Fd()) + "/token.sock"
	if l.Listener, err = chassis.Listen("unixpacket", path, mode); err != nil {
		_ = l.folder.Close()
		return nil, fmt.Errorf("folder of the instance's socket %s: %w", l.dir, err)
	}
	return l, nil
}

// close stops listening and removes the socket. The folder remains.
func (l *instanceSocket) close() {
	if l == nil {
		return
	}
	_ = l.Close()
	_ = l.folder.Close()
}

// remove closes the socket and removes its folder, unless the folder has been replaced.
func (l *instanceSocket) remove() {
	if l == nil {
		return
	}
	own, err1 := l.folder.Stat()
	l.close()
	if now, err2 := os.Lstat(l.dir); err1 == nil && err2 == nil && os.SameFile(own, now) {
		removeFolder(l.dir)
	}
}

// removeFolder removes a folder with the files that openSocket and the starters of containers create
// in it. It does not remove a folder with other files.
func removeFolder(dir string) {
	for _, name := range []string{"token.sock", "ld.so.preload", "slice", "docker.env"} {
		_ = os.Remove(filepath.Join(dir, name))
	}
	_ = os.Remove(dir)
}
