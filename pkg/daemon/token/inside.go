package token

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// What runs inside an instance may not decide who runs on the GPU, though it is of
// the same user and finds the control socket; nor may it pass for a process of
// another instance, whose secret it may have read somewhere. Whether a process is
// inside one is told by its ancestors: one that began with the instance's
// environment, is connected as its process, or is its owner. It is no proof: a
// process that means to can lose its ancestors and its environment.

// maxAncestors bounds how far up is looked.
const maxAncestors = 64

// ancestor is a process or one that it descends from.
type ancestor struct {
	procfs.Stat
	instance string // that it began in, of this daemon; empty is none
}

// ancestors are a process and those above it, from the bottom up to process 1, or
// to the one that entered this process namespace from outside. It is empty if there
// is no such process.
func (d *Daemon) ancestors(pid int) (out []ancestor, err error) {
	for range maxAncestors {
		if pid == 0 {
			break
		}
		s, err := procfs.Read(pid)
		if procfs.Gone(err) {
			break
		}
		var env map[string]string
		if err == nil {
			env, err = procfs.Environ(pid)
		}
		if err != nil {
			return nil, fmt.Errorf("look at process %d: %w", pid, err)
		}
		out = append(out, ancestor{s, cmp.Or(d.beganIn(env), d.beganInContainer(pid, env))})
		pid = s.Parent
	}
	return out, nil
}

// beganIn is the instance of this daemon that a process was started in which has
// that environment.
func (d *Daemon) beganIn(env map[string]string) string {
	id, socket := env["GFAAS_INSTANCE"], env["GFAAS_SOCKET"]
	if id == "" || !sameFile(socket, d.clientSocket()) && !sameFile(socket, filepath.Join(d.clientDir(), id, "token.sock")) {
		return ""
	}
	return id
}

// beganInContainer is beganIn for a process in a container, where the socket has another
// path than here.
func (d *Daemon) beganInContainer(pid int, env map[string]string) string {
	id := env["GFAAS_INSTANCE"]
	if id == "" || !sameFileOf(pid, env["GFAAS_SOCKET"], filepath.Join(d.clientDir(), id, "token.sock")) {
		return ""
	}
	return id
}

func sameFile(a, b string) bool {
	one, err1 := os.Stat(a)
	two, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(one, two)
}

// sameFileOf is sameFile for a path as a process sees it. No link in the path leads out
// of the process's root.
func sameFileOf(pid int, path, own string) bool {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return false
	}
	defer root.Close()
	one, err1 := root.Stat(strings.TrimPrefix(path, "/"))
	two, err2 := os.Stat(own)
	return err1 == nil && err2 == nil && os.SameFile(one, two)
}

// inside is the instance, if any but that one, that a process with these ancestors
// is in. What the daemon's own process has started is in none. Locked.
func (d *Daemon) inside(above []ancestor, but string) string {
	for n, a := range above {
		if a.PID == os.Getpid() {
			return ""
		}
		if a.instance != but && d.instances[a.instance] != nil {
			return a.instance
		}
		for _, c := range d.clients {
			if id := c.alloc.inst.reg.Instance; c.pid == a.PID && c.start == a.Start && id != but && a.PID != os.Getppid() { // who starts daemons may stand for many
				return id
			}
		}
		for id, i := range d.instances {
			if n > 0 && i.reg.OwnerPID == a.PID && i.ownerStart == a.Start && id != but {
				return id
			}
		}
	}
	return ""
}

type connKey struct{}

// withConn has requests know the connection that they come by.
func withConn(s *http.Server) {
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
}

// fromOutside answers requests of processes that are in no instance, and refuses
// the others'.
func (d *Daemon) fromOutside(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := d.outsider(r); err != nil {
			problem(w, http.StatusForbidden, err)
			return
		}
		next(w, r)
	}
}

// peerOf returns the process at the other end of a request's connection.
func peerOf(r *http.Request) (unix.Ucred, error) {
	conn, ok := r.Context().Value(connKey{}).(*net.UnixConn)
	if !ok {
		return unix.Ucred{}, errors.New("cannot determine the process at the other end of the connection")
	}
	return chassis.Peer(conn)
}

func (d *Daemon) outsider(r *http.Request) error {
	cred, err := peerOf(r)
	if err != nil {
		return err
	}
	if cred.Pid == 0 { // of another process namespace: nothing can be told
		return nil
	}
	above, err := d.ancestors(int(cred.Pid))
	if err != nil {
		return err
	}
	if len(above) == 0 {
		return fmt.Errorf("process %d, which asks, has ended", cred.Pid)
	}
	var id string
	if err := d.locked(func() { id = d.inside(above, "") }); err != nil || id == "" {
		return err
	}
	d.faults.warn("a process of an instance wants to change what is registered", "instance", id, "pid", cred.Pid, "request", r.Method+" "+r.URL.Path)
	return fmt.Errorf("process %d runs inside instance %s: only from outside of all instances is anything registered or removed", cred.Pid, id)
}
