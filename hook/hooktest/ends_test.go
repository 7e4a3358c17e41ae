package hooktest

import (
	"fmt"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// TestEndsOfContextsAndStreams ends contexts and streams in every way that programs may, and
// checks that no call hangs and that all work is counted.
func TestEndsOfContextsAndStreams(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	for _, name := range []string{"detach", "reset", "foreign", "failed", "bound", "late", "keyless", "awaited", "awaited-reset", "ahead", "beside", "capture", "retained"} {
		t.Run(name, func(t *testing.T) {
			h := h.within(t)
			slice := whole
			slice.Mem = gpu.GiB
			p := h.run(h.register(name, slice), "check/ends", name)
			h.eventually("the program has ended", p.exited)
			if err := p.wait(); err != nil || p.out.String() != "done\n" {
				t.Errorf(`got error %v and output %q, want success and "done\n"`, err, p.out.String())
			}
		})
	}
}

// TestStreamJoinsCapture lets streams join captures while the library polls their work. The
// driver answers slowly whether they are captured. The program must not fail.
func TestStreamJoinsCapture(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	env := append(h.register("joined", whole), hidden(t)...)
	p := h.run(append(env, "HIDDEN_PAUSE_US=5000"), "check/ends", "joined")
	h.eventually("the program has ended", p.exited)
	if err := p.wait(); err != nil {
		t.Error(err)
	}
}

// TestKernelOfDestroyedContextCounts destroys a context while a kernel runs in it that takes
// longer than the library waits. The kernel's time counts.
func TestKernelOfDestroyedContextCounts(t *testing.T) {
	t.Parallel()
	const kernel = 2 * time.Second
	k := newKeeper(t)
	k.openGate()
	started := time.Now()
	c := &talk{h: &host{t: t}, p: (&host{t: t}).run(k.environ(), "check/ends", "inflight")}
	c.expect("gone")
	k.drain()
	if _, used := k.account(); used < kernel*9/10 || used > time.Since(started) {
		t.Errorf("a kernel of %v: got a GPU time of %v, want at least %v and at most the elapsed %v", kernel, used, kernel*9/10, time.Since(started))
	}
	if err := c.p.wait(); err != nil {
		t.Error(err)
	}
}

// TestManyDestroyedStreams uses many streams under one lease, one after the other. The state kept
// for destroyed streams does not grow, and all of their time counts.
func TestManyDestroyedStreams(t *testing.T) {
	t.Parallel()
	const kernels = (500+500)*250*time.Microsecond + time.Second
	k := newKeeper(t)
	k.openGate()
	env := append(k.environ(), hidden(t)...)
	started := time.Now()
	c := &talk{h: &host{t: t}, p: (&host{t: t}).run(append(env, "HIDDEN_EVENTS=500"), "check/ends", "spent")}
	c.expect("spent")
	k.drain()
	if _, used := k.account(); used < kernels || used > time.Since(started) {
		t.Errorf("kernels of %v: got a GPU time of %v, want at least that and at most the elapsed %v", kernels, used, time.Since(started))
	}
	if err := c.p.wait(); err != nil {
		t.Error(err)
	}
}

// TestLeaseOutlastsReleaseOfPrimaryContext lets a holder of the primary context release it while
// the other holder computes. The lease lasts until the kernel of the other holder ends, whether the
// daemon revokes it or not.
func TestLeaseOutlastsReleaseOfPrimaryContext(t *testing.T) {
	t.Parallel()
	const slow = 500 * time.Millisecond // length of the kernel
	for _, revoked := range []bool{false, true} {
		t.Run(fmt.Sprintf("revoked %v", revoked), func(t *testing.T) {
			t.Parallel()
			k := newKeeper(t)
			k.openGate()
			h := &host{t: t}
			c := &talk{h: h, p: h.run(k.environ(), "check/ends", "release")}
			c.expect("busy")
			if revoked {
				k.revoke()
			}
			h.eventually("the program has ended", func() bool {
				if k.idle() { // the lease is returned, so its GPU time is known
					if _, used := k.account(); used < slow {
						t.Fatalf("the returned lease has a GPU time of %v, want at least %v", used, slow)
					}
				}
				return c.p.exited()
			})
			if err := c.p.wait(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
