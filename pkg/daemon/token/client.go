package token

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// client is a process's connection for one GPU: a client of that GPU's scheduler.
type client struct {
	id        policy.ClientID
	alloc     *allocation
	fd        int    // its connection
	pid       int    // as this daemon sees it; 0 if it does not
	start     uint64 // when that process began (procfs.Stat); 0 if it could not be looked at
	uid       uint32
	slot      int
	older     bool   // its library knows PageSlots slots only
	lease     uint32 // held or draining; 0 is none
	waits     bool   // has asked and was not granted yet
	asked     time.Time
	granted   time.Time
	revoked   time.Duration // on the schedulers' clock; 0 while it has not been asked back
	ending    bool          // it has said when what it has in flight is over
	suspended bool          // it does not drain, and nobody waits for it
	launches  uint64        // that its slot told of when it last gave a lease back
	unleased  uint64        // GPU time in ns of work without a lease, that its slot has told of
	foreign   gpu.Bytes     // of the GPU's memory, that it occupies beside its allocations
	excess    int           // messages of this lease that the protocol gives no reason for
	faulted   bool          // it has reported an error that ended its use of CUDA
}

// greet awaits a connection's hello. Where the process is let in the poller has a
// descriptor of its own.
func (d *Daemon) greet(conn *net.UnixConn, l *listener) {
	defer d.conns.Done()
	cred, err := chassis.Peer(conn)
	if err == nil {
		err = d.admitsUser(conn, cred)
	}
	if err == nil {
		err = d.awaitHello(conn, l, cred)
	}
	d.ends(int(cred.Pid), cred.Uid, err)
	_ = d.locked(func() { delete(d.greeting, conn) })
	if err != nil && !d.poller.safe.Load() {
		_ = use(conn, func(fd int) error { drain(fd); return nil })
	}
	_ = conn.Close()
}

// awaitHello lets a process in, or refuses it.
func (d *Daemon) awaitHello(conn *net.UnixConn, l *listener, cred unix.Ucred) error {
	if err := d.locked(func() { l.wait(conn) }); err != nil {
		return err
	}
	defer func() { _ = d.locked(func() { l.done(conn) }) }()
	if err := conn.SetReadDeadline(time.Now().Add(d.cfg.HelloTimeout)); err != nil {
		return err
	}
	msg, flags, err := readMessage(conn)
	var other wire.VersionError
	if errors.As(err, &other) {
		return d.refuseIn(other.Version, conn, fmt.Sprintf(
			"its library speaks version %d of the protocol, this daemon version %d: start the program again", other.Version, wire.Version))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = d.refuse(conn, fmt.Sprintf("no hello within %v", d.cfg.HelloTimeout))
	}
	if err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	var refusal error
	var answer wire.Message
	above, err := d.ancestors(int(cred.Pid))
	if err != nil {
		return err
	}
	if err := d.locked(func() {
		switch msg := msg.(type) {
		case wire.Hello:
			refusal = d.join(conn, l, msg, flags&wire.HelloManySlots == 0, cred, above)
		case wire.Stray:
			answer, refusal = d.noteStray(l, msg)
		default:
			refusal = fmt.Errorf("message type %d before the hello", msg.Type())
		}
	}); err != nil {
		return err
	}
	if full := (errFull{}); errors.As(refusal, &full) {
		return d.refuseWith(wire.Version, wire.RefusedFull, conn, full.why)
	}
	if refusal != nil {
		return d.refuse(conn, refusal.Error())
	}
	if answer != nil {
		return use(conn, func(fd int) error { return send(fd, wire.Append(nil, answer), nil) })
	}
	return nil
}

// gone says whether the client's process has ended and who has its number, if anybody,
// is another: who inherited the connection holds it open.
func (c *client) gone() bool {
	if c.pid == 0 {
		return false
	}
	if errors.Is(unix.Kill(c.pid, 0), unix.ESRCH) {
		return true
	}
	s, err := procfs.Read(c.pid)
	return err == nil && s.Start != c.start && c.start != 0
}

// refuse tells the peer why; the error says the same.
func (d *Daemon) refuse(conn *net.UnixConn, why string) error {
	return d.refuseIn(wire.Version, conn, why)
}

// refuseIn does it in a version of the protocol that the peer speaks.
func (d *Daemon) refuseIn(version uint16, conn *net.UnixConn, why string) error {
	return d.refuseWith(version, 0, conn, why)
}

// refuseWith does it with flags such as wire.RefusedFull.
func (d *Daemon) refuseWith(version uint16, flags uint32, conn *net.UnixConn, why string) error {
	d.metrics.refused.Inc()
	frame := wire.SetFlags(wire.Refused{Reason: wire.MakeReason(why)}.For(version), flags)
	_ = use(conn, func(fd int) error { return send(fd, frame, nil) })
	return fmt.Errorf("refused: %s", why)
}

// readMessage reads one record of any kind, and returns the flags of its header too.
func readMessage(conn *net.UnixConn) (wire.Message, uint32, error) {
	buf, oob := make([]byte, wire.MaxMessage+1), make([]byte, unix.CmsgSpace(4*mostRights))
	n, passed, _, _, err := conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return nil, 0, err
	}
	if passed > 0 {
		discard(oob[:passed])
		return nil, 0, errRights
	}
	msg, err := wire.Parse(buf[:n])
	if err != nil {
		return nil, 0, err
	}
	return msg, wire.Flags(buf[:n]), nil
}

// duration is a count of nanoseconds from outside, cut to what fits.
func duration(ns uint64) time.Duration { return time.Duration(min(ns, 1<<62)) }

// send writes a message, with a descriptor if file is not nil, without ever
// waiting: a process that does not read what it is sent is cut off.
func send(fd int, frame []byte, file *os.File) error {
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	return unix.Sendmsg(fd, frame, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// use runs a function with a connection's descriptor, without waiting for it to
// be ready.
func use(conn *net.UnixConn, f func(fd int) error) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
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

const (
	// leniency is how many messages a client may send during a lease that the
	// protocol gives no reason for: a request while one is with us, a lease
	// given back that it does not hold. The next one ends its connection.
	leniency = 8
	// pacePeriod and paceMessages bound what the processes of an allocation may send:
	// beyond it their connections are not read for a while. It is a hundred
	// times what programs do that launch as fast as they can.
	pacePeriod   = 100 * time.Millisecond
	paceMessages = 4096
)

// errExcess ends the connection of a client that floods.
var errExcess = errors.New("it asks and gives back without reason")

// handle acts on a message. It tells for how long not to read what the client
// sends. Locked.
func (d *Daemon) handle(c *client, frame []byte) (pause time.Duration, err error) {
	kind := wire.Kind(frame)
	if kind != wire.MsgRequest && kind != wire.MsgReturn && kind != wire.MsgEnding && kind != wire.MsgFault {
		if _, err := wire.Parse(frame); err != nil {
			return 0, err
		}
		return 0, fmt.Errorf("message type %d from a client", kind)
	}
	if d.clients[c.id] != c {
		return 0, net.ErrClosed
	}
	now := time.Now()
	switch kind {
	case wire.MsgRequest:
		err = d.handleRequest(c, now)
	case wire.MsgEnding:
		err = d.handleEnding(c, wire.ReadEnding(frame))
	case wire.MsgFault:
		err = d.handleFault(c, frame, now)
	default:
		err = d.handleReturn(c, wire.ReadReturn(frame), now)
	}
	return c.alloc.pace(now), err
}

func (d *Daemon) handleRequest(c *client, now time.Time) error {
	if c.waits || c.lease != 0 {
		if err := c.needless(); err != nil {
			return err
		}
	} else {
		c.waits, c.asked = true, now
	}
	if inst := c.alloc.inst; len(inst.parked.pids) > 0 {
		d.called(inst)
		return nil
	}
	c.alloc.gpu.step(c.ranUnleased(), policy.Request{Client: c.id})
	return nil
}

// ranUnleased is what the client's slot tells of work without a lease since the last call.
func (c *client) ranUnleased() policy.Unleased {
	before := c.unleased
	c.unleased = atomic.LoadUint64(&c.alloc.page.slot(c.slot).UnleasedNS)
	return policy.Unleased{Client: c.id, Used: duration(max(c.unleased, before) - before)}
}

func (d *Daemon) handleEnding(c *client, msg wire.Ending) error {
	if msg.Lease != c.lease || c.lease == 0 || c.revoked == 0 || c.ending {
		return c.needless()
	}
	c.ending = true
	c.alloc.gpu.step(policy.Ending{Client: c.id, Lease: msg.Lease, Left: duration(msg.LeftNS)})
	return nil
}

func (d *Daemon) handleReturn(c *client, msg wire.Return, now time.Time) error {
	if msg.Lease != c.lease || c.lease == 0 {
		return c.needless()
	}
	ev := policy.Return{
		Client: c.id, Lease: msg.Lease, Used: duration(msg.UsedNS),
		WantsMore: msg.Flags&wire.ReturnWantsMore != 0,
	}
	// Who launched and measured nothing has not measured.
	launches := atomic.LoadUint64(&c.alloc.page.slot(c.slot).Launches)
	if ev.Used == 0 && launches != c.launches {
		ev.Used = now.Sub(c.granted)
	}
	c.launches = launches
	// A process that gives its lease back unasked has closed its gate itself; a
	// careless one is gated here.
	c.lease, c.revoked, c.ending, c.suspended, c.waits, c.asked = 0, 0, false, false, ev.WantsMore, now
	c.alloc.page.setGate(c.slot, 0)
	d.metrics.leases.WithLabelValues(c.alloc.gpu.name).Observe(now.Sub(c.granted).Seconds())
	if d.metered() {
		c.alloc.gpu.step(c.sample(), ev)
	} else {
		c.alloc.gpu.step(c.ranUnleased(), ev)
	}
	return nil
}

// needless counts a message that the protocol gives no reason for.
func (c *client) needless() error {
	if c.excess++; c.excess > leniency {
		return errExcess
	}
	return nil
}

// pace counts a message and tells for how long not to read after it.
func (a *allocation) pace(now time.Time) time.Duration {
	if now.Sub(a.period) >= pacePeriod {
		a.period, a.messages = now, 0
	}
	if a.messages++; a.messages < paceMessages {
		return 0
	}
	return a.period.Add(pacePeriod).Sub(now)
}
