package place

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/joint"
	"github.com/gfaas/gfaas/pkg/policy/place/timetable"
	"github.com/gfaas/gfaas/pkg/profile"
)

// builder turns a demand into a problem of numbers and its solution into a
// plan.
type builder struct {
	in        Input
	o         JointOptions
	wanted    []want
	functions []function.Function // of each want
	models    []plan.Model        // with shared weights: the most that any configuration shares
	devices   [][]plan.Device     // by class
	most      bool                // GPUs of a class have the memory of its largest
	ids       map[[2]int]string   // of spanning instances, by function and gang
}

// count adds the weights of a function to the models, with shared weights.
func (b *builder) count(w *want, fn function.Function) {
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
			b.models = append(b.models, plan.Model{Name: fn.Model.Name})
		}
		b.models[i].MemMiB = max(b.models[i].MemMiB, r.ModelMemMiB)
	}
}

// model is the number of a function's model.
func (b *builder) model(fn function.Function) int {
	return slices.IndexFunc(b.models, func(m plan.Model) bool { return m.Name == fn.Model.Name })
}

func (b *builder) function(w *want, fn function.Function) joint.Func {
	f := joint.Func{Demand: w.demand.RPS, Span: fn.GPUs, Model: b.model(fn)}
	for _, r := range w.rows {
		opt := joint.Option{W: share(r.Quota), H: share(r.SMPct / 100), Rate: r.ThroughputRPS / float64(fn.GPUs), Mem: int64(gpu.FromMiB(b.memory(r)))}
		need := opt.Mem
		if f.Model != joint.NoModel {
			need += int64(gpu.FromMiB(b.models[f.Model].MemMiB))
		}
		for _, d := range b.devices {
			opt.On = append(opt.On, d == nil || matches(r, d[0]) && need <= int64(room(d[b.standsFor(d)])))
		}
		f.Options = append(f.Options, opt)
	}
	return f
}

// standsFor is which of a class's GPUs, most free memory first, counts for all.
func (b *builder) standsFor(class []plan.Device) int {
	if b.most {
		return 0
	}
	return len(class) - 1
}

// generous makes of a problem one whose GPUs all have the memory of the largest
// that they count as alike with, and says whether any has more so: what is
// needed then is needed whatever they have.
func (b *builder) generous(p *joint.Problem) (more bool) {
	p.Classes = slices.Clone(p.Classes)
	for k, d := range b.devices {
		if d != nil && int64(room(d[0])) > p.Classes[k].Room {
			p.Classes[k].Room, more = int64(room(d[0])), true
		}
	}
	if b.most = more; more {
		p.Funcs = nil
		for i := range b.wanted {
			p.Funcs = append(p.Funcs, b.function(&b.wanted[i], b.functions[i]))
		}
	}
	b.most = false
	return more
}

// memory is what an instance takes on each GPU besides shared weights, in MiB.
func (b *builder) memory(r profile.Row) float64 {
	if b.o.ShareModels {
		return max(0, r.GPUMemMiB-r.ModelMemMiB)
	}
	return r.GPUMemMiB
}

func (b *builder) plan(sol joint.Solution) plan.Plan {
	p := plan.Plan{
		Version: plan.Version, Algorithm: "joint", Model: b.o.Model,
		GPUs: []plan.GPU{}, Demand: []plan.Served{}, Unplaced: []plan.Unplaced{},
	}
	p.Bound, p.BoundMethod = b.in.bound(b.parts())
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
				d := plan.Device{Node: "node0", Index: len(out), MemMiB: b.in.MemMiB}
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
	out := plan.GPU{Node: d.Node, Index: d.Index, MemMiB: d.MemMiB}
	for _, it := range items {
		w := &b.wanted[it.Func]
		row := w.rows[it.Option]
		in := plan.Instance{
			ID: b.id(it), Function: row.Function, SMPct: row.SMPct, QuotaRequest: row.Quota,
			QuotaLimit: row.Quota, Batch: row.Batch, RPS: row.ThroughputRPS,
		}
		if b.o.Model != plan.ModelTokens {
			x, y := float64(it.At.X)/one, float64(it.At.Y)/(one/100)
			in.X, in.Y = &x, &y
		}
		if b.in.limits() {
			in.MemMiB = b.memory(row)
			out.Models = b.keep(out.Models, b.functions[it.Func])
		}
		out.Instances = append(out.Instances, in)
	}
	if b.o.Model == plan.ModelTokens {
		out.Schedule = schedule(items, out.Instances)
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
	w.count++
	w.served += w.rows[it.Option].ThroughputRPS
	if it.Gang > 0 {
		b.ids[at] = id
	}
	return id
}

// keep lists the model of a function's weights once on a GPU.
func (b *builder) keep(models []plan.Model, fn function.Function) []plan.Model {
	i := b.model(fn)
	if i == joint.NoModel || slices.Contains(models, b.models[i]) {
		return models
	}
	return append(models, b.models[i])
}

// schedule is the timetable in which every item has its turns.
func schedule(items []joint.Item, instances []plan.Instance) []plan.Interval {
	var edges []int64
	for _, it := range items {
		for _, t := range it.Turns {
			edges = append(edges, t.From, t.To)
		}
	}
	slices.Sort(edges)
	edges = slices.Compact(edges)
	var out []plan.Interval
	for i := 1; i < len(edges); i++ {
		in := plan.Interval{Duration: float64(edges[i]-edges[i-1]) / one}
		for k, it := range items {
			if slices.ContainsFunc(it.Turns, func(t timetable.Turn) bool { return t.From <= edges[i-1] && edges[i] <= t.To }) {
				in.Instances = append(in.Instances, instances[k].ID)
			}
		}
		if len(in.Instances) > 0 {
			out = append(out, in)
		}
	}
	return out
}

// reason says what keeps the rest of a function's demand from being placed.
func (b *builder) reason(w *want, sol joint.Solution, f int) string {
	if w.reason != "" {
		return w.reason
	}
	gpus := fmt.Sprintf("the %d GPUs are full", len(b.in.Devices))
	if len(b.in.Devices) == 1 {
		gpus = "the GPU is full"
	}
	if opt := sol.Lacking[f]; opt >= 0 {
		return fmt.Sprintf("%s: %s has room but not its %s MiB of memory", gpus, describe(w.rows[opt]), num(w.rows[opt].GPUMemMiB))
	}
	least := slices.MinFunc(w.rows, func(x, y profile.Row) int {
		return cmp.Or(cmp.Compare(area(x), area(y)), byMemory(x, y))
	})
	return fmt.Sprintf("%s: none has room even for %s", gpus, describe(least))
}
