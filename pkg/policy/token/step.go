package token

import (
	"slices"
	"time"
)

// Step applies what happened at an instant and then decides, once. An earlier
// now counts as the latest one.
func (s *Scheduler) Step(now time.Duration, events []Event, actions []Action) []Action {
	s.now = max(s.now, now)
	s.actions = actions
	s.roll()
	for _, ev := range events {
		s.apply(ev)
	}
	s.schedule()
	s.arm()
	actions, s.actions = s.actions, nil
	return actions
}

func (s *Scheduler) apply(ev Event) {
	switch ev := ev.(type) {
	case AddInstance:
		s.addInstance(ev)
	case RemoveInstance:
		s.removeInstance(ev.Instance)
	case AddClient:
		s.addClient(ev)
	case RemoveClient:
		if at, ok := s.findClient(ev.Client); ok {
			s.dropClient(at)
		}
	case Request:
		if at, ok := s.findClient(ev.Client); ok {
			s.request(s.clients[at])
		}
	case Return:
		if at, ok := s.findClient(ev.Client); ok {
			s.giveBack(s.clients[at], ev)
		}
	case Suspend:
		if at, ok := s.findClient(ev.Client); ok {
			s.suspend(s.clients[at])
		}
	case Wake:
		if s.now >= s.wake {
			s.wake = 0
		}
	case Configure:
		s.closeWindow(s.now)
		s.set(ev.Window, ev.SMLimit)
		for _, c := range s.clients {
			c.end = s.now // every lease is planned anew
		}
	}
}

func (s *Scheduler) addInstance(ev AddInstance) {
	at, ok := s.findInstance(ev.Instance)
	if !ok {
		s.instances = slices.Insert(s.instances, at, &instance{id: ev.Instance})
	}
	i := s.instances[at]
	i.slice, i.given = ev.Slice, ev.Turns
	i.budget(s.window)
	s.tabulate()
}

func (s *Scheduler) removeInstance(id string) {
	at, ok := s.findInstance(id)
	if !ok {
		return
	}
	gone := s.instances[at]
	s.instances = slices.Delete(s.instances, at, at+1)
	s.clients = slices.DeleteFunc(s.clients, func(c *client) bool { return c.inst == gone })
	s.tabulate()
}

func (s *Scheduler) addClient(ev AddClient) {
	i, ok := s.findInstance(ev.Instance)
	at, known := s.findClient(ev.Client)
	if !ok || known {
		return
	}
	s.clients = slices.Insert(s.clients, at, &client{id: ev.Client, inst: s.instances[i], why: said("")})
}

// dropClient forgets a client and charges what it held until now.
func (s *Scheduler) dropClient(at int) {
	c := s.clients[at]
	if c.holds() {
		s.charge(c, s.held(c))
	}
	s.stopWaiting(c)
	s.clients = slices.Delete(s.clients, at, at+1)
}

func (s *Scheduler) request(c *client) {
	switch c.state {
	case Idle:
		c.state, c.since, c.why = Waiting, s.now, said("just asked")
	case Draining, Suspended:
		c.again = true
	}
}

// giveBack ends a lease. The measured time replaces the time since the grant,
// but what earlier windows were charged for it stays with them.
func (s *Scheduler) giveBack(c *client, ev Return) {
	if !c.holds() && c.state != Suspended || ev.Lease != c.lease {
		return
	}
	used := min(max(ev.Used, 0), s.now-c.since)
	if c.state == Suspended && ev.Used > used {
		used = c.settled // it does not know: nobody was kept waiting meanwhile
	}
	s.charge(c, max(0, used-c.settled))
	if c.state == Draining {
		c.drained(s.now - c.revoked)
	}
	more := ev.WantsMore || c.again
	c.state, c.lease, c.settled, c.again, c.why = Idle, 0, 0, false, said("")
	if more {
		s.request(c)
	}
}

// suspend takes a client that drains for nobody knows how long out of the
// count.
func (s *Scheduler) suspend(c *client) {
	if c.state != Draining {
		return
	}
	part := s.held(c)
	c.settled += part
	s.charge(c, part)
	c.state, c.why = Suspended, said("does not drain: its SMs are free until it returns")
}

// drained learns how long the client takes to drain. One time counts for a
// quarter, and one that is much longer for less: on a busy host some are.
func (c *client) drained(took time.Duration) {
	if c.drain == 0 {
		c.drain = took
	}
	c.drain += min(took-c.drain, c.drain/4) / 4
}

func (s *Scheduler) charge(c *client, d time.Duration) {
	c.used += d
	c.inst.used += d
	c.inst.charged += d
}

// held is the part of the current window that the client's lease was out.
func (s *Scheduler) held(c *client) time.Duration { return s.now - max(c.since, s.start) }

// stopWaiting books how long the client waited in the current window.
func (s *Scheduler) stopWaiting(c *client) {
	if c.state == Waiting {
		c.inst.waited += s.held(c)
	}
}

// arm asks to be woken at the next planned end, at the beginning of a turn that
// somebody waits for, or at the end of the window.
func (s *Scheduler) arm() {
	at, why := time.Duration(0), ""
	for _, c := range s.clients {
		if c.state.active() && at == 0 {
			at, why = s.start+s.window, "end of the window"
		}
		if c.state == Running && c.end < at {
			at, why = c.end, "planned end of client "+c.id.String()
		}
		if turn, ok := s.nextTurn(c.inst); ok && c.state == Waiting && turn < at {
			at, why = turn, "turn of instance "+c.inst.id
		}
	}
	if at != 0 && at != s.wake {
		s.wake = at
		s.actions = append(s.actions, WakeAt{At: at, Reason: why})
	}
}
