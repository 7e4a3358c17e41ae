package token

import (
	"slices"
	"time"
)

// phase is a state of Algorithm 2.
type phase int

// The phases of an instance, and the states of a GPU.
const (
	none       phase = iota // no SLO-sensitive client is there: the others have their limits
	emergency               // a launch cycle stretches: SLO-sensitive to its limit, the others down
	recovery                // an SLO-sensitive instance is idle, or alone: who runs grows
	contention              // all run and no cycle stretches: requests
)

// String is the phase's name in a status.
func (p phase) String() string {
	return [...]string{"NONE", "EMERGENCY", "RECOVERY", "CONTENTION"}[p]
}

// scale works out what each instance wants to be issued: Algorithm 2.
func (s *introspective) scale() {
	for _, i := range s.instances {
		if i.sensitive {
			s.scaleSensitive(i)
		}
	}
	state, stretch := s.state()
	for _, i := range s.instances {
		if !i.sensitive {
			s.scaleBestEffort(i, state, stretch)
		}
	}
	for _, i := range s.instances {
		i.cycle.fresh = false
	}
}

// empty says whether the instance's rate window is empty: for as long as that is
// it has launched nothing, and it wants nothing.
func (s *introspective) empty(i *meteredInstance) bool {
	return i.busy == 0 && s.now-i.launched >= time.Duration(s.params.rateWindow)*s.params.period
}

func (s *introspective) othersEmpty(i *meteredInstance) bool {
	for _, o := range s.instances {
		if o != i && !s.empty(o) {
			return false
		}
	}
	return true
}

// scaleSensitive is lines 12 to 21.
func (s *introspective) scaleSensitive(i *meteredInstance) {
	klc, params := &i.cycle, s.params
	back := klc.stretch < params.recovery && klc.stretch*i.limit/i.request <= params.violation
	switch {
	case s.empty(i):
		i.phase, i.want, klc.stretch = recovery, i.request, 0
	case klc.stretch > params.violation, i.phase == emergency && !back:
		i.phase, i.want = emergency, i.limit
	case s.othersEmpty(i):
		i.phase, i.want = recovery, min(i.want*params.increase, i.limit)
	default:
		i.phase, i.want = contention, i.request
	}
}

// state is the GPU's, and in an emergency the largest stretch that was measured
// since the last issue, if one was.
func (s *introspective) state() (state phase, stretch float64) {
	for _, i := range s.instances {
		if !i.sensitive || len(i.clients) == 0 {
			continue
		}
		if i.phase == emergency && i.cycle.fresh {
			stretch = max(stretch, i.cycle.stretch)
		}
		if state == none || i.phase == emergency || i.phase == contention && state != emergency {
			state = i.phase
		}
	}
	return state, stretch
}

// scaleBestEffort is lines 23 to 31. Out of an emergency nobody is below its
// request: that is what its placement promised.
func (s *introspective) scaleBestEffort(i *meteredInstance, state phase, stretch float64) {
	params := s.params
	i.phase = state
	switch {
	case state == none:
		i.want = i.limit
	case state == recovery:
		i.want = min(max(i.want*params.increase, i.request), i.limit)
	case state == contention:
		i.want = max(i.want, i.request)
	case state == emergency && stretch > params.violation:
		i.want = max(min(i.request, i.want)/stretch, i.request*params.floor)
	case state == emergency && stretch > 0 && stretch < params.recovery:
		i.want = min(i.want*params.increase, i.request)
	}
}

// shareEps is the part of a GPU that is lost to rounding.
const shareEps = 1e-9

// # Fitting the GPU
//
// Requests of a placement sum to at most one GPU, limits to more (3.3: 1.5). So
// what Algorithm 2 gives may exceed what there is, and then each would get what
// the driver's time slices give it. Shares are reserved in order: a floor for
// best effort, at most a tenth of the GPU in all; SLO-sensitive instances; the
// rest for best effort. Within a class each instance has its request, then what
// is left in proportion to the requests (max-min), up to what it wants. Reserved
// is only what an instance can be expected to use: the most that it used in a
// period of its rate window, and some growth. What is reserved for nobody is
// issued to whoever wants it, and every instance may launch up to its request at
// any time: one whose load surges has that at once, and the others make room in
// the next period.

// fit turns what the instances want into what they are issued.
func (s *introspective) fit() {
	var classes [2][]*meteredInstance // SLO-sensitive, best effort
	for _, i := range s.instances {
		i.demand = i.expected(s.params)
		switch {
		case len(i.clients) == 0 || s.empty(i):
			i.issued, i.reserved = i.want, 0
		case i.sensitive:
			classes[0] = append(classes[0], i)
		default:
			classes[1] = append(classes[1], i)
		}
	}
	floor := 0.0
	for _, i := range classes[1] {
		floor += i.request * s.params.floor
	}
	floor = min(floor, s.params.floor)
	left := 1 - floor
	for _, class := range classes {
		promised := 0.0
		for _, i := range class {
			promised += min(i.request, i.want)
		}
		over := reserve(class, left)
		for _, i := range class {
			i.issued = min(i.want, i.reserved+over)
			if promised <= left+shareEps {
				i.issued = max(i.issued, min(i.want, i.request))
			}
		}
		left = over + floor
	}
}

// expected is the share that the instance will use at most in the next period,
// if it may. One that is not known yet uses all it gets, and one that is in the middle of
// a long kernel its request.
func (i *meteredInstance) expected(params parameters) float64 {
	if i.gauge.speed == 0 {
		return i.want
	}
	most := 0.0
	for _, r := range i.rates {
		most = max(most, r)
	}
	if most == 0 && i.runs() {
		most = i.request // its kernel has run for all of the rate window
	}
	return min(i.want, max(most*params.increase, i.request*params.floor))
}

// reserve divides a share of the GPU among a class and returns what is left of
// it.
func reserve(class []*meteredInstance, left float64) float64 {
	sum := 0.0
	for _, i := range class {
		i.reserved = min(i.demand, i.request)
		sum += i.reserved
	}
	if sum > left {
		for _, i := range class {
			i.reserved *= left / sum
		}
		return 0
	}
	for left -= sum; left > shareEps; {
		weight := 0.0
		for _, i := range class {
			if i.reserved < i.demand-shareEps {
				weight += i.request
			}
		}
		if weight == 0 {
			break
		}
		given := 0.0
		for _, i := range class {
			if i.reserved < i.demand-shareEps {
				more := min(i.demand-i.reserved, left*i.request/weight)
				i.reserved += more
				given += more
			}
		}
		left -= given
	}
	return max(left, 0)
}

// For how many periods tokens can be used: at least, and at most. Counters are
// read a little late and wakes come late, so that of one period's tokens some
// would always be lost; and of clients that are issued equal parts not all may
// use theirs.
const tokensLast, tokensLastMost = 2, 8

// skip lets periods pass in which everybody was idle and nobody was woken.
func (s *introspective) skip() {
	for _, c := range s.clients {
		if c.state.active() {
			return
		}
	}
	past := (s.now - s.ticked) / s.params.period
	if past < 2 {
		return // the wake of the last period is still to come
	}
	for _, i := range s.instances {
		for range min(past, time.Duration(len(i.rates))) {
			i.shift(0)
		}
		i.blocks = 0
	}
	s.ticked = s.now
}

// shift moves the rate window on by one period.
func (i *meteredInstance) shift(rate float64) {
	copy(i.rates[1:], i.rates)
	i.rates[0] = rate
}

// sample takes note of a client's counters.
func (s *introspective) sample(c *meteredClient, ev Sample) {
	i := c.inst
	if ev.Launches > c.launches || ev.Blocks > c.blocks {
		i.launched = s.now
	}
	if ev.Blocks > c.blocks {
		blocks := float64(ev.Blocks - c.blocks)
		i.blocks += blocks
		if s.limited(i) {
			i.level -= blocks
		}
		c.used += i.gauge.timeOf(blocks)
		i.charged += i.gauge.timeOf(blocks)
		if i.gauge.speed == 0 { // a trial before found nothing to measure
			i.gauge.due = min(i.gauge.due, s.now+trialPatience)
		}
	}
	c.launches, c.blocks = ev.Launches, ev.Blocks
}

// tick ends a period: it looks at what ran, works out the shares and issues
// tokens.
func (s *introspective) tick() {
	elapsed := s.now - s.ticked
	s.ticked = s.now
	if s.trial != nil {
		return
	}
	s.count()
	for _, i := range s.instances {
		i.shift(i.gauge.timeOf(i.blocks).Seconds() / elapsed.Seconds() * i.alone)
		i.blocks = 0
		s.accrue(i) // at the rate until now
	}
	for _, c := range s.clients {
		s.observePart(c)
	}
	s.scale()
	s.fit()
	for _, i := range s.instances {
		s.allot(i)
	}
}

// limited says whether the instance's launches are held to its tokens. Who may
// have all that it could have alone is not, nor who is not known yet.
func (s *introspective) limited(i *meteredInstance) bool {
	return i.gauge.speed > 0 && i.issued < i.alone-shareEps && (s.trial == nil || s.trial.client.inst != i)
}

// accrue adds the tokens that have come since the last time. What is not used
// expires; what was used too much, since a kernel is launched as a whole, is
// debt, which stays while tokens do not bound the instance.
func (s *introspective) accrue(i *meteredInstance) {
	since := s.now - i.accrued
	i.accrued = s.now
	periods := time.Duration(max(tokensLast, i.busy))
	if i.busy > 0 {
		periods = max(periods, since/s.params.period+1) // woken late: it has waited for these
	}
	keep := min(periods, tokensLastMost) * s.params.period
	share := i.issued + i.repay(since)
	limited := s.limited(i)
	if !limited {
		share, i.level = i.issued, min(i.level, 0)
	}
	rate := share / i.alone * i.gauge.speed // of what the whole GPU would do
	most, level := rate*keep.Seconds()+1, i.level+rate*since.Seconds()
	i.level = min(level, most)
	if level > most && limited && i.runs() {
		s.miss(i, level-most)
	}
}

// miss has others pay an instance back for tokens that expired while it ran below its
// request, because the others' kernels go on beyond their tokens: as far as those are in
// debt.
func (s *introspective) miss(i *meteredInstance, tokens float64) {
	used, debts := 0.0, 0.0
	for _, r := range i.rates {
		used += r / float64(len(i.rates))
	}
	if used >= i.request {
		return
	}
	for _, o := range s.instances {
		if o != i && o.level < 0 {
			debts += o.gauge.timeOf(-o.level).Seconds() * o.alone
		}
	}
	if debts > 0 {
		i.owed = max(i.owed, min(i.owed+i.gauge.timeOf(tokens).Seconds()*i.alone, debts))
	}
}

// runs reports whether a client of the instance has a lease.
func (i *meteredInstance) runs() bool {
	return slices.ContainsFunc(i.clients, func(c *meteredClient) bool { return c.state == Running })
}

// repay is the share that the instance has on top now for what trials cost it,
// or gives up for what its own brought it: all of it over repayOver, as long as
// that leaves it half of its own.
func (i *meteredInstance) repay(since time.Duration) (share float64) {
	share = max(i.owed/repayOver.Seconds(), -i.issued/2)
	i.owed -= share * min(since, repayOver).Seconds()
	return share
}

// tokensIn are the reasons of budgets, by phase.
var tokensIn = [...]string{"its tokens in NONE", "its tokens in EMERGENCY", "its tokens in RECOVERY", "its tokens in CONTENTION"}

// allot issues an instance's tokens to those of its clients that run: to all
// alike, and what cannot be divided to the ones that have launched least.
func (s *introspective) allot(i *meteredInstance) {
	var running []*meteredClient
	for _, c := range i.clients {
		if c.state == Running {
			running = append(running, c)
		}
	}
	if len(running) == 0 {
		return
	}
	each, odd, reason := Unlimited, 0, i.unmetered(s.trial)
	if s.limited(i) {
		reason = tokensIn[i.phase]
		tokens := uint64(max(i.level, 0))
		each, odd = tokens/uint64(len(running)), int(tokens%uint64(len(running)))
	}
	for _, c := range running {
		budget := Unlimited
		if each != Unlimited {
			budget = c.blocks + each
			if rank(c, running) < odd {
				budget++
			}
		}
		if budget != c.budget {
			c.budget = budget
			s.actions = append(s.actions, Budget{Client: c.id, Blocks: budget, Reason: reason})
		}
	}
}

// unmetered says why the instance is not held to tokens, if it is not.
func (i *meteredInstance) unmetered(t *trial) string {
	switch {
	case t != nil && t.client.inst == i:
		return "it is measured alone"
	case i.gauge.speed == 0:
		return "it has not been measured"
	}
	return "it may have all that it could have alone"
}

// rank is how many of the clients have launched less than that one.
func rank(c *meteredClient, all []*meteredClient) (n int) {
	for _, o := range all {
		if o.blocks < c.blocks || o.blocks == c.blocks && o.id < c.id {
			n++
		}
	}
	return n
}
