package token

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
		reason string // empty: the connection ends without an answer
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

// TestSlotsAreLimited connects processes with libraries that support all slots (n) and with older
// libraries (o) until one is refused. It checks the number of admitted processes and the reason.
func TestSlotsAreLimited(t *testing.T) {
	for _, tt := range []struct {
		name, kinds string
		leaves      int // index of the process that leaves afterwards; -1: none
		refused     string
	}{
		{"many", strings.Repeat("n", wire.PageSlotsMost) + "n", -1, "has 1024 processes"},
		{"a place is free again", strings.Repeat("n", wire.PageSlotsMost), 700, ""},
		{"older", strings.Repeat("o", wire.PageSlots) + "o", -1, "has 64 processes, the limit while one has an older library"},
		{"beside an older one", "o" + strings.Repeat("n", wire.PageSlots-1) + "n", -1, "has 64 processes, the limit while one has an older library"},
		{"the older one leaves", "o" + strings.Repeat("n", wire.PageSlots-1), 0, ""},
		{"older beside many", strings.Repeat("n", wire.PageSlots+1) + "o", -1, "its library supports only 64 processes, and a has more"},
		{"older beside a few", strings.Repeat("n", wire.PageSlots-1) + "o", -1, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, Config{})
			s.register(reg("a", 1, 1, 1))
			var all []*tokentest.Client
			dial := func(kind rune) error {
				dial := tokentest.Dial
				if kind == 'o' {
					dial = tokentest.DialOlder
				}
				c, err := dial(s.clientSocket(), "a", "secret of a", 1)
				if err == nil {
					t.Cleanup(c.Close)
					all = append(all, c)
				}
				return err
			}
			for n, kind := range tt.kinds {
				err := dial(kind)
				if refused := errors.Is(err, tokentest.ErrRefused); err != nil && !refused || refused != (tt.refused != "" && n == len(tt.kinds)-1) {
					t.Fatalf("process %d: %v", n+1, err)
				}
				if err != nil && !strings.Contains(err.Error(), tt.refused) {
					t.Errorf("process %d is refused: %v", n+1, err)
				}
			}
			for _, c := range all {
				if used := c.Used(); int(c.Welcome.Slot) >= used || used > wire.PageSlotsMost {
					t.Errorf("slot %d of %d", c.Welcome.Slot, used)
				}
			}
			if tt.leaves >= 0 {
				all[tt.leaves].Close()
				eventually(t, "another gets in", func() bool { return dial('n') == nil })
			}
		})
	}
}

// raw opens a connection without sending anything.
func (s *server) raw() *net.UnixConn {
	s.t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: s.clientSocket(), Net: "unixpacket"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestFloodEndsTheConnection checks that messages against the protocol end the sender's connection,
// and no other connection.
func TestFloodEndsTheConnection(t *testing.T) {
	for name, m := range map[string]wire.Message{
		"requests": wire.Request{}, "returns": wire.Return{Lease: 12345, UsedNS: 1}, "lease 0": wire.Return{},
		"endings": wire.Ending{Lease: 12345}, "ending of lease 0": wire.Ending{},
		"faults": wire.Fault{Code: 700},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, Config{})
			bad, good := s.join(reg("a", 60, 1, 1)), s.join(reg("b", 60, 1, 1))
			lease := s.lease(good)
			for range 10 * maxViolations {
				if bad.Send(m) != nil {
					break // the connection has ended
				}
			}
			select {
			case <-bad.Closed:
			case <-time.After(patience):
				t.Fatal("it is not cut off")
			}
			if err := good.Return(lease, time.Millisecond, true); err != nil {
				t.Fatal(err)
			}
			s.await(good)
		})
	}
}

// TestNeedlessMessagesAreForgiven checks that a hasty client may send up to maxViolations unneeded
// messages in each of its leases.
func TestNeedlessMessagesAreForgiven(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", 60, 1, 1))
	for range 20 {
		lease := s.lease(a)
		for range maxViolations {
			if err := a.Request(); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Return(lease, time.Millisecond, false); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFastClientIsReadAgain checks that the daemon stops reading a client with too many messages
// for a while, and then continues.
func TestFastClientIsReadAgain(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", 60, 1, 1))
	for range 3 {
		began := time.Now()
		_ = s.d.locked(func() {
			for _, m := range s.d.sessions.poller.sessions {
				m.alloc.period, m.alloc.messages = began, paceMessages
			}
		})
		if err := a.Return(s.lease(a), time.Millisecond, false); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the lease is back", func() bool { return s.status().GPUs[0].Clients[0].State == "idle" })
		if elapsed := time.Since(began); elapsed < pacePeriod {
			t.Errorf("it was read after %v", elapsed)
		}
	}
}

// TestSilentConnectionsKeepNobodyOut checks that a client that sends its hello is admitted while more
// silent connections than the limit exist.
func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	s := serve(t, Config{HelloTimeout: time.Minute})
	s.register(reg("a", 60, 1, 1))
	for range maxUnknown + 50 {
		s.raw()
	}
	eventually(t, "the oldest are gone", func() bool {
		open := 0
		_ = s.d.locked(func() { open = len(s.d.sessions.greetings) })
		return open == maxUnknown
	})
	c, err := s.dial("a", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s.lease(c)
}

// TestStorms checks that valid and invalid connections and hellos at the highest possible rate do not
// disturb a working instance and leave nothing behind.
func TestStorms(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", 60, 0.5, 0.5))
	s.register(reg("b", 30, 0.5, 0.5))
	eventually(t, "all that the daemon runs has begun", func() bool {
		text := make([]byte, 1<<20)
		text = text[:runtime.Stack(text, true)]
		return bytes.Count(text, []byte("/errgroup.(*Group).Wait(")) == 2 // its own and the chassis's
	})
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var storm sync.WaitGroup
	var joins atomic.Int64
	for _, secret := range []string{"secret of b", "wrong"} {
		storm.Go(func() {
			for ctx.Err() == nil {
				if c, err := tokentest.Dial(s.clientSocket(), "b", secret, 0); err == nil {
					_ = c.Request()
					c.Close()
				}
				joins.Add(1)
			}
		})
	}
	storm.Go(func() {
		for ctx.Err() == nil {
			conn, err := net.Dial("unixpacket", s.clientSocket())
			if err == nil {
				_, _ = conn.Write(bytes.Repeat([]byte{0xff}, 200))
				_ = conn.Close()
			}
		}
	})
	saturates := make(chan error, 1)
	go func() {
		_, err := a.Saturate(ctx, time.Millisecond)
		saturates <- err
	}()
	// The storms and other programs also use the processors. One undisturbed window shows that the
	// daemon does not limit the instance.
	eventually(t, "a window with the instance's share", func() bool {
		return joins.Load() > 100 && s.status().GPUs[0].Clients[0].Used > 0.4
	})
	t.Logf("its share after %d joins", joins.Load())
	cancel()
	if err := <-saturates; err != nil {
		t.Error(err)
	}
	storm.Wait()
	eventually(t, "the storms leave nothing", func() bool {
		greeted, read := 0, 0
		_ = s.d.locked(func() { greeted, read = len(s.d.sessions.greetings), len(s.d.sessions.poller.sessions) })
		return greeted == 0 && read == 1 && runtime.NumGoroutine() <= before
	})
}

// TestLies checks that a report of more than the time since the grant counts as that time, and so
// does a report of 0 from a process that has launched.
func TestLies(t *testing.T) {
	for name, lie := range map[string]func(*tokentest.Client) time.Duration{
		"more than there was": func(*tokentest.Client) time.Duration { return 1<<63 - 1 },
		"nothing":             func(c *tokentest.Client) time.Duration { c.Slot().Launches++; return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			undisturbed(t, func() error { return lieAbout(t, lie) })
		})
	}
}

// lieAbout holds a lease for a moment and reports a wrong time.
func lieAbout(t *testing.T, lie func(*tokentest.Client) time.Duration) error {
	s := serve(t, Config{Settings: Settings{Window: 500 * time.Millisecond}})
	a, b := s.join(reg("a", 60, 0.5, 0.5)), s.join(reg("b", 60, 0.5, 0.5))
	lease := s.lease(a)
	if err := b.Request(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for time.Since(start) < 50*time.Millisecond {
		runtime.Gosched()
	}
	if err := a.Return(lease, lie(a), false); err != nil {
		t.Fatal(err)
	}
	s.await(b)
	used := 0.0
	eventually(t, "a window with the lie ends", func() bool { used = s.row("a").Used; return used > 0 })
	if used < 0.09 || used > 0.6 {
		return fmt.Errorf("charged %v of a window, want the time it held the lease", used)
	}
	return nil
}

func TestOtherUsersAreRefused(t *testing.T) {
	s := serve(t, Config{ClientUIDs: []int{777}})
	conn := s.raw()
	for uid, ok := range map[uint32]bool{0: true, uint32(unix.Geteuid()): true, 777: true, 778: false, 65534: false} {
		err := s.d.sessions.admitsUser(conn, unix.Ucred{Uid: uid})
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "may not connect to this token daemon") {
			t.Errorf("user %d: %v", uid, err)
		}
	}
}

// TestPace checks the bound on an allocation's messages per period.
func TestPace(t *testing.T) {
	s, start := &allocation{}, time.Now()
	for n := range paceMessages - 1 {
		if rest := s.pace(start.Add(time.Duration(n))); rest != 0 {
			t.Fatalf("message %d is slowed by %v, want 0", n, rest)
		}
	}
	if rest := s.pace(start.Add(30 * time.Millisecond)); rest != pacePeriod-30*time.Millisecond {
		t.Errorf("rest %v", rest)
	}
	if rest := s.pace(start.Add(pacePeriod)); rest != 0 {
		t.Errorf("rest %v in the next period, want 0", rest)
	}
}

// TestSlowReaderIsCutOff checks that a client that uses leases but does not read its messages loses
// its connection when its buffer is full.
func TestSlowReaderIsCutOff(t *testing.T) {
	s := serve(t, Config{Settings: Settings{Window: 20 * time.Millisecond}})
	s.register(reg("a", 60, 0.5, 0.5))
	c := connectTo(t, s.clientSocket())
	c.greet(t, "a")
	const pause = 100 * time.Microsecond // between two checks of the gate
	gone := func() bool {
		fds := []unix.PollFd{{Fd: int32(c.fd)}}
		_, _ = unix.Poll(fds, 0)
		return fds[0].Revents&unix.POLLHUP != 0
	}
	eventually(t, "it is cut off", func() bool {
		_, _ = unix.Write(c.fd, request)
		for end := time.Now().Add(time.Second); time.Now().Before(end) && !gone(); time.Sleep(pause) {
			if lease := atomic.LoadUint32(c.gate); lease != 0 {
				for atomic.LoadUint32(c.gate) == lease && !gone() {
					time.Sleep(pause)
				}
				_ = c.tryReturn(lease)
				break
			}
		}
		return gone()
	})
}
