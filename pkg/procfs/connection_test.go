package procfs

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestConnectionUser determines the client's user at the server's end of a connection. The
// kernel may report uid 0 for a socket without an owner, so such sockets must count as not
// found, also for root.
func TestConnectionUser(t *testing.T) {
	for _, c := range []struct {
		name  string
		act   func(*testing.T, *net.TCPConn) (done bool)
		found bool
	}{
		{"open", func(*testing.T, *net.TCPConn) bool { return true }, true},
		{"has sent all it has to say", func(t *testing.T, c *net.TCPConn) bool { check(t, c.CloseWrite()); return true }, true},
		{"closed", func(t *testing.T, c *net.TCPConn) bool { check(t, c.Close()); return true }, false},
		{"reset", func(t *testing.T, c *net.TCPConn) bool {
			check(t, c.SetLinger(0))
			check(t, c.Close())
			return true
		}, false},
		// The kernel's lookup finds the new listener at the old client's address.
		{"reset, and its port listens", func(t *testing.T, c *net.TCPConn) bool {
			check(t, c.SetLinger(0))
			check(t, c.Close())
			l, err := net.Listen("tcp", c.LocalAddr().String())
			if errors.Is(err, unix.EADDRINUSE) { // another process has taken the port
				return false
			}
			check(t, err)
			t.Cleanup(func() { _ = l.Close() })
			return true
		}, false},
	} {
		for _, family := range []string{"127.0.0.1", "::1", "::ffff:127.0.0.1"} {
			t.Run(c.name+" "+family, func(t *testing.T) {
				client, served := connect(t, family)
				for tries := 1; !c.act(t, client); tries++ {
					if tries == 100 {
						t.Fatal("100 attempts to listen on a port failed: other processes use them")
					}
					client, served = connect(t, family)
				}
				want := 0
				if c.found {
					want = os.Geteuid()
				}
				for name, lookUp := range map[string]func(local, remote netip.AddrPort) (int, bool, error){"from the kernel": ConnectionUser, "from the list": listedConnectionUser} {
					uid, found, err := lookUp(addrPort(served.RemoteAddr()), addrPort(served.LocalAddr()))
					if err != nil || found != c.found || uid != want {
						t.Errorf("the client's end, %s: uid %d, found %v, %v; want found %v with uid %d", name, uid, found, err, c.found, want)
					}
				}
			})
		}
	}
}

func TestConnectionUserWithoutConnection(t *testing.T) {
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	check(t, err)
	defer l.Close()
	for name, local := range map[string]netip.AddrPort{
		"a listening socket": addrPort(l.Addr()), "nothing": netip.MustParseAddrPort("127.0.0.1:1"), "another machine": netip.MustParseAddrPort("192.0.2.1:40000"),
	} {
		if uid, found, err := ConnectionUser(local, netip.MustParseAddrPort("127.0.0.1:8080")); found || uid != 0 || err != nil {
			t.Errorf("%s: uid %d, found %v, %v; want not found", name, uid, found, err)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// connect returns both ends of a connection to a loopback address. For an IPv4-mapped IPv6
// address, the client's socket is an IPv6 socket.
func connect(t *testing.T, address string) (client, served *net.TCPConn) {
	t.Helper()
	ip := netip.MustParseAddr(address)
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip.Unmap(), 0)))
	if err != nil {
		t.Skip(err) // without IPv6
	}
	t.Cleanup(func() { _ = l.Close() })
	if ip.Is4In6() {
		client = dialMapped(t, ip, l)
	} else {
		client, err = net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
		check(t, err)
	}
	t.Cleanup(func() { _ = client.Close() })
	served, err = l.AcceptTCP()
	check(t, err)
	t.Cleanup(func() { _ = served.Close() })
	return client, served
}

// dialMapped connects from an IPv6 socket, which the net package does not do.
func dialMapped(t *testing.T, ip netip.Addr, l *net.TCPListener) *net.TCPConn {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skip(err)
	}
	f := os.NewFile(uintptr(fd), "client")
	defer f.Close()
	check(t, unix.Connect(fd, &unix.SockaddrInet6{Port: l.Addr().(*net.TCPAddr).Port, Addr: ip.As16()}))
	conn, err := net.FileConn(f)
	check(t, err)
	return conn.(*net.TCPConn)
}
