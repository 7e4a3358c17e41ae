package token

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// instance is what is known of one. Times are of the current window.
type instance struct {
	id    string
	slice gpu.Slice
	given []gpu.Turn // its turns, as fractions of the window

	planned []span // the same as time
	turns   []span // the same, shifted for this window

	request, limit time.Duration // budget a window
	used           time.Duration // charged so far; leases now held come on top
	last           time.Duration // charged in the last full window
	charged        time.Duration // in all
	debt           time.Duration // over-use carried in, 0 or more
	credit         time.Duration // owed to it from before; negative is what it owes to others
	waited         time.Duration // sum over its clients
	over           time.Duration // used beyond its request, and not debt, when the window closed
	shared         time.Duration // of its credit less its debt, what others have paid or had already; scratch of shareCredit
	slip           time.Duration // what its last turn took beyond its length
	ahead          float64       // 0, or more for who passes; set by rankTurns
	lift           time.Duration // ranked as used in this window, because others were served while it was idle

	// Set by tally.
	live     time.Duration // leases now held
	holding  int           // running clients
	known    int           // clients
	active   int           // clients that want the GPU or have it
	drain    time.Duration // the most that one of those usually takes to drain
	claimant *client       // who has its turn now; set by claim

	backlog bool // it wants the GPU at the window's end; set by closeWindow
	settled bool // its credit is what others owe; set by shareCredit
	later   int  // clients whose lease is to end after some time; scratch of displaced
}

// client is what is known of one.
type client struct {
	id    ClientID
	inst  *instance
	state State
	since time.Duration // when it began to wait, or was granted
	broke time.Duration // when it last waited without budget
	owing time.Duration // when it last waited while its instance owed time to others
	used  time.Duration // charged in the current window
	last  time.Duration // charged in the last full window
	why   func() string // reason of the last decision about it, see reasonf

	lease   uint32
	turn    time.Duration // when its turn began: it was granted, or went on though somebody waited
	freed   time.Duration // when its last lease ended
	whole   time.Duration // what its turn should come to, if nothing but that ends it
	settled time.Duration // of this lease, charged to windows that have ended
	told    time.Duration // when work without a lease was last charged
	beside  time.Duration // of this lease, in which such work ran: that is charged once
	end     time.Duration // planned end
	urgent  bool          // this lease goes before turns
	again   bool          // it asked while it drained
	stopped bool          // it was when it was suspended
	revoked time.Duration // when the lease was due to be asked back: the timer for that may have come late
	drain   time.Duration // what it usually takes to return when it is asked back
	due     time.Duration // when what it has in flight is over, as it says; 0: it has not said
	behind  time.Duration // how long at its grant what was in flight before it still had
	doubt   int           // how many leases its word does not count for
	penalty int           // how many that was when it was last wrong
}

func (c *client) holds() bool { return c.state == Running || c.state == Draining }

// occupies says whether nobody may have its SMs now: it holds a lease, and has not said
// that what it has in flight is over by about now, or was wrong.
func (s *multiToken) occupies(c *client) bool { return c.holds() && (c.due == 0 || s.now-c.due > soon) }

// multiToken shares one GPU as the multi-token scheduler of FaST-GShare does
// (section 3.3.2).
//
// Time is cut into windows of length W. Each instance has a budget a window,
// shared by its clients: request × W is guaranteed, limit × W is the most.
// What an instance used beyond its limit is debt in the next windows, and so is what
// it used beyond its request while others missed theirs.
//
// A lease holds its instance's SM share. Waiting clients whose instance has
// budget are ordered by what the instance misses of its request, largest
// first, then by how long they wait, then by id; and granted while the shares
// of all leases, those just granted and those still draining included, sum to
// at most the SM limit. A client whose share alone exceeds the limit is
// granted only when nobody else holds a lease.
//
// Every lease has a planned end: when the guaranteed part of the budget is
// used up, and no later than the window's end; for an instance that has its
// request already, a tenth of a window. At the planned end the holder is
// ranked among those who wait. If nobody ahead of it needs its SMs it goes on
// and is told nothing, else it is asked back. A holder that is asked back keeps
// its SMs until it has drained, and what it ran over is charged. One that
// usually takes long to drain is asked back that much earlier, so that it keeps
// to its budget in each window and not just on average.
//
// To pass the GPU on takes a while, from the last kernel of one to the first of the
// next, in which nobody has it. So a holder that drains may say when what it has in
// flight is over (Ending). If that is within a millisecond its SMs are free at once:
// the next one's work is on its way when they really are. How long before the end that
// is best said is learned from what came of it, so that neither the GPU has nothing to
// do nor both are on it and slow each other. What both measure then is
// charged to the first. Whose work goes on for more than a millisecond longer than it
// said has its SMs again, so that nobody else comes beside it, and is not believed for
// some leases, and for twice as many each time.
//
// # Rounds
//
// Leases that last as long as budgets make others wait for tens of milliseconds.
// So while a client that has budget waits for SMs that are taken, leases also end
// with a turn: the instance's part of a round, request / sum of requests, shared
// by its processes. At its end the holder is ranked as at a planned end. The order
// is then by who has waited longest, a holder last; only who is a turn and a half
// ahead of another in this window comes after the others. What a drain took beyond
// a turn is taken off the next. A turn ends nothing while nobody waits, and one
// that is long over ends when somebody comes: who seldom asks waits for a drain.
// An instance that was idle is ranked with the one that was served least, and does
// not make up at a stretch for what it left to others.
//
// Each turn costs a hand-over. What that loses is learned, and a round lasts
// longer where more than 2% were lost; where that takes twice as long as a round
// should last, they are no longer smooth, and so long that it is 1%. That does not
// hold up who has wanted nothing for as long as such a round: it costs few. A window
// has whole rounds, or what is left of it would be one that is out of step. A round as
// long as a window, or a timetable, is none: leases end where budgets do and the
// order is by what is missed of the request, as in the paper.
//
// # Backfill and starvation
//
// The first client in order that does not fit is the head. Those after it may
// pass only if they cannot delay it (EASY backfill): let T be the earliest
// time by which planned ends release enough SMs for the head. A later client
// that fits now is granted if its lease ends by T, or if its share also fits
// beside the head at T.
//
// No client that stays ready starves. (1) Backfill never moves T: a lease that
// ends by T holds nothing then, and one that goes beyond it was only let in
// on the share that the head leaves over, of which it is subtracted. (2) All
// planned ends lie within the window, so T does too, and a holder at its
// planned end that ranks after the head is not extended unless (1) allows it:
// the head starts by the end of the window, plus the time holders take to
// drain. (3) A client that has waited two windows, and for as long as all the
// others take to drain, while its instance owed nothing, is ranked before all
// that have not, oldest first, and a holder at its planned end ranks as if it had
// begun to wait only then. So of n clients at most n-1 come before an aged
// one, each becomes the head in turn, and each takes at most a window. (4) What an
// instance owes falls by its request a window and is at most what it has used, so
// it owes for a bounded time.
//
// # Turns
//
// Requests that fill the GPU may fit only in one arrangement, which a greedy
// order need not find. So an instance may have turns, parts of each window that
// are its own. They say when it has its SMs; budgets still say for how long.
//
// An instance in its turn that misses part of its request claims the turn, for
// one client at a time. A claim comes before all others in order. If its SMs are
// lent they are asked back at once: every holder without a claim is then decided
// about, right after the claims, and goes if they leave it no place. All that is
// not claimed is lent in the ordinary order. A lease outside its own turn may
// not stand in the way of a turn ahead: at each time at which a turn begins or
// ends, the instances that then have theirs and the holders whose planned end is
// later must fit beside it, or it ends by then, earlier by the time it takes to
// drain. That counts owners that are idle now; but when it has to leave and only
// idle ones would need its SMs, it stays until the next such time.
//
// So where turns never oversubscribe the GPU, every claim is met when its turn
// begins or, if it was made later, when those who borrow have drained: whoever
// else holds SMs then has a claim itself and fits beside it, or was planned to
// be gone. What an instance misses because others drained late is credit; and
// the time between two turns shifts, by at most a twentieth of a window, towards
// the one that is owed less, so that in the long run all lose alike by switches.
// Where turns do oversubscribe the GPU, the ordinary order decides among claims.
//
// Turns can leave nothing to those that have none. A client that has waited ten
// windows with budget comes even before claims, oldest first, for a tenth of a
// window: it is the head, which no lease is extended past, so it starts by the
// window's end and the time to drain. Thus (3) holds with ten windows in place
// of two, and each client without turns costs those that have them at most one
// hundredth of the GPU.
//
// # Credit
//
// Switches lose time, and when requests sum to the whole GPU that loss would
// always fall on whoever is last in order. So an instance that waited and still
// misses part of its request when the window ends is owed it, at most the time
// it waited. If it still wants the GPU then, its credit lasts until it is used, and
// those that used more than their requests meanwhile owe it, in full: kernels that
// take longer than a request, or than a window, are paid for in as many windows as
// it takes. What an instance owes is no part of its request, but it may have time
// that the others do not want. What nobody owes, because nobody had that time, all
// that contend for the same SMs share in proportion to their requests; an instance
// with turns does not, since time that it gives up in its turn is of no use in
// another's, and what nobody owes it fades by an eighth a window. An instance that wants
// nothing at the window's end, or to which nobody owes, has at most one window's
// request of credit (or the least budget there is, if that is more), and none after
// a window in which it did not wait: then nobody owes it. Credit only returns time
// that was not used before, so the average over windows never exceeds the limit.
//
// A kernel cannot be cut short. So an instance whose drains are longer than its turn is
// ranked as if it had used half of the excess already: it runs half before its time and
// half after it. And rather than have the GPU idle, one that has too little budget for a
// kernel is granted, and owes the rest.
type multiToken struct {
	window    time.Duration
	round     time.Duration // divides the window; 0 is none: leases end where budgets do
	handover  time.Duration // what passing the GPU on loses on average
	handovers time.Duration // of which so many count
	lead      time.Duration // how long before the end of what is in flight the next one is best granted
	waiting   int           // clients that have budget and find no SMs free; set by endTurns
	seldom    bool          // one of them has wanted nothing for a round before; set by endTurns
	contends  int           // instances that want the GPU or have it; set by tally
	requests  time.Duration // what they ask for a window; set by tally
	drains    time.Duration // what the clients that want the GPU or have it take to drain, one by one; set by tally
	known     float64       // percent of SMs of all clients there are; set by tally
	smLimit   float64
	lease     uint32 // the next
	now       time.Duration
	start     time.Duration // of the current window
	wake      time.Duration // time of the WakeAt that is out; 0 is none
	instances []*instance   // by id
	clients   []*client     // by id
	timetable []moment      // when turns begin and end, in order; empty without turns
	running   []*client     // who holds a lease that is not asked back; set by tally
	group     []*instance   // scratch of shareCredit
	actions   []Action      // of the Step under way
}

// newMultiToken makes the policy; its first window starts at now.
func newMultiToken(c Config, now time.Duration) *multiToken {
	s := &multiToken{now: now, start: now, lease: validLease(c.FirstLease), lead: firstLead}
	s.set(c.Window, c.Round, c.SMLimit)
	return s
}

func (s *multiToken) set(window, round time.Duration, smLimit float64) {
	if window <= 0 {
		window = gpu.Window
	}
	if round <= 0 {
		round = gpu.Round
	}
	s.round = 0
	if round < window {
		s.round = window / ((window + round - 1) / round) // as many as fit, of the same length
	}
	if smLimit <= 0 {
		smLimit = 100
	}
	s.window, s.smLimit = window, smLimit
	for _, i := range s.instances {
		i.budget(window)
	}
	s.makeTimetable()
}

// budget works out what the slice gives in a window.
func (i *instance) budget(window time.Duration) {
	i.request = time.Duration(i.slice.QuotaRequest * float64(window))
	i.limit = time.Duration(i.slice.QuotaLimit * float64(window))
	i.planned = spans(i.given, window)
}

func (s *multiToken) findInstance(id string) (int, bool) {
	return slices.BinarySearchFunc(s.instances, id, func(i *instance, id string) int { return strings.Compare(i.id, id) })
}

func (s *multiToken) findClient(id ClientID) (int, bool) {
	return slices.BinarySearchFunc(s.clients, id, func(c *client, id ClientID) int { return cmp.Compare(c.id, id) })
}

// Step applies what happened at an instant and then decides, once. An earlier
// now counts as the latest one.
func (s *multiToken) Step(now time.Duration, events []Event, actions []Action) []Action {
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

func (s *multiToken) apply(ev Event) {
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
			s.wants(s.clients[at].inst)
			s.request(s.clients[at])
		}
	case Ending:
		if at, ok := s.findClient(ev.Client); ok {
			s.ending(s.clients[at], ev)
		}
	case Return:
		if at, ok := s.findClient(ev.Client); ok {
			s.giveBack(s.clients[at], ev)
		}
	case Unleased:
		if at, ok := s.findClient(ev.Client); ok {
			s.unleased(s.clients[at], ev.Used)
		}
	case Suspend:
		if at, ok := s.findClient(ev.Client); ok {
			s.suspend(s.clients[at], ev.Stopped)
		}
	case Wake:
		if s.now >= s.wake {
			s.wake = 0
		}
	case Configure:
		s.closeWindow(s.now)
		s.set(ev.Window, ev.Round, ev.SMLimit)
		for _, c := range s.clients {
			c.end = s.now // every lease is planned anew
		}
	}
}

func (s *multiToken) addInstance(ev AddInstance) {
	at, ok := s.findInstance(ev.Instance)
	if !ok {
		s.instances = slices.Insert(s.instances, at, &instance{id: ev.Instance})
	}
	i := s.instances[at]
	i.slice, i.given = ev.Slice, ev.Turns
	i.budget(s.window)
	s.makeTimetable()
}

func (s *multiToken) removeInstance(id string) {
	at, ok := s.findInstance(id)
	if !ok {
		return
	}
	gone := s.instances[at]
	s.instances = slices.Delete(s.instances, at, at+1)
	s.clients = slices.DeleteFunc(s.clients, func(c *client) bool { return c.inst == gone })
	s.makeTimetable()
}

func (s *multiToken) addClient(ev AddClient) {
	i, ok := s.findInstance(ev.Instance)
	at, known := s.findClient(ev.Client)
	if !ok || known {
		return
	}
	s.clients = slices.Insert(s.clients, at, &client{id: ev.Client, inst: s.instances[i], told: s.now, why: reasonf("")})
}

// dropClient forgets a client and charges it for the lease it held until now.
func (s *multiToken) dropClient(at int) {
	c := s.clients[at]
	if c.holds() {
		s.charge(c, s.held(c))
	}
	s.stopWaiting(c)
	s.clients = slices.Delete(s.clients, at, at+1)
}

func (s *multiToken) request(c *client) {
	switch c.state {
	case Idle:
		c.state, c.since, c.why = Waiting, s.now, reasonf("just asked")
	case Draining, Suspended:
		c.again = true
	}
}

// giveBack ends a lease. The measured time replaces the time since the grant,
// but what earlier windows were charged for it stays with them.
func (s *multiToken) giveBack(c *client, ev Return) {
	if !c.holds() && c.state != Suspended || ev.Lease != c.lease {
		return
	}
	used := min(max(ev.Used, 0), s.now-c.since-c.beside)
	if c.state == Suspended && (c.stopped || ev.Used > used) {
		used = c.settled // nobody has waited for it since; more than can be: it has not measured
	}
	idle := s.idle(c, used)
	if c.holds() {
		used -= min(max(-idle, 0), c.behind, used)
	}
	s.charge(c, max(0, used-c.settled))
	more := ev.WantsMore || c.again
	if c.state == Draining {
		learn(&c.drain, s.now-c.revoked)
		if more && used > 0 {
			s.passedOn(max(idle, 0))
			c.slipped(used)
		}
		if c.due > 0 && c.behind > 0 {
			s.timed(idle)
		}
		c.judge(s.now)
	}
	c.due = 0
	c.freed = s.now
	c.state, c.lease, c.settled, c.beside, c.stopped, c.again, c.why = Idle, 0, 0, 0, false, false, reasonf("")
	if more {
		s.request(c)
	}
}

// unleased charges work that ran without a lease. A lease that is out meanwhile may have
// measured it too.
func (s *multiToken) unleased(c *client, used time.Duration) {
	used = min(max(used, 0), s.now-c.told)
	c.told = s.now
	if c.holds() {
		c.beside += min(used, s.now-c.since-c.beside)
	}
	s.charge(c, used)
}

// suspend takes a client that drains for nobody knows how long out of the
// count.
func (s *multiToken) suspend(c *client, stopped bool) {
	if c.state != Draining {
		return
	}
	part := s.held(c)
	c.settled += part
	s.charge(c, part)
	c.due = 0
	c.state, c.stopped, c.why = Suspended, stopped, reasonf("does not drain: its SMs are free until it returns")
}

// learn has a usual time follow those that are seen. One counts for a quarter,
// and one that is much longer for less: on a busy host some are.
func learn(usual *time.Duration, took time.Duration) {
	if *usual == 0 {
		*usual = took
	}
	*usual += min(took-*usual, *usual/4) / 4
}

func (s *multiToken) charge(c *client, d time.Duration) {
	c.used += d
	c.inst.used += d
	c.inst.charged += d
}

// held is the part of the current window that the client's lease was out.
func (s *multiToken) held(c *client) time.Duration { return s.now - max(c.since, s.start) }

// stopWaiting books how long the client waited in the current window.
func (s *multiToken) stopWaiting(c *client) {
	if c.state == Waiting {
		c.inst.waited += s.held(c)
	}
}

// arm asks to be woken at the next planned end, at the beginning of a turn that
// somebody waits for, or at the end of the window.
func (s *multiToken) arm() {
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

// reasonf is a reason that is put in words when somebody asks for it: with
// hundreds of clients that would be most of the work.
func reasonf(format string, args ...any) func() string {
	return func() string { return fmt.Sprintf(format, args...) }
}

// Snapshot is how all stand.
func (s *multiToken) Snapshot() Snapshot {
	out := Snapshot{Instances: make([]InstanceStatus, len(s.instances)), Clients: make([]ClientStatus, len(s.clients))}
	for n, i := range s.instances {
		out.Instances[n] = InstanceStatus{Instance: i.id, Debt: i.debt, Owed: max(0, -i.credit), Charged: i.charged}
	}
	for n, c := range s.clients {
		state, why := s.stands(c)
		out.Clients[n] = ClientStatus{
			Client: c.id, Instance: c.inst.id, State: state, Why: why,
			Used: min(1, float64(c.last)/float64(s.window)),
		}
		if s.occupies(c) {
			out.SMRunning += c.inst.slice.SMPct
		}
	}
	return out
}

// stands is the client's state to whoever looks on, and why it is: whose SMs are another's
// as soon as it has drained counts as drained.
func (s *multiToken) stands(c *client) (State, string) {
	switch {
	case c.due == 0:
		return c.state, c.why()
	case s.occupies(c):
		return c.state, Overlaps
	case c.again:
		return Waiting, "asked again, and its lease is about to come back"
	default:
		return Idle, ""
	}
}
