package token

import (
	"errors"
	"net"
	"testing"

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

// TestDescriptorsAreRefused: a client that passes a descriptor whose last close
// takes long would have the daemon close it, and everybody wait for that.
func TestDescriptorsAreRefused(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", 60, 1, 1))
	good := s.join(reg("b", 30, 1, 1))
	bad := connectTo(t, s.clientSocket())
	bad.greet(t, "a")
	if _, err := unix.GetsockoptInt(bad.fd, unix.SOL_SOCKET, unix.SO_PASSRIGHTS); errors.Is(err, unix.ENOPROTOOPT) {
		t.Skip("kernels before 6.16 cannot refuse descriptors")
	}
	fd := lingerer(t)
	for name, to := range map[string]int{"before the hello": connectTo(t, s.clientSocket()).fd, "after it": bad.fd} {
		err := unix.Sendmsg(to, request, unix.UnixRights(fd), nil, 0)
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.lease(good)
}
