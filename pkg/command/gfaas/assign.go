package gfaas

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/plan"
)

// assignment is one instance of a plan, on this machine.
type assignment struct {
	function  function.Function
	placement instance.Placement
}

// record is the instance before it is started.
func (a assignment) record() instance.Record {
	r := launch.Intended(a.function, a.placement)
	r.Registered = []string{a.placement.ID}
	return r
}

// chooseNode is the node whose part of the plan this machine runs: the one
// that was asked for, though it hosts nothing, or the only one that hosts anything.
func chooseNode(p plan.Plan, asked string) (string, error) {
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
	case asked != "" && !slices.Contains(all, asked):
		return "", cli.Fail(cli.ExitUsage, "'gfaas down' stops what runs on a node that the plan no longer has",
			fmt.Errorf("--node %q is not in the plan: expected one of %s", asked, strings.Join(all, ", ")))
	case asked != "":
		return asked, nil
	case len(nodes) > 1:
		return "", cli.Fail(cli.ExitUsage, "name the one that is this machine with --node",
			fmt.Errorf("the plan has instances on %d nodes: %s", len(nodes), strings.Join(nodes, ", ")))
	case len(nodes) == 0:
		return "", nil
	}
	return nodes[0], nil
}

// assign lists the instances of one node of a plan. An instance that is on
// several GPUs becomes one assignment. GPUName names the device with an index.
// Instances have their turns of the plan, but none on a GPU that is in unsound.
func assign(p plan.Plan, node string, functions []function.Function, gpuName func(int) string, unsound []string) ([]assignment, error) {
	byName := map[string]function.Function{}
	for _, fn := range functions {
		byName[fn.Name] = fn
	}
	var out []assignment
	var missing []string
	at := map[string]int{}
	for _, g := range p.GPUs {
		if g.Node != node {
			continue
		}
		turns := g.Turns()
		if slices.Contains(unsound, planName(g)) {
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
				out[i].placement.GPUs = append(out[i].placement.GPUs, gpuName(g.Index))
				out[i].placement.Turns = append(out[i].placement.Turns, turns[in.ID])
				continue
			}
			a := assignment{function: fn, placement: instance.Placement{
				ID: in.ID, GPUs: []string{gpuName(g.Index)}, Slice: slice(fn, g, in), Turns: [][]gpu.Turn{turns[in.ID]}, RPS: in.RPS,
			}}
			if err := a.check(); err != nil {
				return nil, fmt.Errorf("plan: instance %q: %w", in.ID, err)
			}
			at[in.ID] = len(out)
			out = append(out, a)
		}
	}
	if len(missing) > 0 {
		return nil, cli.Fail(cli.ExitFailure, "apply them first: gfaas apply -f FILE",
			fmt.Errorf("the plan needs functions that are not applied: %s", strings.Join(missing, ", ")))
	}
	return out, checkSpans(out)
}

// planName is how a verification calls the GPU.
func planName(g plan.GPU) string { return fmt.Sprintf("%s/%d", g.Node, g.Index) }

// slice is what the plan grants an instance. Its memory limit is the one that
// the function states, and at least what the plan counts on, which may be no
// more than was in use while it was profiled. Weights that the plan counts once
// for all its instances are added where each loads its own: those of the model
// daemon count against nobody's limit.
func slice(fn function.Function, g plan.GPU, in plan.Instance) gpu.Slice {
	mib := in.MemMiB
	if mib > 0 {
		if m, shared := g.Shared(plan.WeightsOf(fn)); shared && fn.Model != nil && fn.Model.File == "" {
			mib += m.MemMiB
		}
	}
	return gpu.Slice{SMPct: in.SMPct, QuotaRequest: in.QuotaRequest, QuotaLimit: in.QuotaLimit, Mem: max(gpu.FromMiB(mib), fn.GPUMem)}
}

func (a assignment) check() error {
	if !instance.ValidID(a.placement.ID) {
		return fmt.Errorf("not an id: expected at most 63 letters, digits, dots, dashes and underscores")
	}
	return a.placement.Slice.Validate()
}

// checkSpans finds instances on more or fewer GPUs than their function spans.
func checkSpans(list []assignment) error {
	for _, a := range list {
		want := max(a.function.GPUs, 1)
		if got := len(a.placement.GPUs); got != want {
			return fmt.Errorf("plan: instance %q is on %d GPUs: function %s spans %d", a.placement.ID, got, a.function.Name, want)
		}
	}
	return nil
}

// namer returns how the GPUs of this machine are named: by number, or as
// simulated ones.
func namer(simulated bool) func(int) string {
	if simulated {
		return func(index int) string { return gpu.Device{Index: index, Simulated: true}.String() }
	}
	return strconv.Itoa
}

// checkLimits refuses memory limits that sum to more than a GPU has.
func checkLimits(p plan.Plan, list []assignment) error {
	limit, weights := map[string]gpu.Bytes{}, map[string]plan.Model{}
	for _, a := range list {
		limit[a.placement.ID] = a.placement.Slice.Mem
		weights[a.function.Name] = plan.WeightsOf(a.function)
	}
	for _, g := range p.GPUs {
		sum := 0.0 // MiB: exact below 2^33, and not limited to what Bytes can hold
		for _, m := range g.Copies(func(name string) plan.Model { return weights[name] }) {
			own := func(a assignment) bool {
				return a.function.Model != nil && plan.WeightsOf(a.function).Is(m) && a.function.Model.File == ""
			}
			if !slices.ContainsFunc(list, own) { // or else they are in the limits
				sum += m.Bytes().MiB()
			}
		}
		for _, in := range g.Instances {
			sum += limit[in.ID].MiB()
		}
		if has := gpu.FromMiB(g.MemMiB); has > 0 && sum > has.MiB() {
			return cli.Fail(cli.ExitFailure, "lower gpu_mem of the functions, plan with fewer instances a GPU, or take the risk with --overcommit",
				fmt.Errorf("the memory limits of the instances on %s sum to %s MiB: the plan counts on %s MiB", planName(g), number.Plain(sum), number.Plain(g.MemMiB)))
		}
	}
	return nil
}

// checkDevices refuses a plan that needs more GPUs than this machine has.
func checkDevices(p plan.Plan, node string, simulated bool) error {
	have, hint := devices.Count(simulated), "plan for the GPUs that are there: gfaas-place plan --gpus N"
	if simulated {
		hint = devices.SimShapeHint
	}
	for _, g := range p.GPUs {
		if g.Node == node && len(g.Instances) > 0 && g.Index >= have {
			return cli.Fail(cli.ExitUnavailable, hint,
				fmt.Errorf("the plan places instances on GPU %d: this machine has %d GPU(s), counted from 0", g.Index, have))
		}
	}
	return nil
}

// noteBeyond tells of memory limits, by GPU, that are more than the GPU has.
func noteBeyond(env *cli.Env, limits map[string]gpu.Bytes) {
	occupancy := devices.NewOccupancy()
	defer occupancy.Close()
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if text := occupancy.Beyond(name, limits[name]); text != "" {
			env.Notef("note: %s", text)
		}
	}
}
