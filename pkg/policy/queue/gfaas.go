package queue

import (
	"math"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// gfaas is ours: MQFQ's candidates, so that its bound on fairness holds, in an
// order that keeps waiting short.
//
//   - Of the candidates the one whose invocations take the least time each,
//     what it takes to start them shared among all that wait (Smith's rule for
//     batches with a set-up time), in steps of two; then the least VT.
//   - No start on a GPU without the function's container, or without its
//     memory, while one that is busy is free sooner than that start takes
//     longer: the invocation waits for that GPU (LALB's rule).
//   - What leaves a GPU to make room is what costs the least to do without:
//     the time a start would take longer, by how often it comes, by the memory
//     it takes. An invocation that makes room does so where that costs least.
//   - Virtual times are compared by what was executed: see mqfq.executed.
//
// Why the bound holds. Let G be Global_VT, here the least of VT minus what is
// charged and still runs, over queues that wait; C the slots; l1 >= l2 the two
// longest executions over their weights. A dispatch needs VT - G <= T + C l2,
// and a queue that begins to wait is lifted to at least G and what it has
// running and at most G + T + C l2. So what a waiting queue has executed is
// between G and G + T + C l2 + l (its own l), but for a queue that began to
// wait with more running than that, which only the one with l1 can have:
// between two instants two such queues differ by at most 2T + 2C l2 + l1 + l2,
// or in that case by T + C (l1 + l2) + l2, and the bound is
// 2T + (C + 1)(l1 + l2). Which candidate goes, whether any goes at once, and
// where within those limits a queue is lifted to, is free.
type gfaas struct {
	*mqfq
	slots   float64    // invocations that run at once
	longest [2]float64 // the two longest over their weights, and whose
	whose   [2]int32
	gpus    []machine
	on      [][]int32 // by function: GPUs it runs on, one for each invocation
	aside   []int32
	small   []item  // where no GPU has the memory for them beside what runs
	books   []int32 // by function: how many of its invocations wait for a GPU
}

// machine is a GPU as far as invocations wait for it.
type machine struct {
	runs   []underway
	late   time.Duration // when the first of those is overdue
	booked []booking     // what waits for it, in order
	behind time.Duration // how long that takes
}

// booking is invocations of a function, one after the other, that wait for a GPU.
type booking struct {
	function, many int32
	warm           time.Duration // of each
}

// underway is an invocation that runs.
type underway struct {
	id           int64
	begin, until time.Duration // until is its expected end
}

func newGfaas(e *engine) *gfaas {
	o := &gfaas{mqfq: newMQFQ(e, false), whose: [2]int32{none, none}}
	o.rank, o.mqfq.lift = o.index, o.lift
	o.executed = true
	return o
}

func (o *gfaas) shape(c *residency.Config) { c.Worth = o.worth }

func (o *gfaas) grow(functions, gpus, slots int) {
	o.mqfq.grow(functions, gpus, slots)
	o.slots = float64(slots)
	o.more = o.slots * o.longest[1]
	o.gpus = grown(o.gpus, gpus)
	o.on, o.books = grown(o.on, functions), grown(o.books, functions)
}

// lift is the least virtual time of a queue that begins to wait: most of the way
// to that of the last dispatch, so that what comes seldom does not hold up what
// comes often. MQFQ's bound leaves that open.
func (o *gfaas) lift(f int32) float64 {
	const nearly = 0.9
	recent := min(nearly*max(o.tag-o.global, 0), o.ahead())
	return o.global + max(recent, min(o.flows[f].runs, o.ahead()+o.flows[f].charge))
}

// ran notes how long invocations of a dispatched function are.
func (o *gfaas) ran(f int32, each float64) {
	switch {
	case o.whose[0] == f || o.whose[1] == f:
	case each > o.longest[0]:
		o.longest, o.whose = [2]float64{each, o.longest[0]}, [2]int32{f, o.whose[0]}
	case each > o.longest[1]:
		o.longest[1], o.whose[1] = each, f
	}
	o.more = o.slots * o.longest[1]
}

func (o *gfaas) changed(f int32) {
	o.mqfq.changed(f)
	for i := range o.whose {
		if o.whose[i] == f {
			o.longest[i] = max(o.longest[i], o.flows[f].charge)
		}
	}
	if o.longest[1] > o.longest[0] {
		o.longest[0], o.longest[1] = o.longest[1], o.longest[0]
		o.whose[0], o.whose[1] = o.whose[1], o.whose[0]
	}
	o.more = o.slots * o.longest[1]
	if o.books[f] > 0 && slices.ContainsFunc(o.on[f], func(gpu int32) bool { return !o.engine.pool.Serves(f, gpu) }) {
		o.fewer(f, 0) // what it waits for is of an old version
	}
}

func (o *gfaas) forget(f int32) {
	o.mqfq.forget(f)
	for i := range o.whose {
		if o.whose[i] == f {
			o.whose[i] = none // how long it was still bounds what others may be ahead
		}
	}
}

// index is the place of a candidate: the time each of its invocations takes,
// over its weight, in steps of two, then the least VT, then the oldest head.
func (o *gfaas) index(f int32) key {
	c, q := &o.engine.functions[f], &o.queues.queues[f]
	warm := float64(c.Warm)
	together := float64(q.len)
	if warm > 0 { // about as many as can go at once, within T
		together = min(together, 1+float64(o.engine.config.T)*c.Weight/warm)
	}
	_, size := math.Frexp((float64(o.engine.pool.Expected(f)) - warm + together*warm) / together / c.Weight)
	return key{a: int64(size), b: o.flows[f].vt, c: q.oldest}
}

func (o *gfaas) next(now time.Duration, c *choice) bool {
	if o.due(c) {
		return true
	}
	found, most := false, o.engine.pool.Most()
	could := func(f int32) bool { return o.engine.pool.Could(f, most) }
	var it item
	for some := true; !found; {
		// Those that fit nowhere are passed over without being asked where.
		it, some, o.small = o.ready.first(could, o.small[:0])
		if !some {
			break
		}
		f := it.function
		for o.books[f] < o.queues.queues[f].len {
			at, loss, ok := o.engine.pool.Cheapest(f)
			if ok && !o.book(now, f, at, loss) {
				found = c.on(f, at, "least time an invocation, within T of Global_VT", o.unit.ms(it.key.b))
			}
			if !ok || found {
				break
			}
		}
		if !found {
			o.ready.remove(f)
			o.aside = append(o.aside, f)
		}
	}
	for _, f := range o.aside {
		o.ready.set(f, o.index(f))
	}
	o.aside = o.aside[:0]
	for i := range o.small {
		if over := &o.small[i]; !found || over.key.less(&it.key) {
			o.ready.set(over.function, o.index(over.function))
		}
	}
	return found
}

// due is an invocation that waited for a GPU that is free now. A function whose
// container has gone from there meanwhile waits no longer.
func (o *gfaas) due(c *choice) bool {
	pool := o.engine.pool
	for g := range o.gpus {
		m := &o.gpus[g]
		if len(m.booked) == 0 || !pool.Free(int32(g)) {
			continue
		}
		for i := 0; i < len(m.booked); i++ {
			f := m.booked[i].function
			if !o.ready.has(f) {
				continue // throttled since
			}
			at, ok := pool.Best(f, int32(g), residency.Any)
			if ok && at.Start == residency.GPUWarm {
				o.unbook(m, i)
				return c.on(f, at, "waited for this GPU, which has its memory", 0)
			}
			if !slices.Contains(o.on[f], int32(g)) || !pool.Serves(f, int32(g)) {
				for n := m.booked[i].many; n > 0; n-- {
					o.unbook(m, i)
				}
				i--
			}
		}
	}
	return false
}

// unbook takes back one of a booking.
func (o *gfaas) unbook(m *machine, i int) {
	b := &m.booked[i]
	o.books[b.function]--
	m.behind -= b.warm
	if b.many--; b.many == 0 {
		m.booked = slices.Delete(m.booked, i, i+1)
	}
}

// release has nothing wait for a GPU any more: each is decided again.
func (o *gfaas) release(m *machine) {
	for len(m.booked) > 0 {
		o.unbook(m, len(m.booked)-1)
	}
}

// opened decides again what waits for a GPU whose work is overdue: that is then
// taken to last for as long again as it has so far.
func (o *gfaas) opened(now time.Duration) {
	o.mqfq.opened(now)
	for g := range o.gpus {
		if m := &o.gpus[g]; len(m.booked) > 0 && m.late <= now {
			m.extend(now)
			o.release(m)
		}
	}
}

// extend takes work that is overdue to last for as long again as it has so far.
func (m *machine) extend(now time.Duration) {
	for i := range m.runs {
		if u := &m.runs[i]; u.late() <= now {
			u.until = now + now - u.begin
		}
	}
	m.look()
}

// look notes when work is overdue.
func (m *machine) look() {
	m.late = Never
	for i := range m.runs {
		m.late = min(m.late, m.runs[i].late())
	}
}

func (u *underway) late() time.Duration { return overdue(u.begin, u.until) + 1 }

// overdue is when work is that was expected to end at a time: when it has taken
// twice as long.
func overdue(begin, until time.Duration) time.Duration {
	return until + max(until-begin, time.Millisecond)
}

// wake is when the first work that something waits for is overdue.
func (o *gfaas) wake() time.Duration {
	at := Never
	for g := range o.gpus {
		if m := &o.gpus[g]; len(m.booked) > 0 {
			at = min(at, m.late)
		}
	}
	return at
}

func (o *gfaas) closed(gpu int32) { o.release(&o.gpus[gpu]) }

// moved follows a change of what the function would find on GPUs.
func (o *gfaas) moved(f, _ int32) { o.again(f) }
func (o *gfaas) freed(f, _ int32) { o.again(f) }

// fewer takes back what was booked for invocations that wait no more.
func (o *gfaas) fewer(f int32, most int32) {
	for g := len(o.gpus) - 1; g >= 0 && o.books[f] > most; g-- {
		m := &o.gpus[g]
		for i := len(m.booked) - 1; i >= 0 && o.books[f] > most; i-- {
			if m.booked[i].function == f {
				for n := m.booked[i].many; n > 0 && o.books[f] > most; n-- {
					o.unbook(m, i)
				}
			}
		}
	}
}

func (o *gfaas) grew(f int32) {
	o.fewer(f, o.queues.queues[f].len)
	o.mqfq.grew(f)
}

func (o *gfaas) ceased(f int32) {
	o.fewer(f, 0)
	o.mqfq.ceased(f)
}

func (o *gfaas) why(f int32) string {
	if o.books[f] > 0 {
		return "waits for a busy GPU that has its memory"
	}
	return o.mqfq.why(f)
}

// horizon is for how many seconds what makes room for a start is counted as
// missed.
const horizon = 30

// book has an invocation of the function wait for a busy GPU, if one that has
// its memory is free sooner than the start at that place takes longer. What
// goes from there, and will have to start again, counts too, up to as much.
func (o *gfaas) book(now time.Duration, f int32, at residency.Place, loss float64) bool {
	c := &o.engine.functions[f]
	extra := c.expected(at.Start) - c.Warm
	if extra <= 0 {
		return false
	}
	best, soonest := none, extra+time.Duration(min(loss*horizon, float64(extra)))
	consider := func(gpu int32) {
		if !o.engine.open(gpu) {
			return
		}
		m := &o.gpus[gpu]
		if m.late <= now {
			m.extend(now)
		}
		if wait := m.wait(now); wait < soonest {
			best, soonest = gpu, wait
		}
	}
	for _, gpu := range o.on[f] {
		if o.engine.pool.Serves(f, gpu) {
			consider(gpu)
		}
	}
	o.engine.pool.Warm(f, func(gpu int32) {
		if !o.engine.pool.Free(gpu) {
			consider(gpu)
		}
	})
	if best == none {
		return false
	}
	m := &o.gpus[best]
	if last := len(m.booked) - 1; last >= 0 && m.booked[last].function == f && m.booked[last].warm == c.Warm {
		m.booked[last].many++
	} else {
		m.booked = append(m.booked, booking{f, 1, c.Warm})
	}
	m.behind += c.Warm
	o.books[f]++
	return true
}

// wait is how long until a GPU is free for one more that waits for it.
func (m *machine) wait(now time.Duration) time.Duration {
	soonest := time.Duration(math.MaxInt64 / 4)
	for i := range m.runs {
		soonest = min(soonest, max(m.runs[i].until-now, 0))
	}
	return soonest + m.behind/time.Duration(max(len(m.runs), 1))
}

func (o *gfaas) left(now time.Duration, f int32, r *run) {
	m := &o.gpus[r.gpu]
	m.runs = append(m.runs, underway{id: r.id, begin: now, until: r.until})
	m.look()
	o.on[f] = append(o.on[f], r.gpu)
	o.ran(f, o.flows[f].charge)
	o.mqfq.left(now, f, r)
	o.fewer(f, o.queues.queues[f].len)
}

// ended forgets an invocation that ended.
func (o *gfaas) ended(now time.Duration, f int32, r *run, executed time.Duration) {
	m := &o.gpus[r.gpu]
	m.runs = slices.DeleteFunc(m.runs, func(u underway) bool { return u.id == r.id })
	m.look()
	for i, g := range o.on[f] {
		if g == r.gpu {
			o.on[f] = append(o.on[f][:i], o.on[f][i+1:]...)
			break
		}
	}
	o.mqfq.ended(now, f, r, executed)
}

// worth is what it costs to do without a container, or without its memory on
// the GPU, in time a second: what the next start takes longer, for each
// invocation that waits now and by how often they come. A function that has not
// come for longer than usual is taken to come as seldom as that.
func (o *gfaas) worth(f int32, extra time.Duration) float64 {
	w, q := &o.flows[f], &o.queues.queues[f]
	now := o.engine.now
	since := max(now-w.last, time.Millisecond)
	if w.arrivals > 1 {
		since = max(since, (w.last-w.first)/time.Duration(w.arrivals-1))
	} else {
		since = max(since, now-w.first)
	}
	return float64(extra) * (float64(q.len) + 1/since.Seconds())
}
