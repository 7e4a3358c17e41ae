package token

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// instance is a registered instance. All times refer to the current window.
type instance struct {
	id            string
	slice         gpu.Slice
	turnFractions []gpu.Turn // its turns, as fractions of the window

	planned []span // turnFractions, converted to times
	turns   []span // planned, shifted for this window

	request, limit time.Duration // budget per window
	used           time.Duration // charged in this window, without leases now held
	usedLastWindow time.Duration // charged in the last full window
	charged        time.Duration // since the instance was added
	debt           time.Duration // use beyond the limit in earlier windows, 0 or more
	credit         time.Duration // owed to the instance from earlier windows; negative: owed by it
	waited         time.Duration // waiting time, summed over its clients
	excess         time.Duration // use beyond the request that is not debt, when the window closed
	shared         time.Duration // part of (credit minus debt) that an earlier call of shareCredit for this window has paid
	turnOverrun    time.Duration // by how much its last turn exceeded its length
	ahead          time.Duration // GPU time used beyond its part, summed over windows; negative: less than its part; see balance
	joined         bool          // it became active during this window
	limited        bool          // its limit left no further lease in the last window; set by closeWindow
	turnsAhead     float64       // above 0: other instances come first; set by rankTurns
	forfeited      time.Duration // time forfeited while idle, ranked as used in this window; set by rejoin

	usage // in this window and earlier ones

	// Set by recount.
	leasedTime     time.Duration // time of the leases now held
	runningClients int           // running clients
	clientCount    int           // clients
	activeClients  int           // clients that want the GPU or have it
	drain          time.Duration // longest usual drain of its active clients
	claimant       *client       // the client that uses its turn now; set by claim

	backlog      bool // it has an active client at the window's end; set by closeWindow
	creditIsOwed bool // other instances owe it all of its credit; set by shareCredit
	laterLeases  int  // clients whose leases end after the time that displaced examines; used only there
}

// client is one process of an instance.
type client struct {
	id                ClientID
	inst              *instance
	state             State
	since             time.Duration // when it started to wait, or was granted its lease
	lastWithoutBudget time.Duration // when it last waited without budget
	lastOwing         time.Duration // when its instance last had no guaranteed time left, because it owed time or had had its request
	used              time.Duration // charged in the current window
	usedLastWindow    time.Duration // charged in the last full window
	why               why           // reason for the last decision about it; zero if it is idle

	lease             uint32
	turnStart         time.Duration // when its turn started: at the grant, or when it continued while others waited
	lastReturn        time.Duration // when its last lease ended
	expectedTurn      time.Duration // expected length of its turn if nothing cuts it short; 0: none
	chargedInLease    time.Duration // part of this lease that is already charged
	lastUnleased      time.Duration // when work without a lease was last charged
	unleasedInLease   time.Duration // part of this lease in which such work ran, so that it is charged once
	end               time.Duration // planned end
	urgent            bool          // granted because the client was out of patience; ranks before turns
	requestPending    bool          // requested while draining or suspended
	stopped           bool          // was stopped when it was suspended
	revokeDue         time.Duration // when the lease was due to be revoked; the timer may have been late
	drain             time.Duration // usual time from a revocation to the return of the lease
	pauses            pauses
	burst             time.Duration // GPU time that it has used since it was last idle
	light             bool          // ranks before others; set by selectLight, until its lease ends
	overHandoverLimit bool          // would be light, but hand-overs have reached lightHandovers
	restOfTurn        time.Duration // rest of a turn that was interrupted; 0: none
	cutOff            time.Duration // part of its turn that lies beyond the window's end; becomes restOfTurn in the next window
	announcedEnd      time.Duration // announced end of its work in flight; 0: none
	startDelay        time.Duration // time from its grant to the announced end of the work of other clients that was in flight
	ignoredLeases     int           // number of leases for which its announcements are ignored
	penalty           int           // last value given to ignoredLeases; halved after a correct announcement
}

// precedence returns 0 for a light client, 1 for a client whose turn was interrupted, and 2 for
// others.
func (c *client) precedence() int {
	switch {
	case c.light:
		return 0
	case c.restOfTurn > 0:
		return 1
	}
	return 2
}

func (c *client) holdsLease() bool { return c.state == Running || c.state == Draining }

// span is a part of each window, in time from the window's start.
type span struct{ from, to time.Duration }

// spans converts turns to times in a window of the given length. It merges adjacent turns.
func spans(turns []gpu.Turn, window time.Duration) []span {
	at := func(fraction float64) time.Duration {
		return time.Duration(math.Round(min(max(fraction, 0), 1) * float64(window)))
	}
	var out []span
	for _, t := range turns {
		s := span{at(t.From), at(t.To)}
		if n := len(out); n > 0 && s.from <= out[n-1].to {
			out[n-1].to = max(out[n-1].to, s.to)
		} else if s.from < s.to {
			out = append(out, s)
		}
	}
	return out
}

// hasTurn reports whether the instance has a turn at an offset from the window's start.
func (i *instance) hasTurn(offset time.Duration) bool {
	return slices.ContainsFunc(i.turns, func(t span) bool { return t.from <= offset && offset < t.to })
}

// budget computes the budget per window and the planned turns from the slice. It rounds, so that requests such as 0.29
// and 0.71 fill the window.
func (i *instance) budget(window time.Duration) {
	i.request = time.Duration(math.Round(i.slice.QuotaRequest * float64(window)))
	i.limit = time.Duration(math.Round(i.slice.QuotaLimit * float64(window)))
	i.planned = spans(i.turnFractions, window)
}

const (
	smEps      = 1e-6                  // rounding error of sums of SM percentages
	negligible = 20 * time.Microsecond // a smaller budget counts as none
	soon       = gpu.Round / 16        // SMs are free this long before the announced end of work in flight, and occupied again if the work continues for longer than this after it
)

// ledger holds the instances and clients of a GPU and their charges in the current window.
type ledger struct {
	window     time.Duration
	smLimit    float64
	paperOrder bool // the order is OrderPaper
	now        time.Duration
	start      time.Duration // of the current window
	instances  []*instance   // ordered by ID
	clients    []*client     // ordered by ID

	// Set by recount.
	running         []*client     // clients whose lease is not revoked
	activeInstances int           // active instances
	activeRequests  time.Duration // sum of the requests of active instances per window
	activeDrains    time.Duration // sum of the usual drains of active clients
	clientSMs       float64       // sum of the SM percentages of all clients
	group           []*instance   // scratch of shareCredit
}

// findInstance returns the index of the instance, or the index at which to insert it.
func (s *ledger) findInstance(id string) (at int, ok bool) {
	return slices.BinarySearchFunc(s.instances, id, func(i *instance, id string) int { return strings.Compare(i.id, id) })
}

// findClient returns the index of the client, or the index at which to insert it.
func (s *ledger) findClient(id ClientID) (at int, ok bool) {
	return slices.BinarySearchFunc(s.clients, id, func(c *client, id ClientID) int { return cmp.Compare(c.id, id) })
}

func (s *ledger) addInstance(ev AddInstance) {
	at, ok := s.findInstance(ev.Instance)
	if !ok {
		s.instances = slices.Insert(s.instances, at, &instance{id: ev.Instance})
	}
	i := s.instances[at]
	i.slice, i.turnFractions = ev.Slice, ev.Turns
	i.slice.SMPct = ev.Slice.LargestSMPct() // the share with which its processes started
	i.budget(s.window)
}

// removeInstance removes an instance and its clients. It reports whether the instance was
// known.
func (s *ledger) removeInstance(id string) (known bool) {
	at, known := s.findInstance(id)
	if known {
		removed := s.instances[at]
		s.instances = slices.Delete(s.instances, at, at+1)
		s.clients = slices.DeleteFunc(s.clients, func(c *client) bool { return c.inst == removed })
	}
	return known
}

func (s *ledger) addClient(ev AddClient) {
	i, ok := s.findInstance(ev.Instance)
	at, known := s.findClient(ev.Client)
	if !ok || known {
		return
	}
	s.clients = slices.Insert(s.clients, at, &client{id: ev.Client, inst: s.instances[i], lastUnleased: s.now})
}

// dropClient removes a client and charges it for the lease it held until now.
func (s *ledger) dropClient(c *client) {
	if c.holdsLease() {
		s.charge(c, s.timeInState(c))
	}
	s.stopWaiting(c)
	s.clients = slices.DeleteFunc(s.clients, func(o *client) bool { return o == c })
}

// charge adds GPU time that the client used in the current window.
func (s *ledger) charge(c *client, d time.Duration) {
	c.used += d
	c.inst.used += d
	c.inst.charged += d
}

// timeInState returns how much of the current window has passed since the client was granted its lease
// or started to wait.
func (s *ledger) timeInState(c *client) time.Duration { return s.now - max(c.since, s.start) }

// stopWaiting adds the client's waiting time in the current window to its instance.
func (s *ledger) stopWaiting(c *client) {
	if c.state == Waiting {
		c.inst.waited += s.timeInState(c)
	}
}

// occupies reports whether the SMs of a client are unavailable to others: it holds a lease, and
// it has not announced the end of its work in flight or has exceeded the announcement.
func (s *ledger) occupies(c *client) bool {
	return c.holdsLease() && (c.announcedEnd == 0 || s.now-c.announcedEnd > soon)
}

// fits reports whether the client's SM share fits next to the occupied percentage of SMs. A
// share that alone exceeds the limit fits only on an empty GPU.
func (s *ledger) fits(occupied float64, c *client) bool {
	return occupied < smEps || occupied+c.inst.slice.SMPct <= s.smLimit+smEps
}

// minLease returns the shortest lease that justifies a hand-over. A smaller remaining budget is
// not lost: it becomes credit.
func (s *ledger) minLease(i *instance) time.Duration {
	return max(min(s.window/100, i.request/2), negligible)
}

// missesRequest reports whether the instance, after using more time, would still miss a part of its
// request that justifies a hand-over.
func (s *ledger) missesRequest(i *instance, extra time.Duration) bool {
	return i.guaranteed()-extra >= s.minLease(i)
}

// minBudget returns the least budget with which a waiting client is granted a lease. A client that
// takes long to drain overruns its budget by the drain. Outside its turn, it therefore waits
// until its budget covers half of the drain.
func (s *ledger) minBudget(c *client) time.Duration {
	if c.inst.hasTurn(s.now - s.start) {
		return s.minLease(c.inst)
	}
	return max(s.minLease(c.inst), min(c.drain, c.inst.request)/2)
}

// exhausted reports whether the holder's remaining budget, remaining, will be used up when it has
// drained. It returns false if the budget lasts until the window's end.
func (s *ledger) exhausted(c *client, remaining time.Duration) bool {
	return remaining <= max(c.drain, negligible) && s.now+remaining < s.start+s.window-negligible
}

// allFit reports whether all clients fit next to each other, so that none waits for SMs.
func (s *ledger) allFit() bool { return s.clientSMs <= s.smLimit+smEps }

// aged reports whether a client has waited for two windows plus the usual drains of all active
// clients, while its instance owed nothing to others.
func (s *ledger) aged(c *client) bool {
	return c.state == Waiting && s.now-max(c.since, c.lastOwing) >= 2*s.window+s.activeDrains
}

// outOfPatience reports whether a client has waited with budget for the number of windows patience,
// so that it ranks before turns.
func (s *ledger) outOfPatience(c *client) bool {
	return c.state == Waiting && s.now-max(c.since, c.lastWithoutBudget) >= patience*s.window
}

// recount updates the counts of clients and leases, in total and per instance.
func (s *ledger) recount() {
	s.running = s.running[:0]
	s.activeInstances, s.activeRequests, s.clientSMs, s.activeDrains = 0, 0, 0, 0
	for _, i := range s.instances {
		i.leasedTime, i.runningClients, i.clientCount, i.activeClients, i.drain, i.claimant = 0, 0, 0, 0, 0, nil
	}
	for _, c := range s.clients {
		c.inst.clientCount++
		s.clientSMs += c.inst.slice.SMPct
		if c.state.active() {
			if c.inst.activeClients++; c.inst.activeClients == 1 {
				s.activeInstances++
				s.activeRequests += c.inst.request
			}
			c.inst.drain = max(c.inst.drain, c.drain)
			s.activeDrains += c.drain
		}
		if c.holdsLease() {
			c.inst.leasedTime += s.timeInState(c)
		}
		if c.state == Running {
			c.inst.runningClients++
			s.running = append(s.running, c)
		}
	}
}

// quiet reports whether all clients are inactive and no instance has charges, debt or credit, so
// that windows can pass without accounting.
func (s *ledger) quiet() bool {
	return !slices.ContainsFunc(s.clients, func(c *client) bool { return c.state.active() }) &&
		!slices.ContainsFunc(s.instances, func(i *instance) bool { return i.used != 0 || i.debt != 0 || i.credit != 0 })
}

// closeWindow charges running leases until end, computes the debt and credit that each instance
// carries into the next window, and starts that window.
func (s *ledger) closeWindow(end time.Duration) {
	for _, i := range s.instances {
		i.backlog = false
	}
	for _, c := range s.clients {
		c.inst.backlog = c.inst.backlog || c.state.active()
		elapsed := end - max(c.since, s.start)
		switch {
		case c.holdsLease():
			c.chargedInLease += elapsed
			s.charge(c, elapsed)
		case c.state == Waiting:
			c.inst.waited += elapsed
		}
	}
	for _, i := range s.instances {
		if i.carry(s.minLease(i)); s.paperOrder {
			i.credit = 0
		}
	}
	for _, i := range s.instances {
		if i.credit > 0 && i.backlog {
			s.shareCredit(i)
		}
	}
	for _, i := range s.instances {
		if !i.creditIsOwed {
			i.credit = min(i.credit, max(i.request, negligible))
		}
		if len(i.planned) > 0 && !i.creditIsOwed && i.credit > 0 {
			i.credit -= i.credit / 8
		}
		i.usage.closeWindow(i.used)
		i.usedLastWindow, i.used, i.waited, i.excess, i.forfeited = i.used, 0, 0, 0, 0
	}
	for _, c := range s.clients {
		c.usedLastWindow, c.used = c.used, 0
	}
	s.start = end
}

// guaranteed returns the remaining part of the request, including credit and debt from earlier
// windows.
func (i *instance) guaranteed() time.Duration {
	return i.request + i.credit - i.debt - i.used - i.leasedTime
}

// remainingBudget returns the remaining part of the limit, including credit and debt from earlier
// windows. A negative credit (time owed to others) reduces only the guaranteed part: the instance
// may still use time that they do not want.
func (i *instance) remainingBudget() time.Duration {
	return i.limit + max(i.credit, 0) - i.debt - i.used - i.leasedTime
}

// carry computes the instance's credit or debt in the next window: credit for the time that it
// missed while it waited, or debt for its use beyond the limit. minLease is its shortest lease.
func (i *instance) carry(minLease time.Duration) {
	i.leasedTime = 0 // closeWindow has charged running leases
	missed, remaining, earlier := i.guaranteed(), i.remainingBudget(), max(i.credit, 0)
	i.limited = remaining < max(minLease, min(i.drain, i.request)/2)
	i.credit, i.debt, i.excess, i.shared, i.creditIsOwed = 0, 0, 0, 0, false
	if missed > 0 {
		if !i.backlog {
			earlier = 0
		}
		i.credit = min(missed, earlier+i.waited)
		return
	}
	i.debt = max(0, -remaining)
	i.excess = max(0, -missed-i.debt)
}

// shareCredit makes a group of instances pay for the credit of a starved instance: the starved
// instance itself and the instances that compete with it, because they do not fit next to it. The
// amount to pay is the sum of credit less debt in the group.
//
//  1. Instances that used more than their request pay first (excess), in proportion to that use.
//  2. The active instances without turns, the starved one included, share the rest in proportion to
//     their requests. This reduces no credit below minus half of a request. The step is left out if
//     the starved instance has turns or if there is only one such instance.
//
// An instance may compete with two starved instances that do not compete with each other. The second
// call must not make it pay again for what the first has settled, so shared is subtracted from the
// amount. A starved instance that competes with no other keeps its credit.
func (s *ledger) shareCredit(starved *instance) {
	group := s.group[:0]
	var owed, excess, request time.Duration
	sharing := 0
	for _, i := range s.instances {
		fits := i.slice.SMPct+starved.slice.SMPct <= s.smLimit+smEps
		if i != starved && (fits || !i.backlog && i.excess == 0 && i.debt == 0) {
			continue
		}
		group = append(group, i)
		owed += i.credit - i.debt - i.shared
		excess += i.excess
		if i.sharesLosses() {
			request += i.request
			sharing++
		}
	}
	s.group = group
	if len(group) == 1 {
		return
	}
	if paid := min(owed, excess); paid > 0 {
		for _, i := range group {
			payment := scale(paid, i.excess, excess)
			i.credit -= payment
			i.excess -= payment
		}
		owed -= paid
	}
	shares := starved.sharesLosses() && sharing > 1
	starved.creditIsOwed = shares || owed <= 0
	if owed <= 0 || !shares {
		return
	}
	for _, i := range group {
		if i.sharesLosses() {
			i.credit = max(i.credit-scale(owed, i.request, request), min(i.credit, -i.request/2))
			i.shared = i.credit - i.debt
		}
	}
}

// sharesLosses reports whether the instance pays its part of time that no instance received.
func (i *instance) sharesLosses() bool { return i.backlog && len(i.planned) == 0 }

// scale returns whole × part / of, without integer overflow.
func scale(whole, part, of time.Duration) time.Duration {
	return time.Duration(float64(whole) * (float64(part) / float64(of)))
}

// patience is the number of windows after which a waiting client ranks before turns.
const patience = 10
