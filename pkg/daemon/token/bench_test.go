package token

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/gfaas/gfaas/pkg/wire"
)

// BenchmarkGrant is a lease asked for, granted, seen at the gate and given
// back. BenchmarkEcho, in the same run, is a message there and back alone.
func BenchmarkGrant(b *testing.B) {
	s := serve(b, Config{})
	c := s.join(reg("a", 100, 1, 1))
	for b.Loop() {
		if err := c.Return(s.lease(c), 0, false); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEcho(b *testing.B) {
	path := filepath.Join(runDir(b), "echo")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		buf := make([]byte, wire.MaxMessage)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			if _, err := conn.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	conn, err := net.Dial("unixpacket", path)
	if err != nil {
		b.Fatal(err)
	}
	frame, buf := wire.Append(nil, wire.Request{}), make([]byte, wire.MaxMessage)
	for b.Loop() {
		if _, err := conn.Write(frame); err != nil {
			b.Fatal(err)
		}
		if _, err := conn.Read(buf); err != nil {
			b.Fatal(err)
		}
	}
	_ = conn.Close()
	<-ended
	_ = l.Close()
}
