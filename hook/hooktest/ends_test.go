package hooktest

import (
	"fmt"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// TestEnds has programs do what they may with contexts and streams around
// their end, and checks that nothing hangs and nothing is forgotten.
func TestEnds(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	for _, name := range []string{"detach", "reset", "foreign", "failed", "bound", "late", "keyless", "awaited", "awaited-reset", "ahead", "beside", "capture", "retained"} {
		t.Run(name, func(t *testing.T) {
			h := h.within(t)
			slice := whole
			slice.Mem = gpu.GiB
			p := h.run(h.register(name, slice), "check/ends", name)
			h.eventually("it ends", p.over)
			if err := p.wait(); err != nil || p.out.String() != "done\n" {
				t.Errorf("%v: %s", err, p.out.String())
			}
		})
	}
}

// TestJoined has streams join captures while the library looks whether their
// work is over; the driver takes its time to say whether they are captured.
func TestJoined(t *testing.T) {
	h := newHost(t)
	h.start()
	env := append(h.register("joined", whole), hidden(t)...)
	p := h.run(append(env, "HIDDEN_PAUSE_US=5000"), "check/ends", "joined")
	h.eventually("it ends", p.over)
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

// TestDestroyed destroys a context under a kernel that takes longer than the
// library waits for one: its time counts.
func TestDestroyed(t *testing.T) {
	const kernel = 2 * time.Second
	k := newKeeper(t)
	k.allow()
	began := time.Now()
	c := &talk{h: &host{t: t}, p: (&host{t: t}).run(k.environ(), "check/ends", "inflight")}
	c.hears("gone")
	k.shut()
	if _, used := k.account(); used < kernel*9/10 || used > time.Since(began) {
		t.Errorf("a kernel of %v took %v, of %v", kernel, used, time.Since(began))
	}
	if err := c.p.wait(); err != nil {
		t.Error(err)
	}
}

// TestSpent uses many streams, one after the other, under one lease: what is kept of
// those that are destroyed does not grow, and all their time counts.
func TestSpent(t *testing.T) {
	t.Parallel()
	const kernels = (500+500)*250*time.Microsecond + time.Second
	k := newKeeper(t)
	k.allow()
	env := append(k.environ(), hidden(t)...)
	began := time.Now()
	c := &talk{h: &host{t: t}, p: (&host{t: t}).run(append(env, "HIDDEN_EVENTS=500"), "check/ends", "spent")}
	c.hears("spent")
	k.shut()
	if _, used := k.account(); used < kernels || used > time.Since(began) {
		t.Errorf("kernels of %v took %v, of %v", kernels, used, time.Since(began))
	}
	if err := c.p.wait(); err != nil {
		t.Error(err)
	}
}

// TestReleased has one of two holders of the primary context release it while
// the other computes: that one's lease holds as long as its kernel runs, whether
// it is asked back or not.
func TestReleased(t *testing.T) {
	const slow = 500 * time.Millisecond // its kernel
	for _, asked := range []bool{false, true} {
		t.Run(fmt.Sprintf("asked back %v", asked), func(t *testing.T) {
			t.Parallel()
			k := newKeeper(t)
			k.allow()
			h := &host{t: t}
			c := &talk{h: h, p: h.run(k.environ(), "check/ends", "release")}
			c.hears("busy")
			if asked {
				k.askBack()
			}
			h.eventually("it ends", func() bool {
				if idle := k.idle(); idle { // and what it used is known
					if _, used := k.account(); used < slow {
						t.Fatalf("it gave its lease back after %v", used)
					}
				}
				return c.p.over()
			})
			if err := c.p.wait(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
