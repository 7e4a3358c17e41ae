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

// meter has blocks metered from the beginning, with a budget that is never used up.
func (k *keeper) meter() {
	binary.NativeEndian.PutUint32(k.page[16:], wire.PageMetered)
	k.slot().Budget = 1 << 60
}

// TestGraphCounts follows instances of graphs through everything that changes
// them: a launch comes to the kernels that it runs and, metered, their blocks.
func TestGraphCounts(t *testing.T) {
	for _, metered := range []bool{false, true} {
		t.Run(fmt.Sprintf("metered=%v", metered), func(t *testing.T) {
			k := newKeeper(t)
			if metered {
				k.meter()
			}
			k.allow()
			h := &host{t: t}
			c := &talk{h: h, p: h.run(k.environ(), "check/graph")}
			var launches, blocks uint64
			for said := c.next(); said != "done"; said = c.next() {
				k.shut()
				n, _ := k.account()
				b := atomic.LoadUint64(&k.slot().Blocks)
				step, want, _ := strings.Cut(said, " ")
				got := fmt.Sprint(n-launches, b-blocks)
				if !metered {
					want, got = strings.Fields(want)[0], fmt.Sprint(n-launches)
				}
				if got != want {
					t.Errorf("%s: %s kernels and blocks, want %s", step, got, want)
				}
				launches, blocks = n, b
				k.allow()
				c.says()
			}
		})
	}
}

// TestAhead launches without waiting. Few pieces of work that take long are ever
// in flight, whatever came before them, while short ones keep the GPU busy. What
// kernels take is learned from them: until then no more are in flight than were
// thought to be short, which may be 1,536 and those of a mark before and after,
// and afterwards as many as take 12 ms: also where a thread turns to more streams
// than it remembers, or to another context and back.
func TestAhead(t *testing.T) {
	for _, c := range []struct {
		what, us, count, kernels string
		least, most, late        int
	}{
		{what: "graph", us: "20000", count: "12", kernels: "0", least: 1, most: 4, late: 4},
		{what: "graph", us: "20000", count: "12", kernels: "2000", least: 1, most: 4, late: 4},
		{what: "graph", us: "200", count: "300", kernels: "0", least: 8, most: 150, late: 150},
		{what: "kernel", us: "100", count: "4000", kernels: "8000", least: 60, most: 1200, late: 200},
		{what: "switch", us: "100", count: "2000", kernels: "0", least: 60, most: 1200, late: 200},
		{what: "turns", us: "100", count: "2000", kernels: "0", least: 100, most: 1200, late: 400},
	} {
		for _, metered := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,us=%s,kernels=%s,metered=%v", c.what, c.us, c.kernels, metered), func(t *testing.T) {
				k := newKeeper(t)
				if metered {
					k.meter()
				}
				k.allow()
				h := &host{t: t, first: true} // a program that waits for a processor is not ahead
				p := h.run(k.environ(), "check/ahead", c.what, c.us, c.count, c.kernels)
				if err := p.wait(); err != nil {
					t.Fatal(err)
				}
				t.Log(p.errout.String())
				var most, late int
				if _, err := fmt.Sscan(p.out.String(), &most, &late); err != nil || most < c.least || most > c.most || late > c.late {
					t.Errorf("%d in flight, at last %d, %v: want %d to %d, %d", most, late, err, c.least, c.most, c.late)
				}
			})
		}
	}
}

// TestAheadOverLeases: what passes between two leases is not the program's work, and how
// much of that may be in flight does not come from it: a millisecond of a turn of four,
// or more for a while when the host was late.
func TestAheadOverLeases(t *testing.T) {
	for end := time.Now().Add(time.Minute); ; {
		usual, leases := aheadOverLeases(t)
		t.Logf("%d kernels of 100 us in flight, in %d leases", usual, leases)
		if leases > 10 && usual <= 25 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("ten expected")
		}
	}
}

func aheadOverLeases(t *testing.T) (usual, leases int) {
	k := newKeeper(t)
	k.turn(4 * time.Millisecond)
	k.allow()
	h := &host{t: t, first: true}
	p := h.run(k.environ(), "check/ahead", "kernel", "100", "4000")
	for ; !p.over(); leases++ {
		time.Sleep(10 * time.Millisecond)
		k.askBack()
		h.eventually("the lease is given back, or it is over", func() bool { return k.idle() || p.over() })
		time.Sleep(10 * time.Millisecond)
		k.allow()
	}
	if err := p.wait(); err != nil {
		t.Fatal(err)
	}
	var most, late int
	if _, err := fmt.Sscan(p.out.String(), &most, &late, &usual); err != nil {
		t.Fatalf("%v: %s", err, p.out.String())
	}
	return usual, leases
}

// TestAheadInTurns: where others wait and leases end with a turn no more is in
// flight, as a rule, than a part of that takes: 2.5 ms of 10, or twice as much when
// the host was late, which it may be for a whole run.
func TestAheadInTurns(t *testing.T) {
	inFlight := func(turn time.Duration) (usual int) {
		k := newKeeper(t)
		k.turn(turn)
		k.allow()
		h := &host{t: t, first: true}
		p := h.run(k.environ(), "check/ahead", "kernel", "1000", "2000")
		if err := p.wait(); err != nil {
			t.Fatal(err)
		}
		var most, late int
		if _, err := fmt.Sscan(p.out.String(), &most, &late, &usual); err != nil {
			t.Fatalf("%s: %v", p.out.String(), err)
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
		t.Errorf("%d in flight, %d without a turn", short, long)
	}
}
