package token

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// contenders returns a GPU with saturating clients that each need all SMs, with the given quotas, on
// an otherwise idle host. Their work in flight takes up to a third of a turn, and a hand-over costs
// 100 µs.
func contenders(t testing.TB, c Config, quotas ...float64) *leasedGPU {
	w := newLeasedGPU(t, c, 1)
	w.lag = ms / 20
	for n, q := range quotas {
		w.add(&simClient{
			id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(100, q, q), kernel: time.Duration(q * float64(16*ms) / 3), loss: ms / 10,
		})
	}
	return w
}

// TestRoundsBoundWaits checks that clients do not wait long while others have their turns, that
// shares stay exact, and that little GPU time is lost.
func TestRoundsBoundWaits(t *testing.T) {
	for _, quotas := range [][]float64{{0.3, 0.7}, {0.2, 0.3, 0.5}} {
		w := contenders(t, Config{}, quotas...)
		w.run(time.Second) // until the cost of a hand-over is learned
		for _, c := range w.clients {
			c.longest = 0
		}
		w.run(11 * time.Second)
		sum := 0.0
		for n, q := range quotas {
			c := w.clients[ClientID(n+1)]
			got := w.total(c).Seconds() / 11
			sum += got
			t.Logf("%v: %v used %.4f, longest wait %v, revocations back %.1f times a second", quotas, q, got, c.longest, float64(c.revoked)/11)
			maxWait := gpu.Round + gpu.Round/8 // the turns of all other clients, and a used-up budget
			if q == slices.Max(quotas) {
				maxWait = 11 * ms
			}
			if c.longest > maxWait || math.Abs(got-q) > 0.01 {
				t.Errorf("quotas %v: client with quota %v used %.4f of the GPU and waited up to %v, want %v ± 0.01 and at most %v", quotas, q, got, c.longest, q, maxWait)
			}
		}
		if sum < 0.98 {
			t.Errorf("quotas %v: clients used %.4f of the GPU, want at least 0.98", quotas, sum)
		}
	}
}

// TestAnnouncedDrainsKeepTurnsShort checks that hand-overs cost little if clients announce the end of
// their work in flight, even if a hand-over takes half a millisecond. Turns therefore stay short.
func TestAnnouncedDrainsKeepTurnsShort(t *testing.T) {
	quotas := []float64{0.2, 0.3, 0.5}
	w := contenders(t, Config{}, quotas...)
	for _, c := range w.clients {
		c.loss, c.announceLead = ms/2, ms/2
	}
	w.run(11 * time.Second)
	sum := 0.0
	for n, q := range quotas {
		c := w.clients[ClientID(n+1)]
		got := w.total(c).Seconds() / 11
		sum += got
		if math.Abs(got-q) > 0.01 {
			t.Errorf("client with quota %v used %.4f of the GPU, want %v ± 0.01", q, got, q)
		}
	}
	if largest := w.clients[3]; largest.longest > 15*ms || sum < 0.985 {
		t.Errorf("clients used %.4f of the GPU and the largest waited up to %v, want at least 0.985 and at most 15ms", sum, largest.longest)
	}
}

// TestLearnsLeadTime checks that the policy learns how long before the end of the work in flight to
// grant the next lease, so that the next client's work starts when the previous work ends, and hardly
// earlier.
func TestLearnsLeadTime(t *testing.T) {
	quotas := []float64{0.2, 0.3, 0.5}
	for _, delay := range []time.Duration{ms / 20, ms / 5, ms / 2} {
		w := contenders(t, Config{}, quotas...)
		for _, c := range w.clients {
			c.delay, c.followsLead, c.announceDelay = delay, true, ms/8
		}
		w.run(2 * time.Second)
		gpuTime := -w.total(w.clients[1]) - w.total(w.clients[2]) - w.total(w.clients[3])
		w.overlap = 0
		w.run(12 * time.Second)
		gpuTime += w.total(w.clients[1]) + w.total(w.clients[2]) + w.total(w.clients[3])
		used, overlap := gpuTime.Seconds()/10, w.overlap.Seconds()/10
		t.Logf("%v from a grant to the first kernel: lead %v, %.4f used, %.4f by two", delay, w.s.lead, used, overlap)
		if used < 0.98 || overlap > 0.01 {
			t.Errorf("%v from a grant to the first kernel: clients used %.4f of the time, and two had work for %.4f of it, want at least 0.98 and at most 0.01", delay, used, overlap)
		}
	}
}

// TestLateFirstKernelKeepsLeadShort checks that clients which launch their first kernel long after
// their grant do not make the policy grant the leases of other clients too early.
func TestLateFirstKernelKeepsLeadShort(t *testing.T) {
	w := contenders(t, Config{}, 0.2, 0.3, 0.5)
	for id, c := range w.clients {
		c.delay, c.followsLead, c.announceDelay = 2*ms, true, ms/8
		if id == 3 {
			c.delay = ms / 10
		}
	}
	w.run(20 * time.Second)
	if overlap := w.overlap.Seconds() / 20; w.s.lead > ms/3 || overlap > 0.01 {
		t.Errorf("lead is %v and two clients had work for %.4f of the time, want at most %v and 0.01", w.s.lead, overlap, ms/3)
	}
}

// TestIgnoresWrongAnnouncements checks that the policy soon ignores a client that announces the end of
// its work too early, and then almost always.
func TestIgnoresWrongAnnouncements(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	liar := w.add(&simClient{id: 1, instance: "a", slice: slice(100, 0.5, 0.5), kernel: 8 * ms, announcesEarly: true})
	w.add(&simClient{id: 2, instance: "b", slice: slice(100, 0.5, 0.5), kernel: ms})
	w.run(time.Second)
	if w.earlyGrants == 0 {
		t.Error("the first second has no early grant after an announcement, want at least one")
	}
	w.run(9 * time.Second)
	w.earlyGrants = 0
	before := liar.revoked
	w.run(time.Minute)
	if revocations := liar.revoked - before; revocations < 500 || w.earlyGrants > revocations/200 {
		t.Errorf("got %d early grants after %d revocations, want at most one in 200 of at least 500", w.earlyGrants, revocations)
	}
}

// TestRareClientWaitsBriefly checks that a client that needs the GPU for 2 ms eight times a second, a
// twelfth of its quota, does not wait for a long turn of a saturating client, even if hand-overs are
// so costly that turns are long.
func TestRareClientWaitsBriefly(t *testing.T) {
	for _, loss := range []time.Duration{ms / 10, ms} {
		runRareClient(t, loss)
	}
}

func runRareClient(t *testing.T, loss time.Duration) {
	w := contenders(t, Config{}, 0.8)
	w.clients[1].loss = loss
	rare := &simClient{id: 2, instance: "rare", slice: slice(100, 0.2, 0.2), loss: loss, burst: 2 * ms, gap: time.Hour}
	w.add(rare)
	var durations []time.Duration
	for w.now < time.Minute {
		w.run(w.now + 120*ms + w.upTo(6*ms))
		rare.waitStart = w.now
		w.step(Request{2})
		for rare.since < rare.waitStart {
			w.run(w.now + ms/10)
		}
		durations = append(durations, rare.since-rare.waitStart+rare.burst)
	}
	slices.Sort(durations)
	p50, p95 := durations[len(durations)/2], durations[len(durations)*95/100]
	t.Logf("%v to pass on: p50 %v, p95 %v, longest %v", loss, p50, p95, durations[len(durations)-1])
	if p95 > 13*ms {
		t.Errorf("hand-over of %v: the p95 from request to completion is %v, want at most 13ms", loss, p95)
	}
	if got, want := w.total(w.clients[1]).Seconds()/w.now.Seconds(), 0.8-0.005-9*loss.Seconds(); got < want {
		t.Errorf("hand-over of %v: the saturating client used %.4f of the GPU, want at least %.4f", loss, got, want)
	}
}

// TestIdleTimeIsForfeited checks that a client that was idle for a part of a window shares with the
// others from its first turn on, without making up for the time that it left to them.
func TestIdleTimeIsForfeited(t *testing.T) {
	w := contenders(t, Config{}, 0.5)
	other := &simClient{id: 2, instance: "other", slice: slice(100, 0.5, 0.5), kernel: ms, loss: ms / 10, burst: 40 * ms, gap: 53 * ms}
	w.add(other)
	w.run(20 * time.Second)
	if busy := w.clients[1]; busy.longest > 60*ms { // its budget may be used up
		t.Errorf("the saturating client waited up to %v, want at most 60ms", busy.longest)
	}
}

// TestCostlyHandoverLengthensTurns checks that turns become longer if hand-overs are costly, so that
// little GPU time is lost.
func TestCostlyHandoverLengthensTurns(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	for n, q := range []float64{0.3, 0.7} {
		w.add(&simClient{id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(100, q, q), kernel: 2 * ms, loss: ms / 2})
	}
	w.run(20 * time.Second)
	sum := (w.total(w.clients[1]) + w.total(w.clients[2])).Seconds() / 20
	if sum < 0.975 {
		t.Errorf("clients used %.4f of the GPU, want at least 0.975", sum)
	}
}

// TestNoRoundLengthWithoutRounds checks that rounds have no length when they are disabled, whatever a
// hand-over costs.
func TestNoRoundLengthWithoutRounds(t *testing.T) {
	l := &ledger{window: 100 * ms, activeInstances: 2}
	s := &rounds{ledger: l, handover: &handover{ledger: l, cost: ms}}
	if got := s.roundLength(); got != 0 {
		t.Errorf("round length: got %v, want 0", got)
	}
}

// TestPausesOfHostDoNotLengthenRounds checks that rounds keep their length if the host delays a
// single hand-over, and have it again a second after a disturbance.
func TestPausesOfHostDoNotLengthenRounds(t *testing.T) {
	w := newLeasedGPU(t, Config{}, 1)
	for n, q := range []float64{0.3, 0.7} {
		w.add(&simClient{id: ClientID(n + 1), instance: string(rune('a' + n)), slice: slice(100, q, q), kernel: ms, loss: ms / 10})
	}
	setLoss := func(loss time.Duration) {
		for _, c := range w.clients {
			c.loss = loss
		}
	}
	w.run(time.Second)
	usual := w.s.roundLength()
	late := w.clients[1]
	revoked := late.revoked
	late.loss = 16 * ms
	for late.revoked == revoked || late.draining {
		w.run(w.now + ms/10)
	}
	late.loss = ms / 10
	if got := w.s.roundLength(); got != usual {
		t.Errorf("round after one late hand-over: got %v, want %v as before", got, usual)
	}
	w.run(3 * time.Second)
	setLoss(5 * ms)
	w.run(4 * time.Second)
	if got := w.s.roundLength(); got <= usual {
		t.Errorf("round after a second of hand-overs of 5ms: got %v, want more than %v", got, usual)
	}
	setLoss(ms / 10)
	w.run(5 * time.Second)
	if got := w.s.roundLength(); got != usual {
		t.Errorf("round a second after the disturbance: got %v, want %v as before", got, usual)
	}
}
