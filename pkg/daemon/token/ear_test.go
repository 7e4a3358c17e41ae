package token

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/wire"
)

// abandon closes a connection and keeps its number, which is closed later.
func abandon(fd int) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	return unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC)
}

// TestEnds: however a connection ends, whole or in part, what its process held
// is free at once and its gate is closed.
func TestEnds(t *testing.T) {
	ends := map[string]func(fd int) error{
		"close":             abandon,
		"no more to say":    func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) },
		"no more to hear":   func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RD) },
		"a record of 0":     func(fd int) error { return unix.Sendto(fd, nil, 0, nil) },
		"a record too long": func(fd int) error { return unix.Sendto(fd, make([]byte, wire.MaxMessage+1), 0, nil) },
		"another's message": func(fd int) error { return unix.Sendto(fd, wire.LeaseEnd{}.Append(nil), 0, nil) },
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
			s.register(reg("a", 60, 1, 1))
			a := connectTo(t, s.clientSocket())
			a.greet(t, "a")
			_, lease := a.roundTrip(t)
			if err := end(a.fd); err != nil {
				t.Fatal(err)
			}
			b := s.join(reg("b", 60, 1, 1))
			s.lease(b)
			if *a.gate == lease {
				t.Error("its gate stayed open")
			}
			b.Close()
			eventually(t, "nothing is left", func() bool {
				heard := 0
				_ = s.d.locked(func() { heard = len(s.d.ear.hears) + len(s.d.greeting) + len(s.d.members) })
				return heard == 0
			})
		})
	}
}

// TestRemovedWhileItSpeaks removes instances whose processes say all they can:
// what they have said goes nowhere, and who has their descriptors next is heard.
func TestRemovedWhileItSpeaks(t *testing.T) {
	s := serve(t, Config{})
	good := s.join(reg("good", 30, 1, 1))
	for range 100 {
		c := s.join(reg("a", 60, 1, 1))
		speaks := make(chan int)
		go func() {
			n := 0
			for c.Request() == nil && n < 5 {
				n++
			}
			speaks <- n
		}()
		if code, _ := s.do("DELETE", "/v1/instances/a", ""); code != 204 {
			t.Fatal(code)
		}
		<-speaks
		lease := s.lease(good)
		if err := good.Return(lease, 0, false); err != nil {
			t.Fatal(err)
		}
		<-c.Gone
	}
}

// fds is how many descriptors a process has.
func fds(t *testing.T, pid int) int {
	t.Helper()
	names, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// TestOutOfDescriptors gives the daemon so many descriptors more than it has,
// and no more: who is in goes on, who comes gets in when there are some again,
// and none are lost.
func TestOutOfDescriptors(t *testing.T) {
	s, daemon := serveApart(t, filepath.Join(runDir(t), "token.sock"))
	pid := daemon.Process.Pid
	a := s.join(reg("a", 30, 1, 1))
	s.register(reg("b", 30, 1, 1))
	var before unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		t.Fatal(err)
	}
	enough := func() int {
		n := fds(t, pid)
		eventually(t, "as few as before", func() bool { n = min(n, fds(t, pid)); return fds(t, pid) == n })
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
			if err := a.Return(s.lease(a), 0, false); err != nil {
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
	eventually(t, "none are lost", func() bool { return fds(t, pid) <= had+1 }) // b's page
}
