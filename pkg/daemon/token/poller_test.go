package token

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/wire"
)

// abandon closes a connection but keeps its descriptor number, which is closed later.
func abandon(fd int) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	return unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC)
}

// TestEnds checks that every kind of end of a connection frees the process's lease at once and
// closes its gate.
func TestEnds(t *testing.T) {
	ends := map[string]func(fd int) error{
		"close":             abandon,
		"no more to say":    func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) },
		"no more to read":   func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RD) },
		"a record of 0":     func(fd int) error { return unix.Sendto(fd, nil, 0, nil) },
		"a record too long": func(fd int) error { return unix.Sendto(fd, make([]byte, wire.MaxMessage+1), 0, nil) },
		"another's message": func(fd int) error { return unix.Sendto(fd, wire.Append(nil, wire.LeaseEnd{}), 0, nil) },
		"hello again":       func(fd int) error { return unix.Sendto(fd, wire.Append(nil, wire.Hello{}), 0, nil) },
		"words, then close": func(fd int) error {
			for range 3 {
				if err := unix.Sendto(fd, request, 0, nil); err != nil {
					return err
				}
			}
			return abandon(fd)
		},
	}
	s := serve(t, Config{})
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
			a := connectTo(t, s.clientSocket())
			a.greet(t, "a")
			_, lease := a.roundTrip(t)
			if err := end(a.fd); err != nil {
				t.Fatal(err)
			}
			b := s.join(reg("b", share{sm: 60, request: 1, limit: 1}))
			s.lease(b)
			if *a.gate == lease {
				t.Errorf("gate of the ended client: got lease %d, want it closed", lease)
			}
			b.Close()
			eventually(t, "the daemon has removed the connection", func() bool {
				read := 0
				_ = s.d.locked(func() {
					read = len(s.d.sessions.poller.sessions) + len(s.d.sessions.greetings) + len(slices.Collect(s.d.registry.sessions()))
				})
				return read == 0
			})
		})
	}
}

// TestRemovalWhileSending removes instances while their processes send messages. These messages must
// have no effect, and the next client with the same descriptor must be read.
func TestRemovalWhileSending(t *testing.T) {
	s := serve(t, Config{})
	good := s.join(reg("good", share{sm: 30, request: 1, limit: 1}))
	for range 100 {
		c := s.join(reg("a", share{sm: 60, request: 1, limit: 1}))
		speaks := make(chan int)
		go func() {
			n := 0
			for c.Request() == nil && n < 5 {
				n++
			}
			speaks <- n
		}()
		if code, _ := s.do("DELETE", "/v1/instances/a", ""); code != 204 {
			t.Fatalf("unregister instance a: got %d, want 204", code)
		}
		<-speaks
		lease := s.lease(good)
		if err := good.Return(lease, 0, tokentest.WantsNoMore); err != nil {
			t.Fatal(err)
		}
		<-c.Closed
	}
}

// fds returns the number of a process's descriptors.
func fds(t *testing.T, pid int) int {
	t.Helper()
	names, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// TestOutOfDescriptors limits the daemon to a few free descriptors. Connected clients must
// continue, new clients must be admitted once descriptors are free, and no descriptor may leak.
func TestOutOfDescriptors(t *testing.T) {
	s, daemon := serveApart(t, filepath.Join(runDir(t), "token.sock"))
	pid := daemon.Process.Pid
	a := s.join(reg("a", share{sm: 30, request: 1, limit: 1}))
	s.register(reg("b", share{sm: 30, request: 1, limit: 1}))
	var before unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	enough := func() int {
		n := fds(t, pid)
		eventually(t, "the daemon has no more descriptors than before", func() bool { n = min(n, fds(t, pid)); return fds(t, pid) == n })
		return n
	}
	had := enough()
	for more := range 4 {
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(had + more), Max: before.Max}, nil); err != nil {
			t.Fatal(err)
		}
		joined := make(chan *tokentest.Client)
		go func() {
			for {
				if c, err := s.dial("b", 0); err == nil {
					joined <- c
					return
				}
				time.Sleep(time.Millisecond)
			}
		}()
		for range 20 {
			if err := a.Return(s.lease(a), 0, tokentest.WantsNoMore); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil); err != nil {
			t.Fatal(err)
		}
		b := <-joined
		s.lease(b)
		b.Close()
	}
	eventually(t, "the daemon has closed all descriptors of ended clients", func() bool { return fds(t, pid) <= had+1 }) // b's page
}

// lingerer returns a descriptor whose last close takes a minute: a TCP connection that lingers,
// with data that its peer does not read. The caller closes it.
func lingerer(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().(*net.TCPAddr)
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: at.Port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 60}); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		err = unix.Sendto(fd, make([]byte, 1<<16), unix.MSG_DONTWAIT, nil)
	}
	return fd
}

// TestDescriptorsAreDiscarded checks that a client that passes a descriptor with a slow close loses its
// connection, and no other client waits for the close.
func TestDescriptorsAreDiscarded(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	good := s.join(reg("b", share{sm: 30, request: 1, limit: 1}))
	began := time.Now()
	for name, records := range map[string][]bool{"read": {true}, "unread": {false, true}, "many": {true, true, true}, "after nonsense": {false, false, true}} {
		for _, greets := range []bool{true, false} {
			bad := connectTo(t, s.clientSocket())
			if greets {
				bad.greet(t, "a")
			}
			s.d.mu.Lock() // so that all messages are sent before the daemon reads one
			for _, passes := range records {
				if !passes {
					bad.send(t, []byte("nonsense"))
					continue
				}
				fd := lingerer(t)
				if err := unix.Sendmsg(bad.fd, request, unix.UnixRights(fd), nil, 0); err != nil {
					t.Fatalf("pass a descriptor %s: %v", name, err)
				}
				if err := abandon(fd); err != nil { // the daemon's copy is the last
					t.Fatal(err)
				}
				_ = unix.Close(fd)
			}
			s.d.mu.Unlock()
			if err := good.Return(s.lease(good), 0, tokentest.WantsNoMore); err != nil {
				t.Fatal(err)
			}
			_ = unix.Shutdown(bad.fd, unix.SHUT_WR)
		}
	}
	eventually(t, "only the client that passes no descriptors is connected", func() bool {
		read := 0
		_ = s.d.locked(func() { read = len(s.d.sessions.poller.sessions) + len(s.d.sessions.greetings) })
		return read == 1
	})
	if took := time.Since(began); took > 50*time.Second {
		t.Errorf("connections with slow closes took %v, want at most 50s, since no client waits for a close", took)
	}
}
