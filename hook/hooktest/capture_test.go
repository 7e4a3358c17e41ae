package hooktest

import (
	"testing"
	"time"
)

// TestCapture captures streams in every mode while the gate is closed and another
// thread, with its own stream, waits at it. When the gate opens, that thread launches
// and returns the lease. The capture is not affected: until the graph is launched, the
// library neither gates, inserts, counts nor charges anything.
func TestCapture(t *testing.T) {
	t.Parallel()
	const slow = 400 * time.Millisecond // the longest of the captured kernels
	for _, how := range []string{"global", "local", "relaxed", "graph", "thread", "early"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			k := newKeeper(t)
			h := &host{t: t}
			k.openGate()
			c := &talk{h: h, p: h.run(k.environ(), "check/capture", how)}
			c.expect("warm")
			k.drain()
			launches, used := k.account()
			if launches != 302 {
				t.Errorf("%d launches of 302, want 302", launches)
			}
			c.sendLine()
			c.expect("capturing")
			h.eventually("the other thread waits at the gate", k.waits)
			k.openGate()
			c.sendLine()
			c.expect("beside")
			h.eventually("the process has returned its lease", k.idle)
			c.sendLine()
			c.expect("captured 4")
			k.drain()
			if n, ns := k.account(); n-launches != 1 || ns-used > slow/2 {
				t.Errorf("during the capture %d launches, %v: want one of another stream", n-launches, ns-used)
			}
			launches, used = k.account()
			k.openGate()
			c.sendLine()
			c.expect("launched")
			k.drain()
			if n, ns := k.account(); n-launches != 3 || ns-used < slow {
				t.Errorf("the graph came to %d launches, %v: want 3, %v", n-launches, ns-used, slow)
			}
			c.sendLine()
			if err := c.p.wait(); err != nil {
				t.Error(err)
			}
		})
	}
}
