package queue_test

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// driver is what a gateway is to a policy, with everything that can go wrong:
// slow and failed starts, work that overruns, callers that leave, moves that
// fail, instances that die, GPUs and functions that come and go, restarts. It
// holds every action against what is there.
type driver struct {
	t         *rapid.T
	r         *rand.Rand
	config    queue.Config
	policy    queue.Policy
	now, wake time.Duration
	gpus      map[int32]*queue.GPU
	occupied  map[int32]int64 // memory that others have there
	functions map[int32]*queue.Function
	calls     map[int64]*call
	instances map[residency.ID]*server
	dead      map[residency.ID]bool // known to have died; the policy may not know yet
	leaving   map[int32]bool        // functions that are gone, but not forgotten
	closed    map[int32]bool        // GPUs that are gone
	starts    map[int32]*starts     // of functions
	due       []timed
	ids       int64
	adopted   residency.ID
	unlucky   int  // percent of the starts that fail
	short     int  // percent of those that fail for want of memory
	calm      bool // nothing goes wrong any more
	steps     []step
}

type call struct {
	function int32
	state    string // waits, runs, over
	on       residency.ID
	deadline time.Duration // 0 is none
	starting time.Duration // the total of its function's starts when it got its deadline
}

// starts is what the starts of a function's instances came to.
type starts struct {
	version    int // instances of earlier ones take no more calls
	failures   int // in a row
	pause      time.Duration
	unsure     bool // one failed for want of memory, which may count or not
	inProgress int
	since      time.Duration
	before     time.Duration // the time for which some were in progress, before since
}

// total returns the time for which starts have been in progress.
func (s *starts) total(now time.Duration) time.Duration {
	if s.inProgress > 0 {
		return s.before + now - s.since
	}
	return s.before
}

func (s *starts) begin(now time.Duration) {
	if s.inProgress == 0 {
		s.since = now
	}
	s.inProgress++
}

func (s *starts) end(now time.Duration) {
	s.before = s.total(now)
	s.since = now
	s.inProgress--
}

func (s *starts) failed(now time.Duration) {
	if now < s.pause {
		return
	}
	if s.failures++; s.failures >= 3 {
		s.pause = now + min(time.Second<<(s.failures-3), time.Minute)
	}
}

func (d *driver) startsOf(f int32) *starts {
	if d.starts[f] == nil {
		d.starts[f] = &starts{}
	}
	return d.starts[f]
}

// server is an instance.
type server struct {
	function, gpu int32
	mem, least    int64 // least: what it was promised
	stays         int64 // beside mem, when that is on the host
	resident, up  bool  // up: started
	pinned        bool  // another's: not to be stopped or moved
	starting      bool  // the policy waits for its start to end
	stopping      bool
	version       int // of its function
	calls         int
}

type timed struct {
	at time.Duration
	do func() []queue.Event
}

// step is one call of the policy, as a recorder would keep it.
type step struct {
	now     time.Duration
	events  []queue.Event
	actions []queue.Action
}

func (d *driver) chance(percent int) bool { return !d.calm && d.r.IntN(100) < percent }

func (d *driver) some(most time.Duration) time.Duration {
	return time.Duration(d.r.Int64N(int64(most)) + 1)
}

func (d *driver) after(t time.Duration, do func() []queue.Event) {
	d.due = append(d.due, timed{d.now + t, do})
	slices.SortStableFunc(d.due, func(a, b timed) int { return cmp.Compare(a.at, b.at) })
}

// tell gives the policy events and does what it says.
func (d *driver) tell(events ...queue.Event) {
	for i := range events {
		d.observe(&events[i])
	}
	actions := d.policy.Step(d.now, events, nil)
	d.steps = append(d.steps, step{d.now, slices.Clone(events), slices.Clone(actions)})
	for i := range actions {
		if a := &actions[i]; a.Reason.Rule == "" {
			d.t.Fatalf("%v: %+v says no reason", d.now, a)
		} else {
			d.do(a)
		}
	}
	d.check()
}

// observe notes what an event says of starts.
func (d *driver) observe(ev *queue.Event) {
	if ev.Kind == queue.FunctionSet {
		s := d.startsOf(ev.Function)
		if ev.Renew || d.leaving[ev.Function] {
			s.failures, s.pause, s.unsure = 0, 0, false
		}
		if ev.Renew {
			s.version++
		}
		delete(d.leaving, ev.Function)
	}
	s := d.instances[ev.Instance]
	if s == nil || !s.starting {
		return
	}
	switch ev.Kind {
	case queue.Started, queue.Ready, queue.Completed:
		of := d.startsOf(s.function)
		s.starting = false
		of.end(d.now)
		of.failures, of.pause, of.unsure = 0, 0, false
	default:
	}
}

func (d *driver) do(a *queue.Action) {
	switch c, s := d.calls[a.ID], d.instances[a.Instance]; a.Kind {
	case queue.Run:
		if c == nil || c.state != "waits" || c.function != a.Function {
			d.t.Fatalf("%v: %+v of %+v", d.now, a, c)
		}
		fresh := s == nil
		if fresh {
			s = d.start(a)
		}
		if s.function != a.Function || s.gpu != a.GPU || s.stopping || !s.pinned && s.version < d.startsOf(s.function).version || s.calls >= max(int(d.functions[a.Function].Inflight), 1) {
			d.t.Fatalf("%v: %+v on %+v", d.now, a, s)
		}
		if !s.resident {
			s.mem = s.least // it is content with that
		}
		c.state, c.on, s.resident = "runs", a.Instance, true
		s.calls++
		d.run(a.ID, a.Instance, fresh)
	case queue.Reject:
		if c == nil || c.state != "waits" {
			d.t.Fatalf("%v: %+v of %+v", d.now, a, c)
		}
		if of := d.startsOf(a.Function); a.Reason.Rule == queue.TooLate && c.deadline > 0 && (of.inProgress > 0 || c.deadline+of.total(d.now)-c.starting > d.now) {
			d.t.Fatalf("%v: %+v of %+v, with %+v", d.now, a, c, of)
		}
		c.state = "over"
	case queue.Start:
		s := d.start(a)
		d.after(d.some(time.Second), func() []queue.Event {
			switch {
			case d.instances[a.Instance] != s:
				return nil
			case s.stopping && d.chance(50): // it was ready as its start was cancelled
				return []queue.Event{{Kind: queue.Ready, Instance: a.Instance}}
			case s.stopping:
				return nil
			case d.chance(d.unlucky):
				return d.gone(a.Instance, d.chance(d.short))
			}
			s.up = true
			return []queue.Event{{Kind: queue.Ready, Instance: a.Instance}}
		})
	case queue.Remove, queue.Offload, queue.Prefetch:
		if d.dead[a.Instance] {
			return
		}
		if s != nil && s.starting && !s.pinned && a.Kind == queue.Remove {
			d.cancel(a.Instance, s)
			return
		}
		if s == nil || s.calls > 0 || s.stopping || !s.up && !s.pinned {
			d.t.Fatalf("%v: %+v of %+v", d.now, a, s)
		}
		if s.pinned && (a.Kind != queue.Remove || d.functions[a.Function] != nil && !d.leaving[a.Function] && d.gpus[a.GPU] != nil && !d.closed[a.GPU]) {
			d.t.Fatalf("%v: %+v of %+v, which is pinned", d.now, a, s)
		}
		if s.starting { // one of a plan
			s.starting = false
			d.startsOf(s.function).end(d.now)
		}
		s.stopping = a.Kind == queue.Remove
		to := residency.HostWarm
		if a.Kind == queue.Prefetch {
			to, s.resident, s.mem = residency.GPUWarm, true, s.least
		}
		d.after(d.some(300*time.Millisecond), func() []queue.Event { return d.moved(a.Instance, s, to) })
	case queue.Wake:
		d.wake = a.At
	case queue.Forget:
		delete(d.functions, a.Function)
		delete(d.leaving, a.Function)
		delete(d.starts, a.Function)
	}
}

// gone ends an instance. A start that failed because the GPU had too little memory may
// count as a failure or not.
func (d *driver) gone(id residency.ID, short bool) []queue.Event {
	if s := d.instances[id]; s.starting {
		s.starting = false
		d.startsOf(s.function).end(d.now)
		if short {
			d.startsOf(s.function).unsure = true
		} else if !s.pinned {
			d.startsOf(s.function).failed(d.now)
		}
	}
	delete(d.instances, id)
	return []queue.Event{{Kind: queue.Lost, Instance: id, Short: short}}
}

// cancel cancels the start of an instance: the calls that it was for wait again.
func (d *driver) cancel(id residency.ID, s *server) {
	s.starting, s.stopping, s.calls = false, true, 0
	d.startsOf(s.function).end(d.now)
	for _, c := range d.calls {
		if c.state == "runs" && c.on == id {
			c.state = "waits"
		}
	}
	d.after(d.some(300*time.Millisecond), func() []queue.Event { return d.moved(id, s, residency.HostWarm) })
}

func (d *driver) start(a *queue.Action) *server {
	if d.instances[a.Instance] != nil || d.gpus[a.GPU] == nil {
		d.t.Fatalf("%v: %+v of a new instance", d.now, a)
	}
	of := d.startsOf(a.Function)
	if !of.unsure && (d.now < of.pause || of.failures >= 3 && of.inProgress > 0) {
		d.t.Fatalf("%v: %+v starts an instance, with %+v", d.now, a, of)
	}
	of.begin(d.now)
	s := &server{function: a.Function, gpu: a.GPU, mem: d.functions[a.Function].Mem, least: d.functions[a.Function].Mem, resident: true, starting: true, version: of.version}
	d.instances[a.Instance] = s
	return s
}

// moved ends a stop or a move, which may have failed.
func (d *driver) moved(id residency.ID, s *server, to residency.Start) []queue.Event {
	if d.instances[id] != s {
		return nil // it died
	}
	if s.stopping {
		return d.gone(id, false)
	}
	fault := d.chance(20)
	if s.calls == 0 {
		s.resident = (to == residency.GPUWarm) != fault // it is where it was
	}
	return []queue.Event{{Kind: queue.Moved, Instance: id, To: to, Fault: fault}}
}

// run carries a call out, its start first.
func (d *driver) run(id int64, on residency.ID, fresh bool) {
	starting := time.Duration(0)
	if fresh {
		starting = d.some(2 * time.Second)
	}
	took := d.some(200 * time.Millisecond)
	if d.chance(10) {
		took *= 100
	}
	s := d.instances[on]
	d.after(starting, func() []queue.Event {
		switch {
		case d.instances[on] == s && s.stopping && d.chance(50): // it was ready as its start was cancelled
			return []queue.Event{{Kind: queue.Started, Instance: on, ID: id}}
		case d.calls[id].state != "runs" || d.calls[id].on != on || d.instances[on] != s:
			return nil // ended with its instance, or with its start
		case fresh && s.starting && d.chance(d.unlucky):
			short := d.chance(d.short)
			events := d.end(id, queue.Event{Kind: queue.Failed, Starting: true, Short: short, Again: d.chance(50)})
			return append(events, d.dies(on, short)[1:]...)
		}
		s.up = true
		d.after(took, func() []queue.Event {
			if d.calls[id].state != "runs" || d.calls[id].on != on || d.instances[on] != s {
				return nil
			}
			s.calls--
			if d.chance(10) {
				return d.end(id, queue.Event{Kind: queue.Failed, Executed: took, Again: d.chance(50)})
			}
			return d.end(id, queue.Event{Kind: queue.Completed, Executed: took})
		})
		return []queue.Event{{Kind: queue.Started, Instance: on, ID: id}}
	})
}

func (d *driver) end(id int64, ev queue.Event) []queue.Event {
	c := d.calls[id]
	ev.ID, ev.Instance, ev.Function = id, c.on, c.function
	if c.state = "over"; ev.Again {
		c.state = "waits"
		if s := d.instances[c.on]; d.chance(20) {
			ev.Deadline = d.now + d.some(2*time.Second)
			c.deadline, c.starting = ev.Deadline, d.startsOf(c.function).total(d.now)
		} else if s != nil && s.up {
			c.deadline = 0 // it may have passed while the call ran
		}
	}
	return []queue.Event{ev}
}

// die ends an instance with all that runs on it.
func (d *driver) die(id residency.ID) []queue.Event { return d.dies(id, false) }

func (d *driver) dies(id residency.ID, short bool) []queue.Event {
	d.dead[id] = true
	was := d.instances[id]
	events := d.gone(id, short)
	for _, c := range d.sorted() {
		if d.calls[c].state == "runs" && d.calls[c].on == id {
			events = append(events, d.end(c, queue.Event{Kind: queue.Failed, Executed: d.some(time.Second), Again: d.chance(50)})...)
			if was.up && events[len(events)-1].Deadline == 0 {
				d.calls[c].deadline = 0 // it may have passed while the call ran
			}
		}
	}
	return events
}

func (d *driver) sorted() []int64 {
	var ids []int64
	for id := range d.calls {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// check holds slots and memory against what the GPUs have.
func (d *driver) check() {
	busy, mem := map[int32]float64{}, maps.Clone(d.occupied)
	for _, s := range d.instances {
		mem[s.gpu] += s.holds()
		if s.calls > 0 && !s.pinned {
			share := 1.0
			if f := d.functions[s.function]; f != nil && f.Slice > 0 {
				share = f.Slice * float64(d.slots(s.gpu))
			}
			busy[s.gpu] += share
		}
	}
	for g, m := range d.gpus {
		if m.Mem > 0 && mem[g] > m.Mem {
			d.t.Fatalf("%v: %d bytes on GPU %d, which has %d: %+v", d.now, mem[g], g, m.Mem, d.policy.Snapshot())
		}
		if busy[g] > float64(d.slots(g))+0.01 {
			d.t.Fatalf("%v: GPU %d runs %g at once, may %d", d.now, g, busy[g], d.slots(g))
		}
	}
	if d.config.Limits.Slots == 0 && d.config.Policy != "batch" {
		d.checkPlanned()
	}
	for id, c := range d.calls {
		of := d.startsOf(c.function)
		if c.state == "waits" && c.deadline > 0 && of.inProgress == 0 && c.deadline+of.total(d.now)-c.starting <= d.now {
			d.t.Fatalf("%v: call %d still waits: %+v, with %+v", d.now, id, c, of)
		}
	}
}

// checkPlanned: nothing waits that an instance of a plan could take.
func (d *driver) checkPlanned() {
	waits := map[int32]int64{}
	for id, c := range d.calls {
		if c.state == "waits" && d.functions[c.function] != nil {
			waits[c.function] = id
		}
	}
	for id, s := range d.instances {
		call, some := waits[s.function]
		if some && s.pinned && s.up && !s.stopping && !d.dead[id] && !d.closed[s.gpu] && s.calls < max(int(d.functions[s.function].Inflight), 1) {
			d.t.Fatalf("%v: call %d waits, although %+v could take it", d.now, call, s)
		}
	}
}

func (d *driver) slots(gpu int32) int {
	if queue.OneAtATime(d.config.Policy) {
		return 1
	}
	if g := d.gpus[gpu]; g != nil {
		return g.Slots
	}
	return 9
}

// function draws what a function is.
func (d *driver) function(f int32) queue.Event {
	warm := d.some(200 * time.Millisecond)
	spec := &queue.Function{Name: string(rune('a' + f)), Warm: warm, Load: d.some(100 * time.Millisecond), Mem: int64(d.r.IntN(12)),
		Weight: []float64{1, 2, 0.5, 0.3}[d.r.IntN(4)], Tenant: int32(d.r.IntN(2)), Queue: int32(d.r.IntN(3) * 4),
		Inflight: int32(d.r.IntN(3)), Min: int32(d.r.IntN(4) / 3), Max: int32(d.r.IntN(3)), Slice: []float64{0, 0, 0.25, 0.6}[d.r.IntN(4)],
		Idle: time.Duration(d.r.IntN(3)) * time.Second}
	spec.Cold = spec.Warm + spec.Load + d.some(2*time.Second)
	if old := d.functions[f]; old != nil { // what runs keeps what it was checked by
		spec.Slice, spec.Inflight, spec.Mem = old.Slice, old.Inflight, old.Mem
	}
	if spec.Max > 0 {
		spec.Max = max(spec.Max, spec.Min)
	}
	d.functions[f] = spec
	return queue.Event{Kind: queue.FunctionSet, Function: f, Spec: spec, Renew: d.chance(20)}
}

func (d *driver) gpu(g int32) queue.Event {
	if d.gpus[g] == nil {
		d.gpus[g] = &queue.GPU{Slots: 1 + d.r.IntN(3), Mem: int64(d.r.IntN(2) * (12 + d.r.IntN(20)))}
	}
	delete(d.closed, g)
	return queue.Event{Kind: queue.GPUSet, GPU: g, Machine: d.gpus[g]}
}

// something is what happens next: mostly calls that come, now and then anything
// else.
func (d *driver) something() []queue.Event {
	f := int32(d.r.IntN(5))
	switch d.r.IntN(40) {
	case 0:
		return []queue.Event{d.function(f)}
	case 1:
		if d.functions[f] == nil {
			return nil
		}
		d.leaving[f] = true
		return []queue.Event{{Kind: queue.FunctionGone, Function: f}}
	case 2:
		return []queue.Event{d.gpu(int32(d.r.IntN(3)))}
	case 3:
		g := int32(d.r.IntN(3))
		d.closed[g] = true
		return []queue.Event{{Kind: queue.GPUGone, GPU: g}}
	case 4:
		if old := d.functions[f]; old != nil {
			spec := *old
			spec.Warm, spec.Need = d.some(time.Second), int64(d.r.IntN(20))
			return []queue.Event{{Kind: queue.Learned, Function: f, Spec: &spec}}
		}
	case 5, 6:
		for _, id := range d.names() {
			if d.instances[id].up && d.chance(50) {
				events := d.die(id)
				if d.r.IntN(2) == 0 {
					slices.Reverse(events)
				}
				return events
			}
		}
	case 7, 8, 9:
		for _, id := range d.sorted() {
			if c := d.calls[id]; c.state == "waits" && d.chance(30) {
				c.state = "over"
				return []queue.Event{{Kind: queue.Cancelled, ID: id, Function: c.function}}
			}
		}
	case 10:
		return []queue.Event{{Kind: queue.Used, GPU: int32(d.r.IntN(3)), Busy: d.r.Float64()}}
	case 25:
		return d.occupy(int32(d.r.IntN(3)))
	case 26:
		return d.shrink(int32(d.r.IntN(3)))
	case 27, 28:
		return d.measure()
	case 29:
		return d.up(f, int32(d.r.IntN(3)))
	case 11:
		if d.chance(20) {
			d.restart()
		}
	case 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24:
		ev := queue.Event{Kind: queue.Arrived, ID: d.ids, Function: f, At: d.now}
		if d.chance(20) {
			ev.Deadline = d.now + d.some(2*time.Second)
		}
		d.calls[d.ids] = &call{function: f, state: "waits", deadline: ev.Deadline, starting: d.startsOf(f).total(d.now)}
		d.ids++
		return []queue.Event{ev}
	}
	return nil
}

// occupy has others take some of the memory that is free on a GPU, or give it back.
func (d *driver) occupy(g int32) []queue.Event {
	if d.gpus[g] == nil {
		return nil
	}
	free := d.free(g) + d.occupied[g]
	if d.occupied[g] = 0; free > 0 {
		d.occupied[g] = d.r.Int64N(free + 1)
	}
	return []queue.Event{{Kind: queue.Occupied, GPU: g, Mem: d.occupied[g]}}
}

// free returns the memory of a GPU that nothing has.
func (d *driver) free(g int32) int64 {
	free := d.gpus[g].Mem - d.occupied[g]
	for _, s := range d.instances {
		if s.gpu == g {
			free -= s.holds()
		}
	}
	return free
}

// holds returns the memory that an instance has on its GPU.
func (s *server) holds() int64 {
	if s.resident {
		return s.mem + s.stays
	}
	return s.stays
}

// shrink takes some of the memory that is free from a GPU, as other programs do.
func (d *driver) shrink(g int32) []queue.Event {
	if d.gpus[g] == nil || d.closed[g] || d.gpus[g].Mem == 0 || d.free(g) <= 0 {
		return nil
	}
	less := *d.gpus[g]
	less.Mem = max(less.Mem-d.r.Int64N(d.free(g)+1), 1)
	d.gpus[g] = &less
	return []queue.Event{d.gpu(g)}
}

// measure has an instance take more of the memory that is free, or less.
func (d *driver) measure() []queue.Event {
	for _, id := range d.names() {
		s := d.instances[id]
		if !s.up || !s.resident || d.gpus[s.gpu] == nil || d.chance(50) {
			continue
		}
		most := int64(20)
		if d.gpus[s.gpu].Mem > 0 {
			most = s.mem + s.stays + max(d.free(s.gpu), 0)
		}
		mem := d.r.Int64N(most + 1)
		s.mem, s.stays = max(mem, s.least), 0
		if most > s.mem && !s.pinned && d.chance(50) {
			s.stays = d.r.Int64N(most - s.mem + 1)
		}
		return []queue.Event{{Kind: queue.Measured, Instance: id, Function: s.function, Mem: mem + s.stays, Stays: s.stays}}
	}
	return nil
}

// up has another process start an instance, which becomes ready or does not.
func (d *driver) up(f, g int32) []queue.Event {
	if d.functions[f] == nil || d.leaving[f] || d.gpus[g] == nil || d.closed[g] {
		return nil
	}
	promised := int64(d.r.IntN(8))
	s := &server{function: f, gpu: g, mem: max(d.functions[f].Mem, promised), resident: true, pinned: true, starting: true}
	if d.gpus[g].Mem > 0 && d.free(g) < s.mem {
		return nil
	}
	s.least = s.mem
	d.adopted--
	id := d.adopted
	d.instances[id] = s
	d.startsOf(f).begin(d.now)
	d.after(d.some(3*time.Second), func() []queue.Event {
		switch {
		case d.instances[id] != s || s.stopping:
			return nil
		case d.chance(30):
			return d.die(id)
		}
		s.up = true
		return []queue.Event{{Kind: queue.Ready, Instance: id, Function: f, Spec: &queue.Function{Warm: d.some(time.Second)}}}
	})
	return []queue.Event{{Kind: queue.Adopted, Instance: id, Function: f, GPU: g, To: residency.GPUWarm, Pinned: true, Starting: true, Mem: promised}}
}

func (d *driver) names() []residency.ID {
	var ids []residency.ID
	for id := range d.instances {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// restart ends the policy: what runs and waits is cut, instances live on and are
// adopted by the next.
func (d *driver) restart() {
	d.replay()
	old := d.instances
	d.instances, d.dead = map[residency.ID]*server{}, map[residency.ID]bool{}
	d.due, d.steps, d.wake = nil, nil, queue.Never
	d.policy = d.fresh()
	d.starts = map[int32]*starts{}
	for _, c := range d.calls {
		c.state = "over"
	}
	var events []queue.Event
	for g := range int32(3) {
		if d.gpus[g] != nil {
			events = append(events, d.gpu(g), queue.Event{Kind: queue.Occupied, GPU: g, Mem: d.occupied[g]})
		}
	}
	for f := range int32(5) {
		if spec := d.functions[f]; spec != nil {
			events = append(events, queue.Event{Kind: queue.FunctionSet, Function: f, Spec: spec})
		}
	}
	var left []residency.ID
	for id := range old {
		left = append(left, id)
	}
	slices.Sort(left)
	for _, id := range left {
		s := old[id]
		if !s.up || s.stopping || d.functions[s.function] == nil || s.mem < d.functions[s.function].Mem {
			continue // stopped by whoever drives
		}
		d.adopted--
		s.calls, s.version = 0, 0
		d.instances[d.adopted] = s
		s.pinned = s.resident && (s.pinned || d.chance(20))
		if s.resident {
			s.mem += s.stays
		}
		s.least, s.stays = max(d.functions[s.function].Mem, s.mem), 0
		ev := queue.Event{Kind: queue.Adopted, Instance: d.adopted, Function: s.function, GPU: s.gpu, To: residency.HostWarm, Pinned: s.pinned, Mem: s.mem}
		if s.pinned && d.chance(50) {
			ev.Spec = &queue.Function{Warm: d.some(time.Second)}
		}
		if s.resident {
			ev.To = residency.GPUWarm
		}
		events = append(events, ev)
	}
	d.tell(events...)
}

func (d *driver) fresh() queue.Policy {
	p, err := queue.New(d.config)
	if err != nil {
		d.t.Fatal(err)
	}
	return p
}

// replay gives what was recorded to another policy of the kind.
func (d *driver) replay() {
	p := d.fresh()
	for i, s := range d.steps {
		if got := p.Step(s.now, s.events, nil); !reflect.DeepEqual(got, s.actions) && len(got)+len(s.actions) > 0 {
			d.t.Fatalf("step %d replayed: %+v, was %+v", i, got, s.actions)
		}
	}
}

// next goes to the next thing that is due; false when nothing is.
func (d *driver) next() bool {
	switch {
	case len(d.due) > 0 && d.due[0].at <= d.wake:
		first := d.due[0]
		d.due = d.due[1:]
		d.now = max(d.now, first.at)
		if events := first.do(); events != nil {
			d.tell(events...)
		}
	case d.wake < queue.Never:
		if d.wake < d.now {
			d.t.Fatalf("%v: woken at %v, which is over", d.now, d.wake)
		}
		d.now, d.wake = d.wake, queue.Never
		d.tell(queue.Event{Kind: queue.Woke})
	default:
		return false
	}
	return true
}

// TestStorm drives every policy through all that can go wrong: no invocation is
// stuck, none runs twice, slots and memory are never exceeded, and what was
// recorded replays to the same decisions.
func TestStorm(t *testing.T) {
	for _, policy := range queue.Names() {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) { storm(t, policy) })
		})
	}
}

func storm(t *rapid.T, policy string) {
	d := &driver{t: t, r: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), wake: queue.Never, adopted: residency.None,
		gpus: map[int32]*queue.GPU{}, occupied: map[int32]int64{}, functions: map[int32]*queue.Function{}, leaving: map[int32]bool{}, closed: map[int32]bool{}, calls: map[int64]*call{}, instances: map[residency.ID]*server{}, dead: map[residency.ID]bool{},
		starts: map[int32]*starts{}, unlucky: rapid.SampledFrom([]int{20, 70}).Draw(t, "unlucky"), short: rapid.SampledFrom([]int{0, 50}).Draw(t, "short"),
		config: queue.Config{Policy: policy, Options: queue.Defaults(),
			Pool: rapid.SampledFrom([]int{residency.Unlimited, 2, 5}).Draw(t, "pool")}}
	d.config.T = time.Duration(rapid.IntRange(0, 3).Draw(t, "T")) * time.Second
	d.config.Prefetch, d.config.Patient = rapid.Bool().Draw(t, "prefetch"), rapid.Bool().Draw(t, "patient")
	d.config.Utilization = float64(rapid.IntRange(0, 1).Draw(t, "utilization")) * 0.8
	d.config.Limits.Slots = rapid.IntRange(0, 2).Draw(t, "tenant slots")
	d.policy = d.fresh()
	d.tell(d.gpu(0), d.function(0), d.function(1))
	pace := rapid.IntRange(1, 4).Draw(t, "pace")
	for range rapid.IntRange(1, 400).Draw(t, "steps") {
		if events := d.something(); events != nil {
			d.tell(events...)
		}
		if d.r.IntN(pace) == 0 {
			d.next()
		}
	}
	for _, f := range d.policy.Snapshot().Functions {
		if (f.Why == "") != (f.Waiting == 0) {
			t.Fatalf("%d of %d wait because %q", f.Waiting, f.Function, f.Why)
		}
	}
	d.calm = true
	d.gpus[0] = &queue.GPU{Slots: d.slots(0)} // with memory for all
	d.tell(d.gpu(0))
	for g := range int32(3) { // what is bound to a GPU may wait for memory that others have there
		d.occupied[g] = 0
		d.tell(queue.Event{Kind: queue.Occupied, GPU: g})
	}
	for range 20000 {
		if !d.next() {
			break
		}
	}
	for _, id := range d.sorted() {
		if c := d.calls[id]; c.state != "over" {
			t.Fatalf("invocation %d of %d %s for ever: %+v", id, c.function, c.state, d.policy.Snapshot())
		}
	}
	for _, f := range d.policy.Snapshot().Functions {
		if f.Waiting > 0 || f.InFlight > 0 {
			t.Fatalf("nothing is left, and of %d %d wait, %d run", f.Function, f.Waiting, f.InFlight)
		}
	}
	d.replay()
}

// TestNoDeadline: what runs at once leaves no deadline behind, at which a gateway
// would have to look that it is gone.
func TestNoDeadline(t *testing.T) {
	for _, policy := range queue.Names() {
		p, err := queue.New(queue.Config{Policy: policy, Pool: residency.Unlimited, Options: queue.Defaults()})
		if err != nil {
			t.Fatal(err)
		}
		p.Step(0, []queue.Event{{Kind: queue.GPUSet, Machine: &queue.GPU{Slots: 1}},
			{Kind: queue.FunctionSet, Spec: &queue.Function{Warm: time.Second, Cold: 2 * time.Second, Weight: 1}}}, nil)
		wake := func(now time.Duration, e queue.Event) time.Duration {
			for _, a := range p.Step(now, []queue.Event{e}, nil) {
				if a.Kind == queue.Wake {
					return a.At
				}
			}
			return 0
		}
		if at := wake(0, queue.Event{Kind: queue.Arrived, ID: 1, Deadline: time.Minute}); at != 0 {
			t.Errorf("%s: woken at %v for what runs", policy, at)
		}
		if at := wake(1, queue.Event{Kind: queue.Arrived, ID: 2, At: 1, Deadline: time.Minute + 1}); at != time.Minute+1 {
			t.Errorf("%s: woken at %v for what waits", policy, at)
		}
	}
}
