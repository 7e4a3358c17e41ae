package token

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// sessions manages the connections of the instances' processes, from the hello on. The core's lock
// guards it.
type sessions struct {
	*core
	registry *registry
	parking  *parking
	common   *chassis.Listener // socket for the processes of all instances
	granted  *chassis.Listener // socket for the processes of instances with grants; nil: none
	poller   *poller

	greetings []greeting // oldest first
	lastID    policy.ClientID
}

const (
	// maxUnknown bounds the connections per socket that have not sent their hello. A further
	// connection ends the oldest. So a process that sends its hello at once, as the preload
	// library does, is accepted even while other processes use up all these connections.
	maxUnknown = 256
	// sendBuffer bounds the kernel memory of a connection, in bytes. A client that reads its
	// messages has at most a few in the buffer.
	sendBuffer = 8 << 10
)

// origin is the socket to which a process has connected: an instance's own socket, named by its ID, or one of the
// constants.
type origin string

const (
	commonSocket  origin = ""           // for processes of this daemon's user
	grantedSocket origin = "token.sock" // for instances with grants; no instance has this ID
)

// serves reports whether the processes of an instance may connect to the socket.
func (o origin) serves(i *instance) bool {
	if o == grantedSocket || i.grant != nil {
		return o == grantedSocket && i.grant != nil
	}
	return o == commonSocket || string(o) == i.reg.Instance
}

// greeting is a connection that has not sent its hello.
type greeting struct {
	conn *net.UnixConn
	at   origin
}

// addGreeting adds a connection that has not sent its hello.
func (s *sessions) addGreeting(g greeting) {
	oldest, n := 0, 0
	for i, o := range slices.Backward(s.greetings) {
		if o.at == g.at {
			oldest, n = i, n+1
		}
	}
	if n == maxUnknown {
		go s.greetings[oldest].conn.Close()
		s.greetings = slices.Delete(s.greetings, oldest, oldest+1)
	}
	s.greetings = append(s.greetings, g)
}

// accept greets every process that connects to a socket, until the socket is closed.
func (s *sessions) accept(socket *chassis.Listener, at origin) error {
	next := chassis.Patiently(s.log, socket.AcceptUnix)
	for {
		conn, err := next()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept clients: %w", err)
		}
		_ = conn.SetWriteBuffer(sendBuffer)
		if s.locked(func() {
			s.addGreeting(greeting{conn, at})
			s.running.Go(func() { s.greet(greeting{conn, at}) })
		}) != nil {
			_ = conn.Close()
		}
	}
}

// acceptInstance accepts connections at an instance's socket in the background. The caller holds the lock,
// so that the socket is closed when the daemon ends.
func (s *sessions) acceptInstance(socket *instanceSocket) {
	s.running.Go(func() {
		if err := s.accept(socket.Listener, origin(socket.instance)); err != nil {
			s.log.Error("cannot accept clients at the socket of an instance", "instance", socket.instance, "err", err)
		}
	})
}

// greet waits for a connection's hello, and then closes this descriptor. If the process is admitted,
// the poller has a duplicate of it.
func (s *sessions) greet(g greeting) {
	cred, err := procfs.Peer(g.conn)
	if err == nil {
		err = s.admitsUser(g, cred)
	}
	if err == nil {
		err = s.awaitHello(g, cred)
	}
	s.logEnd(int(cred.Pid), cred.Uid, err)
	_ = s.locked(func() { s.greetings = slices.DeleteFunc(s.greetings, func(o greeting) bool { return o == g }) })
	if err != nil {
		_ = use(g.conn, func(fd int) error { shutDownAndDiscard(fd); return nil })
	}
	_ = g.conn.Close()
}

// admitsUser returns an error for processes of users that may not connect.
func (s *sessions) admitsUser(g greeting, cred unix.Ucred) error {
	if g.at == grantedSocket || cred.Uid == 0 || int(cred.Uid) == os.Geteuid() || slices.Contains(s.cfg.ClientUIDs, int(cred.Uid)) {
		return nil
	}
	return s.refuse(g.conn, fmt.Sprintf("uid %d may not connect to this token daemon", cred.Uid))
}

// awaitHello reads the first message of a connection, and the grant before it, and admits the process or refuses it.
func (s *sessions) awaitHello(g greeting, cred unix.Ucred) error {
	conn := g.conn
	if err := conn.SetReadDeadline(time.Now().Add(s.cfg.HelloTimeout)); err != nil {
		return err
	}
	opened, err := readOpening(conn)
	var other wire.VersionError
	if errors.As(err, &other) {
		return s.refuseWith(conn, other.Version, 0, fmt.Sprintf(
			"its library has version %d of the protocol, the token daemon has version %d: restart the program", other.Version, wire.Version))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = s.refuse(conn, fmt.Sprintf("no hello within %v", s.cfg.HelloTimeout))
	}
	if err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if err := s.admitGrant(g.at, opened); err != nil {
		return s.refuse(conn, err.Error())
	}
	var refusal error
	var answer wire.Message
	above, err := s.lineage.ancestors(int(cred.Pid))
	if err != nil {
		return err
	}
	if err := s.locked(func() {
		switch msg := opened.message.(type) {
		case wire.Hello:
			refusal = s.join(g, msg, opened.flags, cred, above)
		case wire.UnmanagedProgram:
			answer, refusal = s.recordBypass(g.at, msg)
		default:
			refusal = fmt.Errorf("message of type %d before the hello", msg.Type())
		}
	}); err != nil {
		return err
	}
	if g.at == grantedSocket && !opened.granted && errors.Is(refusal, errIdentity) {
		refusal = fmt.Errorf("%w, and the process has sent no grant", errIdentity)
	}
	if full := errFull(""); errors.As(refusal, &full) {
		return s.refuseWith(conn, wire.Version, wire.RefusedFull, full.Error())
	}
	if refusal != nil {
		return s.refuse(conn, refusal.Error())
	}
	if answer != nil {
		return use(conn, func(fd int) error { return send(fd, wire.Append(nil, answer), nil) })
	}
	return nil
}

// admitGrant registers an instance by the grant that precedes the first message of one of its processes.
func (s *sessions) admitGrant(at origin, opened opening) error {
	if !opened.granted {
		return nil
	}
	if at != grantedSocket {
		return fmt.Errorf("grants are accepted only at the socket %s/token.sock of the run directory", GrantedDir)
	}
	var id, secret wire.Name
	switch msg := opened.message.(type) {
	case wire.Hello:
		id, secret = msg.Instance, msg.Secret
	case wire.UnmanagedProgram:
		id, secret = msg.Instance, msg.Secret
	default:
		return fmt.Errorf("message of type %d after a grant", msg.Type())
	}
	inst, err := s.registry.grants.verify(opened.grant, id, secret)
	if err != nil || inst == nil {
		return err
	}
	answer, err := s.registry.admit(context.Background(), inst)
	if err == nil && answer.Note != "" {
		s.log.Warn(answer.Note, "instance", inst.reg.Instance)
	}
	return err
}

// refuse sends the reason to the peer and returns it as an error.
func (s *sessions) refuse(conn *net.UnixConn, reason string) error {
	return s.refuseWith(conn, wire.Version, 0, reason)
}

// refuseWith refuses a peer with flags (such as wire.RefusedFull), in the peer's version of the
// protocol.
func (s *sessions) refuseWith(conn *net.UnixConn, version uint16, flags uint32, reason string) error {
	s.metrics.refused.Inc()
	frame := wire.SetFlags(wire.Refused{Reason: wire.MakeReason(reason)}.For(version), flags)
	_ = use(conn, func(fd int) error { return send(fd, frame, nil) })
	return fmt.Errorf("refused: %s", reason)
}

// join admits a process, unless it is inside another instance. The process receives a slot, and the
// poller reads its messages. The caller holds the lock.
func (s *sessions) join(g greeting, hello wire.Hello, flags uint32, cred unix.Ucred, above []ancestor) error {
	inst, err := s.registry.identify(g.at, hello.Instance, hello.Secret)
	if err != nil {
		return err
	}
	id := inst.reg.Instance
	if other := s.registry.containing(above, id); other != "" {
		return fmt.Errorf("process %d runs inside instance %s", cred.Pid, other)
	}
	if uint64(hello.Device) >= uint64(len(inst.allocations)) {
		return fmt.Errorf("instance %s has %d GPU(s), and no device %d", id, len(inst.allocations), hello.Device)
	}
	a := inst.allocations[hello.Device]
	olderLibrary := flags&wire.HelloManySlots == 0
	slot, err := a.freeSlot(olderLibrary)
	if err != nil {
		return err
	}
	if err := a.openSlot(slot); err != nil {
		return err
	}
	atomic.StoreUint32(&a.page.slot(slot).PID, uint32(cred.Pid))
	atomic.StoreUint64(&a.page.slot(slot).MemUsed, hello.MemUsed)
	s.lastID++
	c := &session{
		client: client{id: s.lastID, gpu: a.gpu, instance: id, pid: int(cred.Pid), page: a.page, slot: slot},
		alloc:  a, olderLibrary: olderLibrary, moves: flags&wire.HelloMoves != 0, uid: cred.Uid,
	}
	if len(above) > 0 {
		c.start = above[0].Start
	}
	welcome := wire.Welcome{
		Slot: uint32(slot), NSlots: wire.PageSlotsMost, MemLimit: uint64(a.MemLimit), WindowNS: uint64(s.registry.gpus.window()),
	}
	if err := s.poller.welcome(c, g.conn, welcome); err != nil {
		a.page.clear(slot)
		return fmt.Errorf("welcome: %w", err)
	}
	s.registry.addSession(c, hello.MemUsed)
	return nil
}

// recordBypass counts a program that a process has started. The answer states whether it is the first
// program of its kind. The caller holds the lock.
func (s *sessions) recordBypass(at origin, msg wire.UnmanagedProgram) (wire.Message, error) {
	inst, err := s.registry.identify(at, msg.Instance, msg.Secret)
	if err != nil {
		return nil, err
	}
	if msg.Kind >= wire.ProgramKinds {
		return nil, fmt.Errorf("unknown kind of program %d", msg.Kind)
	}
	program := printable(msg.Program.String())
	if !inst.bypasses.note(msg.Kind, program) {
		return wire.Noted{}, nil
	}
	s.log.Warn("an instance started a program without the preload library",
		"instance", inst.reg.Instance, "program", program, "is", bypassKinds[msg.Kind])
	return wire.Noted{First: 1}, nil
}

// handle handles a message. It returns how long to stop reading the client's messages. The caller
// holds the lock.
func (s *sessions) handle(c *session, frame []byte) (pause time.Duration, err error) {
	kind := wire.Kind(frame)
	if kind != wire.MsgRequest && kind != wire.MsgReturn && kind != wire.MsgEnding && kind != wire.MsgFault && kind != wire.MsgMoved {
		if _, err := wire.Parse(frame); err != nil {
			return 0, err
		}
		return 0, fmt.Errorf("unexpected message of type %d", kind)
	}
	if !c.joined() {
		return 0, net.ErrClosed
	}
	now := time.Now()
	switch kind {
	case wire.MsgRequest:
		if err = c.recordRequest(now); err == nil {
			s.request(c)
		}
	case wire.MsgEnding:
		err = c.announce(wire.ReadEnding(frame))
	case wire.MsgFault:
		err = s.handleFault(c, frame, now)
	case wire.MsgMoved:
		err = c.moved(frame)
	default:
		err = c.returnLease(wire.ReadReturn(frame), now)
	}
	return c.alloc.pace(now), err
}

// request passes a client's request to the scheduler, or starts to move the memory of a parked
// instance back first.
func (s *sessions) request(c *session) {
	if inst := c.alloc.inst; len(inst.parked.pids) > 0 {
		s.parking.startUnpark(inst)
		return
	}
	c.request()
}

// handleFault records the first CUDA error that ended a process's use of CUDA.
func (s *sessions) handleFault(c *session, frame []byte, now time.Time) error {
	msg, err := wire.Parse(frame)
	if err != nil {
		return err
	}
	if c.faulted {
		return c.recordViolation()
	}
	c.faulted = true
	inst := c.alloc.inst
	if inst.fault != nil && inst.isConnected(inst.fault.PID) {
		return nil
	}
	f := msg.(wire.Fault)
	inst.fault = &wire.InstanceFault{
		Instance: inst.reg.Instance, Function: inst.reg.Function, GPU: c.alloc.GPU, PID: c.pid, Call: printable(f.Call.String()),
		Code: f.Code, Name: wire.FaultName(f.Code), Time: now, After: s.registry.firstFault(inst, now),
	}
	args := []any{"instance", inst.reg.Instance, "function", inst.reg.Function, "gpu", c.alloc.GPU, "pid", c.pid,
		"call", inst.fault.Call, "code", f.Code, "error", inst.fault.Name}
	if inst.fault.After != "" {
		args = append(args, "after", inst.fault.After)
	}
	s.log.Error("process can no longer use CUDA", args...)
	return nil
}

// hangUpEnded ends the connections of ended processes that another process holds open. It examines
// the processes without the lock.
func (s *sessions) hangUpEnded() {
	var sessions []*session
	_ = s.locked(func() { sessions = slices.Collect(s.registry.sessions()) })
	for _, c := range sessions {
		if c.processEnded() {
			_ = s.locked(func() {
				if c.joined() {
					c.hangUp()
				}
			})
		}
	}
}

const (
	settleTime = time.Second          // longest wait of settle
	settlePoll = 2 * time.Millisecond // its poll interval
)

// settle waits until the daemon has read all messages of the instance's ended processes. It waits at
// most settleTime, because another process may hold their connections open.
func (s *sessions) settle(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	_ = poll(ctx, settlePoll, func() bool {
		var sessions []*session
		_ = s.locked(func() {
			if inst := s.registry.instances[id]; inst != nil {
				sessions = slices.Collect(inst.sessions())
			}
		})
		return !slices.ContainsFunc(sessions, (*session).processEnded)
	})
}

// stop closes the connections that have not sent their hello.
func (s *sessions) stop() {
	for _, g := range s.greetings {
		_ = g.conn.Close()
	}
}
