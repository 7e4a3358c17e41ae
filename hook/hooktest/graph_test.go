package hooktest

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/wire"
)

// meter makes the page metered from the beginning, with a budget that is never used up.
func (k *keeper) meter() {
	binary.NativeEndian.PutUint32(k.page[16:], wire.PageMetered)
	k.slot().Budget = 1 << 60
}

// TestGraphCounts follows graph instances through all changes: a launch counts the
// kernels that it runs and, if metered, their blocks.
func TestGraphCounts(t *testing.T) {
	t.Parallel()
	for _, metered := range []bool{false, true} {
		t.Run(fmt.Sprintf("metered=%v", metered), func(t *testing.T) {
			k := newKeeper(t)
			if metered {
				k.meter()
			}
			k.openGate()
			h := &host{t: t}
			c := &talk{h: h, p: h.run(k.environ(), "check/graph")}
			var launches, blocks uint64
			for output := c.next(); output != "done"; output = c.next() {
				k.drain()
				n, _ := k.account()
				b := atomic.LoadUint64(&k.slot().Blocks)
				step, want, _ := strings.Cut(output, " ")
				got := fmt.Sprint(n-launches, b-blocks)
				if !metered {
					want, got = strings.Fields(want)[0], fmt.Sprint(n-launches)
				}
				if got != want {
					t.Errorf("%s: %s kernels and blocks, want %s", step, got, want)
				}
				launches, blocks = n, b
				k.openGate()
				c.sendLine()
			}
		})
	}
}

// TestAhead launches without waiting. Few long pieces of work are ever in flight,
// whatever was launched before, while short pieces keep the GPU busy. The library
// learns the duration of kernels by measuring them. Before that, at most 1,536 are in
// flight and those between two marks, which would be right for short kernels;
// afterwards, the work in flight takes 12 ms. This also holds if a thread uses more
// streams than it remembers, or switches to another context and back. A run that the host
// held up is repeated.
func TestAhead(t *testing.T) {
	for _, c := range []struct {
		mode, us, count, kernels string
		least, most, final       int
	}{
		{mode: "graph", us: "20000", count: "12", kernels: "0", least: 1, most: 4, final: 4},
		{mode: "graph", us: "20000", count: "12", kernels: "2000", least: 1, most: 4, final: 4},
		{mode: "graph", us: "200", count: "300", kernels: "0", least: 8, most: 150, final: 150},
		{mode: "kernel", us: "100", count: "4000", kernels: "8000", least: 60, most: 1200, final: 200},
		{mode: "switch", us: "100", count: "2000", kernels: "0", least: 60, most: 1200, final: 200},
		{mode: "turns", us: "100", count: "2000", kernels: "0", least: 100, most: 1200, final: 400},
	} {
		for _, metered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,us=%s,kernels=%s,metered=%v", c.mode, c.us, c.kernels, metered), func(t *testing.T) {
				for end := time.Now().Add(time.Minute); ; {
					most, final := ahead(t, metered, c.mode, c.us, c.count, c.kernels)
					if most >= c.least && most <= c.most && final <= c.final {
						return
					}
					if time.Now().After(end) {
						t.Fatalf("work in flight: got at most %d, and %d in the last quarter; want %d to %d, and at most %d", most, final, c.least, c.most, c.final)
					}
				}
			})
		}
	}
}

// ahead runs check/ahead and returns the most work in flight, at any time and in the last quarter of the launches.
func ahead(t *testing.T, metered bool, args ...string) (most, final int) {
	k := newKeeper(t)
	if metered {
		k.meter()
	}
	k.openGate()
	h := &host{t: t, priority: true} // at high priority: a program that waits for a processor cannot launch ahead
	p := h.run(k.environ(), "check/ahead", args...)
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	t.Log(p.errout.String())
	if _, err := fmt.Sscan(p.out.String(), &most, &final); err != nil {
		t.Fatalf("parse the program's output %s: %v", p.out.String(), err)
	}
	return most, final
}

// TestAheadOverLeases checks that the time between two leases is not taken for the
// program's work, and does not increase the work in flight. The bound is 1 ms with a
// turn of 4 ms, or more for a while after a delay of the host.
func TestAheadOverLeases(t *testing.T) {
	for end := time.Now().Add(time.Minute); ; {
		usual, leases := aheadOverLeases(t)
		t.Logf("%d kernels of 100 us in flight, in %d leases", usual, leases)
		if leases > 10 && usual <= 25 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("last run: got %d kernels of 100 us in flight, in %d leases; want at most 25 in more than 10", usual, leases)
		}
	}
}

func aheadOverLeases(t *testing.T) (usual, leases int) {
	k := newKeeper(t)
	k.turn(4 * time.Millisecond)
	k.openGate()
	h := &host{t: t, priority: true}
	p := h.run(k.environ(), "check/ahead", "kernel", "100", "4000")
	for ; !p.exited(); leases++ {
		time.Sleep(10 * time.Millisecond)
		k.revoke()
		h.eventually("the process has returned its lease or has ended", func() bool { return k.idle() || p.exited() })
		time.Sleep(10 * time.Millisecond)
		k.openGate()
	}
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	var most, final int
	if _, err := fmt.Sscan(p.out.String(), &most, &final, &usual); err != nil {
		t.Fatalf("parse the program's output %s: %v", p.out.String(), err)
	}
	return usual, leases
}

// TestAheadInTurns checks that the bound follows the turn while other clients wait:
// usually 2.5 ms of work in flight with a turn of 10 ms, or twice that after a delay of
// the host, which may last for a whole run.
func TestAheadInTurns(t *testing.T) {
	inFlight := func(turn time.Duration) (usual int) {
		k := newKeeper(t)
		k.turn(turn)
		k.openGate()
		h := &host{t: t, priority: true}
		p := h.run(k.environ(), "check/ahead", "kernel", "1000", "2000")
		if err := p.wait(); err != nil {
			t.Fatal(err)
		}
		var most, final int
		if _, err := fmt.Sscan(p.out.String(), &most, &final, &usual); err != nil {
			t.Fatalf("parse the program's output %s: %v", p.out.String(), err)
		}
		return usual
	}
	long, short := inFlight(0), 0
	for end := time.Now().Add(time.Minute); ; {
		if short = inFlight(10 * time.Millisecond); short < long || time.Now().After(end) {
			break
		}
	}
	t.Logf("%d in flight, %d without a turn", short, long)
	if short >= long || short < 2 {
		t.Errorf("kernels in flight with a turn of 10 ms: got %d, want at least 2 and fewer than the %d without a turn", short, long)
	}
}
