package token

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

const ms = time.Millisecond

// logged is what happened at one instant of a recorded run.
type logged struct {
	at     time.Duration
	events []Event
}

// leasedGPU is a GPU whose clients ask for leases and drain when they are asked
// back, on a virtual clock, under multi-token.
type leasedGPU struct {
	t       testing.TB
	s       *multiToken
	limit   float64
	now     time.Duration
	rng     *rand.Rand
	pending agenda
	seq     int
	log     []logged
	trace   [][]Action
	clients map[ClientID]*worker
	wake    time.Duration
	lag     time.Duration // timers fire up to this late
	beside  int           // leases that were granted beside one whose end had been told
	overlap time.Duration // in which two had work in flight
	checks  func([]Action)
	batched bool    // what happens at one instant is told together
	events  []Event // that are not told yet
}

// worker is a process that launches kernels without end while it wants to.
type worker struct {
	id       ClientID
	instance string
	slice    gpu.Slice
	turns    []gpu.Turn
	kernel   time.Duration // longest kernel: what a drain takes at most
	whole    bool          // all kernels are that long, and each runs to its end
	loss     time.Duration // from the end of the last kernel to the Return
	tells    time.Duration // says so long before the end of the last kernel when that is; 0 is never
	led      bool          // the same, as its leases say, up to so much later
	looks    time.Duration
	delay    time.Duration // from a grant to the first kernel
	lies     bool          // says as soon as it is asked back that it is over
	burst    time.Duration // gives its lease back after so long; 0 is never
	gap      time.Duration // then asks again after so long

	lease    uint32
	since    time.Duration // of the grant, and what it measures begins
	from     time.Duration // when it had the GPU: later, if another's work was before it
	draining bool
	said     bool          // when what it has in flight is over
	ends     time.Duration // when that is
	waits    time.Duration // since when, while it waits
	longest  time.Duration // wait
	used     time.Duration
	twice    time.Duration // of what it measured, another's work that was before its own, where it did not say when that ended
	gone     bool
	revoked  int
	reasons  []string
}

type job struct {
	at  time.Duration
	seq int
	do  func()
}

type agenda []job

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].seq < a[j].seq
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(job)) }
func (a *agenda) Pop() any {
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
		clients: map[ClientID]*worker{}, wake: -1,
	}
}

func (w *leasedGPU) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.pending, job{w.now + d, w.seq, do})
}

// upTo is a random time between 0 and d.
func (w *leasedGPU) upTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return time.Duration(w.rng.Int64N(int64(d) + 1))
}

func (w *leasedGPU) step(events ...Event) {
	if w.events = append(w.events, events...); !w.batched {
		w.tell()
	}
}

// tell has the policy decide about what has happened.
func (w *leasedGPU) tell() {
	events := w.events
	w.events = nil
	actions := w.s.Step(w.now, events, nil)
	w.log = append(w.log, logged{w.now, events})
	if n := len(w.log) - 1000; n >= 0 && w.log[n].at == w.now {
		w.t.Fatalf("at %v the same again and again: %v -> %v", w.now, events, actions)
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
				w.t.Fatalf("at %v: wake at %v has passed", w.now, a.At)
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
	if c == nil || c.gone || c.lease != 0 || a.Lease == 0 || a.Reason == "" {
		w.t.Fatalf("at %v: wrong %+v", w.now, a)
	}
	c.longest = max(c.longest, w.now-c.waits)
	begins := w.now + c.delay
	c.lease, c.since, c.from, c.draining, c.said = a.Lease, begins, begins, false, false
	if c.led {
		c.tells = a.Lead
	}
	held, free := c.slice.SMPct, begins
	for _, o := range w.clients {
		if o != c && o.lease != 0 && !o.gone {
			held += o.slice.SMPct
			if o.said && o.ends > w.now {
				w.beside++
				free = max(free, o.ends)
			}
		}
	}
	if held > w.limit+smEps {
		c.from = free
		w.overlap += free - begins
	}
	if c.burst > 0 {
		w.after(c.burst, func() {
			if c.lease == a.Lease && !c.draining && !c.gone {
				w.finish(c, false)
			}
		})
	}
}

func (w *leasedGPU) revoked(a Revoke) {
	c := w.clients[a.Client]
	if c == nil || c.lease != a.Lease || c.draining || a.Reason == "" {
		w.t.Fatalf("at %v: wrong %+v", w.now, a)
	}
	c.draining = true
	c.revoked++
	c.reasons = append(c.reasons, a.Reason)
	left := w.upTo(c.kernel)
	if c.whole {
		left = w.ofKernel(c)
	}
	c.ends = w.now + left
	if lead := c.tells; lead > 0 || c.lies {
		if c.lies {
			lead = left
		}
		w.after(max(0, left-lead)+w.upTo(c.looks), func() {
			if !c.gone && c.lease == a.Lease && c.ends >= w.now {
				c.said = true
				w.step(Ending{c.id, a.Lease, min(c.ends-w.now, c.tells)})
			}
		})
	}
	w.after(left, func() {
		used, had := max(0, w.now-c.since), max(0, w.now-c.from)
		w.after(c.loss, func() {
			if !c.gone && c.lease == a.Lease {
				if c.used += had; !c.said {
					c.twice += used - had
				}
				c.lease, c.waits = 0, w.now
				w.step(Return{c.id, a.Lease, used, true})
			}
		})
	})
}

// ofKernel returns how long the kernel that the worker has on the GPU still runs.
func (w *leasedGPU) ofKernel(c *worker) time.Duration {
	switch ran := w.now - c.from; {
	case ran <= 0:
		return c.kernel - ran
	case ran%c.kernel == 0:
		return 0
	default:
		return c.kernel - ran%c.kernel
	}
}

// finish gives a lease back unasked.
func (w *leasedGPU) finish(c *worker, more bool) {
	lease, used := c.lease, w.now-c.since
	c.used += w.now - c.from
	c.lease, c.waits = 0, w.now
	if !more {
		w.after(c.gap, func() {
			if !c.gone {
				c.waits = w.now
				w.step(Request{c.id})
			}
		})
	}
	w.step(Return{c.id, lease, used, more})
}

// check holds the sum of SMs, counted from what the workers hold and have not told the
// end of.
func (w *leasedGPU) check() {
	sum, holders := 0.0, 0
	for _, c := range w.clients {
		if c.lease != 0 && !c.gone && !c.said {
			sum += c.slice.SMPct
			holders++
		}
	}
	if holders > 1 && sum > w.limit+smEps {
		w.t.Fatalf("at %v: %d leases hold %v%% of SMs, limit %v%%", w.now, holders, sum, w.limit)
	}
}

// join starts a worker at once.
func (w *leasedGPU) join(c *worker) *worker {
	w.clients[c.id] = c
	c.waits = w.now
	w.step(AddInstance{Instance: c.instance, Slice: c.slice, Turns: c.turns}, AddClient{c.id, c.instance}, Request{c.id})
	return c
}

// leave kills a worker.
func (w *leasedGPU) leave(c *worker) {
	if c.lease != 0 {
		c.used += w.now - c.from
	}
	c.gone = true
	w.step(RemoveClient{c.id})
}

// run lets time pass.
func (w *leasedGPU) run(until time.Duration) {
	for len(w.pending) > 0 && w.pending[0].at <= until || len(w.events) > 0 {
		if len(w.events) > 0 && (len(w.pending) == 0 || w.pending[0].at > w.now) {
			w.tell()
			continue
		}
		j := heap.Pop(&w.pending).(job)
		w.now = j.at
		j.do()
	}
	w.now = until
}

// total is what a worker has used until now, its open lease included.
func (w *leasedGPU) total(c *worker) time.Duration {
	if c.lease != 0 && !c.gone {
		return c.used + w.now - c.from
	}
	return c.used
}

func slice(sm, request, limit float64) gpu.Slice {
	return gpu.Slice{SMPct: sm, QuotaRequest: request, QuotaLimit: limit}
}
