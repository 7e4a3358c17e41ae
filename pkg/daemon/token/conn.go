package token

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// member is a process's connection for one GPU, a client of its scheduler.
type member struct {
	id        policy.ClientID
	seat      *seat
	conn      *net.UnixConn
	slot      int
	pid       int    // as this daemon sees it; 0 if it does not
	lease     uint32 // held or draining; 0 is none
	waits     bool   // has asked and was not granted yet
	asked     time.Time
	granted   time.Time
	revoked   time.Time // zero while it has not been asked back
	suspended bool      // it is stopped, and nobody waits for it
	launches  uint64    // that its slot told of when it last gave a lease back
	outside   gpu.Bytes // of the GPU's memory, that it occupies beside its allocations
	excess    int       // messages of this lease that a client need not send
}

// greet reads a connection from its hello to its end.
func (d *Daemon) greet(conn *net.UnixConn, e *entrance) {
	defer d.conns.Done()
	var m *member
	cred, err := peer(conn)
	if err == nil {
		err = d.admitsUser(conn, cred)
	}
	if err == nil {
		m, err = d.awaitHello(conn, e, cred)
	}
	if m != nil {
		err = d.read(m)
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, syscall.ECONNRESET) {
		d.faults.warn("client connection ended", "pid", cred.Pid, "uid", cred.Uid, "err", err)
	}
	_ = d.locked(func() {
		if m != nil {
			d.leave(m)
		}
		delete(d.open, conn)
	})
	_ = conn.Close()
}

// awaitHello lets a process in, or refuses it.
func (d *Daemon) awaitHello(conn *net.UnixConn, e *entrance, cred unix.Ucred) (*member, error) {
	if err := d.locked(func() { e.wait(conn) }); err != nil {
		return nil, err
	}
	defer func() { _ = d.locked(func() { e.done(conn) }) }()
	if err := conn.SetReadDeadline(time.Now().Add(d.cfg.HelloTimeout)); err != nil {
		return nil, err
	}
	msg, err := readMessage(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = d.refuse(conn, fmt.Sprintf("no hello within %v", d.cfg.HelloTimeout))
	}
	if err != nil {
		return nil, err
	}
	hello, ok := msg.(wire.Hello)
	if !ok {
		return nil, d.refuse(conn, fmt.Sprintf("message type %d before the hello", msg.Type()))
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	var m *member
	var refusal error
	if err := d.locked(func() { m, refusal = d.join(conn, e, hello, int(cred.Pid)) }); err != nil {
		return nil, err
	}
	if refusal != nil {
		return nil, d.refuse(conn, refusal.Error())
	}
	return m, nil
}

// refuse tells the peer why; the error says the same.
func (d *Daemon) refuse(conn *net.UnixConn, why string) error {
	d.metrics.refused.Inc()
	_ = send(conn, wire.Append(nil, wire.Refused{Reason: wire.MakeReason(why)}), nil)
	return fmt.Errorf("refused: %s", why)
}

// read hears a process until its connection ends. The buffer is longer than
// any message, so that one that is too long shows.
func (d *Daemon) read(m *member) error {
	buf := make([]byte, wire.MaxMessage+1)
	for {
		n, err := m.conn.Read(buf)
		if err != nil {
			return err
		}
		rest, err := d.heard(m, buf[:n])
		if err != nil {
			return err
		}
		if rest > 0 {
			time.Sleep(rest)
		}
	}
}

// readMessage reads one record of any kind.
func readMessage(conn *net.UnixConn) (wire.Message, error) {
	buf := make([]byte, wire.MaxMessage+1)
	n, err := conn.Read(buf)
	if err != nil {
		return nil, err
	}
	return wire.Parse(buf[:n])
}

// duration is a count of nanoseconds from outside, cut to what fits.
func duration(ns uint64) time.Duration { return time.Duration(min(ns, 1<<62)) }

// send writes a message, with a descriptor if file is not nil, without ever
// waiting: a process that does not read what it is sent is cut off.
func send(conn *net.UnixConn, frame []byte, file *os.File) error {
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Write(func(fd uintptr) bool {
		sent = unix.Sendmsg(int(fd), frame, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true
	}); err != nil {
		return err
	}
	return sent
}

// peer is who is at the other end: a process number of 0 is one that this
// daemon cannot see.
func peer(conn *net.UnixConn) (unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return unix.Ucred{}, err
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return unix.Ucred{}, err
	}
	if failed != nil {
		return unix.Ucred{}, fmt.Errorf("who connects: %w", failed)
	}
	return *cred, nil
}

// admitsUser refuses other people's processes.
func (d *Daemon) admitsUser(conn *net.UnixConn, cred unix.Ucred) error {
	if cred.Uid == 0 || int(cred.Uid) == os.Geteuid() {
		return nil
	}
	for _, uid := range d.cfg.ClientUIDs {
		if cred.Uid == uint32(uid) {
			return nil
		}
	}
	return d.refuse(conn, fmt.Sprintf("user %d may not use this daemon", cred.Uid))
}
