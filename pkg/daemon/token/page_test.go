package token

import (
	"net"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/wire"
)

func TestSendNeverWaits(t *testing.T) {
	s := serve(t, Config{})
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: s.clientSocket(), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var server net.Conn
	eventually(t, "the daemon has accepted the connection", func() bool {
		_ = s.d.locked(func() {
			for _, g := range s.d.sessions.greetings {
				server = g.conn
			}
		})
		return server != nil
	})
	for n := 0; ; n++ {
		if n > 1e5 {
			t.Fatal("messages to a peer that reads nothing: got 100000 sent, want an error before")
		}
		err := use(server.(*net.UnixConn), func(fd int) error {
			return send(fd, wire.Append(nil, wire.LeaseEnd{Lease: 1}), nil)
		})
		if err != nil {
			break
		}
	}
}

func TestPageCannotBeTruncated(t *testing.T) {
	p, err := newPage("a", 5)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for _, size := range []int64{0, 4096, 1 << 20} {
		if err := unix.Ftruncate(int(p.file.Fd()), size); err == nil {
			t.Errorf("truncate the page to %d bytes: got no error, want one", size)
		}
	}
	p.setGate(63, 9)
	if got := atomic.LoadUint32(&p.slot(63).Gate); got != 9 {
		t.Errorf("gate of slot 63: got %d, want 9", got)
	}
}
