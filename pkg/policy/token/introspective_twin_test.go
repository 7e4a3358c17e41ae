package token

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// sharesTwin is a simple twin of introspective: from the events and the leases of a GPU, it computes the phases and the
// shares as the rules V1 to V10 of docs/sharing.md describe them. The trials are input: when one takes place, and the
// speed that it has measured. The twin stores the use of an instance in all periods, and searches it.
type sharesTwin struct {
	p         IntrospectiveParameters
	now       time.Duration
	period    time.Duration // start of the current period
	instances map[string]*twinInstance
}

type twinInstance struct {
	AddInstance
	request, limit float64
	speed          float64 // blocks per second; 0: unknown
	clients        map[ClientID]*twinClient
	blocks         uint64 // in the current period
	launched       time.Duration
	use            []float64 // in each period, oldest first

	shortest, stretch float64
	iteration         float64   // launches in the last complete run; 0: unknown
	recent            []float64 // stretches that count, measured in the current period
	outlier           bool      // the last stretch was an outlier
	state             string
	share, issued     float64
}

type twinClient struct {
	launches, blocks       uint64
	wants, leased, revoked bool
	granted                time.Duration
	trial                  bool // the lease is that of a trial
	trialLaunches          uint64

	running, parts bool
	abandoned      bool          // the run began with a trial that was abandoned
	start, part    time.Duration // of the run, and of its current part
	before, inPart uint64        // launches before the run, and before the part
}

func (i *twinInstance) active() bool {
	for _, c := range i.clients {
		if c.wants || c.leased {
			return true
		}
	}
	return false
}

// idle is rule V1 for a part of the window.
func (w *sharesTwin) idle(i *twinInstance, part float64) bool {
	window := time.Duration(part * float64(w.p.rateWindow) * float64(w.p.period))
	return !i.active() && w.now-i.launched >= window
}

// all returns the instances in the order of their names.
func (w *sharesTwin) all() (out []*twinInstance) {
	for _, name := range slices.Sorted(maps.Keys(w.instances)) {
		out = append(out, w.instances[name])
	}
	return out
}

func (w *sharesTwin) find(id ClientID) (*twinInstance, *twinClient) {
	for _, i := range w.instances {
		if c := i.clients[id]; c != nil {
			return i, c
		}
	}
	return nil, nil
}

// step repeats a Step of the policy, which had the given trial in progress before and has done these actions.
func (w *sharesTwin) step(l logged, trial *trial, after *introspective, actions []Action) {
	w.now = l.at
	w.skip()
	woken := false
	for _, ev := range l.events {
		_, wake := ev.(Wake)
		woken = woken || wake
		w.apply(ev, trial)
	}
	if woken && w.now >= w.period+w.p.period {
		if trial == nil {
			w.end()
		}
		w.period = w.now
	}
	if trial != nil && after.trial != trial { // the trial has ended
		w.period = w.now
		if i := w.instances[trial.client.inst.id]; i != nil {
			i.blocks = 0
		}
		if _, c := w.find(trial.client.id); c != nil && c.trial && c.running { // it was abandoned
			c.trial, c.abandoned, c.parts = false, true, false
			c.start, c.part, c.inPart = w.now, w.now, c.launches
		}
	}
	for _, a := range actions {
		switch a := a.(type) {
		case Grant:
			_, c := w.find(a.Client)
			c.leased, c.wants, c.revoked, c.granted, c.trial = true, false, false, w.now, after.trial != nil
			c.trialLaunches = c.launches
			if !c.running {
				c.running, c.parts, c.abandoned = true, false, false
				c.start, c.part, c.before, c.inPart = w.now, w.now, c.launches, c.launches
			}
		case Revoke:
			_, c := w.find(a.Client)
			c.revoked = true
		}
	}
	for _, i := range after.instances {
		w.instances[i.id].speed = i.gauge.speed
	}
}

// skip counts periods in which all clients were idle.
func (w *sharesTwin) skip() {
	past := int((w.now - w.period) / w.p.period)
	for _, i := range w.instances {
		if i.active() {
			return
		}
	}
	if past < 2 {
		return
	}
	for _, i := range w.instances {
		i.use, i.blocks = append(i.use, make([]float64, min(past, w.p.rateWindow))...), 0
	}
	w.period = w.now
}

func (w *sharesTwin) apply(ev Event, trial *trial) {
	switch ev := ev.(type) {
	case AddInstance:
		i := w.instances[ev.Instance]
		if i == nil {
			i = &twinInstance{clients: map[ClientID]*twinClient{}, launched: math.MinInt64 / 2, state: "NONE"}
			w.instances[ev.Instance] = i
		}
		i.AddInstance = ev
		i.request = ev.Slice.SMPct / 100 * ev.Slice.QuotaRequest
		i.limit = max(ev.Slice.SMPct, ev.Slice.SMLimitPct) / 100 * ev.Slice.QuotaLimit
		i.share = min(max(i.share, i.request), i.limit)
		i.issued = i.share
	case RemoveInstance:
		delete(w.instances, ev.Instance)
	case AddClient:
		if i := w.instances[ev.Instance]; i != nil {
			i.clients[ev.Client] = &twinClient{}
		}
	case RemoveClient:
		if i, _ := w.find(ev.Client); i != nil {
			delete(i.clients, ev.Client)
		}
	case Request:
		if _, c := w.find(ev.Client); c != nil && (!c.leased || c.revoked) {
			c.wants = true
		}
	case Sample:
		if i, c := w.find(ev.Client); c != nil {
			if ev.Launches > c.launches || ev.Blocks > c.blocks {
				i.launched = w.now
			}
			i.blocks += ev.Blocks - c.blocks
			c.launches, c.blocks = ev.Launches, ev.Blocks
		}
	case Return:
		if i, c := w.find(ev.Client); c != nil && c.leased {
			w.giveBack(i, c, ev)
		}
	}
}

// giveBack ends a lease, and with it the run or the trial (V2).
func (w *sharesTwin) giveBack(i *twinInstance, c *twinClient, ev Return) {
	c.leased, c.wants = false, c.wants || ev.WantsMore
	used := min(ev.Used, w.now-c.granted)
	switch launches := c.launches - c.trialLaunches; {
	case c.trial:
		c.running = false
		if used >= time.Millisecond && launches > 0 && (!c.wants || i.shortest == 0 || i.speed == 0) {
			i.shortest = float64(used) / float64(launches) * i.alone() / i.limit
		}
		return
	case c.wants || !c.running:
		return
	}
	c.running = false
	took := c.granted - c.start + used
	launches := c.launches - c.before
	if i.SLO > 0 && !c.parts && !c.abandoned && took >= time.Millisecond && launches > 0 {
		i.iteration = float64(launches)
		w.cycle(i, float64(took)/float64(launches), true)
	}
}

// alone is the largest share that the instance can use.
func (i *twinInstance) alone() float64 {
	if i.Unenforced {
		return 1
	}
	return max(i.Slice.SMPct, i.Slice.SMLimitPct) / 100
}

// cycle records a launch cycle (V2).
func (w *sharesTwin) cycle(i *twinInstance, took float64, complete bool) {
	if complete {
		i.shortest = min(cmp.Or(i.shortest, took), took)
	}
	if i.shortest == 0 {
		return
	}
	stretch := max(1, took/i.shortest)
	if outlier := stretch > w.p.outlier; outlier && !i.outlier {
		i.outlier = true
		return
	} else if !outlier {
		i.outlier = false
	}
	i.stretch, i.recent = stretch, append(i.recent, stretch)
}

// end ends a period: it computes the phases and shares.
func (w *sharesTwin) end() {
	for _, i := range w.all() {
		use := 0.0
		if i.speed > 0 {
			use = float64(i.blocks) / i.speed / (w.now - w.period).Seconds() * i.alone()
		}
		i.use, i.blocks = append(i.use, use), 0
		for _, id := range slices.Sorted(maps.Keys(i.clients)) {
			c := i.clients[id]
			if took, launches := w.now-c.part, c.launches-c.inPart; c.running && i.SLO > 0 && took >= 10*w.p.period && launches > 0 {
				each := float64(took) / float64(launches)
				if i.iteration > 0 {
					each = max(each-3e6/i.iteration, i.shortest)
				}
				complete := c.parts
				c.parts, c.part, c.inPart = true, w.now, c.launches
				w.cycle(i, each, complete)
			}
		}
	}
	w.scale()
	w.fit()
	for _, i := range w.instances {
		i.recent = nil
	}
}

// scale is rules V3 to V6.
func (w *sharesTwin) scale() {
	for _, i := range w.instances {
		if i.SLO == 0 {
			continue
		}
		others := true
		for _, o := range w.instances {
			others = others && (o == i || w.idle(o, 1))
		}
		violation := w.violation(i)
		recovered := i.stretch < w.p.recovery && i.stretch*i.limit/i.request <= violation
		if w.idle(i, 1) {
			i.stretch, i.recent = 0, nil
			i.state, i.share = "RECOVERY", i.request
		} else if i.stretch > violation || i.state == "EMERGENCY" && !recovered {
			i.state, i.share = "EMERGENCY", i.limit
		} else if others {
			i.state, i.share = "RECOVERY", min(w.p.increase*i.share, i.limit)
		} else {
			i.state, i.share = "CONTENTION", i.request
		}
	}

	state, order := "NONE", []string{"NONE", "RECOVERY", "CONTENTION", "EMERGENCY"}
	measured, violated := 0.0, false
	for _, i := range w.instances {
		if i.SLO == 0 || len(i.clients) == 0 {
			continue
		}
		if slices.Index(order, i.state) > slices.Index(order, state) {
			state = i.state
		}
		if i.state == "EMERGENCY" && len(i.recent) > 0 {
			measured = max(measured, i.stretch)
			violated = violated || i.stretch > w.violation(i)
		}
	}

	for _, i := range w.instances {
		if i.SLO > 0 {
			continue
		}
		i.state = state
		switch {
		case state == "NONE":
			i.share = i.limit
		case state == "RECOVERY":
			i.share = min(max(w.p.increase*i.share, i.request), i.limit)
		case state == "CONTENTION":
			i.share = max(i.share, i.request)
		case violated:
			i.share = max(min(i.share, i.request)/measured, w.p.floor*i.request)
		case measured > 0 && measured < w.p.recovery:
			i.share = min(w.p.increase*i.share, i.request)
		}
		if i.Training {
			i.share = min(i.share, w.limit(i))
		}
	}
}

func (w *sharesTwin) violation(i *twinInstance) float64 {
	if i.LLM {
		return w.p.llm
	}
	return w.p.violation
}

// quiet reports whether all instances with an objective have been idle for a quarter of the window.
func (w *sharesTwin) quiet() bool {
	for _, i := range w.instances {
		if i.SLO > 0 && len(i.clients) > 0 && !w.idle(i, 0.25) {
			return false
		}
	}
	return true
}

// limit returns the limit of an instance at present (V6).
func (w *sharesTwin) limit(i *twinInstance) float64 {
	if w.quiet() {
		return i.limit
	}
	for _, o := range w.instances {
		if i.Training && o.SLO > 0 && len(o.clients) > 0 && !w.idle(o, 1) && (o.state == "EMERGENCY" || o.stretch >= w.p.recovery) {
			return i.request
		}
	}
	return i.limit
}

// expected is the use that V7 expects of an instance.
func (w *sharesTwin) expected(i *twinInstance) float64 {
	if i.speed == 0 {
		return i.share
	}
	most := slices.Max(i.use[max(0, len(i.use)-w.p.rateWindow):])
	for _, c := range i.clients {
		if most == 0 && c.leased && !c.revoked {
			most = i.request
		}
	}
	return min(i.share, max(w.p.increase*most, w.p.floor*i.request))
}

// fit is rules V7 to V10.
func (w *sharesTwin) fit() {
	var sensitive, others []*twinInstance
	floor := 0.0
	for _, i := range w.all() {
		switch {
		case w.idle(i, 1) || len(i.clients) == 0:
			i.issued = i.share
		case i.SLO > 0:
			sensitive = append(sensitive, i)
		default:
			others = append(others, i)
			floor += w.p.floor * i.request
		}
	}
	floor = min(floor, w.p.floor)
	free := w.divide(sensitive, 1-floor)
	w.divide(others, free+floor)

	rest := 1.0
	for _, i := range others {
		rest -= i.issued
	}
	if w.quiet() {
		for n, share := range level(others, rest, (*twinInstance).issuedShare, w.limit) {
			others[n].issued = share
		}
		return
	}
	var contending []*twinInstance
	for _, i := range sensitive {
		rest -= i.issued
		if i.state == "CONTENTION" {
			contending = append(contending, i)
		}
	}
	shares := level(contending, rest, (*twinInstance).issuedShare, w.limit)
	for n, i := range contending {
		if i.limit > w.p.recovery*shares[n]+1e-9 {
			return
		}
	}
	for n, i := range contending {
		i.issued = shares[n]
	}
}

func (i *twinInstance) issuedShare() float64 { return i.issued }

// divide is rules V8 and V9 for a class of instances. It returns the part that is not reserved.
func (w *sharesTwin) divide(class []*twinInstance, available float64) float64 {
	needed, promised := 0.0, 0.0
	for _, i := range class {
		needed += min(w.expected(i), i.request)
		promised += min(i.share, i.request)
	}
	part := min(1, available/needed)
	first := func(i *twinInstance) float64 { return part * min(w.expected(i), i.request) }
	reserved := level(class, available-part*needed, first, w.expected)
	if part < 1 {
		for n, i := range class {
			reserved[n] = first(i)
		}
	}
	free := available
	for _, share := range reserved {
		free -= share
	}
	free = max(free, 0)
	for n, i := range class {
		i.issued = min(i.share, reserved[n]+free)
		if promised <= available+1e-9 {
			i.issued = max(i.issued, min(i.share, i.request))
		}
	}
	return free
}

// level raises the shares of instances in proportion to their requests, each up to its bound, until they have
// consumed the rest. It finds the level by bisection.
func level(class []*twinInstance, rest float64, from func(*twinInstance) float64, to func(*twinInstance) float64) []float64 {
	at := func(level float64) (shares []float64, sum float64) {
		for _, i := range class {
			share := max(from(i), min(to(i), from(i)+level*i.request))
			shares, sum = append(shares, share), sum+share-from(i)
		}
		return shares, sum
	}
	low, high := 0.0, 1e6
	for range 100 {
		if _, sum := at((low + high) / 2); sum > rest {
			high = (low + high) / 2
		} else {
			low = (low + high) / 2
		}
	}
	shares, _ := at(low)
	return shares
}

// TestIntrospectiveMatchesTwin compares phases and shares with those of the twin, after each event of random programs.
func TestIntrospectiveMatchesTwin(t *testing.T) {
	seen := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		p := drawParameters(rt)
		g := newSlicedGPU(t, rapid.Uint64().Draw(rt, "seed"))
		g.s = newIntrospective(Config{}, p, 0)
		g.lag = time.Duration(rapid.IntRange(0, 2000).Draw(rt, "lag")) * time.Microsecond
		for _, program := range drawPrograms(rt, rapid.Float64Range(0.3, 2).Draw(rt, "requests"), true) {
			program.slice.SMPct = rapid.SampledFrom([]float64{25, 50, 100}).Draw(rt, "sm")
			program.slice.SMLimitPct = rapid.SampledFrom([]float64{0, 100}).Draw(rt, "sm-limit")
			program.enforced = rapid.Bool().Draw(rt, "enforced")
			program.llm = program.slo > 0 && rapid.IntRange(0, 3).Draw(rt, "llm") == 0
			program.training = program.slo == 0 && rapid.Bool().Draw(rt, "training")
			g.add(program)
		}
		for range rapid.IntRange(5, 40).Draw(rt, "steps") {
			n := rapid.IntRange(0, len(g.programs)-1).Draw(rt, "program")
			switch program := g.programs[n]; {
			case program.removed:
			case rapid.IntRange(0, 30).Draw(rt, "dies") == 0:
				g.remove(program)
			case rapid.IntRange(0, 30).Draw(rt, "changes") == 0:
				program.slice.QuotaRequest /= 2
				g.register(program)
			case program.kernels > 0:
				for range rapid.IntRange(1, 4).Draw(rt, "arrivals") {
					g.arrive(program)
				}
			}
			g.run(time.Duration(rapid.IntRange(1, 120).Draw(rt, "ms")) * ms)
		}
		compareWithTwin(rt, p, g.log, seen)
	})
	t.Logf("phases: %v", seen)
}

// drawParameters draws parameters, often the default ones.
func drawParameters(t *rapid.T) IntrospectiveParameters {
	p := published
	if rapid.Bool().Draw(t, "published") {
		return p
	}
	p.violation = rapid.SampledFrom([]float64{1.3, 1.6, 2}).Draw(t, "violation")
	p.llm = rapid.SampledFrom([]float64{1.1, 1.3}).Draw(t, "violation-llm")
	p.recovery = rapid.SampledFrom([]float64{1.05, 1.2}).Draw(t, "recovery")
	p.increase = rapid.SampledFrom([]float64{1.1, 1.3, 2}).Draw(t, "increase")
	p.rateWindow = rapid.SampledFrom([]int{1, 4, 20, 40}).Draw(t, "window")
	p.floor = rapid.SampledFrom([]float64{0.01, 0.1, 0.5}).Draw(t, "floor")
	return p
}

// compareWithTwin replays events to a policy and to the twin.
func compareWithTwin(t *rapid.T, p IntrospectiveParameters, log []logged, seen map[string]int) {
	policy, w := newIntrospective(Config{}, p, 0), &sharesTwin{p: p, instances: map[string]*twinInstance{}}
	for n, l := range log {
		before := policy.trial
		actions := policy.Step(l.at, l.events, nil)
		w.step(l, before, policy, actions)
		var got, want []string
		same := true
		for _, i := range policy.instances {
			o := w.instances[i.id]
			got = append(got, fmt.Sprintf("%s %v %.4f issued %.4f stretch %.4f", i.id, i.phase, i.scaledShare, i.issued, i.cycle.stretch))
			want = append(want, fmt.Sprintf("%s %v %.4f issued %.4f stretch %.4f", i.id, o.state, o.share, o.issued, o.stretch))
			same = same && i.phase.String() == o.state && math.Abs(i.scaledShare-o.share) < 1e-6 && math.Abs(i.issued-o.issued) < 1e-6
			seen[o.state]++
		}
		if !same {
			t.Fatalf("step %d at %v, events %+v:\ngot  %q\nwant %q", n, l.at, l.events, got, want)
		}
	}
}
