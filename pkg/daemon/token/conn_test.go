package token

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/wire"
)

func TestRefused(t *testing.T) {
	s, hasty := serve(t, Config{}), serve(t, Config{HelloTimeout: 50 * time.Millisecond})
	s.register(reg("a", 60, 1, 1))
	for name, who := range map[string][2]string{"secret": {"a", "wrong"}, "instance": {"b", "secret of a"}, "nothing": {"", ""}} {
		_, err := tokentest.Dial(s.clientSocket(), who[0], who[1], 0)
		if !errors.Is(err, tokentest.ErrRefused) || !strings.Contains(err.Error(), "do not match") {
			t.Errorf("wrong %s: %v", name, err)
		}
	}
	long := append(wire.Append(nil, wire.Request{}), make([]byte, 600)...)
	for name, tt := range map[string]struct {
		frame  []byte
		reason string // empty: the connection just ends
	}{
		"no hello":       {nil, "no hello within"},
		"request first":  {wire.Append(nil, wire.Request{}), "before the hello"},
		"garbage":        {[]byte("GET / HTTP/1.1\r\n\r\n"), ""},
		"long message":   {long, ""},
		"cut off header": {[]byte{1, 2, 3}, ""},
	} {
		to := s
		if tt.frame == nil {
			to = hasty
		}
		conn, err := net.Dial("unixpacket", to.clientSocket())
		if err != nil {
			t.Fatal(err)
		}
		if tt.frame != nil {
			if _, err := conn.Write(tt.frame); err != nil {
				t.Fatal(err)
			}
		}
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		answer, err := io.ReadAll(conn)
		if err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %v", name, err)
		}
		if !bytes.Contains(answer, []byte(tt.reason)) || tt.reason == "" && len(answer) != 0 {
			t.Errorf("%s: answer %q, want %q", name, answer, tt.reason)
		}
		_ = conn.Close()
	}
	if st := s.status(); st.GPUs[0].Clients[0].State != "absent" {
		t.Errorf("somebody got in: %+v", st)
	}
}

func TestClientThatBreaksTheProtocolLosesItsLease(t *testing.T) {
	s := serve(t, Config{})
	a, b := s.join(reg("a", 60, 1, 1)), s.join(reg("b", 60, 1, 1))
	s.lease(a)
	if err := b.Request(); err != nil {
		t.Fatal(err)
	}
	if err := a.Send(wire.LeaseEnd{}); err != nil {
		t.Fatal(err)
	}
	s.await(b)
	if atomic.LoadUint32(&a.Slot().Gate) != 0 {
		t.Error("the gate stayed open")
	}
}

func TestSlotsAreLimited(t *testing.T) {
	s := serve(t, Config{})
	s.register(reg("a", 1, 1, 1))
	for n := range wire.PageSlots {
		c, err := s.dial("a", 0)
		if err != nil {
			t.Fatalf("process %d: %v", n, err)
		}
		defer c.Close()
	}
	if _, err := s.dial("a", 0); !errors.Is(err, tokentest.ErrRefused) {
		t.Errorf("process %d: %v", wire.PageSlots+1, err)
	}
}
