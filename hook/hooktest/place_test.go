package hooktest

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/wire"
)

// TestManySlots gives processes slots in pages of the current daemon and of an older
// one. Exactly the memory of the processes in slots in use counts.
func TestManySlots(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		used   uint32 // according to the page
		slot   int
		other  int // the slot of another process, which holds all of the memory
		memory string
	}{
		{"an older page", 0, 5, 63, "memory 2"},
		{"the last of an older page", 0, 63, 5, "memory 2"},
		{"the last that older libraries know", 1024, 5, 63, "memory 2"},
		{"beyond those", 1024, 5, 64, "memory 2"},
		{"the last", 1024, 64, 1023, "memory 2"},
		{"the last has none", 1024, 1023, 700, "memory 2"},
		{"behind those in use", 600, 599, 600, "memory 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			f.used, f.slot, f.limit = tt.used, tt.slot, 1<<30
			f.hello = func(m *member) { m.slotOf(tt.other).MemUsed = 1 << 30 }
			f.listen()
			p := f.run(f.env(1), "check/place")
			m := f.member(0)
			m.awaitRequest()
			m.alwaysGrant()
			if err := p.wait(); err != nil {
				t.Error(err)
			}
			if got := p.out.String(); got != tt.memory+"\nlaunch 0\n" {
				t.Errorf("output: got %q, want %q", got, tt.memory+"\nlaunch 0\n")
			}
		})
	}
}

// TestNoPlace refuses a process a place in its instance. Its calls fail after a while,
// and one message gives the reason. If a place becomes free in time, no call fails.
func TestNoPlace(t *testing.T) {
	t.Parallel()
	const why = "instance fake has 1024 processes on GPU sim:0, which is the limit"
	for name, until := range map[string]time.Duration{"for ever": time.Hour, "for a while": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			var first atomic.Int64
			f.page = func(m *member) bool {
				now := time.Now().UnixNano()
				first.CompareAndSwap(0, now)
				if now-first.Load() > int64(until) {
					return false
				}
				frame := wire.SetFlags(wire.Append(nil, wire.Refused{Reason: wire.MakeReason(why)}), wire.RefusedFull)
				_, err := m.conn.Write(frame)
				if err != nil {
					t.Error(err)
				}
				return true
			}
			f.listen()
			p := f.run(f.env(1), "check/place")
			want := "memory 2\nlaunch 46\n"
			if until < time.Hour {
				want = "memory 0\nlaunch 0\n"
				m := f.member(0)
				m.awaitRequest()
				m.alwaysGrant()
			}
			if err := p.wait(); err != nil {
				t.Error(err)
			}
			if got := p.out.String(); got != want {
				t.Errorf("output: got %q, want %q", got, want)
			}
			if output := p.errout.String(); strings.Count(output, "\n") != 1 || !strings.Contains(output, why) || !strings.Contains(output, "error 46") {
				t.Errorf("messages of the program: want one line with %q and error 46, got\n%s", why, output)
			}
		})
	}
}

// TestMPSServerIsFull lets the driver refuse a context because the MPS server has no
// place. The limit is the server's, and the message names it.
func TestMPSServerIsFull(t *testing.T) {
	t.Parallel()
	for _, result := range []string{"808", "809", "2"} {
		f := newFake(t)
		f.listen()
		env := append(f.env(1), "HIDDEN_CALL=cuCtxCreate_v2", "HIDDEN_RESULT="+result)
		p := f.run(append(env, hidden(t)...), "check/place")
		if err := p.wait(); err == nil {
			t.Errorf("result %s of the driver: got a context, want the program to fail", result)
		}
		if output := p.errout.String(); strings.Contains(output, "the MPS server has as many clients as the driver allows") != (result != "2") {
			t.Errorf("result %s of the driver: want a message about the MPS server (unless the result is 2), got\n%s", result, output)
		}
	}
}
