package token

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// contenders are saturating clients that each need the whole GPU, with these
// quotas, on a machine with nothing else to do: what they have in flight takes up
// to a third of a turn, and passing the GPU on loses 100 µs.
func contenders(t testing.TB, c Config, quotas ...float64) *leasedGPU {
	w := newLeasedGPU(t, c, 1)
	w.lag = ms / 20
	for n, q := range quotas {
		w.join(&worker{
			id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(100, q, q), kernel: time.Duration(q * float64(16*ms) / 3), loss: ms / 10,
		})
	}
	return w
}

// TestLongestStall: nobody waits for long while others have their turns, shares
// are as exact as ever and hardly anything is lost.
func TestLongestStall(t *testing.T) {
	for _, quotas := range [][]float64{{0.3, 0.7}, {0.2, 0.3, 0.5}} {
		w := contenders(t, Config{}, quotas...)
		w.run(time.Second) // until it is known what passing on costs
		for _, c := range w.clients {
			c.longest = 0
		}
		w.run(11 * time.Second)
		sum := 0.0
		for n, q := range quotas {
			c := w.clients[ClientID(n+1)]
			got := w.total(c).Seconds() / 11
			sum += got
			t.Logf("%v: %v used %.4f, longest wait %v, asked back %.1f times a second", quotas, q, got, c.longest, float64(c.revoked)/11)
			most := gpu.Round + gpu.Round/8 // all the others' turns, and a budget that is used up
			if q == slices.Max(quotas) {
				most = 11 * ms
			}
			if c.longest > most || math.Abs(got-q) > 0.01 {
				t.Errorf("%v: %v used %.4f and waited up to %v", quotas, q, got, c.longest)
			}
		}
		if sum < 0.98 {
			t.Errorf("%v: %.4f was used", quotas, sum)
		}
	}
}

// TestToldEnds: where clients tell when what they have in flight is over, passing the
// GPU on costs little, though it takes half a millisecond: turns stay short.
func TestToldEnds(t *testing.T) {
	quotas := []float64{0.2, 0.3, 0.5}
	w := contenders(t, Config{}, quotas...)
	for _, c := range w.clients {
		c.loss, c.tells = ms/2, ms/2
	}
	w.run(11 * time.Second)
	sum := 0.0
	for n, q := range quotas {
		c := w.clients[ClientID(n+1)]
		got := w.total(c).Seconds() / 11
		sum += got
		if math.Abs(got-q) > 0.01 {
			t.Errorf("%v used %.4f", q, got)
		}
	}
	if largest := w.clients[3]; largest.longest > 15*ms || sum < 0.985 {
		t.Errorf("%.4f was used, the largest waited up to %v", sum, largest.longest)
	}
}

// TestLead: how long passing the GPU on takes is learned, so that the next one's work
// is there when the last one's ends, and hardly before.
func TestLead(t *testing.T) {
	quotas := []float64{0.2, 0.3, 0.5}
	for _, delay := range []time.Duration{ms / 20, ms / 5, ms / 2} {
		w := contenders(t, Config{}, quotas...)
		for _, c := range w.clients {
			c.delay, c.led, c.looks = delay, true, ms/8
		}
		w.run(2 * time.Second)
		had := -w.total(w.clients[1]) - w.total(w.clients[2]) - w.total(w.clients[3])
		w.overlap = 0
		w.run(12 * time.Second)
		had += w.total(w.clients[1]) + w.total(w.clients[2]) + w.total(w.clients[3])
		used, overlap := had.Seconds()/10, w.overlap.Seconds()/10
		t.Logf("%v from a grant to the first kernel: lead %v, %.4f used, %.4f by two", delay, w.s.lead, used, overlap)
		if used < 0.98 || overlap > 0.01 {
			t.Errorf("with %v from a grant to the first kernel %.4f was used, %.4f by two", delay, used, overlap)
		}
	}
}

// TestLateLaunch: those that have nothing to launch yet when they are granted do not
// have the others start before their time.
func TestLateLaunch(t *testing.T) {
	w := contenders(t, Config{}, 0.2, 0.3, 0.5)
	for id, c := range w.clients {
		c.delay, c.led, c.looks = 2*ms, true, ms/8
		if id == 3 {
			c.delay = ms / 10
		}
	}
	w.run(20 * time.Second)
	if overlap := w.overlap.Seconds() / 20; w.s.lead > ms/3 || overlap > 0.01 {
		t.Errorf("the lead is %v, two had %.4f", w.s.lead, overlap)
	}
}

// TestLiesOfEnds: who says that what it has in flight is over, and it is not, is soon not
// believed, and then hardly ever.
func TestLiesOfEnds(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	liar := w.join(&worker{id: 1, instance: "a", slice: slice(100, 0.5, 0.5), kernel: 8 * ms, lies: true})
	w.join(&worker{id: 2, instance: "b", slice: slice(100, 0.5, 0.5), kernel: ms})
	w.run(time.Second)
	if w.beside == 0 {
		t.Error("it was never believed")
	}
	w.run(9 * time.Second)
	w.beside = 0
	before := liar.revoked
	w.run(time.Minute)
	if asked := liar.revoked - before; asked < 500 || w.beside > asked/200 {
		t.Errorf("it was believed wrongly %d times of %d", w.beside, asked)
	}
}

// TestSeldomAsked: who asks for 2 ms eight times a second, a twelfth of its quota,
// waits for no long turn of another that wants all it can get, also where passing the
// GPU on costs so much that turns are long.
func TestSeldomAsked(t *testing.T) {
	for _, loss := range []time.Duration{ms / 10, ms} {
		seldomAsked(t, loss)
	}
}

func seldomAsked(t *testing.T, loss time.Duration) {
	w := contenders(t, Config{}, 0.8)
	w.clients[1].loss = loss
	rare := &worker{id: 2, instance: "rare", slice: slice(100, 0.2, 0.2), loss: loss, burst: 2 * ms, gap: time.Hour}
	w.join(rare)
	var took []time.Duration
	for w.now < time.Minute {
		w.run(w.now + 120*ms + w.upTo(6*ms))
		rare.waits = w.now
		w.step(Request{2})
		for rare.since < rare.waits {
			w.run(w.now + ms/10)
		}
		took = append(took, rare.since-rare.waits+rare.burst)
	}
	slices.Sort(took)
	p50, p95 := took[len(took)/2], took[len(took)*95/100]
	t.Logf("%v to pass on: p50 %v, p95 %v, longest %v", loss, p50, p95, took[len(took)-1])
	if p95 > 13*ms {
		t.Errorf("p95 is %v", p95)
	}
	if got := w.total(w.clients[1]).Seconds() / w.now.Seconds(); got < 0.8-0.005-9*loss.Seconds() {
		t.Errorf("the other used %.4f", got)
	}
}

// TestReturnsFromIdle: who was idle for a part of a window shares with those that
// were not, from the first turn on, and does not make up for what it left to them.
func TestReturnsFromIdle(t *testing.T) {
	w := contenders(t, Config{}, 0.5)
	other := &worker{id: 2, instance: "other", slice: slice(100, 0.5, 0.5), kernel: ms, loss: ms / 10, burst: 40 * ms, gap: 53 * ms}
	w.join(other)
	w.run(20 * time.Second)
	if busy := w.clients[1]; busy.longest > 60*ms { // its budget may be used up
		t.Errorf("the busy one waited %v", busy.longest)
	}
}

// TestCostlyHandover: where passing the GPU on costs much, turns are longer.
func TestCostlyHandover(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	for n, q := range []float64{0.3, 0.7} {
		w.join(&worker{id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(100, q, q), kernel: 2 * ms, loss: ms / 2})
	}
	w.run(20 * time.Second)
	sum := (w.total(w.clients[1]) + w.total(w.clients[2])).Seconds() / 20
	if sum < 0.975 {
		t.Errorf("%.4f was used", sum)
	}
}

// TestRoundIsTheWindow: without rounds none has a length, whatever passing on costs.
func TestRoundIsTheWindow(t *testing.T) {
	s := &multiToken{window: 100 * ms, contends: 2, handover: ms}
	if got := s.roundLength(); got != 0 {
		t.Errorf("a round takes %v", got)
	}
}
