package token

import (
	"cmp"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/reason"
)

// multiToken shares one GPU with the multi-token scheduler of FaST-GShare (section 3.3.2). These are
// the rules of the default order; paper.go has those of the published one.
//
// # Budgets and leases
//
//  1. Time is divided into windows of length W. In each window an instance is guaranteed
//     request × W of GPU time and may use at most limit × W. Its clients share this budget.
//  2. Use beyond the limit is debt and reduces the budget of the next windows. Use beyond the
//     request, while other instances missed part of theirs, is owed to them (see Credit).
//  3. A lease holds the SM share of its instance. The shares of all leases, draining ones
//     included, sum to at most the SM limit. A client whose share alone exceeds the limit gets a
//     lease only while no other client holds one.
//  4. The order of waiting clients whose instance has budget: first, the instance that misses
//     most of its request; then, the longest wait; then, the lowest ID.
//  5. Every lease has a planned end: when the guaranteed part of the budget is used up, but at
//     the latest the window's end. If the instance has had its request already, the lease lasts
//     about a tenth of a window or less.
//  6. At its planned end, the holder is ranked among the waiting clients. If no client ahead of
//     it needs its SMs, the lease is extended without an action; otherwise it is revoked. The
//     holder keeps its SMs until it has drained and is charged for the overrun. A client that
//     usually takes long to drain is revoked that much earlier, so that it keeps to its budget in
//     each window, and not only on average.
//
// # Hand-overs
//
// A hand-over leaves the GPU idle from the last kernel of one client to the first kernel of the
// next. To hide this time, a draining client may announce when its work in flight will end
// (Ending).
//
//  1. If the announced end is within a millisecond, the client's SMs are free at once, so that the
//     work of the next client is on its way when the GPU becomes idle.
//  2. The policy learns the best lead time of announcements. If it is too short, the GPU idles; if
//     it is too long, two clients have work on the GPU and slow each other. Both measure this
//     time as their own; only the client whose work was first is charged for it.
//  3. A client whose work continues for more than a millisecond beyond the announced end occupies
//     its SMs again, so that no further client is granted them. Its announcements are ignored for
//     a number of leases, which doubles each time.
//
// # Rounds
//
// Leases as long as budgets would make other clients wait for tens of milliseconds. So while a
// client with budget waits for occupied SMs, leases also end with a turn.
//
//  1. A turn is the instance's part of a round, request / sum of requests of the active instances,
//     divided among its active clients. At the end of its turn, the holder is ranked as at a planned end.
//  2. The order is by waiting time, longest first, with holders last. An instance that is a turn
//     and a half or more ahead of another in this window ranks after the others.
//  3. If a drain exceeded the turn, the next turn is shorter by that time.
//  4. A turn ends a lease only if a client waits. A turn that is overdue ends as soon as a client
//     waits, so a client that seldom uses the GPU waits only for a drain.
//  5. An instance that becomes active ranks with the least-served active instance. It does not
//     make up for the time that it left to others while it was idle.
//  6. Each turn costs a hand-over. The policy learns this cost from the last half second, and makes
//     rounds longer if hand-overs would lose more than 2% of the time. A single long hand-over
//     hardly counts, because it is a pause of the host. If rounds have to be longer than twice the
//     configured length, waits are long anyway; rounds then grow further, until the loss
//     approaches 1%. If a waiting client has
//     not used the GPU for the configured length of a round, rounds have that length, because such
//     a client causes few hand-overs.
//  7. If the requests of the active instances sum to less than the GPU, their turns and leases are
//     longer in proportion, and a turn continues beyond the end of a window. If moreover hand-overs
//     are so costly that a round is as long as a window, the policy compares at the end of each
//     window what the instances that competed for all of it have used: the part of each is
//     proportional to its request. It shortens the turns of an instance that used more than its
//     part, and lengthens those of one that used less.
//  8. A window has a whole number of rounds, because a partial round would be out of step. There
//     are no rounds if the configured round is as long as a window, or if instances have planned
//     turns (see Turns). Leases then end with budgets, and the order is by the missing part of the
//     request.
//
// # Light clients
//
// A client that needs the GPU seldom and briefly does not wait for a turn.
//
//  1. An instance is light if its use is below three quarters of its request on average over the
//     last ten windows, hand-overs included, and it has neither debt nor had its request in this
//     window. It remains light until its average use reaches its request. If the requests of all
//     instances that used the GPU lately exceed the GPU, its request counts as proportionally
//     smaller here, so that light instances leave the others their parts.
//  2. A client of a light instance is light from the moment at which it requests the GPU after an
//     idle time, until it has used the GPU for a round. Light clients rank before all clients
//     that are not aged (see Backfill and starvation). The leases of holders whose SMs they need
//     end at once, except in planned turns, and except leases granted by rule 6 of Turns.
//  3. A light client is charged for the hand-overs to it and back, at their usual cost, and for the
//     time beyond DefaultHold for which it may keep an idle lease. When the charges of all light
//     clients reach a tenth of a window, further ones wait for their turns until the next window.
//     DefaultHold counts for this limit, too, if the lease ended because the client was idle, and
//     its work took less time than the lease cost.
//  4. An interrupted client continues with the rest of its turn when no light client is left, so
//     that the number of other hand-overs stays the same.
//
// There are no light clients if the configured round is as long as a window, or while all clients
// fit side by side.
//
// # Backfill and starvation
//
// The first client in order that does not fit is the head. Later clients may pass it only if they
// cannot delay it (EASY backfill). Let T be the earliest time by which planned ends release
// enough SMs for the head. A later client that fits now is granted a lease if the lease ends by
// T, or if its share also fits next to the head at T.
//
// No client that stays ready starves:
//
//  1. Backfill never moves T. A lease that ends by T holds nothing at T. A lease that lasts
//     longer uses only SMs that the head leaves over at T, and is subtracted from them.
//  2. All planned ends lie within the window, and so does T. A holder that ranks after the head
//     at its planned end is extended only if rule 1 allows it. So the head starts by the end of
//     the window plus the drain time of the holders.
//  3. A client is aged when it has waited two windows plus the drain time of all clients, while
//     its instance owed nothing. Aged clients rank first, longest wait first; a holder at its
//     planned end ranks as if it had just started to wait. So at most n-1 of n clients come
//     before an aged client. Each of them becomes the head in turn and takes at most one window.
//  4. The time that an instance owes falls by its request in each window, and is at most the time
//     that it has used. So it owes for a bounded time.
//
// # Turns
//
// Requests that fill the GPU may fit only in one arrangement, which a greedy order may miss. So
// an instance may have turns: parts of each window that are its own (the timetable). Turns
// determine when the instance has its SMs; budgets still determine for how long.
//
//  1. An instance in its turn that misses part of its request claims the turn, for one client at
//     a time. Claims come before all other clients.
//  2. If a claim needs SMs that are lent, they are reclaimed at once: the policy decides about
//     every holder without a claim right after the claims, and revokes the holders that no longer
//     fit. SMs without a claim are lent in the ordinary order.
//  3. A lease outside the instance's own turn may not obstruct a later turn. At each time at
//     which a turn begins or ends, the client must fit next to the instances that have a turn
//     then and the holders whose planned end is later. Otherwise it is revoked so early that it
//     has drained by then. This protects idle owners of turns, too, with one exception: if the
//     client had to be revoked now for idle owners only, it stays until the next such time.
//  4. So if the turns never oversubscribe the GPU, every claim is met when its turn begins or, for
//     a later claim, when the borrowers have drained: all other holders either have a claim and
//     fit next to it, or have reached their planned ends. If turns oversubscribe the GPU, the
//     ordinary order decides among claims.
//  5. Time that an instance misses because others drained late becomes credit. The boundary between
//     two turns moves, by at most a twentieth of a window, towards the instance that is owed
//     less, so that in the long run all lose the same amount to hand-overs.
//  6. A client that has waited ten windows with budget ranks before claims, longest wait first,
//     for a tenth of a window. It is the head, which no lease may delay, so it starts by the
//     window's end plus the drain time. So no client without turns starves, and each costs the
//     clients with turns at most one hundredth of the GPU.
//
// # Credit
//
// Hand-overs lose time. If requests sum to the whole GPU, that loss would always fall on the last
// client in order. Credit shares it.
//
//  1. An instance that waited and misses part of its request when the window ends is owed that
//     time, but at most the time that it waited.
//  2. If it still wants the GPU then, instances that used more than their requests meanwhile owe
//     it that time in full, and its credit lasts until it is used. A kernel that takes longer
//     than a request, or than a window, is paid for over several windows.
//  3. Time that an instance owes is subtracted from its guaranteed part only: the instance may use
//     time that the others do not want.
//  4. If no instance owes the missed time, because no instance received it, all active instances
//     that compete for the same SMs share it in proportion to their requests. Instances with turns
//     do not share, because time given up in one turn is of no use in another. Their credit that
//     no instance owes fades by an eighth per window.
//  5. Credit that no instance owes, and credit of an instance that does not want the GPU at the
//     window's end, is at most one request per window (20 µs if the request is smaller). The
//     latter instance also loses its credit from earlier windows.
//  6. Credit only returns unused time, so average use never exceeds the limit.
//
// # Long kernels
//
// A running kernel cannot be interrupted. An instance whose drains are longer than its turn is
// ranked as if it had already used half of the excess. So its lease begins earlier than its turn
// would by half of the excess, on average, and ends later by the other half. If the GPU would be idle otherwise, a client with too little budget for a kernel
// is granted a lease and owes the overrun.
type multiToken struct {
	*ledger
	*timetable
	*handover
	*rounds
	*light
	*admission
	wake time.Duration // time of the last WakeAt that has not come yet; 0: none
}

// newMultiToken returns a multiToken whose first window starts at now.
func newMultiToken(c Config, now time.Duration) *multiToken {
	l := &ledger{now: now, start: now}
	t := &timetable{ledger: l}
	h := &handover{ledger: l, lead: firstLead}
	r := &rounds{ledger: l, timetable: t, handover: h}
	light := &light{ledger: l, rounds: r}
	s := &multiToken{
		ledger: l, timetable: t, handover: h, rounds: r, light: light,
		admission: &admission{ledger: l, timetable: t, rounds: r, light: light, lease: validLease(c.FirstLease)},
	}
	s.configure(c.Settings)
	return s
}

func (s *multiToken) configure(c Settings) {
	s.window, s.smLimit = cmp.Or(c.Window, gpu.Window), cmp.Or(c.SMLimit, 100)
	s.round, s.paperOrder = 0, c.GrantOrder == OrderPaper
	if round := cmp.Or(c.Round, gpu.Round); round < s.window && !s.paperOrder {
		s.round = s.window / ((s.window + round - 1) / round) // the smallest number of equal rounds that are no longer than round
	}
	for _, i := range s.instances {
		i.budget(s.window)
		i.ahead = 0
	}
	s.timetable.rebuild()
}

// Step applies the events that happened at now and then decides once. A time before the last
// Step's counts as the last Step's.
func (s *multiToken) Step(now time.Duration, events []Event, actions []Action) []Action {
	s.now = max(s.now, now)
	s.actions = actions
	s.roll()
	for _, ev := range events {
		s.apply(ev)
	}
	s.schedule()
	s.scheduleWake()
	actions, s.actions = s.actions, nil
	return actions
}

// roll closes all windows that have ended.
func (s *multiToken) roll() {
	for s.now >= s.start+s.window {
		if s.quiet() {
			windows := (s.now - s.start) / s.window
			s.start += windows * s.window
			for _, i := range s.instances {
				i.usedLastWindow, i.waited = 0, 0
				for range min(windows, lightWindows) {
					i.usage.closeWindow(0)
				}
			}
			for _, c := range s.clients {
				c.usedLastWindow = 0
			}
			s.light.handovers = 0
			return
		}
		s.closeWindow(s.start + s.window)
	}
}

// closeWindow ends the current window at the given time and starts the next.
func (s *multiToken) closeWindow(end time.Duration) {
	s.ledger.closeWindow(end)
	s.balance()
	s.light.handovers = 0
	if len(s.moments) > 0 {
		s.timetable.rebuild()
	}
}

func (s *multiToken) apply(ev Event) {
	switch ev := ev.(type) {
	case AddInstance:
		s.addInstance(ev)
		s.timetable.rebuild()
	case RemoveInstance:
		if s.removeInstance(ev.Instance) {
			s.timetable.rebuild()
		}
	case AddClient:
		s.addClient(ev)
	case Wake:
		if s.now >= s.wake {
			s.wake = 0
		}
	case Configure:
		s.closeWindow(s.now)
		s.configure(ev.Settings)
		for _, c := range s.clients {
			c.end = s.now // every lease gets a new planned end
		}
	default:
		if at, ok := s.findClient(ev.client()); ok {
			s.applyTo(s.clients[at], ev)
		}
	}
}

// applyTo applies an event about a client.
func (s *multiToken) applyTo(c *client, ev Event) {
	switch ev := ev.(type) {
	case RemoveClient:
		if c.holdsLease() {
			s.chargeHandovers(c, s.now-c.since) // a process that ends costs the same as one that returns its lease
		}
		s.dropClient(c)
	case Request:
		s.rejoin(c.inst)
		if c.state == Idle {
			c.burst = 0
			if c.lastReturn > 0 {
				c.pauses.learn(s.now - c.lastReturn)
			}
		}
		s.request(c)
	case Ending:
		s.recordEnding(c, ev)
	case Return:
		s.returnLease(c, ev)
	case Unleased:
		s.unleased(c, ev.Used)
	case Suspend:
		s.suspend(c, ev.Stopped)
	}
}

func (s *multiToken) request(c *client) {
	switch c.state {
	case Idle:
		c.state, c.since, c.why = Waiting, s.now, why{code: justRequested}
	case Draining, Suspended:
		c.requestPending = true
	}
}

// returnLease ends a lease. It charges the measured time instead of the time since the grant, except
// for the part already charged to earlier windows.
func (s *multiToken) returnLease(c *client, ev Return) {
	if !c.holdsLease() && c.state != Suspended || ev.Lease != c.lease {
		return
	}
	used := min(max(ev.Used, 0), s.now-c.since-c.unleasedInLease)
	if c.state == Suspended {
		c.inst.joined = true // it did not compete for the GPU
	}
	if c.state == Suspended && (c.stopped || ev.Used > used) {
		used = c.chargedInLease // meanwhile its SMs were free; its measurement includes a pause or is longer than the lease
	}
	idle := s.idleTime(c, used)
	if c.holdsLease() {
		used -= min(max(-idle, 0), c.startDelay, used)
	}
	s.charge(c, max(0, used-c.chargedInLease))
	s.chargeHandovers(c, used)
	wantsMore := ev.WantsMore || c.requestPending
	if c.burst += used; c.state == Running {
		c.burst = 0 // it returned the lease because it was idle
	}
	if c.state == Draining {
		updateAverage(&c.drain, s.now-c.revokeDue)
		if wantsMore && used > 0 {
			s.observeHandover(max(idle, 0))
			if c.restOfTurn = max(0, c.restOfTurn-(s.now-c.revokeDue)); c.restOfTurn == 0 {
				c.recordTurnOverrun(used)
			}
		}
		if c.announcedEnd > 0 && c.startDelay > 0 {
			s.adjustLead(idle)
		}
		c.checkAnnouncement(s.now)
	}
	c.announcedEnd = 0
	c.lastReturn = s.now
	c.state, c.lease, c.chargedInLease, c.unleasedInLease, c.stopped, c.requestPending, c.why = Idle, 0, 0, 0, false, false, why{}
	c.light, c.overHandoverLimit = false, false
	if wantsMore {
		s.request(c)
	} else {
		c.restOfTurn = 0
	}
}

// unleased charges work that ran without a lease. It records how much of it overlaps a lease that
// the client holds, because that lease measures it too.
func (s *multiToken) unleased(c *client, used time.Duration) {
	used = min(max(used, 0), s.now-c.lastUnleased)
	c.lastUnleased = s.now
	if c.holdsLease() {
		c.unleasedInLease += min(used, s.now-c.since-c.unleasedInLease)
	}
	s.charge(c, used)
}

// suspend frees the SMs of a client that drains for an unknown time.
func (s *multiToken) suspend(c *client, stopped bool) {
	if c.state != Draining {
		return
	}
	elapsed := s.timeInState(c)
	c.chargedInLease += elapsed
	s.charge(c, elapsed)
	c.announcedEnd = 0
	c.state, c.stopped, c.why = Suspended, stopped, why{code: notDraining}
}

// scheduleWake requests a wake at the earliest of the next planned end, the beginning of a turn for which a
// client waits, and the end of the window. It requests none if all clients are inactive.
func (s *multiToken) scheduleWake() {
	at, code, of := time.Duration(0), windowEnd, (*client)(nil)
	for _, c := range s.clients {
		if c.state.active() && at == 0 {
			at = s.start + s.window
		}
		if c.state == Running && c.end < at {
			at, code, of = c.end, plannedEnd, c
		}
		if turn, ok := s.nextTurn(c.inst); ok && c.state == Waiting && turn < at {
			at, code, of = turn, turnBegin, c
		}
	}
	if at == 0 || at == s.wake {
		return
	}
	s.wake = at
	r := reason.New(code)
	switch code {
	case plannedEnd:
		r = r.With(reason.Number("client", of.id))
	case turnBegin:
		r = r.With(reason.Text("instance", of.inst.id))
	}
	s.actions = append(s.actions, WakeAt{At: at, Reason: r})
}

// Snapshot returns the state of all instances and clients.
func (s *multiToken) Snapshot() Snapshot {
	out := Snapshot{Instances: make([]InstanceStatus, len(s.instances)), Clients: make([]ClientStatus, len(s.clients))}
	if s.usesRounds() {
		out.Round, out.Handover = s.roundLength(), s.cost
	}
	for n, i := range s.instances {
		out.Instances[n] = InstanceStatus{Instance: i.id, Debt: i.debt, Owed: max(0, -i.credit), Charged: i.charged}
	}
	for n, c := range s.clients {
		state, r := s.statusOf(c)
		out.Clients[n] = ClientStatus{
			Client: c.id, Instance: c.inst.id, State: state, Reason: r,
			Used: min(1, float64(c.usedLastWindow)/float64(s.window)),
		}
		if s.occupies(c) {
			out.SMRunning += c.inst.slice.SMPct
		}
	}
	return out
}

// statusOf returns the client's state in a snapshot and the reason for it. A draining client whose
// SMs are already available to others counts as drained.
func (s *multiToken) statusOf(c *client) (State, reason.Reason) {
	switch {
	case c.announcedEnd == 0:
		return c.state, c.why.full()
	case s.occupies(c):
		return c.state, reason.New(Overlaps)
	case c.requestPending:
		return Waiting, reason.New(leaseReturning)
	default:
		return Idle, reason.Reason{}
	}
}
