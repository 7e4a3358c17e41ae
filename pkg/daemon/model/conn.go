package model

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	policy "github.com/gfaas/gfaas/pkg/policy/model"
	"github.com/gfaas/gfaas/pkg/procfs"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

const (
	maxConns   = 4096 // of one socket
	maxAtOnce  = 64   // requests of a connection that are being answered
	mostRights = 253  // descriptors that a packet can carry: the kernel's SCM_MAX_FD
)

// conn is a client's connection. What its requests were granted it holds until its
// end.
type conn struct {
	d      *Daemon
	socket *net.UnixConn
	tenant string // it speaks for; empty: default, and any that it names
	ctx    context.Context
	cancel context.CancelFunc

	pid   int    // of the process that connected; 0: it has no number here
	start uint64 // when it began; 0: it had ended

	sending sync.Mutex

	mu      sync.Mutex
	holds   []hold // in the order they were got
	running int
}

// hold is a copy that a connection holds.
type hold struct {
	request    policy.RequestID
	as         string // the tenant by whose names it was got
	key        policy.Key
	generation int64
	store      policy.CopyID // not committed yet; else 0
}

// socketOf is the path of a tenant's socket; of model.sock for "".
func (d *Daemon) socketOf(tenant string) string {
	if tenant == "" {
		return d.cfg.Socket
	}
	return filepath.Join(filepath.Dir(d.cfg.Socket), "model-"+tenant+".sock")
}

// folderOf is what a container of a tenant is given: its socket is there by the
// name model.sock, and so is the next daemon's.
func (d *Daemon) folderOf(tenant string) string {
	return filepath.Join(filepath.Dir(d.cfg.Socket), "model", tenant)
}

// listen opens the socket of a tenant, or model.sock.
func (d *Daemon) listen(tenant string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return wire.Errorf(wire.CodeInternal, "the daemon is shutting down")
	}
	if d.listeners[tenant] != nil {
		return nil
	}
	l, err := chassis.Listen("unixpacket", d.socketOf(tenant), 0o600, nil)
	if err != nil {
		return err
	}
	if tenant == "" {
		l.Own(d.log)
	} else if err := d.makeFolder(tenant); err != nil {
		return errors.Join(err, l.Close())
	}
	d.listeners[tenant] = l
	if d.accepting != nil {
		d.accepting.Go(func() error { return d.accept(l, tenant) })
	}
	return nil
}

// makeFolder has the socket of a tenant in a folder of its own as well. The folder
// stays, so that where it is mounted the next daemon's socket appears.
func (d *Daemon) makeFolder(tenant string) error {
	dir := d.folderOf(tenant)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("folder of a tenant's socket: %w", err)
	}
	d.removeFolder(tenant)
	if err := os.Link(d.socketOf(tenant), filepath.Join(dir, "model.sock")); err != nil {
		return fmt.Errorf("folder of a tenant's socket: %w", err)
	}
	return nil
}

// removeFolder takes the socket out of the folder.
func (d *Daemon) removeFolder(tenant string) {
	if tenant != "" {
		_ = os.Remove(filepath.Join(d.folderOf(tenant), "model.sock"))
	}
}

// accept serves who connects.
func (d *Daemon) accept(l *chassis.Listener, tenant string) error {
	accept := chassis.Patiently(d.log, l.AcceptUnix)
	for {
		socket, err := accept()
		switch {
		case err == nil:
			d.serve(socket, tenant)
		case errors.Is(err, net.ErrClosed):
			return nil
		default:
			return fmt.Errorf("accept clients: %w", err)
		}
	}
}

func (d *Daemon) serve(socket *net.UnixConn, tenant string) {
	c := &conn{d: d, socket: socket, tenant: tenant}
	c.ctx, c.cancel = context.WithCancel(d.ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	there := 0
	for other := range d.conns {
		if other.tenant == tenant {
			there++
		}
	}
	if d.ended || there >= maxConns {
		c.close()
		return
	}
	d.conns[c] = true
	d.work.Go(c.run)
}

func (c *conn) close() {
	c.cancel()
	_ = c.socket.Close()
}

// run reads requests until the connection ends, and then gives up what it holds.
func (c *conn) run() {
	if cred, err := chassis.Peer(c.socket); err == nil {
		c.pid = int(cred.Pid)
		s, _ := procfs.Read(c.pid)
		c.start = s.Start
	}
	var answering sync.WaitGroup
	buf, oob := make([]byte, wire.MaxRequest+1), make([]byte, unix.CmsgSpace(4*mostRights))
	for {
		n, passed, flags, _, err := c.socket.ReadMsgUnix(buf, oob)
		files := received(oob[:passed])
		if err != nil || n == 0 {
			discard(files)
			break
		}
		r, err := wire.ParseRequest(buf[:n])
		if err != nil || flags&unix.MSG_CTRUNC != 0 {
			discard(files)
			c.d.log.Warn("connection ended", "tenant", c.tenant, "err", err)
			break
		}
		c.lives()
		c.mu.Lock()
		tooMany := c.running == maxAtOnce
		if !tooMany {
			c.running++
		}
		c.mu.Unlock()
		if tooMany {
			discard(files)
			c.answer(r.ID, wire.Answer{}, wire.Errorf(wire.CodeUsage, "more than %d requests of a connection at once", maxAtOnce))
			continue
		}
		answering.Go(func() {
			c.handle(r, files)
			c.mu.Lock()
			c.running--
			c.mu.Unlock()
		})
	}
	c.close()
	answering.Wait()
	c.leave()
}

// lives tells the policy that the stores of the connection go on.
func (c *conn) lives() {
	var events []policy.Event
	c.mu.Lock()
	for _, h := range c.holds {
		if h.store != 0 {
			events = append(events, policy.Heard{Request: h.request})
		}
	}
	c.mu.Unlock()
	if len(events) > 0 {
		c.d.step(events...)
	}
}

// leave gives up what the connection holds.
func (c *conn) leave() {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	delete(c.d.conns, c)
	c.d.busy = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	var events []policy.Event
	for _, h := range c.holds {
		delete(c.d.requests, h.request)
		events = append(events, policy.Leave{Request: h.request})
	}
	c.holds = nil
	c.d.stepLocked(events...)
}

// handle answers one request.
func (c *conn) handle(r wire.Request, files []*os.File) {
	call := &call{conn: c, Request: r}
	var file *os.File
	if len(files) > 0 {
		file = files[0]
		discard(files[1:])
	}
	call.file = file
	err := call.check(len(files))
	var a wire.Answer
	var rights []*os.File
	if err == nil {
		a, rights, err = operationOf(r.Op).run(call)
	}
	if call.file != nil {
		discard([]*os.File{call.file})
	}
	c.answer(r.ID, a, err, rights...)
	for _, f := range rights {
		_ = f.Close()
	}
}

// answer sends an answer. A client that does not take it loses its connection.
func (c *conn) answer(id json.RawMessage, a wire.Answer, err error, files ...*os.File) {
	a.OK, a.ID = err == nil, id
	if err != nil {
		a = wire.Answer{ID: id, Error: codeOf(err)}
		const most = 4 << 10
		if len(a.Error.Message) > most {
			a.Error.Message = a.Error.Message[:most] + "…"
		}
	}
	text, err := encode(a)
	if err != nil {
		c.d.log.Error("answer", "err", err)
		c.close()
		return
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	_ = c.socket.SetWriteDeadline(time.Now().Add(c.d.cfg.SendTime))
	if _, _, err := c.socket.WriteMsgUnix(text, rights, nil); err != nil {
		c.close()
	}
}

// encode writes JSON with texts as they are: escaped for HTML an id would be six times
// as long, and another than the client's.
func encode(v any) ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), err
}

// received are the descriptors that came with a packet.
func received(oob []byte) (files []*os.File) {
	messages, _ := unix.ParseSocketControlMessage(oob)
	for _, m := range messages {
		fds, _ := unix.ParseUnixRights(&m)
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "a client's file"))
		}
	}
	return files
}

// discard closes descriptors that came in, without waiting for that: whoever drops
// the last reference of a TCP connection that lingers waits as long as its owner
// wished.
func discard(files []*os.File) {
	if len(files) == 0 {
		return
	}
	go func() {
		for _, f := range files {
			_ = unix.SetsockoptLinger(int(f.Fd()), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			_ = f.Close()
		}
	}()
}

// took notes what the connection holds, unless it has ended.
func (c *conn) took(h hold) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holds = append(c.holds, h)
}

// drop takes a hold out: of what a tenant got by a name, whatever that means now, of
// that generation or, for 0, the one got first.
func (c *conn) drop(as, name string, generation int64) (policy.RequestID, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.IndexFunc(c.holds, func(h hold) bool {
		return h.as == as && h.key.Name == name && h.store == 0 && (generation == 0 || h.generation == generation)
	})
	if at < 0 {
		return 0, false
	}
	h := c.holds[at]
	c.holds = slices.Delete(c.holds, at, at+1)
	return h.request, true
}
