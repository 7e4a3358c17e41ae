package dispatch

import (
	"container/list"
	"slices"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// Calls with the same value of a cookie or header go to the same instance (function.Affinity). The value of
// the cookie is the ID of an instance. For a header, the function remembers the instance of each value as a
// session. The policy is informed of the instance with the arrival of the call (queue.Arrived.Bound), and
// chooses when the call runs there.

// session is the calls of a function with the same value of a header. Dispatcher.mu guards it.
type session struct {
	value    string
	instance *Instance     // nil until a call was dispatched
	first    *Attempt      // the waiting attempt that will choose the instance; nil if there is none
	held     []*Attempt    // attempts that wait until then, without the policy's knowledge
	place    *list.Element // in sessions.recent
}

// sessions holds the sessions of a function.
type sessions struct {
	by      function.Affinity
	byValue map[string]*session
	recent  *list.List // the most recently used first
}

// maxSessions limits the sessions of a function that are remembered. The least recently used is forgotten.
const maxSessions = 16 << 10

// configure sets the function's affinity, and forgets all sessions if it changed. Locked.
func (s *sessions) configure(by function.Affinity) {
	if s.by != by || s.byValue == nil {
		s.by, s.byValue, s.recent = by, map[string]*session{}, list.New()
	}
}

// of returns the session with a value, which may be new. Locked.
func (s *sessions) of(value string) *session {
	it := s.byValue[value]
	if it != nil {
		s.recent.MoveToFront(it.place)
		return it
	}
	it = &session{value: value}
	it.place = s.recent.PushFront(it)
	s.byValue[value] = it
	if last := s.recent.Back().Value.(*session); len(s.byValue) > maxSessions && last.first == nil {
		s.remove(last)
	}
	return it
}

func (s *sessions) remove(it *session) {
	if s.byValue[it.value] == it {
		delete(s.byValue, it.value)
		s.recent.Remove(it.place)
	}
}

// restore adds a session again that was forgotten while one of its calls ran, unless there is a new one. Locked.
func (s *sessions) restore(it *session) {
	if s.byValue[it.value] == nil {
		it.place = s.recent.PushFront(it)
		s.byValue[it.value] = it
	}
}

// forget forgets the sessions of an instance that ended. Locked.
func (s *sessions) forget(i *Instance) {
	for _, it := range s.byValue {
		if it.instance == i {
			s.remove(it)
		}
	}
}

// Affinity sets the value of the cookie or header that selects the instance of an attempt. The caller must call it
// before Submit. An empty value selects none.
func (a *Attempt) Affinity(value string) { a.affinity = value }

// selectInstance returns the instance to which the attempt is bound, or nil. hold reports whether the attempt waits
// until an earlier call of its session has an instance. Locked.
func (a *Attempt) selectInstance() (bound *Instance, hold bool) {
	switch by := a.function.sessions.by; {
	case a.affinity == "" || by == "":
		return nil, false
	case by == function.AffinityCookie:
		for _, i := range a.function.instances {
			if i.record.ID == a.affinity && i.alive() {
				return i, false
			}
		}
		return nil, false
	}
	s := a.function.sessions.of(a.affinity)
	a.session = s
	switch {
	case s.instance != nil && s.instance.alive():
		return s.instance, false
	case s.first != nil:
		s.held = append(s.held, a)
		return nil, true
	}
	s.instance, s.first = nil, a
	return nil, false
}

// readmit returns the event with which the policy learns of a held attempt. The attempt gets a new ID, because the
// policy expects ascending IDs. Locked.
func (a *Attempt) readmit(bound *Instance) *queue.Arrived {
	delete(a.d.attempts, a.id)
	a.id = a.d.lastAttempt
	a.d.lastAttempt++
	a.d.attempts[a.id] = a
	return a.arrival(bound)
}

// arrival returns the event with which the policy learns of the attempt. Locked.
func (a *Attempt) arrival(bound *Instance) *queue.Arrived {
	ev := &queue.Arrived{ID: a.id, Function: a.function.number, At: a.arrived, Deadline: a.deadline}
	if bound != nil {
		ev.Bound, ev.Instance = true, bound.id
	}
	return ev
}

// joinSession records that the attempt was dispatched to an instance. Held attempts of its session follow it. Locked.
func (a *Attempt) joinSession(i *Instance) {
	s := a.session
	if s == nil {
		return
	}
	s.instance = i
	a.function.sessions.restore(s)
	if s.first == a {
		s.first = nil
	}
	held := s.held
	s.held = nil
	for _, other := range held {
		a.d.policy.add(other.readmit(i))
	}
	if len(held) > 0 {
		a.d.policy.step()
	}
}

// leaveSession records that the attempt waits no longer. If it was to choose the instance of its session, the next
// held attempt does that. Locked.
func (a *Attempt) leaveSession() {
	s := a.session
	if s == nil {
		return
	}
	s.held = slices.DeleteFunc(s.held, func(other *Attempt) bool { return other == a })
	if s.first != a {
		return
	}
	s.first = nil
	if len(s.held) == 0 {
		a.function.sessions.remove(s)
		return
	}
	s.first, s.held = s.held[0], s.held[1:]
	a.d.policy.step(s.first.readmit(nil))
}
