package queue

import "iter"

// holds stores the Run actions of invocations that wait for room on their GPU, in the order of
// their dispatch. The time to add or remove one does not depend on their number, because there are
// many on many GPUs.
type holds struct {
	actions        []heldAction
	vacant         []int32         // free indices of actions
	at             map[int64]int32 // by invocation: its index in actions
	oldest, newest int32           // ends of the list, or none
}

type heldAction struct {
	Action
	before, after int32 // its neighbours in the list, or none
}

func newHolds() holds { return holds{at: map[int64]int32{}, oldest: none, newest: none} }

func (h *holds) len() int { return len(h.at) }

// add appends an action.
func (h *holds) add(a *Action) {
	held, n := heldAction{*a, h.newest, none}, int32(len(h.actions))
	if last := len(h.vacant) - 1; last >= 0 {
		n, h.vacant = h.vacant[last], h.vacant[:last]
		h.actions[n] = held
	} else {
		h.actions = append(h.actions, held)
	}
	*h.next(held.before), h.newest, h.at[a.ID] = n, n, n
}

// remove removes and returns the action of an invocation, and reports whether there is one.
func (h *holds) remove(id int64) (a Action, found bool) {
	n, found := h.at[id]
	if !found {
		return a, false
	}
	delete(h.at, id)
	held := h.actions[n]
	*h.next(held.before) = held.after
	if held.after == none {
		h.newest = held.before
	} else {
		h.actions[held.after].before = held.before
	}
	h.vacant = append(h.vacant, n)
	return held.Action, true
}

// next returns the link from an action to the one after it, or to the oldest one if n is none.
func (h *holds) next(n int32) *int32 {
	if n == none {
		return &h.oldest
	}
	return &h.actions[n].after
}

// of iterates over the actions of a function, oldest first.
func (h *holds) of(f int32) iter.Seq[*Action] {
	return func(yield func(*Action) bool) {
		for n := h.oldest; n != none; n = h.actions[n].after {
			if a := &h.actions[n].Action; a.Function == f && !yield(a) {
				return
			}
		}
	}
}
