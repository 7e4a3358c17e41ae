// Package batch decides which calls share one request to an instance, and when that request is queued and
// sent, as the dynamic batchers of model servers do. Only calls with the same key share a batch.
//
// # Rules
//
//  1. A call joins the batch of its key that still accepts calls, if the sum of their sizes stays within the
//     call's limit. Otherwise that batch accepts no further calls, and the call begins another one.
//  2. A batch gathers calls until its oldest call has waited for the latency, or until the batch is full. Then it
//     is queued: it competes for an instance. A batch that accepts no further calls is queued at once.
//  3. A queued batch accepts calls until it gets an instance. So the latency adds nothing to the wait for an
//     instance.
//  4. When it gets an instance, the batch is sent. If the instance accepts only a smaller batch, the calls that fit
//     are sent in the order of arrival, at least one, and the others are queued again at once.
//
// A call that is larger than its limit has a batch of its own, which is queued at once.
package batch

import (
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy"
)

// Event is an input of the Former: Arrived, Cancelled, Assigned, Refused or Woke.
type Event interface{ event() }

// Arrived reports a call that may share a batch with other calls of the same key.
type Arrived struct {
	Call    int64
	Key     string
	Size    int           // inferences, at least 1
	Since   time.Duration // when the call began to wait; before the event if an earlier batch of the call was refused
	Max     int           // limit on the sum of the sizes of a batch
	Latency time.Duration // how long a batch gathers calls
}

// Cancelled reports that the caller of a call that is not sent yet has disconnected.
type Cancelled struct{ Call int64 }

// Assigned reports that a queued batch got an instance. Max is the limit of that instance on the sum of the
// sizes; with 0, the limit of the calls applies.
type Assigned struct {
	Batch int64
	Max   int
}

// Refused reports that a queued batch will get no instance.
type Refused struct{ Batch int64 }

// Woke reports that the time of the last Wake has come.
type Woke struct{}

func (Arrived) event()   {}
func (Cancelled) event() {}
func (Assigned) event()  {}
func (Refused) event()   {}
func (Woke) event()      {}

// Action is an output of the Former: Queue, Send, Refuse, Withdraw or Wake.
type Action interface{ action() }

// Queue requests an instance for a batch.
type Queue struct {
	Batch int64
	Call  int64         // one of its calls
	Since time.Duration // when its oldest call began to wait
}

// Send sends the calls, in order of arrival, as one request to the instance that the batch got. It ends the
// batch.
type Send struct {
	Batch int64
	Calls []int64
}

// Refuse refuses the calls of a batch that was Refused. It ends the batch. A call that may still wait must arrive
// again.
type Refuse struct {
	Batch int64
	Calls []int64
}

// Withdraw removes a batch without calls from the queue. It ends the batch.
type Withdraw struct{ Batch int64 }

// Wake requests the event Woke at a time. It replaces the previous request.
type Wake struct{ At time.Duration }

func (Queue) action()    {}
func (Send) action()     {}
func (Refuse) action()   {}
func (Withdraw) action() {}
func (Wake) action()     {}

// Never is the time of a Wake that cancels the previous request.
const Never = time.Duration(math.MaxInt64)

// Snapshot describes the batches that are not sent yet.
type Snapshot struct {
	Gathering, Queued int // batches
	Calls             int // their calls
}

// Former forms batches.
type Former struct {
	last      int64 // ID of the latest batch
	wake      time.Duration
	batches   map[int64]*batch
	accepting map[string]*batch // by key
	of        map[int64]*batch  // by call
	gathering []*batch          // in order of creation
}

// batch is a batch that is not sent yet.
type batch struct {
	id     int64
	key    string
	calls  []Arrived
	size   int           // sum of the calls' sizes
	due    time.Duration // when it is queued at the latest
	queued bool
}

var _ policy.Stepper[Event, Action, Snapshot] = (*Former)(nil)

// New returns a Former without calls.
func New() *Former {
	return &Former{wake: Never, batches: map[int64]*batch{}, accepting: map[string]*batch{}, of: map[int64]*batch{}}
}

// Step applies the events of an instant.
func (f *Former) Step(now time.Duration, events []Event, actions []Action) []Action {
	for _, ev := range events {
		switch ev := ev.(type) {
		case Arrived:
			f.arrive(ev)
		case Cancelled:
			actions = f.cancel(ev.Call, actions)
		case Assigned:
			if b := f.batches[ev.Batch]; b != nil && b.queued {
				actions = f.send(now, b, ev.Max, actions)
			}
		case Refused:
			if b := f.batches[ev.Batch]; b != nil {
				f.end(b)
				actions = append(actions, Refuse{b.id, b.ids()})
			}
		case Woke:
			f.wake = Never
		}
	}
	return f.queue(now, actions)
}

// arrive lets a call join a batch or begin one.
func (f *Former) arrive(c Arrived) {
	b := f.accepting[c.Key]
	if b != nil && b.size+c.Size > c.Max {
		b.due = 0
		b = nil
	}
	if b == nil {
		b = f.begin(c.Key)
		f.accepting[c.Key] = b
	}
	f.join(b, c)
}

// begin returns a new batch.
func (f *Former) begin(key string) *batch {
	f.last++
	b := &batch{id: f.last, key: key, due: Never}
	f.batches[b.id] = b
	f.gathering = append(f.gathering, b)
	return b
}

func (f *Former) join(b *batch, c Arrived) {
	b.calls = append(b.calls, c)
	b.size += c.Size
	f.of[c.Call] = b
	if b.due = min(b.due, c.Since+c.Latency); b.size >= c.Max {
		b.due = 0
	}
}

// cancel removes a call, and its batch if that was the last call.
func (f *Former) cancel(call int64, actions []Action) []Action {
	b := f.of[call]
	if b == nil {
		return actions
	}
	delete(f.of, call)
	at := slices.IndexFunc(b.calls, func(c Arrived) bool { return c.Call == call })
	b.size -= b.calls[at].Size
	b.calls = slices.Delete(b.calls, at, at+1)
	if len(b.calls) > 0 {
		return actions
	}
	f.end(b)
	if b.queued {
		actions = append(actions, Withdraw{b.id})
	}
	return actions
}

// end forgets a batch and its calls.
func (f *Former) end(b *batch) {
	delete(f.batches, b.id)
	if f.accepting[b.key] == b {
		delete(f.accepting, b.key)
	}
	f.gathering = slices.DeleteFunc(f.gathering, func(other *batch) bool { return other == b })
	for _, c := range b.calls {
		delete(f.of, c.Call)
	}
}

// ids returns the calls of the batch.
func (b *batch) ids() []int64 {
	ids := make([]int64, len(b.calls))
	for i, c := range b.calls {
		ids[i] = c.Call
	}
	return ids
}

// send sends the calls of a batch that fit the instance, and makes a batch of the others.
func (f *Former) send(now time.Duration, b *batch, most int, actions []Action) []Action {
	accepting := f.accepting[b.key] == b
	f.end(b)
	sum, n := 0, 0
	for n < len(b.calls) && (n == 0 || most <= 0 || sum+b.calls[n].Size <= most) {
		sum += b.calls[n].Size
		n++
	}
	actions = append(actions, Send{b.id, b.ids()[:n]})
	if n < len(b.calls) {
		rest := f.begin(b.key)
		if accepting {
			f.accepting[b.key] = rest
		}
		for _, c := range b.calls[n:] {
			f.join(rest, c)
		}
		rest.due = min(rest.due, now)
	}
	return actions
}

// queue queues the batches that have gathered long enough, and requests a Wake for the next one.
func (f *Former) queue(now time.Duration, actions []Action) []Action {
	next := Never
	f.gathering = slices.DeleteFunc(f.gathering, func(b *batch) bool {
		if b.due > now {
			next = min(next, b.due)
			return false
		}
		b.queued = true
		since := b.calls[0].Since
		for _, c := range b.calls {
			since = min(since, c.Since)
		}
		actions = append(actions, Queue{b.id, b.calls[0].Call, since})
		return true
	})
	if next != f.wake {
		f.wake = next
		actions = append(actions, Wake{next})
	}
	return actions
}

// Snapshot returns the number of batches and calls that are not sent yet.
func (f *Former) Snapshot() Snapshot {
	return Snapshot{Gathering: len(f.gathering), Queued: len(f.batches) - len(f.gathering), Calls: len(f.of)}
}
