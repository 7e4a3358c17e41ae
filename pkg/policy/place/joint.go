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
	"github.com/gfaas/gfaas/pkg/reason"
)

// JointOptions are the settings of Joint.
type JointOptions struct {
	Model        string // plan.ModelRect or plan.ModelTokens
	ShareModels  bool   // keep a model's weights once on each GPU
	Seed         uint64
	Work         int64       // limit of the search, see joint.Options
	Expired      func() bool // ends the improvement early when true; may be nil
	UntilExpired bool        // see joint.Options
}

// Joint chooses configurations and packs them together (package joint). It solves a linear program
// over patterns of one GPU, whose value bounds the number of GPUs, then rounds the solution and
// improves it by a search. If the GPUs do not suffice, Joint serves as many requests per second as
// it can. If GPUs differ in memory, it also tries plans for many functions in which all GPUs are
// treated as equal. It returns one line per chosen configuration with the reason for the choice, in
// the order of the demand.
func Joint(in Input, o JointOptions) (p plan.Plan, reasons []string, err error) {
	in = in.splitByModel()
	p, reasons, err = jointly(in, o)
	if err != nil || len(p.Unplaced) == 0 && p.GPUsUsed <= p.Bound {
		return p, reasons, err
	}
	for _, alike := range in.uniformInputs() {
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

// servesMore returns the plan of Dilu's scheduler if p leaves demand unserved and that plan serves
// more requests per second. This can happen if instances span GPUs.
func (in Input) servesMore(p plan.Plan, o JointOptions) (q plan.Plan, ok bool) {
	if len(p.Unplaced) == 0 || in.Devices == nil || o.ShareModels {
		return q, false
	}
	q, err := Dilu(in, Options{Dilu: online.DiluDefaults(), Order: Arrival})
	if err != nil || unservedRPS(q) >= unservedRPS(p)*(1-1e-9) {
		return q, false
	}
	if o.Model == plan.ModelTokens {
		q = Timetabled(q)
	}
	q.Algorithm, q.Bound, q.BoundMethod = p.Algorithm, p.Bound, p.BoundMethod
	return q, true
}

// unservedRPS returns the sum of the requests per second that a plan leaves unserved.
func unservedRPS(p plan.Plan) (sum float64) {
	for _, u := range p.Unplaced {
		sum += u.RPS
	}
	return sum
}

func jointly(in Input, o JointOptions) (p plan.Plan, reasons []string, err error) {
	b := newBuilder(in, o)
	if err := tooMany(b.demands, func(f int) float64 { return b.demands[f].largest() }, "largest"); err != nil && in.Devices == nil {
		return plan.Plan{}, nil, err
	}
	problem, options := b.problem(), joint.Options{Seed: o.Seed, Work: o.Work, Expired: o.Expired, UntilExpired: o.UntilExpired}
	if !b.roundedDown() {
		sol := joint.Solve(problem, options)
		return b.plan(sol), b.reasons(sol), nil
	}
	// Compute the bound first, so that there is time for it.
	bound, method := joint.Bound(b.largest(problem), options)
	sol := joint.Solve(problem, options)
	sol.Bound, sol.Method = bound, method
	return b.plan(sol), b.reasons(sol), nil
}

// builder converts a demand to a problem of package joint, and the solution to a plan.
type builder struct {
	in        Input
	o         JointOptions
	demands   []functionDemand
	functions []function.Function // by index of wanted
	models    []plan.Model        // shared weights, with the largest size that any configuration shares
	classes   []joint.Class
	devices   [][]plan.Device   // by class, most free memory first; nil if unlimited
	ids       map[[2]int]string // IDs of spanning instances, by function and gang
}

func newBuilder(in Input, o JointOptions) *builder {
	b := &builder{in: in, o: o, demands: in.functionDemands(), ids: map[[2]int]string{}}
	b.classes, b.devices = in.classes()
	for i := range b.demands {
		w := &b.demands[i]
		fn, _ := in.function(w.demand.Function)
		w.rows = undominated(w.rows)
		b.functions = append(b.functions, fn)
		b.addModel(w, fn)
	}
	return b
}

// problem returns the problem of package joint. If the GPUs of a class differ, all count as having
// the memory of the smallest.
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

// roundedDown reports whether any GPU has more memory than its class.
func (b *builder) roundedDown() bool {
	for k, d := range b.devices {
		if d != nil && int64(freeMemory(d[0])) > b.classes[k].Room {
			return true
		}
	}
	return false
}

// largest returns the problem with the memory of the largest GPU of each class. A lower bound for
// it is also a lower bound for the actual GPUs.
func (b *builder) largest(p joint.Problem) joint.Problem {
	p.Classes = slices.Clone(p.Classes)
	rooms := make([]int64, len(b.classes))
	for k, d := range b.devices {
		rooms[k] = p.Classes[k].Room
		if d != nil {
			rooms[k] = int64(freeMemory(d[0]))
		}
		p.Classes[k].Room = rooms[k]
	}
	p.Funcs = b.problemFuncs(rooms)
	return p
}

// problemFuncs returns the functions of the problem if the GPUs of each class have the given
// memory, in bytes.
func (b *builder) problemFuncs(rooms []int64) (out []joint.Func) {
	for i := range b.demands {
		w, fn := &b.demands[i], b.functions[i]
		f := joint.Func{Demand: boundedDemand(w), Span: fn.GPUs, Model: b.model(fn)}
		for _, r := range w.rows {
			opt := joint.Option{W: share(r.Quota), H: share(r.SMPct / 100), Rate: r.ThroughputRPS / float64(fn.GPUs), Mem: int64(gpu.FromMiB(privateMemory(r, b.o.ShareModels)))}
			needed := opt.Mem
			if f.Model != joint.NoModel {
				needed += int64(b.models[f.Model].Bytes())
			}
			for k, d := range b.devices {
				opt.On = append(opt.On, d == nil || matches(r, d[0]) && needed <= rooms[k])
			}
			f.Options = append(f.Options, opt)
		}
		out = append(out, f)
	}
	return out
}

// boundedDemand returns a function's demand, limited to 1e9 times the throughput of an instance.
// That is more than any inventory serves, and single instances still count in floating point. The
// bound by area counts the whole demand.
func boundedDemand(w *functionDemand) float64 {
	if largest := w.largest(); largest > 0 {
		return min(w.demand.RPS, 1e9*largest)
	}
	return w.demand.RPS
}

// undominated returns the rows of one function, except rows that another row equals or beats in
// everything that matters for a plan: SM share, quota, memory, GPU model and throughput. Among
// equal rows it keeps the one with the smallest batch, then the first.
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

// maxMemorySizes limits the number of different sizes of free memory per GPU model. If there are more,
// GPUs of similar size count as having the memory of the smallest of them.
const maxMemorySizes = 8

// classes returns classes of GPUs that are alike, with the devices of each, most free memory first.
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
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(freeMemory(b), freeMemory(a)))
	})
	for len(sorted) > 0 {
		n := 1
		for n < len(sorted) && sorted[n].Model == sorted[0].Model {
			n++
		}
		for _, alike := range byRoom(sorted[:n]) {
			class := joint.Class{Room: int64(freeMemory(alike[len(alike)-1])), Count: len(alike), Nodes: make([]int, len(nodes))}
			for _, d := range alike {
				class.Nodes[nodes[d.Node]]++
			}
			devices, classes = append(devices, alike), append(classes, class)
		}
		sorted = sorted[n:]
	}
	return classes, devices
}

// byRoom splits the GPUs of one model, most free memory first, into groups of similar free memory.
func byRoom(devices []plan.Device) (out [][]plan.Device) {
	rooms := 1
	for i := 1; i < len(devices); i++ {
		if freeMemory(devices[i]) != freeMemory(devices[i-1]) {
			rooms++
		}
	}
	alike := func(a, b plan.Device) bool {
		if rooms <= maxMemorySizes {
			return freeMemory(a) == freeMemory(b)
		}
		return freeMemory(b) > freeMemory(a)-freeMemory(devices[0])/maxMemorySizes
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

// addModel adds the weights of a function to the models, if weights are shared.
func (b *builder) addModel(w *functionDemand, fn function.Function) {
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

// model returns the index of a function's model, or joint.NoModel.
func (b *builder) model(fn function.Function) int {
	return slices.IndexFunc(b.models, plan.WeightsOf(fn).Is)
}

func (b *builder) plan(sol joint.Solution) plan.Plan {
	bound, method := b.in.bound(b.perGPUDemands())
	p := b.in.empty("joint", b.o.Model, bound, method)
	if sol.Bound >= p.Bound {
		p.Bound, p.BoundMethod = sol.Bound, sol.Method
	}
	for _, h := range b.hosted(sol) {
		p.GPUs = append(p.GPUs, b.gpu(h.device, h.items))
	}
	return complete(p, b.demands, func(i int) reason.Reason { return b.reason(&b.demands[i], sol, i) })
}

// pick returns the first device for which will returns true, and the others.
func pick(from []plan.Device, will func(plan.Device) bool) (plan.Device, []plan.Device) {
	i := slices.IndexFunc(from, will)
	d := from[i]
	if i == 0 {
		return d, from[1:]
	}
	return d, slices.Delete(from, i, i+1)
}

// perGPUDemands returns the demands with the throughput and memory of an instance's part on each
// GPU, without shared weights.
func (b *builder) perGPUDemands() []functionDemand {
	out := slices.Clone(b.demands)
	for i := range out {
		out[i] = out[i].private(b.o.ShareModels)
		out[i].span = b.functions[i].GPUs
		for k := range out[i].rows {
			out[i].rows[k].ThroughputRPS /= float64(b.functions[i].GPUs)
		}
	}
	return out
}

// hosted is a device and its items.
type hosted struct {
	device plan.Device
	items  []joint.Item
}

// hosted assigns each GPU of the solution a device of its class, first to GPUs that must be on a
// certain node. The result is in the order of the inventory.
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
				d := b.in.newDevice(len(out))
				if k := g.GPU.Class; free[k] != nil {
					d, free[k] = pick(free[k], func(d plan.Device) bool { return anywhere || nodes[d.Node] == g.GPU.Node })
				}
				out = append(out, hosted{d, g.GPU.Items})
			}
		}
	}
	if b.in.Devices != nil {
		order := map[plan.GPUName]int{}
		for i, d := range b.in.Devices {
			order[d.Name()] = i
		}
		slices.SortStableFunc(out, func(x, y hosted) int {
			return cmp.Compare(order[x.device.Name()], order[y.device.Name()])
		})
	}
	return out
}

// gpu returns one GPU of the plan and counts its instances as serving their functions.
func (b *builder) gpu(d plan.Device, items []joint.Item) plan.GPU {
	out := gpuOf(d)
	var turns [][]timetable.Turn
	for _, it := range items {
		w := &b.demands[it.Func]
		row := w.rows[it.Option]
		in := newInstance(b.id(it), row, false)
		if b.o.Model != plan.ModelTokens {
			setCorner(&in, it.At)
		}
		if b.in.limitsMemory() {
			in.MemMiB = privateMemory(row, b.o.ShareModels)
			out.Models = b.addWeights(out.Models, b.functions[it.Func], d)
		}
		out.Instances = append(out.Instances, in)
		turns = append(turns, it.Turns)
	}
	if b.o.Model == plan.ModelTokens {
		out.Schedule = schedule(out.Instances, turns, false)
	}
	return out
}

// id returns the ID of an instance, the same for each of its parts. It counts the instance's
// throughput when it makes the ID.
func (b *builder) id(it joint.Item) string {
	at := [2]int{it.Func, it.Gang}
	if id, known := b.ids[at]; known && it.Gang > 0 {
		return id
	}
	w := &b.demands[it.Func]
	id := fmt.Sprintf("%s-%d", w.demand.Function, w.count)
	w.add(w.rows[it.Option])
	if it.Gang > 0 {
		b.ids[at] = id
	}
	return id
}

// addWeights adds the weights of a function to a GPU's models, unless they are there already. Their
// size is that on the device's GPU model.
func (b *builder) addWeights(models []plan.Model, fn function.Function, d plan.Device) []plan.Model {
	i := b.model(fn)
	if i == joint.NoModel || slices.ContainsFunc(models, b.models[i].Is) {
		return models
	}
	size := 0.0
	for f, w := range b.demands {
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

// weightsOn returns the largest size, in MiB, of the weights of any row on the device.
func weightsOn(rows []profile.Row, d plan.Device) (largest float64) {
	for _, r := range rows {
		if matches(r, d) {
			largest = max(largest, r.ModelMemMiB)
		}
	}
	return largest
}

// reason returns why the rest of a function's demand is not placed.
func (b *builder) reason(w *functionDemand, sol joint.Solution, f int) reason.Reason {
	if opt := sol.Lacking[f]; opt >= 0 {
		return lacksMemory(w.rows[opt], len(b.in.Devices))
	}
	return w.full(gpusFull, len(b.in.Devices), b.in)
}

// reasons returns a line for each configuration of the plan, by function, most instances first. It
// compares the configuration's throughput for its area with that of the function's other
// configurations.
func (b *builder) reasons(sol joint.Solution) (out []string) {
	counts := make([][]int, len(b.demands))
	for f, w := range b.demands {
		counts[f] = make([]int, len(w.rows))
	}
	for _, g := range sol.Groups {
		for _, it := range g.GPU.Items {
			counts[it.Func][it.Option] += g.Count
		}
	}
	for f, w := range b.demands {
		var chosen []int
		best := 0.0 // requests per second per whole GPU of the most efficient configuration
		for i, r := range w.rows {
			best = max(best, r.Efficacy())
			if counts[f][i] > 0 {
				chosen = append(chosen, i)
			}
		}
		slices.SortStableFunc(chosen, func(x, y int) int { return counts[f][y] - counts[f][x] })
		for _, i := range chosen {
			r := w.rows[i]
			text := fmt.Sprintf("%s: %d × (%s); each instance serves %s requests/s with %.1f%% of a GPU (SM share × quota); ",
				w.demand.Function, counts[f][i], describe(r), num(r.ThroughputRPS), 100*(r.SMPct/100*r.Quota))
			switch {
			case len(w.rows) == 1:
				text += "no other configuration meets the objective and fits a GPU"
			case r.Efficacy() >= best*(1-efficacyTolerance):
				text += fmt.Sprintf("none of the %d possible configurations serves more requests/s per share of a GPU", len(w.rows))
			default:
				text += fmt.Sprintf("the best of the %d possible configurations serves %.1f%% more requests/s per share of a GPU, but this one fits next to the other instances or serves the rest of the demand",
					len(w.rows), 100*(best/r.Efficacy()-1))
			}
			out = append(out, text)
		}
	}
	return out
}
