package token

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// Params are the numbers that an Introspective goes by.
type Params struct {
	// Of Algorithm 2. The paper names them; the values are those of Dilu's
	// published code, which compares them with T/Tmin, the stretch: one more
	// than the paper's ΔT.
	Period    time.Duration // between two issues of tokens (3.4.1)
	Violation float64       // η_violation: a stretch above it is an emergency; 1.3 for LLM decoding
	Outlier   float64       // a stretch above it counts from the second in a row
	Recovery  float64       // a stretch below it is as good as none
	Increase  float64       // η_increase: growth a period

	// Not given in print.
	RateWindow int     // periods in a rate window (public code: 100, looked at after 10 to 120)
	Floor      float64 // part of its request that an emergency leaves an instance (public code: 0.01)
}

// Published are the values that Dilu was evaluated with, and ours for what it
// leaves open: a rate window as long as a usual scheduling window, and a floor
// at which a training goes on visibly.
var Published = Params{
	Period: 5 * time.Millisecond, Violation: 1.6, Outlier: 4, Recovery: 1.2, Increase: 1.3,
	RateWindow: 20, Floor: 0.1,
}

// Introspective shares one GPU by Dilu's fast vertical scaling (section 3.4.1,
// Algorithm 2). A client that asks gets a lease, and all run at once; what each
// may launch is metered: every 5 ms an instance is issued tokens, one a kernel
// block, between its request and its limit, depending on how far the launch
// cycles of the SLO-sensitive instances stretch. Instances with a latency
// objective are SLO-sensitive, all others best effort.
//
// # Shares
//
// Dilu's <request, limit> are parts of the GPU. Ours are a part of the SMs for
// a part of the time, so the request is sm_pct/100 × quota_request of the GPU,
// and the limit likewise. MaxTokens, the blocks that the whole GPU does for an
// instance in a period, depends on its kernels and is measured
// (introspective_trial.go).
//
// # States
//
// An SLO-sensitive instance is in one phase, and the GPU in a state: EMERGENCY
// if an instance is, else CONTENTION if one is, else RECOVERY, else NONE when
// no process is of an SLO-sensitive instance. So only the instance that raised
// an emergency ends it. What differs from Algorithm 2 as printed, and why:
//
//   - An empty own window is looked at before T. When nothing runs T is old, and
//     an emergency would outlive its burst.
//   - An emergency ends while the instance runs only if T is back and would be
//     no violation with the request's tokens either. As printed it ends once T
//     is back, which takes away the very tokens that brought it back.
//   - Best effort is divided by the stretch once for each cycle that is measured,
//     down to a floor, and grows back to its request while T is good. As
//     printed it is divided every 5 ms: after ten periods it has nothing.
//   - What is issued is made to fit the GPU (introspective_fit.go). As printed
//     nothing bounds the sum, and it is the driver that decides.
type Introspective struct {
	params    Params
	window    time.Duration
	lease     uint32 // the next
	now       time.Duration
	start     time.Duration // of the current window
	ticked    time.Duration // last issue of tokens
	wake      time.Duration // time of the WakeAt that is out; 0 is none
	woken     bool          // by an event of the Step under way
	trial     *trial        // under way, or nil
	nextTrial time.Duration // none of a known instance before
	accounts  []*account    // by id
	processes []*process    // by id
	actions   []Action      // of the Step under way
}

// account is an instance. Shares are of the whole GPU, 0 to 1.
type account struct {
	id             string
	sm             float64 // percent
	request, limit float64
	alone          float64 // the share it has when nobody else runs and nothing holds it back
	sensitive      bool
	gauge          gauge
	cycle          cycle

	phase  phase
	want   float64 // what Algorithm 2 gives it: R_last
	demand float64 // what it can be expected to use
	kept   float64 // what is kept for it
	issue  float64 // what it is issued

	level     float64       // blocks that its processes may launch now; negative is debt
	accrued   time.Duration // when the level was last brought up to date
	owed      float64       // seconds of the GPU that trials took from it; negative is what its own gave it
	blocks    float64       // launched since the last issue
	rates     []float64     // rate window: shares used, newest first
	launched  time.Duration // when it was last seen to launch
	charged   time.Duration // time of all blocks, alone on the GPU
	processes []*process
	busy      int // of them that are not idle; set by count
}

// process is one client.
type process struct {
	id       ClientID
	acct     *account
	state    State
	since    time.Duration // when it began to wait, or was granted
	lease    uint32
	again    bool   // asked while draining
	budget   uint64 // the last that was issued
	launches uint64 // its counters at the last sample
	blocks   uint64
	run      run
	used     time.Duration // in this window, in time alone on the GPU
	last     time.Duration // in the last full window
	why      string
}

func (p *process) holds() bool { return p.state == Running || p.state == Draining }

// NewIntrospective makes the policy; its first window starts at now.
func NewIntrospective(c Config, p Params, now time.Duration) *Introspective {
	s := &Introspective{
		params: p, now: now, start: now, ticked: now, lease: valid(c.FirstLease),
	}
	s.set(c.Window)
	return s
}

func (s *Introspective) set(window time.Duration) {
	if window <= 0 {
		window = gpu.Window
	}
	s.window, s.start = window, s.now
}

// Step applies what happened at an instant and then decides, once. An earlier
// now counts as the latest one. Before a Wake there should be a Sample of every
// client that holds a lease, before a Return one of the client; what follows
// from samples alone is decided with the next other event.
func (s *Introspective) Step(now time.Duration, events []Event, actions []Action) []Action {
	s.now = max(s.now, now)
	s.actions, s.woken = actions, false
	s.roll()
	s.skip()
	sampled := len(events) > 0
	for _, ev := range events {
		s.apply(ev)
		_, ok := ev.(Sample)
		sampled = sampled && ok
	}
	if !sampled {
		if s.woken && s.now >= s.ticked+s.params.Period {
			s.tick()
		}
		s.count()
		s.stepTrial()
		s.admit()
		s.arm()
	}
	actions, s.actions = s.actions, nil
	return actions
}

func (s *Introspective) apply(ev Event) {
	switch ev := ev.(type) {
	case AddInstance:
		s.addInstance(ev)
		return
	case RemoveInstance:
		s.removeInstance(ev.Instance)
		return
	case AddClient:
		s.addClient(ev)
		return
	case Configure:
		s.set(ev.Window)
		return
	case Wake:
		if s.now >= s.wake {
			s.wake = 0
		}
		s.woken = true
		return
	}
	p := s.find(clientOf(ev))
	if p == nil {
		return
	}
	switch ev := ev.(type) {
	case RemoveClient:
		s.processes = slices.DeleteFunc(s.processes, func(o *process) bool { return o == p })
		p.acct.processes = slices.DeleteFunc(p.acct.processes, func(o *process) bool { return o == p })
	case Request:
		s.request(p)
	case Sample:
		s.sample(p, ev)
	case Return:
		s.giveBack(p, ev)
	case Suspend:
		if p.state == Draining {
			p.state, p.why = Suspended, "does not drain: nobody waits for it"
		}
	}
}

// clientOf is the client that an event is about, or 0.
func clientOf(ev Event) ClientID {
	switch ev := ev.(type) {
	case RemoveClient:
		return ev.Client
	case Request:
		return ev.Client
	case Sample:
		return ev.Client
	case Return:
		return ev.Client
	case Suspend:
		return ev.Client
	}
	return 0
}

func (s *Introspective) findAccount(id string) (int, bool) {
	return slices.BinarySearchFunc(s.accounts, id, func(a *account, id string) int { return strings.Compare(a.id, id) })
}

func (s *Introspective) findProcess(id ClientID) (int, bool) {
	return slices.BinarySearchFunc(s.processes, id, func(p *process, id ClientID) int { return cmp.Compare(p.id, id) })
}

func (s *Introspective) find(id ClientID) *process {
	if at, ok := s.findProcess(id); ok {
		return s.processes[at]
	}
	return nil
}

func (s *Introspective) addInstance(ev AddInstance) {
	at, ok := s.findAccount(ev.Instance)
	if !ok {
		idle := -time.Duration(s.params.RateWindow) * s.params.Period
		s.accounts = slices.Insert(s.accounts, at, &account{
			id: ev.Instance, rates: make([]float64, s.params.RateWindow), accrued: s.now, launched: s.now + idle,
		})
	}
	a := s.accounts[at]
	sm := ev.Slice.SMPct / 100
	alone := sm
	if ev.Loose {
		alone = 1
	}
	if a.alone != alone {
		a.gauge = gauge{}
	}
	a.sm, a.alone, a.sensitive = ev.Slice.SMPct, alone, ev.SLO > 0
	a.request, a.limit = sm*ev.Slice.QuotaRequest, sm*ev.Slice.QuotaLimit
	a.want = min(max(a.want, a.request), a.limit)
	a.issue = a.want
}

func (s *Introspective) removeInstance(id string) {
	at, ok := s.findAccount(id)
	if !ok {
		return
	}
	gone := s.accounts[at]
	s.accounts = slices.Delete(s.accounts, at, at+1)
	s.processes = slices.DeleteFunc(s.processes, func(p *process) bool { return p.acct == gone })
}

func (s *Introspective) addClient(ev AddClient) {
	at, ok := s.findAccount(ev.Instance)
	place, known := s.findProcess(ev.Client)
	if !ok || known {
		return
	}
	p := &process{id: ev.Client, acct: s.accounts[at]}
	s.processes = slices.Insert(s.processes, place, p)
	p.acct.processes = append(p.acct.processes, p)
}

// count counts, for each instance, the processes that are active.
func (s *Introspective) count() {
	for _, a := range s.accounts {
		a.busy = 0
		for _, p := range a.processes {
			if p.state.active() {
				a.busy++
			}
		}
	}
}
