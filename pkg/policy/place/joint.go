package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/joint"
	"github.com/gfaas/gfaas/pkg/policy/place/online"
	"github.com/gfaas/gfaas/pkg/policy/place/timetable"
	"github.com/gfaas/gfaas/pkg/profile"
)

// JointOptions are what a joint plan may be made with.
type JointOptions struct {
	Model       string // plan.ModelRect or plan.ModelTokens
	ShareModels bool   // a model's weights are kept once on a GPU
	Seed        uint64
	Work        int64       // bounds the search, as in joint.Options
	Expired     func() bool // ends the improvement early; nil is never
	Spend       bool        // as in joint.Options
}

// Joint plans by choosing configurations and packing them together: a linear
// program over what one GPU can host, whose value is the plan's bound, rounded
// and improved by a search (package joint). When the GPUs there are do not
// suffice, as many requests a second as can be are served. The reasons say why
// configurations were chosen, a line each, in the order of the demand. Where GPUs have
// not all the same memory, many functions are planned for as if some had, too.
func Joint(in Input, o JointOptions) (p plan.Plan, reasons []string, err error) {
	in = in.apart()
	p, reasons, err = jointly(in, o)
	if err != nil || len(p.Unplaced) == 0 && p.GPUsUsed <= p.Bound {
		return p, reasons, err
	}
	for _, alike := range in.alike() {
		q, why, err := jointly(alike, o)
		if err == nil && len(q.Unplaced) == 0 && better(q, p) {
			q.Bound, q.BoundMethod = p.Bound, p.BoundMethod
			in.resize(q.GPUs)
			return q, why, nil
		}
	}
	if q, ok := in.servesMore(p, o); ok {
		return q, nil, nil
	}
	return p, reasons, nil
}

// servesMore returns the plan that Dilu's scheduler makes if it serves more requests a
// second than a joint one that leaves some, as it may where instances span GPUs.
func (in Input) servesMore(p plan.Plan, o JointOptions) (q plan.Plan, ok bool) {
	if len(p.Unplaced) == 0 || in.Devices == nil || o.ShareModels {
		return q, false
	}
	q, err := Dilu(in, DiluOptions{DiluOptions: online.DiluDefaults(), Order: Arrival})
	if err != nil || left(q) >= left(p)*(1-1e-9) {
		return q, false
	}
	if o.Model == plan.ModelTokens {
		q = Timetabled(q)
	}
	q.Algorithm, q.Bound, q.BoundMethod = p.Algorithm, p.Bound, p.BoundMethod
	return q, true
}

// left sums the requests a second that a plan leaves.
func left(p plan.Plan) (sum float64) {
	for _, u := range p.Unplaced {
		sum += u.RPS
	}
	return sum
}

func jointly(in Input, o JointOptions) (p plan.Plan, reasons []string, err error) {
	b := newBuilder(in, o)
	if err := b.tooMany(); err != nil && in.Devices == nil {
		return plan.Plan{}, nil, err
	}
	problem, options := b.problem(), joint.Options{Seed: o.Seed, Work: o.Work, Expired: o.Expired, Spend: o.Spend}
	if !b.roundedDown() {
		sol := joint.Solve(problem, options)
		return b.plan(sol), b.reasons(sol), nil
	}
	// First, so that there is time for it.
	bound, method := joint.Bound(b.largest(problem), options)
	sol := joint.Solve(problem, options)
	sol.Bound, sol.Method = bound, method
	return b.plan(sol), b.reasons(sol), nil
}

// builder turns a demand into a problem of numbers and its solution into a
// plan.
type builder struct {
	in        Input
	o         JointOptions
	wanted    []want
	functions []function.Function // of each want
	models    []plan.Model        // with shared weights: the most that any configuration shares
	classes   []joint.Class
	devices   [][]plan.Device   // by class, most free memory first; nil for as many as it takes
	ids       map[[2]int]string // of spanning instances, by function and gang
}

func newBuilder(in Input, o JointOptions) *builder {
	b := &builder{in: in, o: o, wanted: in.wants(), ids: map[[2]int]string{}}
	b.classes, b.devices = in.classes()
	for i := range b.wanted {
		w := &b.wanted[i]
		fn := in.function(w.demand.Function)
		w.rows = undominated(w.rows)
		b.functions = append(b.functions, fn)
		b.addModel(w, fn)
	}
	return b
}

// tooMany refuses a demand that takes more than maxInstances of the largest
// configurations.
func (b *builder) tooMany() error {
	most := make([]float64, len(b.wanted))
	for f, w := range b.wanted {
		for _, r := range w.rows {
			most[f] = max(most[f], r.ThroughputRPS)
		}
	}
	return tooMany(b.wanted, most, "largest")
}

// problem is the demand in numbers. GPUs of a class that differ have the memory
// of the least.
func (b *builder) problem() joint.Problem {
	p := joint.Problem{Tokens: b.o.Model == plan.ModelTokens, Classes: b.classes}
	rooms := make([]int64, len(b.classes))
	for k, c := range b.classes {
		rooms[k] = c.Room
	}
	p.Funcs = b.problemFuncs(rooms)
	for _, m := range b.models {
		p.Keepers = append(p.Keepers, int64(m.Bytes()))
	}
	return p
}

// roundedDown says whether GPUs have more memory than their class.
func (b *builder) roundedDown() bool {
	for k, d := range b.devices {
		if d != nil && int64(room(d[0])) > b.classes[k].Room {
			return true
		}
	}
	return false
}

// largest is the problem with the memory of the largest GPU of each class: what
// is needed then is needed whatever they have.
func (b *builder) largest(p joint.Problem) joint.Problem {
	p.Classes = slices.Clone(p.Classes)
	rooms := make([]int64, len(b.classes))
	for k, d := range b.devices {
		rooms[k] = p.Classes[k].Room
		if d != nil {
			rooms[k] = int64(room(d[0]))
		}
		p.Classes[k].Room = rooms[k]
	}
	p.Funcs = b.problemFuncs(rooms)
	return p
}

// problemFuncs are the functions of the problem where GPUs of each class have
// this much memory.
func (b *builder) problemFuncs(rooms []int64) (out []joint.Func) {
	for i := range b.wanted {
		w, fn := &b.wanted[i], b.functions[i]
		f := joint.Func{Demand: tellable(w), Span: fn.GPUs, Model: b.model(fn)}
		for _, r := range w.rows {
			opt := joint.Option{W: share(r.Quota), H: share(r.SMPct / 100), Rate: r.ThroughputRPS / float64(fn.GPUs), Mem: int64(gpu.FromMiB(b.memory(r)))}
			need := opt.Mem
			if f.Model != joint.NoModel {
				need += int64(b.models[f.Model].Bytes())
			}
			for k, d := range b.devices {
				opt.On = append(opt.On, d == nil || matches(r, d[0]) && need <= rooms[k])
			}
			f.Options = append(f.Options, opt)
		}
		out = append(out, f)
	}
	return out
}

// tellable is a function's demand, as far as numbers tell an instance from all: some
// more than any inventory serves. Beyond, the bound by area counts all of it.
func tellable(w *want) float64 {
	most := 0.0
	for _, r := range w.rows {
		most = max(most, r.ThroughputRPS)
	}
	if most == 0 {
		return w.demand.RPS
	}
	return min(w.demand.RPS, 1e9*most)
}

// undominated drops the rows that another of the same function beats or
// equals in everything a plan looks at: SM share, quota, memory, model of GPU,
// and what an instance sustains. Of equals the smallest batch stays, then the
// first row.
func undominated(rows []profile.Row) []profile.Row {
	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b profile.Row) int {
		return cmp.Or(cmp.Compare(area(a), area(b)), cmp.Compare(b.ThroughputRPS, a.ThroughputRPS),
			cmp.Compare(a.GPUMemMiB, b.GPUMemMiB), cmp.Compare(a.Batch, b.Batch))
	})
	var out []profile.Row
	for _, r := range rows {
		if !slices.ContainsFunc(out, func(o profile.Row) bool { return dominates(o, r) }) {
			out = append(out, r)
		}
	}
	return out
}

func dominates(a, b profile.Row) bool {
	return (a.GPU == "" || a.GPU == b.GPU) && a.SMPct <= b.SMPct && a.Quota <= b.Quota &&
		a.GPUMemMiB <= b.GPUMemMiB && a.GPUMemMiB-a.ModelMemMiB <= b.GPUMemMiB-b.ModelMemMiB && a.ThroughputRPS >= b.ThroughputRPS
}

// maxRooms is how many different sizes of free memory a model's GPUs are told
// apart by; beyond it, GPUs of nearly the same count as having the least.
const maxRooms = 8

// classes are the inventory's GPUs grouped into those that are alike, with the
// devices of each in their order.
func (in Input) classes() (classes []joint.Class, devices [][]plan.Device) {
	if in.Devices == nil {
		room := int64(joint.Unlimited)
		if in.MemMiB > 0 {
			room = int64(gpu.FromMiB(in.MemMiB))
		}
		return []joint.Class{{Room: room, Count: joint.Elastic}}, [][]plan.Device{nil}
	}
	nodes := in.nodes()
	sorted := slices.Clone(in.Devices)
	slices.SortStableFunc(sorted, func(a, b plan.Device) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(room(b), room(a)))
	})
	for len(sorted) > 0 {
		n := 1
		for n < len(sorted) && sorted[n].Model == sorted[0].Model {
			n++
		}
		for _, alike := range byRoom(sorted[:n]) {
			class := joint.Class{Room: int64(room(alike[len(alike)-1])), Count: len(alike), Nodes: make([]int, len(nodes))}
			for _, d := range alike {
				class.Nodes[nodes[d.Node]]++
			}
			devices, classes = append(devices, alike), append(classes, class)
		}
		sorted = sorted[n:]
	}
	return classes, devices
}

// byRoom splits one model's GPUs, most free memory first, by what is free.
func byRoom(devices []plan.Device) (out [][]plan.Device) {
	rooms := 1
	for i := 1; i < len(devices); i++ {
		if room(devices[i]) != room(devices[i-1]) {
			rooms++
		}
	}
	alike := func(a, b plan.Device) bool {
		if rooms <= maxRooms {
			return room(a) == room(b)
		}
		return room(b) > room(a)-room(devices[0])/maxRooms
	}
	for len(devices) > 0 {
		n := 1
		for n < len(devices) && alike(devices[0], devices[n]) {
			n++
		}
		out = append(out, devices[:n])
		devices = devices[n:]
	}
	return out
}

// addModel adds the weights of a function to the models, with shared weights.
func (b *builder) addModel(w *want, fn function.Function) {
	if !b.o.ShareModels {
		return
	}
	for _, r := range w.rows {
		if r.ModelMemMiB == 0 {
			continue
		}
		i := b.model(fn)
		if i == joint.NoModel {
			i = len(b.models)
			b.models = append(b.models, plan.WeightsOf(fn))
		}
		b.models[i].MemMiB = max(b.models[i].MemMiB, r.ModelMemMiB)
	}
}

// model is the number of a function's model.
func (b *builder) model(fn function.Function) int {
	return slices.IndexFunc(b.models, plan.WeightsOf(fn).Is)
}

// memory is what an instance takes on each GPU besides shared weights, in MiB.
func (b *builder) memory(r profile.Row) float64 {
	if b.o.ShareModels {
		return max(0, r.GPUMemMiB-r.ModelMemMiB)
	}
	return r.GPUMemMiB
}

func (b *builder) plan(sol joint.Solution) plan.Plan {
	bound, method := b.in.bound(b.parts())
	p := b.in.empty("joint", b.o.Model, bound, method)
	if sol.Bound >= p.Bound {
		p.Bound, p.BoundMethod = sol.Bound, sol.Method
	}
	for _, h := range b.hosted(sol) {
		p.GPUs = append(p.GPUs, b.gpu(h.device, h.items))
	}
	p.GPUsUsed = len(p.GPUs)
	for i, w := range b.wanted {
		account(&p, &w, func() string { return b.reason(&w, sol, i) })
	}
	return p
}

// pick takes the first device that will do from a list.
func pick(from []plan.Device, will func(plan.Device) bool) (plan.Device, []plan.Device) {
	i := slices.IndexFunc(from, will)
	d := from[i]
	if i == 0 {
		return d, from[1:]
	}
	return d, slices.Delete(from, i, i+1)
}

// parts are the wants with what an instance takes and serves on each of its
// GPUs, besides shared weights.
func (b *builder) parts() []want {
	out := slices.Clone(b.wanted)
	for i := range out {
		out[i].rows, out[i].span = slices.Clone(out[i].rows), b.functions[i].GPUs
		for k := range out[i].rows {
			r := &out[i].rows[k]
			r.GPUMemMiB = b.memory(*r)
			r.ThroughputRPS /= float64(b.functions[i].GPUs)
		}
	}
	return out
}

// hosted is a device and what it hosts.
type hosted struct {
	device plan.Device
	items  []joint.Item
}

// hosted gives each GPU of the solution a device of its class: first those
// that must be on a node. The order is that of the inventory.
func (b *builder) hosted(sol joint.Solution) []hosted {
	var out []hosted
	free := make([][]plan.Device, len(b.devices))
	for k, d := range b.devices {
		free[k] = slices.Clone(d)
	}
	nodes := b.in.nodes()
	for _, anywhere := range []bool{false, true} {
		for _, g := range sol.Groups {
			if (g.GPU.Node == joint.AnyNode) != anywhere {
				continue
			}
			for range g.Count {
				d := b.in.more(len(out))
				if k := g.GPU.Class; free[k] != nil {
					d, free[k] = pick(free[k], func(d plan.Device) bool { return anywhere || nodes[d.Node] == g.GPU.Node })
				}
				out = append(out, hosted{d, g.GPU.Items})
			}
		}
	}
	if b.in.Devices != nil {
		order := map[[2]any]int{}
		for i, d := range b.in.Devices {
			order[[2]any{d.Node, d.Index}] = i
		}
		slices.SortStableFunc(out, func(x, y hosted) int {
			return cmp.Compare(order[[2]any{x.device.Node, x.device.Index}], order[[2]any{y.device.Node, y.device.Index}])
		})
	}
	return out
}

// gpu is one GPU of the plan. What it serves counts for its functions.
func (b *builder) gpu(d plan.Device, items []joint.Item) plan.GPU {
	out := gpuOf(d)
	var turns [][]timetable.Turn
	for _, it := range items {
		w := &b.wanted[it.Func]
		row := w.rows[it.Option]
		in := newInstance(b.id(it), row, false)
		if b.o.Model != plan.ModelTokens {
			setCorner(&in, it.At)
		}
		if b.in.limits() {
			in.MemMiB = b.memory(row)
			out.Models = b.keep(out.Models, b.functions[it.Func], d)
		}
		out.Instances = append(out.Instances, in)
		turns = append(turns, it.Turns)
	}
	if b.o.Model == plan.ModelTokens {
		out.Schedule = schedule(out.Instances, turns, false)
	}
	return out
}

// id names an instance, the same for each of its parts, and counts what it
// serves at its first.
func (b *builder) id(it joint.Item) string {
	at := [2]int{it.Func, it.Gang}
	if id, known := b.ids[at]; known && it.Gang > 0 {
		return id
	}
	w := &b.wanted[it.Func]
	id := fmt.Sprintf("%s-%d", w.demand.Function, w.count)
	w.add(w.rows[it.Option])
	if it.Gang > 0 {
		b.ids[at] = id
	}
	return id
}

// keep lists the model of a function's weights once on a GPU, with the memory that they
// take on a GPU of its model.
func (b *builder) keep(models []plan.Model, fn function.Function, d plan.Device) []plan.Model {
	i := b.model(fn)
	if i == joint.NoModel || slices.ContainsFunc(models, b.models[i].Is) {
		return models
	}
	size := 0.0
	for f, w := range b.wanted {
		if b.model(b.functions[f]) == i {
			size = max(size, weightsOn(w.rows, d))
		}
	}
	if size == 0 {
		return models
	}
	m := b.models[i]
	m.MemMiB = size
	m.MemMiB = m.Bytes().MiB()
	return append(models, m)
}

// weightsOn returns the most memory, in MiB, that the weights of any row take on the device.
func weightsOn(rows []profile.Row, d plan.Device) (most float64) {
	for _, r := range rows {
		if matches(r, d) {
			most = max(most, r.ModelMemMiB)
		}
	}
	return most
}

// reason says what keeps the rest of a function's demand from being placed.
func (b *builder) reason(w *want, sol joint.Solution, f int) string {
	if w.reason != "" {
		return w.reason
	}
	gpus := full(len(b.in.Devices))
	if opt := sol.Lacking[f]; opt >= 0 {
		return fmt.Sprintf("%s: %s has room but not its %s MiB of memory", gpus, describe(w.rows[opt]), num(w.rows[opt].GPUMemMiB))
	}
	return fmt.Sprintf("%s: none has room even for %s", gpus, describe(w.smallest()))
}

// reasons say of each configuration in the plan why it was chosen, by function,
// most instances first. What the linear program's prices say that an instance's
// requests are worth is compared with what its rectangle's area takes, both in
// GPUs: a configuration is good when it takes no more than its requests are
// worth.
func (b *builder) reasons(sol joint.Solution) (out []string) {
	counts := make([][]int, len(b.wanted))
	for f, w := range b.wanted {
		counts[f] = make([]int, len(w.rows))
	}
	for _, g := range sol.Groups {
		for _, it := range g.GPU.Items {
			counts[it.Func][it.Option] += g.Count
		}
	}
	for f, w := range b.wanted {
		var chosen []int
		best := 0.0 // requests a second for each whole GPU of the most efficient configuration
		for i, r := range w.rows {
			best = max(best, r.Efficacy())
			if counts[f][i] > 0 {
				chosen = append(chosen, i)
			}
		}
		slices.SortStableFunc(chosen, func(x, y int) int { return counts[f][y] - counts[f][x] })
		for _, i := range chosen {
			r := w.rows[i]
			text := fmt.Sprintf("%s: %d × (%s), %s requests a second each: it takes %.1f%% of a GPU's area and serves what is worth %.1f%%; ",
				w.demand.Function, counts[f][i], describe(r), num(r.ThroughputRPS), 100*(r.SMPct/100*r.Quota), 100*(sol.Price[f]*r.ThroughputRPS))
			if r.Efficacy() >= best*(1-alike) {
				text += fmt.Sprintf("of %d configurations none serves more for its area", len(w.rows))
			} else {
				text += fmt.Sprintf("of %d configurations the best serves %.1f%% more for its area, but this one fits beside the others or covers the rest",
					len(w.rows), 100*(best/r.Efficacy()-1))
			}
			out = append(out, text)
		}
	}
	return out
}
