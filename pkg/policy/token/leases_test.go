package token

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/reason"
)

const ms = time.Millisecond

// logged holds the time and the events of one Step of a recorded run.
type logged struct {
	at     time.Duration
	events []Event
}

// leasedGPU simulates, on a virtual clock, a GPU that the multi-token policy shares. Its clients
// request leases, and drain when a lease is revoked.
type leasedGPU struct {
	t           testing.TB
	s           *multiToken
	limit       float64
	now         time.Duration
	rng         *rand.Rand
	pending     timerQueue
	seq         int
	log         []logged
	trace       [][]Action
	clients     map[ClientID]*simClient
	wake        time.Duration
	lag         time.Duration // a Wake comes at most this long after its time
	earlyGrants int           // number of times that a lease was granted before the announced end of another client's work
	overlap     time.Duration // total time in which a new lease's work waited for the announced end of another client's work
	checks      func([]Action)
	batched     bool    // events of one instant are passed in one Step
	events      []Event // events not passed yet
}

// simClient simulates a process that launches kernels continuously while it wants the GPU.
type simClient struct {
	id             ClientID
	instance       string
	slice          gpu.Slice
	turns          []gpu.Turn
	kernel         time.Duration  // length of the longest kernel, and so of the longest drain
	fixedKernels   bool           // all kernels have this length, and each runs to its end
	loss           time.Duration  // time from the end of the last kernel to the Return
	announceLead   time.Duration  // how long before the end of its work it announces that end; 0: only with announcesEarly
	followsLead    bool           // each Grant's Lead becomes announceLead
	announceDelay  time.Duration  // an announcement is at most this late
	delay          time.Duration  // time from a grant to the first kernel
	announcesEarly bool           // it announces the end of its work as soon as its lease is revoked
	burst          time.Duration  // time after which it returns its lease; 0: never
	gap            time.Duration  // time until its next request after that
	stream         *requestStream // requests that it serves, instead of launching continuously; nil: none

	lease         uint32
	hold          time.Duration // of the current lease
	since         time.Duration // start of the time that it measures: the grant plus delay
	workStart     time.Duration // start of its own GPU time; later than since if another client's work ran first
	draining      bool
	announced     bool          // it has announced the end of its work
	workEnd       time.Duration // end of its work in flight
	waitStart     time.Duration // start of its current wait
	longest       time.Duration // longest wait
	used          time.Duration
	measuredTwice time.Duration // part of its reported time before workStart, from leases whose end of work it did not announce
	removed       bool
	revoked       int
	reasons       []reason.Reason
}

type timer struct {
	at  time.Duration
	seq int
	do  func()
}

type timerQueue []timer

func (a timerQueue) Len() int { return len(a) }
func (a timerQueue) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].seq < a[j].seq
}
func (a timerQueue) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *timerQueue) Push(x any)   { *a = append(*a, x.(timer)) }
func (a *timerQueue) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

func newLeasedGPU(t testing.TB, c Config, seed uint64) *leasedGPU {
	limit := c.SMLimit
	if limit == 0 {
		limit = 100
	}
	return &leasedGPU{
		t: t, s: newMultiToken(c, 0), limit: limit, rng: rand.New(rand.NewPCG(seed, 1)),
		clients: map[ClientID]*simClient{}, wake: -1,
	}
}

func (w *leasedGPU) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.pending, timer{w.now + d, w.seq, do})
}

// upTo returns a random time between 0 and d.
func (w *leasedGPU) upTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(w.rng.Int64N(int64(d) + 1))
}

func (w *leasedGPU) step(events ...Event) {
	if w.events = append(w.events, events...); !w.batched {
		w.flush()
	}
}

// flush passes the pending events to the policy and performs the actions.
func (w *leasedGPU) flush() {
	events := w.events
	w.events = nil
	actions := w.s.Step(w.now, events, nil)
	w.log = append(w.log, logged{w.now, events})
	if n := len(w.log) - 1000; n >= 0 && w.log[n].at == w.now {
		w.t.Fatalf("at %v: the clock has not advanced for 1000 steps, want progress; the last events %v led to %v", w.now, events, actions)
	}
	w.trace = append(w.trace, actions)
	if w.checks != nil {
		w.checks(actions)
	}
	for _, a := range actions {
		switch a := a.(type) {
		case Grant:
			w.granted(a)
		case Revoke:
			w.revoked(a)
		case WakeAt:
			if a.At <= w.now {
				w.t.Fatalf("at %v: got a wake at %v, want a later time", w.now, a.At)
			}
			w.wake = a.At
			w.after(a.At-w.now+w.upTo(w.lag), func() {
				if w.wake == a.At {
					w.wake = -1
					w.step(Wake{})
				}
			})
		}
	}
	w.check()
}

func (w *leasedGPU) granted(a Grant) {
	c := w.clients[a.Client]
	if c == nil || c.removed || c.lease != 0 || a.Lease == 0 || Reasons.Check(a.Reason) != nil {
		w.t.Fatalf("at %v: got %+v for client %+v, want a present client without a lease, a lease number and a documented reason", w.now, a, c)
	}
	c.longest = max(c.longest, w.now-c.waitStart)
	begins := w.now + c.delay
	c.lease, c.since, c.workStart, c.draining, c.announced = a.Lease, begins, begins, false, false
	c.hold = a.Hold
	if c.stream != nil {
		c.stream.granted(w, c)
		return
	}
	if c.followsLead {
		c.announceLead = a.Lead
	}
	held, free := c.slice.SMPct, begins
	for _, o := range w.clients {
		if o != c && o.lease != 0 && !o.removed {
			held += o.slice.SMPct
			if o.announced && o.workEnd > w.now {
				w.earlyGrants++
				free = max(free, o.workEnd)
			}
		}
	}
	if held > w.limit+smEps {
		c.workStart = free
		w.overlap += free - begins
	}
	if c.burst > 0 {
		w.after(c.burst, func() {
			if c.lease == a.Lease && !c.draining && !c.removed {
				w.finish(c, false)
			}
		})
	}
}

func (w *leasedGPU) revoked(a Revoke) {
	c := w.clients[a.Client]
	if c == nil || c.lease != a.Lease || c.draining || Reasons.Check(a.Reason) != nil {
		w.t.Fatalf("at %v: got %+v for client %+v, want a lease that was not revoked and a documented reason", w.now, a, c)
	}
	c.draining = true
	c.revoked++
	c.reasons = append(c.reasons, a.Reason)
	if c.stream != nil {
		c.stream.revoked(w, c)
		return
	}
	remaining := w.upTo(c.kernel)
	if c.fixedKernels {
		remaining = w.remainingKernel(c)
	}
	c.workEnd = w.now + remaining
	if lead := c.announceLead; lead > 0 || c.announcesEarly {
		if c.announcesEarly {
			lead = remaining
		}
		w.after(max(0, remaining-lead)+w.upTo(c.announceDelay), func() {
			if !c.removed && c.lease == a.Lease && c.workEnd >= w.now {
				c.announced = true
				w.step(Ending{c.id, a.Lease, min(c.workEnd-w.now, c.announceLead)})
			}
		})
	}
	w.after(remaining, func() {
		used, had := max(0, w.now-c.since), max(0, w.now-c.workStart)
		w.after(c.loss, func() {
			if !c.removed && c.lease == a.Lease {
				if c.used += had; !c.announced {
					c.measuredTwice += used - had
				}
				c.lease, c.waitStart = 0, w.now
				w.step(Return{c.id, a.Lease, used, true})
			}
		})
	})
}

// remainingKernel returns the remaining time of the client's current kernel.
func (w *leasedGPU) remainingKernel(c *simClient) time.Duration {
	switch ran := w.now - c.workStart; {
	case ran <= 0:
		return c.kernel - ran
	case ran%c.kernel == 0:
		return 0
	default:
		return c.kernel - ran%c.kernel
	}
}

// finish makes a client return a lease that was not revoked. more: the client waits to launch again;
// otherwise it sends its next request after gap.
func (w *leasedGPU) finish(c *simClient, more bool) {
	lease, used := c.lease, w.now-c.since
	c.used += w.now - c.workStart
	c.lease, c.waitStart = 0, w.now
	if !more {
		w.after(c.gap, func() {
			if !c.removed {
				c.waitStart = w.now
				w.step(Request{c.id})
			}
		})
	}
	w.step(Return{c.id, lease, used, more})
}

// check fails the test if several clients hold leases without having announced the end of their
// work, and their SMs exceed the limit.
func (w *leasedGPU) check() {
	sum, holders := 0.0, 0
	for _, c := range w.clients {
		if c.lease != 0 && !c.removed && !c.announced {
			sum += c.slice.SMPct
			holders++
		}
	}
	if holders > 1 && sum > w.limit+smEps {
		w.t.Fatalf("at %v: %d leases hold %v%% of the SMs, want at most %v%%", w.now, holders, sum, w.limit)
	}
}

// add adds a client, which requests the GPU at once.
func (w *leasedGPU) add(c *simClient) *simClient {
	w.clients[c.id] = c
	c.waitStart = w.now
	w.step(AddInstance{Instance: c.instance, Slice: c.slice, Turns: c.turns}, AddClient{c.id, c.instance})
	if c.stream != nil {
		c.stream.start(w, c)
	} else {
		w.step(Request{c.id})
	}
	return c
}

// remove kills a client.
func (w *leasedGPU) remove(c *simClient) {
	if c.lease != 0 {
		c.used += w.now - c.workStart
	}
	c.removed = true
	w.step(RemoveClient{c.id})
}

// run advances the clock to the given time.
func (w *leasedGPU) run(until time.Duration) {
	for len(w.pending) > 0 && w.pending[0].at <= until || len(w.events) > 0 {
		if len(w.events) > 0 && (len(w.pending) == 0 || w.pending[0].at > w.now) {
			w.flush()
			continue
		}
		j := heap.Pop(&w.pending).(timer)
		w.now = j.at
		j.do()
	}
	w.now = until
}

// total returns the GPU time of a client until now, including its current lease.
func (w *leasedGPU) total(c *simClient) time.Duration {
	if c.lease != 0 && !c.removed {
		return c.used + w.now - c.workStart
	}
	return c.used
}

func slice(sm, request, limit float64) gpu.Slice {
	return gpu.Slice{SMPct: sm, QuotaRequest: request, QuotaLimit: limit}
}
