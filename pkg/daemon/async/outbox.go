package async

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"time"
)

// outbox holds the answers to send, by receiver, and the ones being sent. Its rules keep
// one receiver from delaying the answers to others:
//
//  1. Receivers take turns. A receiver that failed to take the last answer is "failing".
//     Failing receivers get every fourth turn, and at most maxFailing places each and
//     maxFailingInAll together.
//  2. While answers to another receiver wait for a place, a receiver has limited time:
//     shortTime if it has not taken the last answer sent to it or was not sent any, and
//     fairTime otherwise. Answers to a failing receiver do not limit the time of a receiver
//     that took its last answer.
//  3. Without such competition, the limit is callbackTime.
//
// The Queue's lock protects the outbox.
type outbox struct {
	limit     int // limit on answers being sent
	receivers map[string]*outlet
	turns     [2][]*outlet // receivers with waiting answers, in the order of their turns: [0] healthy, [1] failing
	picks     int
	sending   map[string]*sending // by ID of the call
	failing   int                 // number of entries in sending whose receiver was failing at the start
	timer     *time.Timer         // calls Queue.dispatch when a receiver's time ends; nil if no answer waits
}

const (
	shortTime = 3 * time.Second
	fairTime  = 10 * time.Second

	cancelTime = time.Second // how long a cancelled sending may take to end

	failingTurn  = 4    // every failingTurn-th turn belongs to failing receivers
	maxReceivers = 4096 // limit on receivers remembered without answers to send
)

// outlet is one receiver.
type outlet struct {
	name     string
	ids      []string // calls whose answers wait
	sends    int      // answers being sent
	accepted bool     // the receiver took the last answer
	failing  bool     // the receiver failed to take the last answer
}

// sending is an attempt to deliver one answer.
type sending struct {
	to        *outlet
	failing   bool // whether the receiver was failing at the start
	start     time.Time
	cancelled time.Time // when it was cancelled for the sake of others; zero if not
	cancel    context.CancelCauseFunc
}

func newOutbox(limit int) outbox {
	return outbox{limit: limit, receivers: map[string]*outlet{}, sending: map[string]*sending{}}
}

// maxFailing returns the limit on answers being sent to one failing receiver.
func (o *outbox) maxFailing() int { return max(2, o.limit/4) }

// maxFailingInAll returns the limit on answers being sent to all failing receivers.
func (o *outbox) maxFailingInAll() int { return max(2, o.limit*3/4) }

// receiverOf returns the scheme, host and port of a callback URL.
func receiverOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Scheme + "://" + hostName(u.Hostname()) + ":" + cmp.Or(u.Port(), u.Scheme)
}

// add queues the answer to a call.
func (o *outbox) add(receiver, id string) {
	to := o.receivers[receiver]
	if to == nil {
		to = &outlet{name: receiver}
		o.receivers[receiver] = to
	}
	if to.ids = append(to.ids, id); len(to.ids) == 1 {
		o.turns[to.list()] = append(o.turns[to.list()], to)
	}
}

// callsBefore returns how many calls run before the next answer to the receiver, if the
// Queue has only one place.
func (to *outlet) callsBefore() int {
	if to.accepted {
		return 1
	}
	return 16
}

// list returns the receiver's index in outbox.turns.
func (to *outlet) list() int {
	if to.failing {
		return 1
	}
	return 0
}

// next returns the receiver whose turn it is, or nil if no receiver can be sent an answer.
func (o *outbox) next() *outlet {
	if able := o.eligible(1); len(able) > 0 {
		return able[0]
	}
	return nil
}

// eligible returns the receivers with the next turns that could be sent an answer if a place
// were free: up to the given number from each list of turns.
func (o *outbox) eligible(each int) (able []*outlet) {
	first := 0
	if (o.picks+1)%failingTurn == 0 {
		first = 1
	}
	for _, list := range []int{first, 1 - first} {
		n := 0
		for _, to := range o.turns[list] {
			if n == each {
				break
			}
			if !to.failing || to.sends < o.maxFailing() && o.failing < o.maxFailingInAll() {
				able = append(able, to)
				n++
			}
		}
	}
	return able
}

// start removes the next answer to a receiver from its queue and returns the call's ID and
// the context for sending it.
func (o *outbox) start(parent context.Context, to *outlet) (id string, ctx context.Context) {
	o.picks++
	id, to.ids = to.ids[0], to.ids[1:]
	o.removeTurn(to)
	if len(to.ids) > 0 {
		o.turns[to.list()] = append(o.turns[to.list()], to)
	}
	s := &sending{to: to, failing: to.failing, start: time.Now()}
	ctx, s.cancel = context.WithCancelCause(parent)
	o.sending[id] = s
	if to.sends++; s.failing {
		o.failing++
	}
	return id, ctx
}

// removeTurn removes a receiver from its list of turns.
func (o *outbox) removeTurn(to *outlet) {
	list := &o.turns[to.list()]
	*list = slices.DeleteFunc(*list, func(other *outlet) bool { return other == to })
}

// end removes an attempt. accepted reports whether the receiver took the answer; it is nil if
// the attempt proves nothing about the receiver.
func (o *outbox) end(id string, accepted *bool) {
	s := o.sending[id]
	delete(o.sending, id)
	s.cancel(nil)
	to := s.to
	if to.sends--; s.failing {
		o.failing--
	}
	if accepted != nil && (to.accepted != *accepted || to.failing == *accepted) {
		o.removeTurn(to)
		if to.accepted, to.failing = *accepted, !*accepted; len(to.ids) > 0 {
			o.turns[to.list()] = append(o.turns[to.list()], to)
		}
	}
	if to.sends == 0 && len(to.ids) == 0 && len(o.receivers) > maxReceivers {
		delete(o.receivers, to.name)
	}
}

// errPreempted is the cause of a cancelled attempt that made room for other answers.
type errPreempted struct{ after time.Duration }

func (e errPreempted) Error() string {
	return fmt.Sprintf("no reply within %v, while answers to other receivers wait", e.after)
}

// patience returns the time limit of an attempt while an answer to another receiver waits.
func (s *sending) patience() time.Duration {
	if s.to.accepted {
		return fairTime
	}
	return shortTime
}

// makeRoom cancels one attempt if its time is over and an answer to another receiver waits
// for a place; calls reports that calls wait for the place as well. It returns how long to
// wait before the next makeRoom, or 0 if none is needed.
func (o *outbox) makeRoom(calls bool) time.Duration {
	waiting := o.eligible(2)
	if len(waiting) == 0 && !calls {
		return 0
	}
	var late *sending
	shortest := time.Duration(0)
	for _, s := range o.sending {
		if !s.cancelled.IsZero() {
			if remaining := cancelTime - time.Since(s.cancelled); remaining > 0 {
				return remaining // this attempt will free its place soon
			}
			continue
		}
		if !calls && !slices.ContainsFunc(waiting, func(to *outlet) bool { return to != s.to && (!to.failing || !s.to.accepted) }) {
			continue
		}
		if remaining := s.patience() - time.Since(s.start); late == nil || remaining < shortest {
			late, shortest = s, remaining
		}
	}
	if late == nil || shortest > 0 {
		return shortest
	}
	late.cancelled = time.Now()
	late.cancel(errPreempted{late.patience()})
	return cancelTime
}
