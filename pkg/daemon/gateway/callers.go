package gateway

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// callers are the connections of the gateway's callers, over all its listeners. There are
// at most so many at once, so that descriptors remain for the gateway's own files and for
// the connections to instances. A new connection beyond that takes the place of another:
// one that is idle, or one whose request is still incomplete.
type callers struct {
	most int     // connections at once
	all  *limits // the clock
	log  *slog.Logger

	own callerHost // of calls that came over no connection

	mu     sync.Mutex
	hosts  map[netip.Addr]*callerHost
	conns  int
	busy   int       // connections that get errBusy now
	warned time.Time // when the log last said that connections give way
}

// callerHost is a host that calls: an IPv4 address, or the first 64 bits of an IPv6 address. All
// connections of the control socket are of one host, and so are all calls of the gateway's
// own, such as asynchronous ones.
type callerHost struct {
	addr    netip.Addr
	held    atomic.Int64             // bytes of bodies in memory
	spilled atomic.Int64             // bytes of bodies in files
	conns   map[*callerConn]struct{} // callers.mu
}

// Shares of the descriptors that this process may have. The rest is for its files, its
// sockets and what it starts instances with.
const (
	callerShare = 3.0 / 8 // connections of callers; each may need one to an instance as well
	spillShare  = 1.0 / 8 // files of bodies

	hostShare  = 7.0 / 8 // of the connections of callers that one host may have
	giveWay    = 256     // one in so many connections gives way at once, to look for them seldom
	warnCaller = time.Minute
)

// descriptors returns the number of descriptors that this process may have.
func descriptors() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<22 {
		return 1 << 22
	}
	return int(limit.Cur)
}

func (c *callers) init(most int, all *limits, log *slog.Logger) {
	c.most, c.all, c.log = max(most, 2), all, log
	c.hosts = map[netip.Addr]*callerHost{}
}

// hostOf returns the address that stands for the other end of a connection.
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

// admit returns an accepted connection as the server is to use it. It returns nil where
// there is no place for it: then it answers with errBusy and closes the connection.
func (c *callers) admit(accepted net.Conn) net.Conn {
	conn := &callerConn{Conn: accepted, callers: c}
	conn.since.Store(int64(c.all.now()))
	c.mu.Lock()
	addr := hostOf(accepted)
	p := c.hosts[addr]
	if p == nil {
		p = &callerHost{addr: addr, conns: map[*callerConn]struct{}{}}
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
		c.log.Warn("too many connections: those that are idle or send a request slowly are closed; raise the limit of open files (LimitNOFILE, ulimit -n) to allow more", "connections", c.most)
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

// makeRoom reports whether a host may have one more connection, and removes the
// connections that give way to it, which the caller closes. Locked.
func (c *callers) makeRoom(p *callerHost) (victims []*callerConn, room bool) {
	share := max(int(math.Ceil(float64(c.most)*hostShare)), 1)
	if c.conns < c.most && len(p.conns) < share {
		return nil, true
	}
	hosts := []*callerHost{p}
	if len(p.conns) < share {
		hosts = hosts[:0]
		for _, q := range c.hosts {
			hosts = append(hosts, q)
		}
		slices.SortFunc(hosts, func(a, b *callerHost) int { return cmp.Compare(len(b.conns), len(a.conns)) })
	}
	for _, q := range hosts {
		if victims = q.giveWay(1+c.most/giveWay, len(q.conns) >= len(p.conns)); len(victims) > 0 {
			break
		}
	}
	for _, v := range victims {
		c.drop(v)
	}
	return victims, len(victims) > 0
}

// giveWay returns up to n connections of a host that can be closed: first those of which
// only the end is awaited, then those that are idle, and then, if incomplete is true,
// those whose request has not come to its end; the oldest first. Locked.
func (p *callerHost) giveWay(n int, incomplete bool) (victims []*callerConn) {
	for conn := range p.conns {
		if s := conn.phase(); s < phaseRuns && (incomplete || s <= phaseIdle) {
			victims = append(victims, conn)
		}
	}
	type order struct {
		phase int32
		since int64
	}
	orders := make(map[*callerConn]order, len(victims)) // they change meanwhile
	for _, v := range victims {
		orders[v] = order{v.phase(), v.since.Load()}
	}
	slices.SortFunc(victims, func(a, b *callerConn) int {
		x, y := orders[a], orders[b]
		return cmp.Or(cmp.Compare(x.phase, y.phase), cmp.Compare(x.since, y.since))
	})
	return victims[:min(n, len(victims))]
}

// drop forgets a connection. Locked.
func (c *callers) drop(conn *callerConn) {
	if _, there := conn.host.conns[conn]; !there {
		return
	}
	delete(conn.host.conns, conn)
	c.conns--
	if len(conn.host.conns) == 0 {
		delete(c.hosts, conn.host.addr)
	}
}

// closed notes that a connection is closed.
func (c *callers) closed(conn *callerConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(conn)
	if conn.refused {
		conn.refused = false
		c.busy--
	}
}

// busyAnswer is all that a caller gets for whose connection there is no place.
var busyAnswer = func() []byte {
	body := `{"error":{"code":"` + codeBusy + `","message":"the gateway has too many connections","hint":"try again in a second"}}` + "\n"
	return fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\nGfaas-Reason: %s\r\nRetry-After: 1\r\n\r\n%s",
		len(body), codeBusy, body)
}()

// refuse answers a connection with busyAnswer and closes it. Few of them are closed so
// that the caller gets the answer in any case (callerConn.Close): those hold descriptors.
func (c *callers) refuse(conn *callerConn) {
	c.mu.Lock()
	lingers := c.busy < c.most/16
	if lingers {
		c.busy++
		conn.refused = true
	}
	c.mu.Unlock()
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second)) // the kernel takes it at once
	_, _ = conn.Write(busyAnswer)
	conn.abrupt.Store(!lingers)
	conn.unread.Store(true)
	_ = conn.Close()
}
