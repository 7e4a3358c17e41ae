package chassis

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// bounded is a listener that has a server take so many connections at once at most.
type bounded struct {
	net.Listener
	most int

	mu     sync.Mutex
	turn   *sync.Cond // for whoever accepts: something below has changed
	conns  int        // that there are, without one that waits for room
	idle   map[net.Conn]time.Time
	closed bool
}

// Bounded has a server take at most so many connections of a listener at once, which
// is to be served in the place of that one. Where there are as many the one that is
// idle for the longest gives way; where none is, who calls waits. It is called once
// for a server, which serves nothing else.
func Bounded(s *http.Server, l net.Listener, most int) net.Listener {
	b := &bounded{Listener: l, most: most, idle: map[net.Conn]time.Time{}}
	b.turn = sync.NewCond(&b.mu)
	s.ConnState = b.state
	return b
}

func (b *bounded) state(conn net.Conn, now http.ConnState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.idle, conn)
	switch now {
	case http.StateIdle:
		b.idle[conn] = time.Now()
	case http.StateClosed, http.StateHijacked:
		b.conns--
	default:
		return
	}
	b.turn.Signal()
}

// Accept implements net.Listener. One goroutine at a time may call it.
func (b *bounded) Accept() (net.Conn, error) {
	conn, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.conns >= b.most && !b.closed {
		if idle := b.longest(); idle != nil {
			delete(b.idle, idle)
			_ = idle.Close() // the server says when it has seen that
		}
		b.turn.Wait()
	}
	if b.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	b.conns++
	return conn, nil
}

// longest is the connection that is idle for the longest, or nil. Locked.
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
	b.turn.Signal()
	b.mu.Unlock()
	return b.Listener.Close()
}
