package async

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"
)

// outbox keeps the answers to be sent, by receiver, and those that are being sent. So that
// no receiver holds up the answers to others:
//
//   - Receivers take turns. Those that did not take the last answer sent to them have every
//     fourth turn, and fewer places: maxFailing each, and maxFailingInAll together.
//   - While an answer to another receiver waits for a place, a receiver that has not taken
//     the last answer sent to it, or was not sent any, has shortTime to take one, and any
//     other fairTime. Otherwise it has callbackTime. A receiver that failed does not
//     shorten the time of one that took its last answer.
//
// The Queue's lock protects it.
type outbox struct {
	most      int // answers that may be sent at once
	receivers map[string]*outlet
	turns     [2][]*outlet // those for which answers wait, the next first: all others, and those that fail
	picks     int
	sending   map[string]*sending // by id of the call
	failing   int                 // of sending, those to receivers that failed before
	timer     *time.Timer         // calls Queue.next when a receiver's time is over; nil if none waits
}

const (
	shortTime = 3 * time.Second
	fairTime  = 10 * time.Second

	cutTime = time.Second // for a sending to end that was to

	failingTurn  = 4    // each of so many turns is of a receiver that fails
	maxReceivers = 4096 // remembered without answers to send
)

// outlet is one receiver.
type outlet struct {
	name    string
	ids     []string // of calls whose answers wait
	posts   int      // answers that are being sent
	took    bool     // it took the last answer
	failing bool     // it did not
}

// sending is an answer that is being sent.
type sending struct {
	to      *outlet
	failing bool // the receiver was, when it began
	began   time.Time
	cut     time.Time // when it was to end for others
	cancel  context.CancelCauseFunc
}

func newOutbox(most int) outbox {
	return outbox{most: most, receivers: map[string]*outlet{}, sending: map[string]*sending{}}
}

func (o *outbox) maxFailing() int { return max(2, o.most/4) }

func (o *outbox) maxFailingInAll() int { return max(2, o.most*3/4) }

// receiverOf returns the scheme, the host and the port of a callback's address.
func receiverOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	port := u.Port()
	if port == "" {
		port = u.Scheme
	}
	return u.Scheme + "://" + hostName(u.Hostname()) + ":" + port
}

// add has the answer to a call wait to be sent.
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

// callsBefore returns how many calls go before the next answer to a receiver where one
// place is for both.
func (to *outlet) callsBefore() int {
	if to.took {
		return 1
	}
	return 16
}

func (to *outlet) list() int {
	if to.failing {
		return 1
	}
	return 0
}

// next returns the receiver whose turn it is, or nil if none can be sent anything.
func (o *outbox) next() *outlet {
	if able := o.able(1); len(able) > 0 {
		return able[0]
	}
	return nil
}

// able returns the receivers whose turn is next, up to so many of each list, of those that
// could be sent an answer if a place were free.
func (o *outbox) able(each int) (able []*outlet) {
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
			if !to.failing || to.posts < o.maxFailing() && o.failing < o.maxFailingInAll() {
				able = append(able, to)
				n++
			}
		}
	}
	return able
}

// begin takes the next answer to a receiver, to send it for as long as ctx lasts.
func (o *outbox) begin(parent context.Context, to *outlet) (id string, ctx context.Context) {
	o.picks++
	id, to.ids = to.ids[0], to.ids[1:]
	o.leaveTurn(to)
	if len(to.ids) > 0 {
		o.turns[to.list()] = append(o.turns[to.list()], to)
	}
	s := &sending{to: to, failing: to.failing, began: time.Now()}
	ctx, s.cancel = context.WithCancelCause(parent)
	o.sending[id] = s
	if to.posts++; s.failing {
		o.failing++
	}
	return id, ctx
}

// leaveTurn takes a receiver out of its list.
func (o *outbox) leaveTurn(to *outlet) {
	list := o.turns[to.list()]
	for i, other := range list {
		if other == to {
			o.turns[to.list()] = append(list[:i:i], list[i+1:]...)
			return
		}
	}
}

// end notes that an answer is not being sent any more. took is nil where nothing is known
// of the receiver by that.
func (o *outbox) end(id string, took *bool) {
	s := o.sending[id]
	delete(o.sending, id)
	s.cancel(nil)
	to := s.to
	if to.posts--; s.failing {
		o.failing--
	}
	if took != nil && (to.took != *took || to.failing == *took) {
		o.leaveTurn(to)
		if to.took, to.failing = *took, !*took; len(to.ids) > 0 {
			o.turns[to.list()] = append(o.turns[to.list()], to)
		}
	}
	if to.posts == 0 && len(to.ids) == 0 && len(o.receivers) > maxReceivers {
		delete(o.receivers, to.name)
	}
}

// errGaveWay ends the sending of an answer because answers to others wait.
type errGaveWay struct{ after time.Duration }

func (e errGaveWay) Error() string {
	return fmt.Sprintf("no reply within %v, and answers to other receivers wait", e.after)
}

// patience is for how long an answer may be sent while one to another receiver waits.
func (s *sending) patience() time.Duration {
	if s.to.took {
		return fairTime
	}
	return shortTime
}

// giveWay ends the sending of one answer, if one to another receiver waits and the time
// for that has come; calls says that calls wait for the place, too. It returns after what
// time to call it again; 0 is not at all.
func (o *outbox) giveWay(calls bool) time.Duration {
	waiting := o.able(2)
	if len(waiting) == 0 && !calls {
		return 0
	}
	var late *sending
	least := time.Duration(0)
	for _, s := range o.sending {
		if !s.cut.IsZero() {
			if left := cutTime - time.Since(s.cut); left > 0 {
				return left // its place is about to be free
			}
			continue
		}
		if !calls && !slices.ContainsFunc(waiting, func(to *outlet) bool { return to != s.to && (!to.failing || !s.to.took) }) {
			continue
		}
		if left := s.patience() - time.Since(s.began); late == nil || left < least {
			late, least = s, left
		}
	}
	if late == nil || least > 0 {
		return least
	}
	late.cut = time.Now()
	late.cancel(errGaveWay{late.patience()})
	return cutTime
}

// gaveWay reports why an answer was not sent, if that is because others waited.
func gaveWay(ctx context.Context, err error) error {
	var cause errGaveWay
	if errors.As(context.Cause(ctx), &cause) {
		return cause
	}
	return err
}
