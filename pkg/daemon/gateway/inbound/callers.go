package inbound

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
)

// callers holds the connections of all callers, over all of the gateway's listeners. Their
// number is limited, so that file descriptors remain for the gateway's files and for
// connections to instances. At the limit, a new connection replaces another that is idle or
// whose request is still incomplete.
type callers struct {
	limit int // limit on the number of connections
	now   func() time.Duration
	log   *slog.Logger

	own callerHost // host of calls that arrived without a connection

	mu     sync.Mutex
	hosts  map[netip.Addr]*callerHost
	conns  int
	busy   int       // connections that are being refused with busyAnswer
	warned time.Time // when the log last reported that connections give way
}

// callerHost is the host of a caller: an IPv4 address, or the first 64 bits of an IPv6
// address. All connections of the control socket share one host. All calls that the gateway
// itself makes, such as asynchronous ones, share another.
type callerHost struct {
	addr    netip.Addr
	held    atomic.Int64       // bytes of its bodies in memory
	spilled atomic.Int64       // bytes of its bodies in files
	conns   map[*Conn]struct{} // guarded by callers.mu
}

// Shares of the file descriptors that this process may open. The rest is for the gateway's
// files and sockets, and for starting instances.
const (
	callerShare = 3.0 / 8 // for connections of callers; each call may need a connection to an instance as well
	spillShare  = 1.0 / 8 // for files of bodies

	hostShare  = 7.0 / 8 // share of the callers' connections that one host may have
	giveWay    = 256     // 1/giveWay of the connections give way at a time, so that searches are rare
	warnCaller = time.Minute
)

// descriptors returns the limit on this process's file descriptors (RLIMIT_NOFILE).
func descriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<22 {
		return 1 << 22
	}
	return int(limit.Cur)
}

func (c *callers) init(limit int, now func() time.Duration, log *slog.Logger) {
	c.limit, c.now, c.log = max(limit, 2), now, log
	c.hosts = map[netip.Addr]*callerHost{}
}

// hostOf returns the address that identifies the host at the other end of a connection.
func hostOf(conn net.Conn) netip.Addr {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	addr := tcp.AddrPort().Addr().Unmap()
	if addr.Is6() {
		if net64, err := addr.WithZone("").Prefix(64); err == nil {
			return net64.Addr()
		}
	}
	return addr
}

// admit registers an accepted connection and returns it for the server. If there is no
// room, admit refuses the connection and returns nil.
func (c *callers) admit(accepted net.Conn) net.Conn {
	conn := &Conn{Conn: accepted, callers: c}
	conn.since.Store(int64(c.now()))
	c.mu.Lock()
	addr := hostOf(accepted)
	p := c.hosts[addr]
	if p == nil {
		p = &callerHost{addr: addr, conns: map[*Conn]struct{}{}}
	}
	conn.host = p
	victims, room := c.makeRoom(p)
	if room {
		c.hosts[addr] = p
		p.conns[conn] = struct{}{}
		c.conns++
	}
	warn := (len(victims) > 0 || !room) && (c.warned.IsZero() || time.Since(c.warned) >= warnCaller)
	if warn {
		c.warned = time.Now()
	}
	c.mu.Unlock()
	if warn {
		c.log.Warn("too many connections: closing connections that are idle or send a request slowly; to allow more, raise the limit on open files (LimitNOFILE, ulimit -n)", "connections", c.limit)
	}
	for _, v := range victims {
		v.abrupt.Store(true)
		_ = v.Close()
	}
	if !room {
		c.refuse(conn)
		return nil
	}
	return conn
}

// makeRoom reports whether a host may have one more connection. It removes the connections
// that give way to it; its caller must close them. Locked.
func (c *callers) makeRoom(p *callerHost) (victims []*Conn, room bool) {
	share := max(int(math.Ceil(float64(c.limit)*hostShare)), 1)
	if c.conns < c.limit && len(p.conns) < share {
		return nil, true
	}
	hosts := []*callerHost{p}
	if len(p.conns) < share {
		hosts = slices.SortedFunc(maps.Values(c.hosts), func(a, b *callerHost) int {
			return cmp.Compare(len(b.conns), len(a.conns))
		})
	}
	for _, q := range hosts {
		if victims = q.giveWay(1+c.limit/giveWay, len(q.conns) >= len(p.conns)); len(victims) > 0 {
			break
		}
	}
	for _, v := range victims {
		c.drop(v)
	}
	return victims, len(victims) > 0
}

// giveWay returns up to n connections of a host that can be closed: lingering connections
// first, then idle ones and then, if incomplete is true, connections with an incomplete
// request. Within a phase, the oldest come first. Locked.
func (p *callerHost) giveWay(n int, incomplete bool) (victims []*Conn) {
	type candidate struct {
		conn  *Conn
		phase int32 // a copy, because the phase may change during the sort
		since int64
	}
	var all []candidate
	for conn := range p.conns {
		if phase := conn.phase(); phase < PhaseRuns && (incomplete || phase <= PhaseIdle) {
			all = append(all, candidate{conn, phase, conn.since.Load()})
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.phase, b.phase), cmp.Compare(a.since, b.since))
	})
	for _, c := range all[:min(n, len(all))] {
		victims = append(victims, c.conn)
	}
	return victims
}

// drop removes a connection from its host. Locked.
func (c *callers) drop(conn *Conn) {
	if _, registered := conn.host.conns[conn]; !registered {
		return
	}
	delete(conn.host.conns, conn)
	c.conns--
	if len(conn.host.conns) == 0 {
		delete(c.hosts, conn.host.addr)
	}
}

// closed records that a connection is closed.
func (c *callers) closed(conn *Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(conn)
	if conn.refused {
		conn.refused = false
		c.busy--
	}
}

// busyAnswer is the complete answer to a connection that is refused for lack of room.
var busyAnswer = func() []byte {
	body := `{"error":{"code":"` + refusal.Busy + `","message":"the gateway has too many connections","hint":"try again in a second"}}` + "\n"
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\nGfaas-Reason: %s\r\nRetry-After: 1\r\n\r\n%s",
		len(body), refusal.Busy, body)
}()

// refuse answers a connection with busyAnswer and closes it. Only lingering makes sure that
// the caller receives the answer (Conn.Close), but a lingering connection holds a
// descriptor, so refuse lets only a few linger.
func (c *callers) refuse(conn *Conn) {
	c.mu.Lock()
	lingers := c.busy < c.limit/16
	if lingers {
		c.busy++
		conn.refused = true
	}
	c.mu.Unlock()
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second)) // the kernel buffers the answer at once
	_, _ = conn.Write(busyAnswer)
	conn.abrupt.Store(!lingers)
	conn.unread.Store(true)
	_ = conn.Close()
}
