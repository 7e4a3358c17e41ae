package chassis

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// bounded is a listener that limits the number of open connections of a server.
type bounded struct {
	net.Listener
	limit int

	mu      sync.Mutex
	changed *sync.Cond // signalled when conns, idle or closed changes
	conns   int        // open connections, without an accepted one that still waits for room
	idle    map[net.Conn]time.Time
	closed  bool
}

// Bounded returns a listener to serve in place of l, which keeps at most the given number
// of connections open. At the limit, it closes the connection that has been idle longest;
// if all are busy, new clients wait until one closes. It sets s.ConnState, so call it once
// per server, and let that server serve no other listener.
func Bounded(s *http.Server, l net.Listener, limit int) net.Listener {
	b := &bounded{Listener: l, limit: limit, idle: map[net.Conn]time.Time{}}
	b.changed = sync.NewCond(&b.mu)
	s.ConnState = b.state
	return b
}

func (b *bounded) state(conn net.Conn, state http.ConnState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.idle, conn)
	switch state {
	case http.StateIdle:
		b.idle[conn] = time.Now()
	case http.StateClosed, http.StateHijacked:
		b.conns--
	default:
		return
	}
	b.changed.Signal()
}

// Accept implements net.Listener. One goroutine at a time may call it.
func (b *bounded) Accept() (net.Conn, error) {
	conn, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.conns >= b.limit && !b.closed {
		if idle := b.longest(); idle != nil {
			delete(b.idle, idle)
			_ = idle.Close() // the server then reports StateClosed
		}
		b.changed.Wait()
	}
	if b.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	b.conns++
	return conn, nil
}

// longest returns the connection that has been idle longest, or nil. The caller holds b.mu.
func (b *bounded) longest() (conn net.Conn) {
	var since time.Time
	for c, at := range b.idle {
		if conn == nil || at.Before(since) {
			conn, since = c, at
		}
	}
	return conn
}

// Close implements net.Listener.
func (b *bounded) Close() error {
	b.mu.Lock()
	b.closed = true
	b.changed.Signal()
	b.mu.Unlock()
	return b.Listener.Close()
}
