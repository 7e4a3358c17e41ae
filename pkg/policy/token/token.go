// Package token decides who may use a GPU now. There are two policies behind
// one contract, that of package policy: Scheduler, the multi-token scheduler of
// FaST-GShare (section 3.3.2), whose rules follow, and Introspective, Dilu's
// fast vertical scaling (section 3.4.1).
//
// # Rules of the multi-token scheduler
//
// Time is cut into windows of length W. Each instance has a budget a window,
// shared by its processes: request × W is guaranteed, limit × W is the most.
// What an instance used beyond its limit is debt in the next windows.
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
// without noticing, else it is asked back. A holder that is asked back keeps
// its SMs until it has drained, and what it ran over is charged. Who usually
// takes long to drain is asked back that much earlier, so that its window comes
// out and not just the average of many.
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
// drain. (3) A client that has waited two windows is ranked before all that
// have not, oldest first, and a holder at its planned end ranks as if it had
// begun to wait only then. So of n clients at most n-1 come before an aged
// one, each becomes the head in turn, and each takes at most a window.
//
// # Turns
//
// The order cannot keep a promise that fills the GPU: that such requests fit is
// proven by a timetable, and a greedy order need not find it. So an instance
// may have turns, parts of each window that are its own. They say when; budgets
// still say how much.
//
// An instance in its turn that misses part of its request claims the turn, for
// one client at a time. A claim comes before all others in order, and what of
// its SMs is lent is asked back at once: every holder without a claim is then
// ranked as at its planned end, and goes if the claims leave it no place. All
// that is not claimed is lent in the ordinary order. A lease outside its own
// turn may not stand in the way of one ahead: at each time at which a turn
// begins or ends, the instances that then have theirs and the holders whose planned end
// is later must fit beside it, or it ends by then, earlier by the time it takes
// to drain. That counts owners that are idle now; but when it has to leave and
// only idle ones would need its SMs, it stays until the next such time.
//
// So where turns never oversubscribe the GPU, every claim is met when its turn
// begins or, if it was made later, when those who borrow have drained: whoever
// else holds SMs then has a claim itself and fits beside it, or was planned to
// be gone. What it comes short, because others drained late, is credit; and the
// time between two turns shifts, by at most a twentieth of a window, towards the
// one that is owed less, so that the loss of switches falls on all alike and on
// nobody for ever. Where turns do oversubscribe the GPU, the ordinary order
// decides among claims.
//
// Turns can leave nothing to those that have none. A client that has waited ten
// windows with budget comes even before claims, oldest first, for a tenth of a
// window: it is the head, which nobody is extended past, so it starts by the
// window's end and the time to drain. Thus (3) holds with ten windows in place
// of two, and each client that the plan does not know costs it at most one
// hundredth of the GPU.
//
// # Credit
//
// Switches lose time, and when requests sum to the whole GPU that loss would
// always fall on whoever is last in order. So an instance that waited and
// still misses part of its request when the window ends is owed it: at most
// the time it waited, at most one window's request, or what is worth a switch if
// that is more. What is owed comes from
// those that ran over in its stead, and what nobody can pay back, because the
// time is gone, is shared by all that contend for the same SMs in proportion
// to their requests. Who has turns pays nobody, since time that one gives up in
// its turn is of no use in another's; its credit fades by an eighth a window.
// Credit only returns time that was not used before, so the average over windows
// never exceeds the limit.
package token

import (
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// ClientID names a client, one process of an instance. The caller chooses it.
type ClientID uint64

// Config is what a Scheduler goes by.
type Config struct {
	Window     time.Duration // W; 0 is gpu.Window
	SMLimit    float64       // most percent of SMs that leases hold together; 0 is 100
	FirstLease uint32        // number of the first lease
}

// State is what a client does.
type State int

// The states of a client.
const (
	Idle      State = iota // wants nothing
	Waiting                // asked, has no lease
	Running                // holds a lease
	Draining               // was asked back and has not returned yet: still holds its SMs
	Suspended              // was stopped or stuck while it drained: holds nothing until it returns
)

// String is the state's name in a status.
func (s State) String() string {
	return [...]string{"idle", "waiting", "running", "draining", "suspended"}[s]
}

// active says whether it wants the GPU or has it.
func (s State) active() bool { return s != Idle && s != Suspended }

// instance is the account of a slice. Times are of the current window.
type instance struct {
	id    string
	slice gpu.Slice
	given []gpu.Turn // as fractions of the window

	planned []span // the same as time
	turns   []span // in this window

	request, limit time.Duration // budget a window
	used           time.Duration // charged so far; leases now held come on top
	last           time.Duration // charged in the last full window
	charged        time.Duration // in all
	debt           time.Duration // over-use carried in, 0 or more
	credit         time.Duration // owed from before; negative is what it pays to others
	waited         time.Duration // sum over its clients
	over           time.Duration // used beyond its request in the window just closed

	// Set by tally.
	live    time.Duration // leases now held
	holding int           // running clients
	known   int           // clients
	active  int           // clients that are not idle
	owner   *client       // who has its turn now; set by claim

	backlog bool // it wants the GPU at the window's end; set by closeWindow
	beyond  int  // scratch of taker
}

// client is one process.
type client struct {
	id    ClientID
	inst  *instance
	state State
	since time.Duration // when it began to wait, or was granted
	dry   time.Duration // when it was last seen to wait without budget
	used  time.Duration // charged in the current window
	last  time.Duration // charged in the last full window
	why   func() string // reason of the last decision about it

	lease   uint32
	settled time.Duration // of this lease, charged to windows that have ended
	end     time.Duration // planned end
	urgent  bool          // of this lease: it goes before turns
	again   bool          // asked while draining
	revoked time.Duration // when it was last to be asked back: timers are late
	drain   time.Duration // what it usually takes to return when it is asked back
}

func (c *client) holds() bool { return c.state == Running || c.state == Draining }

// Scheduler shares one GPU. Make one with New; it is not safe for concurrent
// use.
type Scheduler struct {
	window    time.Duration
	smLimit   float64
	lease     uint32 // the next
	now       time.Duration
	start     time.Duration // of the current window
	wake      time.Duration // time of the WakeAt that is out; 0 is none
	instances []*instance   // by id
	clients   []*client     // by id
	timetable []moment      // when turns begin, in order; empty without turns
	running   []*client     // who holds a lease that is not asked back; set by tally
	group     []*instance   // scratch of spread
	actions   []Action      // of the Step under way
}

// New makes a scheduler whose first window starts at now.
func New(c Config, now time.Duration) *Scheduler {
	s := &Scheduler{now: now, start: now, lease: valid(c.FirstLease)}
	s.set(c.Window, c.SMLimit)
	return s
}

func (s *Scheduler) set(window time.Duration, smLimit float64) {
	if window <= 0 {
		window = gpu.Window
	}
	if smLimit <= 0 {
		smLimit = 100
	}
	s.window, s.smLimit = window, smLimit
	for _, i := range s.instances {
		i.budget(window)
	}
	s.tabulate()
}

// valid is the number if a lease may have it, else the first that may: the
// preload library takes 0 for a closed gate and the largest for no lease.
func valid(lease uint32) uint32 {
	if lease == math.MaxUint32 {
		return 1
	}
	return max(lease, 1)
}

// budget works out what the slice gives in a window.
func (i *instance) budget(window time.Duration) {
	i.request = time.Duration(i.slice.QuotaRequest * float64(window))
	i.limit = time.Duration(i.slice.QuotaLimit * float64(window))
	i.planned = spans(i.given, window)
}

func (s *Scheduler) findInstance(id string) (int, bool) {
	return slices.BinarySearchFunc(s.instances, id, func(i *instance, id string) int {
		switch {
		case i.id < id:
			return -1
		case i.id > id:
			return 1
		}
		return 0
	})
}

func (s *Scheduler) findClient(id ClientID) (int, bool) {
	return slices.BinarySearchFunc(s.clients, id, func(c *client, id ClientID) int {
		switch {
		case c.id < id:
			return -1
		case c.id > id:
			return 1
		}
		return 0
	})
}
