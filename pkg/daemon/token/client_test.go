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
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	for name, hello := range map[string][2]string{"secret": {"a", "wrong"}, "instance": {"b", "secret of a"}, "nothing": {"", ""}} {
		_, err := tokentest.Dial(s.clientSocket(), hello[0], hello[1], 0)
		if !errors.Is(err, tokentest.ErrRefused) || !strings.Contains(err.Error(), "do not match") {
			t.Errorf("hello with a wrong %s: got %v, want a refusal: … do not match", name, err)
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
			t.Errorf("%s: read the answer: %v", name, err)
		}
		if !bytes.Contains(answer, []byte(tt.reason)) || tt.reason == "" && len(answer) != 0 {
			t.Errorf("%s: got answer %q, want %q", name, answer, tt.reason)
		}
		_ = conn.Close()
	}
	if st := s.status(); st.GPUs[0].Clients[0].State != "absent" {
		t.Errorf("state of instance a after refused connections: got %+v, want absent", st)
	}
}

func TestProtocolErrorEndsLease(t *testing.T) {
	s := serve(t, Config{})
	a, b := s.join(reg("a", share{sm: 60, request: 1, limit: 1})), s.join(reg("b", share{sm: 60, request: 1, limit: 1}))
	s.lease(a)
	if err := b.Request(); err != nil {
		t.Fatal(err)
	}
	if err := a.Send(wire.LeaseEnd{}); err != nil {
		t.Fatal(err)
	}
	s.await(b)
	if atomic.LoadUint32(&a.Slot().Gate) != 0 {
		t.Error("gate of a client after a protocol error: got open, want closed")
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
			s.register(reg("a", share{sm: 1, request: 1, limit: 1}))
			var all []*tokentest.Client
			dial := func(kind rune) error {
				o := tokentest.Options{MemUsed: 1, Older: kind == 'o'}
				c, err := tokentest.DialWith(s.clientSocket(), "a", "secret of a", o)
				if err == nil {
					t.Cleanup(c.Close)
					all = append(all, c)
				}
				return err
			}
			for n, kind := range tt.kinds {
				err := dial(kind)
				if refused := errors.Is(err, tokentest.ErrRefused); err != nil && !refused || refused != (tt.refused != "" && n == len(tt.kinds)-1) {
					t.Fatalf("process %d: got %v, want refused %v", n+1, err, tt.refused != "" && n == len(tt.kinds)-1)
				}
				if err != nil && !strings.Contains(err.Error(), tt.refused) {
					t.Errorf("refusal of process %d: got %v, want %s", n+1, err, tt.refused)
				}
			}
			for _, c := range all {
				if used := c.Used(); int(c.Welcome.Slot) >= used || used > wire.PageSlotsMost {
					t.Errorf("got slot %d of %d used ones, want a used slot and at most %d of them", c.Welcome.Slot, used, wire.PageSlotsMost)
				}
			}
			if tt.leaves >= 0 {
				all[tt.leaves].Close()
				eventually(t, "another process is connected", func() bool { return dial('n') == nil })
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
			bad, good := s.join(reg("a", share{sm: 60, request: 1, limit: 1})), s.join(reg("b", share{sm: 60, request: 1, limit: 1}))
			lease := s.lease(good)
			for range 10 * maxViolations {
				if bad.Send(m) != nil {
					break // the connection has ended
				}
			}
			select {
			case <-bad.Closed:
			case <-time.After(patience):
				t.Fatalf("the connection of the flooding client did not end within %v", patience)
			}
			if err := good.Return(lease, time.Millisecond, tokentest.WantsMore); err != nil {
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
	a := s.join(reg("a", share{sm: 60, request: 1, limit: 1}))
	for range 20 {
		lease := s.lease(a)
		for range maxViolations {
			if err := a.Request(); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.Return(lease, time.Millisecond, tokentest.WantsNoMore); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFastClientIsReadAgain checks that the daemon stops reading a client with too many messages
// for a while, and then continues.
func TestFastClientIsReadAgain(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", share{sm: 60, request: 1, limit: 1}))
	for range 3 {
		began := time.Now()
		_ = s.d.locked(func() {
			for _, m := range s.d.sessions.poller.sessions {
				m.alloc.period, m.alloc.messages = began, paceMessages
			}
		})
		if err := a.Return(s.lease(a), time.Millisecond, tokentest.WantsNoMore); err != nil {
			t.Fatal(err)
		}
		eventually(t, "client a is idle", func() bool { return s.status().GPUs[0].Clients[0].State == "idle" })
		if elapsed := time.Since(began); elapsed < pacePeriod {
			t.Errorf("read again after %v, want at least %v", elapsed, pacePeriod)
		}
	}
}

// TestSilentConnectionsDoNotBlockOthers checks that a client that sends its hello is admitted while more
// silent connections than the limit exist.
func TestSilentConnectionsDoNotBlockOthers(t *testing.T) {
	s := serve(t, Config{HelloTimeout: time.Minute})
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	for range maxUnknown + 50 {
		s.raw()
	}
	eventually(t, fmt.Sprintf("%d silent connections remain", maxUnknown), func() bool {
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
	a := s.join(reg("a", share{sm: 60, request: 0.5, limit: 0.5}))
	s.register(reg("b", share{sm: 30, request: 0.5, limit: 0.5}))
	eventually(t, "the goroutines of the daemon have started", func() bool {
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
		_, err := a.Saturate(ctx, 1, time.Millisecond)
		saturates <- err
	}()
	// The storms and other programs also use the processors. One undisturbed window shows that the
	// daemon does not limit the instance.
	eventually(t, "instance a has used more than 0.4 of a window", func() bool {
		return joins.Load() > 100 && s.status().GPUs[0].Clients[0].Used > 0.4
	})
	t.Logf("its share after %d joins", joins.Load())
	cancel()
	if err := <-saturates; err != nil {
		t.Error(err)
	}
	storm.Wait()
	eventually(t, "only the connection of instance a and the first goroutines remain", func() bool {
		greeted, read := 0, 0
		_ = s.d.locked(func() { greeted, read = len(s.d.sessions.greetings), len(s.d.sessions.poller.sessions) })
		return greeted == 0 && read == 1 && runtime.NumGoroutine() <= before
	})
}

// TestWrongReportsAreCorrected checks that a report of more than the time since the grant counts as
// that time, and so does a report of 0 from a process that has launched.
func TestWrongReportsAreCorrected(t *testing.T) {
	for name, wrongTime := range map[string]func(*tokentest.Client) time.Duration{
		"more than elapsed":   func(*tokentest.Client) time.Duration { return 1<<63 - 1 },
		"zero after a launch": func(c *tokentest.Client) time.Duration { c.Slot().Launches++; return 0 },
	} {
		t.Run(name, func(t *testing.T) {
			undisturbed(t, func() error { return reportWrongTime(t, wrongTime) })
		})
	}
}

// reportWrongTime holds a lease for a moment and reports a wrong time.
func reportWrongTime(t *testing.T, wrongTime func(*tokentest.Client) time.Duration) error {
	s := serve(t, Config{Settings: Settings{Window: 500 * time.Millisecond}})
	a, b := s.join(reg("a", share{sm: 60, request: 0.5, limit: 0.5})), s.join(reg("b", share{sm: 60, request: 0.5, limit: 0.5}))
	lease := s.lease(a)
	if err := b.Request(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for time.Since(start) < 50*time.Millisecond {
		runtime.Gosched()
	}
	if err := a.Return(lease, wrongTime(a), tokentest.WantsNoMore); err != nil {
		t.Fatal(err)
	}
	s.await(b)
	used := 0.0
	eventually(t, "the window with the wrong report has ended", func() bool { used = s.row("a").Used; return used > 0 })
	if used < 0.09 || used > 0.6 {
		return fmt.Errorf("charged for a lease of 50 ms: got %v of a window, want 0.09 to 0.6", used)
	}
	return nil
}

func TestOtherUsersAreRefused(t *testing.T) {
	s := serve(t, Config{ClientUIDs: []int{777}})
	conn := s.raw()
	for uid, ok := range map[uint32]bool{0: true, uint32(unix.Geteuid()): true, 777: true, 778: false, 65534: false} {
		if err := s.d.sessions.admitsUser(greeting{conn, grantedSocket}, unix.Ucred{Uid: uid}); err != nil {
			t.Errorf("user %d at the socket for grants: got %v, want no error", uid, err)
		}
		err := s.d.sessions.admitsUser(greeting{conn: conn}, unix.Ucred{Uid: uid})
		if (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "may not connect to this token daemon") {
			t.Errorf("user %d: got %v, want admitted %v, or the error: … may not connect to this token daemon", uid, err, ok)
		}
	}
}

// TestPace checks the bound on an allocation's messages per period.
func TestPace(t *testing.T) {
	s, start := &allocation{}, time.Now()
	for n := range paceMessages - 1 {
		if rest := s.pace(start.Add(time.Duration(n))); rest != 0 {
			t.Fatalf("rest after message %d: got %v, want 0", n, rest)
		}
	}
	if rest := s.pace(start.Add(30 * time.Millisecond)); rest != pacePeriod-30*time.Millisecond {
		t.Errorf("rest after one message too many: got %v, want %v", rest, pacePeriod-30*time.Millisecond)
	}
	if rest := s.pace(start.Add(pacePeriod)); rest != 0 {
		t.Errorf("rest in the next period: got %v, want 0", rest)
	}
}

// TestSlowReaderIsCutOff checks that a client that uses leases but does not read its messages loses
// its connection when its buffer is full.
func TestSlowReaderIsCutOff(t *testing.T) {
	s := serve(t, Config{Settings: Settings{Window: 20 * time.Millisecond}})
	s.register(reg("a", share{sm: 60, request: 0.5, limit: 0.5}))
	c := connectTo(t, s.clientSocket())
	c.greet(t, "a")
	const pause = 100 * time.Microsecond // between two checks of the gate
	gone := func() bool {
		fds := []unix.PollFd{{Fd: int32(c.fd)}}
		_, _ = unix.Poll(fds, 0)
		return fds[0].Revents&unix.POLLHUP != 0
	}
	eventually(t, "the daemon has closed the connection of the slow reader", func() bool {
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
