package token

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// maxUnknown is how many connections may be open before their hello.
const maxUnknown = 256

// member is a connected process, a client of its GPU's scheduler.
type member struct {
	id      policy.ClientID
	inst    *instance
	conn    *net.UnixConn
	slot    int
	pid     int    // as this daemon sees it; 0 if it does not
	lease   uint32 // held or draining; 0 is none
	asked   time.Time
	granted time.Time
}

// greet reads a connection from its hello to its end.
func (d *Daemon) greet(conn *net.UnixConn) {
	defer d.conns.Done()
	var m *member
	var full bool
	if d.call(func() {
		d.open[conn] = true
		d.unknown++
		full = d.unknown > maxUnknown
	}) != nil {
		_ = conn.Close()
		return
	}
	err := errors.New("too many connections without a hello")
	if !full {
		m, err = d.awaitHello(conn)
	}
	_ = d.call(func() { d.unknown-- })
	if m != nil {
		err = d.read(m)
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		d.log.Warn("client connection ended", "pid", peerPID(conn), "err", err)
	}
	_ = d.call(func() {
		if m != nil {
			d.leave(m)
		}
		delete(d.open, conn)
	})
	_ = conn.Close()
}

// awaitHello lets a process in, or refuses it.
func (d *Daemon) awaitHello(conn *net.UnixConn) (*member, error) {
	if err := conn.SetReadDeadline(time.Now().Add(d.cfg.HelloTimeout)); err != nil {
		return nil, err
	}
	msg, err := readMessage(conn, make([]byte, wire.MaxMessage+1))
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
	pid := peerPID(conn)
	if err := d.call(func() { m, refusal = d.join(conn, hello, pid) }); err != nil {
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
	_ = send(conn, wire.Refused{Reason: wire.MakeReason(why)}, nil)
	return fmt.Errorf("refused: %s", why)
}

// read turns a process's messages into events.
func (d *Daemon) read(m *member) error {
	buf := make([]byte, wire.MaxMessage+1)
	for {
		msg, err := readMessage(m.conn, buf)
		if err != nil {
			return err
		}
		var ev policy.Event
		switch msg := msg.(type) {
		case wire.Request:
			ev = policy.Request{Client: m.id}
		case wire.Return:
			ev = policy.Return{
				Client: m.id, Lease: msg.Lease, Used: duration(msg.UsedNS),
				WantsMore: msg.Flags&wire.ReturnWantsMore != 0,
			}
		default:
			return fmt.Errorf("message type %d from a client", msg.Type())
		}
		if !d.post(func() { d.heard(m, ev) }) {
			return nil
		}
	}
}

// duration is a count of nanoseconds from outside, cut to what fits.
func duration(ns uint64) time.Duration { return time.Duration(min(ns, 1<<62)) }

// readMessage reads one record. The buffer is longer than any message, so that
// one that is too long shows.
func readMessage(conn *net.UnixConn, buf []byte) (wire.Message, error) {
	n, err := conn.Read(buf)
	if err != nil {
		return nil, err
	}
	return wire.Parse(buf[:n])
}

// send writes a message, with a descriptor if file is not nil, without ever
// waiting: a process that does not read what it is sent is cut off.
func send(conn *net.UnixConn, m wire.Message, file *os.File) error {
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
		sent = unix.Sendmsg(int(fd), wire.Append(nil, m), rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true
	}); err != nil {
		return err
	}
	return sent
}

// peerPID is the process at the other end, or 0 if this daemon cannot see it.
func peerPID(conn *net.UnixConn) (pid int) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}
