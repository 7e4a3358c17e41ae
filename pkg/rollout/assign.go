package rollout

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/arrivals"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
)

// Assignment is an instance of a plan on this node.
type Assignment struct {
	Function function.Function
	instance.Placement
}

// record returns the record of the instance before its start.
func (a Assignment) record() instance.Record {
	r := launch.Intended(a.Function, a.Placement)
	r.Registered = []string{a.ID}
	return r
}

// ChooseNode returns the node of a plan that is this host: the named node, even without instances, or the
// only node with instances. It returns "" if no node has instances.
func ChooseNode(p plan.Plan, name string) (string, error) {
	var nodes, all []string
	for _, g := range p.GPUs {
		all = append(all, g.Node)
		if len(g.Instances) > 0 {
			nodes = append(nodes, g.Node)
		}
	}
	slices.Sort(all)
	slices.Sort(nodes)
	all, nodes = slices.Compact(all), slices.Compact(nodes)
	switch {
	case name != "" && !slices.Contains(all, name):
		return "", &Error{usage: true, Remedy: "'gfaas down' stops the instances on a node that is no longer in the plan",
			Err: fmt.Errorf("--node %q is not in the plan: expected one of %s", name, strings.Join(all, ", "))}
	case name != "":
		return name, nil
	case len(nodes) > 1:
		return "", &Error{usage: true, Remedy: "name the node of this machine with --node",
			Err: fmt.Errorf("the plan has instances on %d nodes: %s", len(nodes), strings.Join(nodes, ", "))}
	case len(nodes) == 0:
		return "", nil
	}
	return nodes[0], nil
}

// Assign returns the assignments of one node of a plan. An instance on several GPUs is one assignment. The
// function gpuName returns the name of the GPU with an index. The assignments contain the plan's turns, except
// on the GPUs in unsound.
func Assign(p plan.Plan, node string, functions []function.Function, gpuName func(int) string, unsound []string) ([]Assignment, error) {
	byName := map[string]function.Function{}
	for _, fn := range functions {
		byName[fn.Name] = fn
	}
	var out []Assignment
	var missing []string
	at := map[string]int{}
	for _, g := range p.GPUs {
		if g.Node != node {
			continue
		}
		turns := g.Turns()
		if slices.Contains(unsound, verifiedName(g)) {
			turns = nil
		}
		for _, in := range g.Instances {
			fn, applied := byName[in.Function]
			if !applied {
				if !slices.Contains(missing, in.Function) {
					missing = append(missing, in.Function)
				}
				continue
			}
			if i, seen := at[in.ID]; seen {
				out[i].GPUs = append(out[i].GPUs, gpuName(g.Index))
				out[i].Turns = append(out[i].Turns, turns[in.ID])
				continue
			}
			a := Assignment{fn, instance.Placement{
				ID: in.ID, GPUs: []string{gpuName(g.Index)}, Slice: slice(fn, g, in), Turns: [][]gpu.Turn{turns[in.ID]}, RPS: in.RPS, Batch: batch(in),
			}}
			if err := a.check(); err != nil {
				return nil, fmt.Errorf("plan: instance %q: %w", in.ID, err)
			}
			at[in.ID] = len(out)
			out = append(out, a)
		}
	}
	if len(missing) > 0 {
		return nil, failf("apply them first: gfaas apply -f FILE",
			"the plan needs functions that are not applied: %s", strings.Join(missing, ", "))
	}
	return out, checkSpans(out)
}

// batch returns the batch of a plan's instance, or 0 if that is 1.
func batch(in plan.Instance) int {
	if in.Batch <= 1 {
		return 0
	}
	return in.Batch
}

// verifiedName returns the name of a GPU in package verify.
func verifiedName(g plan.GPU) string { return fmt.Sprintf("%s/%d", g.Node, g.Index) }

// slice returns the slice of a plan's instance. The memory limit is the larger of the function's and the
// plan's, because the plan's may be just the memory in use during the profile run. If each instance loads its
// own weights, slice adds the weights that the plan counts once for all instances. Weights of the model
// daemon count against no limit.
func slice(fn function.Function, g plan.GPU, in plan.Instance) gpu.Slice {
	mib := in.MemMiB
	if mib > 0 {
		if m, shared := g.Shared(plan.WeightsOf(fn)); shared && fn.Model != nil && fn.Model.File == "" {
			mib += m.MemMiB
		}
	}
	return gpu.Slice{SMPct: in.SMPct, SMLimitPct: in.SMLimitPct, QuotaRequest: in.QuotaRequest, QuotaLimit: in.QuotaLimit, Mem: max(gpu.FromMiB(mib), fn.GPUMem)}
}

func (a Assignment) check() error {
	if !instance.ValidID(a.ID) {
		return fmt.Errorf("invalid id: expected at most 63 letters, digits, dots, dashes and underscores")
	}
	return a.Slice.Validate()
}

// checkSpans returns an error if the number of an instance's GPUs differs from the number in its function.
func checkSpans(list []Assignment) error {
	for _, a := range list {
		want := max(a.Function.GPUs, 1)
		if got := len(a.GPUs); got != want {
			return fmt.Errorf("plan: instance %q is on %d GPUs: function %s spans %d", a.ID, got, a.Function.Name, want)
		}
	}
	return nil
}

// CheckLimits returns an error if the memory limits on a GPU sum to more than the GPU's memory.
func CheckLimits(p plan.Plan, list []Assignment) error {
	limit, weights := map[string]gpu.Bytes{}, map[string]plan.Model{}
	for _, a := range list {
		limit[a.ID] = a.Slice.Mem
		weights[a.Function.Name] = plan.WeightsOf(a.Function)
	}
	for _, g := range p.GPUs {
		sum := 0.0 // MiB; exact below 2^33, and larger than Bytes can hold
		for _, m := range g.Copies(func(name string) plan.Model { return weights[name] }) {
			own := func(a Assignment) bool {
				return a.Function.Model != nil && plan.WeightsOf(a.Function).Is(m) && a.Function.Model.File == ""
			}
			if !slices.ContainsFunc(list, own) { // otherwise the limits include the weights
				sum += m.Bytes().MiB()
			}
		}
		for _, in := range g.Instances {
			sum += limit[in.ID].MiB()
		}
		if has := gpu.FromMiB(g.MemMiB); has > 0 && sum > has.MiB() {
			return failf("lower gpu_mem of the functions, plan with fewer instances per GPU, or accept the risk with --overcommit",
				"the memory limits of the instances on %s sum to %s MiB, but the GPU has %s MiB in the plan", verifiedName(g), number.Plain(sum), number.Plain(g.MemMiB))
		}
	}
	return nil
}

// GPUs returns the GPUs of the assignments, with the largest memory limit on each.
func GPUs(list []Assignment) map[string]gpu.Bytes {
	limits := map[string]gpu.Bytes{}
	for _, a := range list {
		for _, g := range a.GPUs {
			limits[g] = max(limits[g], a.Slice.Mem)
		}
	}
	return limits
}

// Verify returns the GPUs with an infeasible timetable, and notes about promises of the plan that cannot be
// kept. The caller may roll out such a plan nevertheless, because the token daemon enforces the slices.
func Verify(p plan.Plan) (unsound, notes []string) {
	wrong := verify.Plan(p, verify.Inputs{})
	if len(wrong) == 0 {
		return nil, nil
	}
	for _, v := range wrong {
		switch v.Rule {
		case verify.RuleInside, verify.RuleOverlap, verify.RuleSchedule, verify.RuleID, verify.RuleGPU:
			if v.GPU != "" && p.Model != plan.ModelNone && !slices.Contains(unsound, v.GPU) {
				unsound = append(unsound, v.GPU)
			}
		}
	}
	where := ""
	if len(unsound) > 0 {
		where = ", so quotas alone decide on " + strings.Join(unsound, ", ")
	}
	notes = append(notes, fmt.Sprintf("the plan is inconsistent%s: %s", where, wrong[0].Message))
	if len(wrong) > 1 {
		notes = append(notes, fmt.Sprintf("%d more problems in the plan; run gfaas-place verify to list them", len(wrong)-1))
	}
	return unsound, notes
}

// Notes returns notes about demand that a plan leaves unplaced or costs that it does not account for.
func Notes(p plan.Plan, list []Assignment) (notes []string) {
	for _, u := range p.Unplaced {
		notes = append(notes, fmt.Sprintf("the plan leaves %v requests per second of %s unplaced: %s", u.RPS, u.Function, u.Reason))
	}
	for _, a := range withoutBatches(list) {
		notes = append(notes, fmt.Sprintf("the plan counts on batches of %d calls for function %s, but gfaas serve sends one call at a time to its instances, and counts on %s calls per second "+
			"of %s instead of %s: plan with --functions, or set batcher in its file if the gateway should form batches, or inflight if the server does (docs/gateway.md, \"Batches\")",
			a.Batch, a.Function.Name, number.Plain(a.RPS/float64(a.Batch)), a.ID, number.Plain(a.RPS)))
	}
	for _, name := range slowedByHandOver(p, list) {
		notes = append(notes, fmt.Sprintf("function %s takes one call at a time (inflight: 1), so its instances are idle for about %v between two calls of gfaas serve, "+
			"which the plan ignores: plan with --functions, or set inflight: 2 if an instance can accept the next call while it answers one", name, arrivals.HandOver))
	}
	if len(list) == 0 {
		notes = append(notes, "the plan places no instance")
	}
	return notes
}

// withoutBatches returns an assignment with a batch for each function whose instances get no batches.
func withoutBatches(list []Assignment) (out []Assignment) {
	for _, a := range list {
		named := slices.ContainsFunc(out, func(other Assignment) bool { return other.Function.Name == a.Function.Name })
		if a.Batch > 1 && !a.Function.Batches() && !named {
			out = append(out, a)
		}
	}
	return out
}

// slowedByHandOver returns the functions whose instances serve one call at a time and lose at least 5% of
// their time between calls, if the plan does not account for that.
func slowedByHandOver(p plan.Plan, list []Assignment) (names []string) {
	for _, a := range list {
		often := a.RPS/float64(max(a.Batch, 1))*arrivals.HandOver.Seconds() >= 0.05
		counted := p.HandOverMS(a.Function.Name) > 0
		if p.Arrivals == plan.ArrivalsPoisson && often && !counted && a.Function.Inflight <= 1 && a.Function.Kind != function.Training && !slices.Contains(names, a.Function.Name) {
			names = append(names, a.Function.Name)
		}
	}
	return names
}

// CheckContainers returns an error if a function has no image, because then no other container engine can
// start it. It also changes the assignments of functions that share a model: the model daemon does not serve
// containers of other engines, so each instance loads the weights, and its memory limit includes them. And it
// removes the SM limits, because the manifest of the containers was written with the SM shares of the requests.
func CheckContainers(p plan.Plan, list []Assignment) error {
	var bare []string
	for i, a := range list {
		if a.Function.Image == "" && !slices.Contains(bare, a.Function.Name) {
			bare = append(bare, a.Function.Name)
		}
		if m := a.Function.Model; m != nil && m.File != "" {
			list[i].Function.Model = &function.Model{Name: m.Name, Size: m.Size}
			list[i].Slice = sliceOf(list[i].Function, p, a.ID)
		}
		list[i].Slice.SMLimitPct = 0
	}
	if len(bare) > 0 {
		return failf("give them an image:, or start the plan with gfaas up",
			"other engines start containers, and these functions have no image: %s", strings.Join(bare, ", "))
	}
	return nil
}

// sliceOf returns the slice of a plan's instance by ID.
func sliceOf(fn function.Function, p plan.Plan, id string) (s gpu.Slice) {
	for _, g := range p.GPUs {
		for _, in := range g.Instances {
			if in.ID == id {
				s = slice(fn, g, in)
			}
		}
	}
	return s
}
