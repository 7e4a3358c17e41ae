package token

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lingerer is a descriptor whose last close takes a minute: a TCP connection
// that lingers, with data that its peer does not take. The caller closes it.
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

// canRefuse says whether this kernel can refuse descriptors.
func canRefuse(t *testing.T) bool {
	t.Helper()
	can, err := rightsAreRefused()
	if err != nil {
		t.Fatal(err)
	}
	return can
}

// TestDescriptorsAreRefused: where the kernel can, nothing that clients pass
// comes here.
func TestDescriptorsAreRefused(t *testing.T) {
	if !canRefuse(t) {
		t.Skip("kernels before 6.16 cannot refuse descriptors: TestDescriptorsAreDiscarded")
	}
	s := serve(t, Config{})
	s.register(reg("a", 60, 1, 1))
	bad := connectTo(t, s.clientSocket())
	bad.greet(t, "a")
	for name, to := range map[string]int{"before the hello": connectTo(t, s.clientSocket()).fd, "after it": bad.fd} {
		if err := unix.Sendmsg(to, request, unix.UnixRights(0), nil, 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDescriptorsAreDiscarded: where the kernel cannot refuse them, whoever
// passes a descriptor of which the last close takes long is cut off, and nobody
// waits for that.
func TestDescriptorsAreDiscarded(t *testing.T) {
	s := serve(t, Config{})
	s.d.ear.safe.Store(false)
	if canRefuse(t) {
		raw, err := s.d.common.listener.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 1) })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.register(reg("a", 60, 1, 1))
	good := s.join(reg("b", 30, 1, 1))
	began := time.Now()
	for name, records := range map[string][]bool{"heard": {true}, "unheard": {false, true}, "many": {true, true, true}, "after nonsense": {false, false, true}} {
		for _, greets := range []bool{true, false} {
			bad := connectTo(t, s.clientSocket())
			if greets {
				bad.greet(t, "a")
			}
			s.d.mu.Lock() // so that all has been said before anything is heard
			for _, passes := range records {
				if !passes {
					bad.send(t, []byte("nonsense"))
					continue
				}
				fd := lingerer(t)
				if err := unix.Sendmsg(bad.fd, request, unix.UnixRights(fd), nil, 0); err != nil {
					t.Fatal(name, err)
				}
				if err := abandon(fd); err != nil { // the daemon's is the last
					t.Fatal(err)
				}
				_ = unix.Close(fd)
			}
			s.d.mu.Unlock()
			if err := good.Return(s.lease(good), 0, false); err != nil {
				t.Fatal(err)
			}
			_ = unix.Shutdown(bad.fd, unix.SHUT_WR)
		}
	}
	eventually(t, "nothing is left but the good one", func() bool {
		heard := 0
		_ = s.d.locked(func() { heard = len(s.d.ear.hears) + len(s.d.greeting) })
		return heard == 1
	})
	if took := time.Since(began); took > 50*time.Second {
		t.Errorf("it took %v, as if somebody had waited", took)
	}
}
