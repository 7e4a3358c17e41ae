package hooktest

import (
	"testing"
	"time"
)

// TestCapture captures streams in every mode at a shut gate, while another
// thread stands at it with a stream of its own and, when it opens, gets through
// and gives the lease back. The capture sees nothing of it: nothing is gated,
// inserted, counted or charged until the graph is launched.
func TestCapture(t *testing.T) {
	const slow = 400 * time.Millisecond // the longest of the captured kernels
	for _, how := range []string{"global", "local", "relaxed", "graph", "thread", "early"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			k := newKeeper(t)
			h := &host{t: t}
			k.allow()
			c := &talk{h: h, p: h.run(k.environ(), "check/capture", how)}
			c.hears("warm")
			k.shut()
			launches, used := k.account()
			if launches != 302 {
				t.Errorf("%d launches of 302", launches)
			}
			c.says()
			c.hears("capturing")
			h.eventually("the other thread stands at the gate", k.waits)
			k.allow()
			c.says()
			c.hears("beside")
			h.eventually("the lease is given back", k.idle)
			c.says()
			c.hears("captured 4")
			k.shut()
			if n, ns := k.account(); n-launches != 1 || ns-used > slow/2 {
				t.Errorf("during the capture %d launches, %v: want one of another stream", n-launches, ns-used)
			}
			launches, used = k.account()
			k.allow()
			c.says()
			c.hears("launched")
			k.shut()
			if n, ns := k.account(); n-launches != 3 || ns-used < slow {
				t.Errorf("the graph came to %d launches, %v: want 3, %v", n-launches, ns-used, slow)
			}
			c.says()
			if err := c.p.wait(); err != nil {
				t.Error(err)
			}
		})
	}
}
