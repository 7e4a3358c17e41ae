package planned

import (
	"time"

	"github.com/gfaas/gfaas/pkg/policy/token"
)

const (
	// inFlight is what the preload library has a program keep on the GPU at most, about:
	// so much of a batch is worked off when the lease is asked back.
	inFlight = 12 * time.Millisecond
	// idleHold is after how long without work the preload library gives a lease back,
	// where the GPU has a timetable.
	idleHold = 2 * time.Millisecond
	// few is of how many batches the gateway keeps a mean, about.
	few = 32
)

// worker is an instance at work: a client of its GPU's policy.
type worker struct {
	device   *device
	client   token.ClientID
	work     time.Duration // of a batch
	handOver time.Duration
	batch    int
	rps      float64
	endless  bool

	line    *line
	hand    []time.Duration // when the requests came that it has taken
	taken   time.Duration   // when it took the first of them
	each    time.Duration   // that a batch took, about
	batches int             // in that

	phase phase
	lease uint32        // that it holds; 0 is none
	open  bool          // it is not asked back
	first time.Duration // when work began under the lease
	last  time.Duration // and ended
	rest  time.Duration // of the work of the batch in hand, when it went on last; 0 if it has not begun
	since time.Duration // when that was
	until time.Duration // when it stops
	step  int           // that is due: those planned before are void
}

// phase is what a worker does.
type phase int

const (
	free    phase = iota // nothing, though it may hold a lease
	waits                // for a lease, with a batch in hand
	works                // on the batch
	answers              // hands the answer over
)

func newWorker(d *device, in Instance, client token.ClientID) *worker {
	w := &worker{
		device: d, client: client, work: max(duration(in.Work), 1), handOver: duration(in.HandOver),
		batch: max(1, in.Batch), rps: in.RPS, endless: in.Endless,
	}
	if w.each = w.work + w.handOver; in.RPS > 0 {
		w.each = max(duration(1000/in.RPS), 1)
	}
	return w
}

// room says whether a request may join what the worker has in hand.
func (w *worker) room() bool {
	return (w.phase == free || w.phase == waits && w.rest == 0) && len(w.hand) < w.batch
}

// take takes a request that came at a moment.
func (w *worker) take(at time.Duration) {
	if len(w.hand) == 0 {
		w.taken = w.device.world.now
	}
	w.hand = append(w.hand, at)
}

// start begins with what is in hand, or asks for a lease for it.
func (w *worker) start() {
	switch {
	case w.phase != free || len(w.hand) == 0:
	case w.open:
		w.goOn()
	default:
		w.phase = waits
		w.device.tell(token.Request{Client: w.client})
	}
}

func (w *worker) granted(lease uint32) {
	w.lease, w.open, w.first = lease, true, w.device.world.now
	w.goOn()
}

// goOn works on the batch in hand.
func (w *worker) goOn() {
	w.phase, w.since = works, w.device.world.now
	if w.rest == 0 {
		w.rest = w.work
	}
	if !w.endless {
		w.stopAt(w.since + w.rest)
	}
}

// stopAt plans the end of what the worker does, be it nothing.
func (w *worker) stopAt(at time.Duration) {
	w.step++
	w.until = at
	w.device.world.agenda.push(at, occasion{kind: stop, worker: w, step: w.step})
}

// revoked asks the lease back.
func (w *worker) revoked() {
	w.open = false
	switch now := w.device.world.now; {
	case w.endless:
		w.last = now
		w.giveBack(true)
	case w.phase == works:
		w.stopAt(min(w.until, now+inFlight))
	default:
		w.giveBack(false)
	}
}

// stopped is when the worker has done its batch, or what of it was on the GPU when the
// lease was asked back, or has been idle for long.
func (w *worker) stopped() {
	if w.phase != works {
		w.giveBack(false)
		return
	}
	w.last = w.device.world.now
	if w.rest -= w.last - w.since; w.rest > 0 {
		w.phase = waits
		w.giveBack(true)
		return
	}
	w.phase = answers
	w.device.world.agenda.push(w.last+w.handOver, occasion{kind: answer, worker: w})
	if w.open {
		w.stopAt(w.last + idleHold)
	} else {
		w.giveBack(false)
	}
}

// giveBack gives the lease back. It pays for the time from its first work to the last.
func (w *worker) giveBack(more bool) {
	w.step++
	lease := w.lease
	w.lease, w.open = 0, false
	w.device.tell(token.Return{Client: w.client, Lease: lease, Used: w.last - w.first, WantsMore: more})
}

// answered is when the requests in hand have their answer, and the next may come.
func (w *worker) answered() {
	now := w.device.world.now
	w.line.done(w.hand, now)
	w.batches = min(w.batches+1, few)
	w.each = max(w.each+(now-w.taken-w.each)/time.Duration(w.batches), 1)
	w.hand, w.phase = w.hand[:0], free
	w.line.serve()
}
