package model

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	policy "github.com/gfaas/gfaas/pkg/policy/model"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"
)

// server accepts and serves clients.
type server struct {
	*controller
	outlines    *semaphore.Weighted           // limits how many manifests outline reads at once
	processes   map[policy.RequestID]*os.File // pidfds of processes that hold a model (OpHold)
	conns       map[*conn]bool
	listeners   map[string]*chassis.Listener   // by tenant; "" is model.sock
	readerSlots map[reader]*semaphore.Weighted // acquired while a model is being written for this reader
	accepting   *errgroup.Group
	lastUsed    time.Time // when a client or a holder was last seen
}

// socketOf returns the path of a tenant's socket, or of model.sock for "".
func (srv *server) socketOf(tenant string) string {
	if tenant == "" {
		return srv.cfg.Socket
	}
	return filepath.Join(filepath.Dir(srv.cfg.Socket), "model-"+tenant+".sock")
}

// folderOf returns the folder to mount into a tenant's containers. It contains the tenant's socket
// under the name model.sock, also after a restart of the daemon.
func (srv *server) folderOf(tenant string) string {
	return filepath.Join(filepath.Dir(srv.cfg.Socket), "model", tenant)
}

// listen opens the socket of a tenant, or model.sock for "", unless it is open.
func (srv *server) listen(tenant string) error {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if srv.closed {
		return wire.Errorf(wire.CodeInternal, "the daemon is shutting down")
	}
	if srv.listeners[tenant] != nil {
		return nil
	}
	l, err := chassis.Listen("unixpacket", srv.socketOf(tenant), 0o600)
	if err != nil {
		return err
	}
	if tenant == "" {
		l.Own(srv.log)
	} else if err := srv.makeFolder(tenant); err != nil {
		return errors.Join(err, l.Close())
	}
	srv.listeners[tenant] = l
	if srv.accepting != nil {
		srv.accepting.Go(func() error { return srv.accept(l, tenant) })
	}
	return nil
}

// makeFolder links a tenant's socket into the tenant's folder. The folder is never removed, so
// that the socket of the next daemon appears in containers that have the folder mounted.
func (srv *server) makeFolder(tenant string) error {
	dir := srv.folderOf(tenant)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("folder of a tenant's socket: %w", err)
	}
	srv.removeFolder(tenant)
	if err := os.Link(srv.socketOf(tenant), filepath.Join(dir, "model.sock")); err != nil {
		return fmt.Errorf("folder of a tenant's socket: %w", err)
	}
	return nil
}

// removeFolder removes the socket from the tenant's folder, but not the folder.
func (srv *server) removeFolder(tenant string) {
	if tenant != "" {
		_ = os.Remove(filepath.Join(srv.folderOf(tenant), "model.sock"))
	}
}

// accept accepts and serves clients until the listener is closed.
func (srv *server) accept(l *chassis.Listener, tenant string) error {
	accept := chassis.Patiently(srv.log, l.AcceptUnix)
	for {
		socket, err := accept()
		switch {
		case err == nil:
			srv.serve(socket, tenant)
		case errors.Is(err, net.ErrClosed):
			return nil
		default:
			return fmt.Errorf("accept clients: %w", err)
		}
	}
}

func (srv *server) serve(socket *net.UnixConn, tenant string) {
	c := &conn{server: srv, socket: socket, tenant: tenant}
	c.ctx, c.cancel = context.WithCancel(srv.ctx)
	srv.mu.Lock()
	defer srv.mu.Unlock()
	open := 0
	for other := range srv.conns {
		if other.tenant == tenant {
			open++
		}
	}
	if srv.closed || open >= maxConns {
		c.close()
		return
	}
	srv.conns[c] = true
	srv.work.Go(c.run)
}

// closeSockets closes all sockets. The caller holds the lock.
func (srv *server) closeSockets() {
	for tenant, l := range srv.listeners {
		_ = l.Close()
		srv.removeFolder(tenant)
	}
}

// lastUse returns when the daemon was last in use, and reports whether a client is connected.
func (srv *server) lastUse() (last time.Time, connected bool) {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if len(srv.conns) > 0 || srv.policy.InUse() {
		srv.lastUsed = time.Now()
	}
	return srv.lastUsed, len(srv.conns) > 0
}

// readerSlot returns a semaphore for readers with the same key. Other readers never wait for them,
// however slow they read.
func (srv *server) readerSlot(r reader) *semaphore.Weighted {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if srv.readerSlots[r] == nil {
		srv.readerSlots[r] = semaphore.NewWeighted(1)
	}
	return srv.readerSlots[r]
}

// awaitEnd waits until the watched process or the daemon ends.
func (srv *server) awaitEnd(watched *os.File) error {
	raw, err := watched.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(srv.ctx, func() { _ = watched.SetReadDeadline(time.Unix(1, 0)) })()
	return raw.Read(func(fd uintptr) bool {
		for {
			if n, err := unix.EpollWait(int(fd), make([]unix.EpollEvent, 1), 0); !errors.Is(err, unix.EINTR) {
				return n != 0
			}
		}
	})
}
