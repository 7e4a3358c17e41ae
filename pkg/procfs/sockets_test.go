package procfs

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func addrPort(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }

func TestListening(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a socket")
	if Listening(path) {
		t.Error("true without a socket")
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	if !Listening(path) || Listening("socket") || Listening(dir) {
		t.Error("want true for the path of the socket only")
	}
	_ = l.Close() // the list still has the accepted connection
	if Listening(path) {
		t.Error("true for a connection of a closed listener")
	}
}

func TestSocketUser(t *testing.T) {
	for _, where := range []struct{ listen, dial string }{{"127.0.0.1:0", "127.0.0.1"}, {":0", "127.0.0.1"}, {"[::1]:0", "::1"}} {
		l, err := net.Listen("tcp", where.listen)
		if err != nil {
			t.Logf("%s: %v", where.listen, err) // without IPv6
			continue
		}
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("tcp", net.JoinHostPort(where.dial, port))
		if err != nil {
			t.Fatal(err)
		}
		uid, found, err := SocketUser(addrPort(conn.RemoteAddr()), addrPort(conn.LocalAddr()))
		if uid != os.Geteuid() || !found || err != nil {
			t.Errorf("SocketUser at %s: got uid %d, found %v, %v; want uid %d", where.listen, uid, found, err, os.Geteuid())
		}
		if direct, err := diagUser(addrPort(conn.RemoteAddr()), addrPort(conn.LocalAddr())); err != nil || direct != uid {
			t.Logf("the kernel is not asked: %d, %v", direct, err)
		}
		fields, err := socketFields(addrPort(conn.RemoteAddr()), addrPort(conn.LocalAddr()))
		if fields == nil || err != nil || fields[userField] != strconv.Itoa(os.Geteuid()) {
			t.Errorf("fields of the socket at %s: got %q, %v; want uid %d", where.listen, fields, err, os.Geteuid())
		}
		_ = conn.Close()
		_ = l.Close()
		none := netip.AddrPortFrom(addrPort(conn.RemoteAddr()).Addr(), 1)
		if uid, found, err := SocketUser(none, addrPort(conn.LocalAddr())); found || err != nil {
			t.Errorf("SocketUser without a connection: got uid %d, found %v, %v; want none", uid, found, err)
		}
	}
}

func BenchmarkSocketUser(b *testing.B) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	for b.Loop() {
		if _, found, _ := SocketUser(addrPort(conn.RemoteAddr()), addrPort(conn.LocalAddr())); !found {
			b.Fatal("SocketUser: the connection was not found")
		}
	}
}
