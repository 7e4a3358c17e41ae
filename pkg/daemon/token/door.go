package token

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	instances "github.com/gfaas/gfaas/pkg/instance"
)

// door is an instance's own entrance, client/INSTANCE/token.sock. Its folder is
// what a container is given: there it finds no other instance's socket, and a
// hello there must be of the instance. The folder stays while the instance is
// known, whatever becomes of the daemon, so that where it is mounted the next
// daemon's socket appears.
type door struct {
	entrance
	dir    string
	folder *os.File // what the socket is bound in: the path may be too long for an address
}

// openDoor makes the folder of an instance and listens in it.
func (d *Daemon) openDoor(id string) (*door, error) {
	o := &door{entrance: entrance{instance: id}, dir: filepath.Join(d.clientDir(), id)}
	dirMode, mode := fs.FileMode(0o700), fs.FileMode(0o600)
	if len(d.cfg.ClientUIDs) > 0 {
		dirMode, mode = 0o711, 0o666 // others come in too, if they get here; SO_PEERCRED tells which
	}
	if err := os.Mkdir(o.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("instance's folder: %w", err)
	}
	if err := os.Chmod(o.dir, dirMode); err != nil {
		return nil, fmt.Errorf("instance's folder: %w", err)
	}
	var err error
	if o.folder, err = os.Open(o.dir); err != nil {
		return nil, fmt.Errorf("instance's folder: %w", err)
	}
	socket := fmt.Sprintf("/proc/self/fd/%d/token.sock", o.folder.Fd())
	if o.listener, err = chassis.Listen("unixpacket", socket, mode, refuseRights); err != nil {
		_ = o.folder.Close()
		return nil, fmt.Errorf("instance's folder %s: %w", o.dir, err)
	}
	return o, nil
}

// enter accepts the processes that come to a door. Locked, so that whoever ends
// the daemon closes it.
func (d *Daemon) enter(o *door) {
	d.conns.Add(1)
	go func() {
		defer d.conns.Done()
		if err := d.accept(&o.entrance); err != nil {
			d.log.Error("an instance's socket is lost", "instance", o.instance, "err", err)
		}
	}()
}

// openDoors opens those of the instances known from before, and removes the
// folders of instances that are not known any more. Locked.
func (d *Daemon) openDoors() {
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
		if inst.door, err = d.openDoor(id); err != nil {
			d.log.Error("an instance has no socket of its own", "instance", id, "err", err)
			continue
		}
		d.enter(inst.door)
	}
}

// close stops listening and removes the socket; the folder stays.
func (o *door) close() {
	if o == nil {
		return
	}
	_ = o.listener.Close()
	_ = o.folder.Close()
}

// remove takes the folder away too.
func (o *door) remove() {
	if o == nil {
		return
	}
	mine, err := o.folder.Stat()
	o.close()
	if there, gone := os.Lstat(o.dir); err == nil && gone == nil && os.SameFile(mine, there) {
		removeFolder(o.dir)
	}
}

// removeFolder removes what openDoor makes and nothing else.
func removeFolder(dir string) {
	_ = os.Remove(filepath.Join(dir, "token.sock"))
	_ = os.Remove(dir)
}
