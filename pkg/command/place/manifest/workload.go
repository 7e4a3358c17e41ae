package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
)

// workload is one instance of a plan on all its GPUs, in the terms of container engines.
type workload struct {
	plan.Instance
	name  string // unique DNS label
	group string // DNS label of the function
	fn    function.Function
	node  string
	gpus  []int    // indexes on the node
	uuids []string // UUIDs of the GPUs, if all are known
	exact float64  // MiB on each GPU, including weights; 0 means no limit
	mem   int64    // exact in whole MiB
	cores int      // percent of each GPU's SM time, at least 1

	secret string // for the token daemon; empty: the setting that gfaas register writes
	signed string // the grant with which it registers itself; empty: none
}

// workloads returns the instances of a plan in its order.
func workloads(p plan.Plan, o Options) ([]*workload, error) {
	functions := map[string]function.Function{}
	for _, fn := range o.Functions {
		functions[fn.Name] = fn
	}
	devices := map[plan.GPUName]plan.Device{}
	for _, d := range o.Inventory {
		devices[d.Name()] = d
	}
	names, groups, group := namer{}, namer{}, map[string]string{}
	byID := map[string]*workload{}
	var out []*workload
	var withoutImage []string // functions without an image
	unknown := ""             // the first function of the plan that is not in o.Functions
	for _, g := range p.GPUs {
		device, known := devices[g.Name()]
		if o.Inventory != nil && !known && len(g.Instances) > 0 {
			return nil, fmt.Errorf("the plan has instances on %s gpu %d, which is not in the inventory", g.Node, g.Index)
		}
		cores := corePercents(g)
		for i, in := range g.Instances {
			fn, ok := functions[in.Function]
			switch {
			case o.Functions == nil:
				fn = function.Function{Name: in.Function, Image: label(in.Function), Port: function.DefaultPort}
			case !ok:
				unknown = cmp.Or(unknown, in.Function)
			case fn.Kind == function.Training:
				return nil, cli.Fail(cli.ExitFailure, "start the plan with gfaas up", // engines would start the command of a complete job again
					fmt.Errorf("function %s is a job (kind: %s), and a manifest describes services, which never end", fn.Name, function.Training))
			case fn.Image == "":
				withoutImage = append(withoutImage, fn.Name)
			}
			if group[in.Function] == "" {
				group[in.Function] = groups.label(in.Function)
			}
			w, known := byID[in.ID]
			if !known {
				w = &workload{Instance: in, fn: fn, node: g.Node, name: names.label(in.ID), group: group[in.Function], cores: cores[i]}
				byID[in.ID] = w
				out = append(out, w)
			}
			w.gpus = append(w.gpus, g.Index)
			if device.UUID != "" {
				w.uuids = append(w.uuids, device.UUID)
			}
			w.exact = max(w.exact, memory(fn, g, in))
			w.cores = min(w.cores, cores[i])
		}
	}
	switch {
	case len(withoutImage) > 0:
		slices.Sort(withoutImage)
		return nil, noImage(slices.Compact(withoutImage))
	case unknown != "":
		return nil, fmt.Errorf("the plan has instances of %s, which is not in the function file", unknown)
	}
	roundMemory(p, byID)
	return out, nil
}

// noImage returns the error for functions that have a command but no image.
func noImage(functions []string) error {
	subject := "function " + functions[0] + " has"
	if len(functions) > 1 {
		subject = "functions " + strings.Join(functions, ", ") + " have"
	}
	return cli.Fail(cli.ExitFailure, "set image in the function file, or start the plan with gfaas up",
		errors.New(subject+" a command but no image, and a manifest can only run containers"))
}

// roundMemory sets the memory of instances to whole MiB. It rounds up, unless only that makes a GPU's
// instances exceed its memory. Then it rounds some down, those with the least loss first. It never
// rounds down to 0, which means no limit.
func roundMemory(p plan.Plan, byID map[string]*workload) {
	for _, w := range byID {
		w.mem = w.roundedUp()
	}
	for _, g := range p.GPUs {
		list, exact, excess := hostedBy(g, byID)
		if exact > g.MemMiB+1e-6 {
			continue
		}
		slices.SortStableFunc(list, func(a, b *workload) int { return cmp.Compare(a.roundingLoss(), b.roundingLoss()) })
		for _, w := range list {
			if whole := int64(w.exact + 1e-6); excess > 0 && 0 < whole && whole < w.mem {
				w.mem, excess = whole, excess-1
			}
		}
	}
}

// roundedUp returns an instance's memory in MiB, rounded up.
func (w *workload) roundedUp() int64 { return int64(math.Ceil(w.exact - 1e-6)) }

// roundingLoss returns the memory that an instance loses by rounding down, in MiB.
func (w *workload) roundingLoss() float64 { return w.exact - math.Floor(w.exact) }

// hostedBy returns the instances of a GPU, their total memory in MiB, and by how many whole MiB their
// rounded memory exceeds the GPU's. The excess is at most 0 if it fits or if the GPU's memory is
// unlimited.
func hostedBy(g plan.GPU, byID map[string]*workload) (list []*workload, exact float64, excess int64) {
	for _, in := range g.Instances {
		w := byID[in.ID]
		list, exact, excess = append(list, w), exact+w.exact, excess+w.mem
	}
	if g.MemMiB == 0 {
		return list, exact, 0
	}
	return list, exact, excess - int64(g.MemMiB+1e-6)
}

// memory returns an instance's memory limit in MiB, as gfaas up sets it: the larger of the function's
// stated memory and the planned memory. It adds shared weights, because without gfaas each instance
// loads its own.
func memory(fn function.Function, g plan.GPU, in plan.Instance) float64 {
	mib := in.MemMiB
	if m, shared := g.Shared(plan.WeightsOf(fn)); shared && mib > 0 {
		mib += m.MemMiB
	}
	return max(mib, fn.GPUMem.MiB())
}

// corePercents returns each instance's share of a GPU's SM time (SM share × quota) in whole percent. A
// share below 1 becomes 1. Apart from that, the shares are rounded so that their sum is that of the
// exact shares, rounded up. A full GPU so stays within 100.
func corePercents(g plan.GPU) []int {
	out := make([]int, len(g.Instances))
	order := make([]int, len(g.Instances))
	remainder := make([]float64, len(g.Instances))
	exactSum, sum := 0.0, 0
	for i, in := range g.Instances {
		exact := in.SMPct * in.QuotaRequest
		exactSum += exact
		out[i] = max(1, int(exact+1e-9))
		sum += out[i]
		remainder[i], order[i] = exact-float64(out[i]), i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(remainder[b], remainder[a]) })
	for _, i := range order {
		if float64(sum) < exactSum-1e-9 && remainder[i] > 1e-9 {
			out[i]++
			sum++
		}
	}
	return out
}

// namer makes unique DNS labels from IDs. It holds the labels in use.
type namer map[string]bool

// label returns the ID as a label, with a numbered suffix if the label is in use.
func (n namer) label(id string) string {
	base := label(id)
	for i := 0; ; i++ {
		name := base
		if i > 0 {
			suffix := fmt.Sprintf("-x%d", i)
			name = strings.TrimRight(base[:min(len(base), 63-len(suffix))], "-") + suffix
		}
		if !n[name] {
			n[name] = true
			return name
		}
	}
}

// label converts a text to a DNS label: at most 63 lower-case letters, digits and dashes, beginning with
// a letter.
func label(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '-'
	}, text)
	text = strings.Trim(text, "-")
	if text == "" || text[0] <= '9' {
		text = "g-" + text
	}
	return strings.Trim(text[:min(len(text), 63)], "-")
}

// slice returns a description of an instance's slice for readers of the manifest.
func (w *workload) slice() string {
	n := csvfile.Format
	text := fmt.Sprintf("sm_pct=%s quota_request=%s quota_limit=%s batch=%d rps=%s", n(w.SMPct), n(w.QuotaRequest), n(w.QuotaLimit), w.Batch, n(w.RPS))
	if w.X != nil && w.Y != nil {
		text += fmt.Sprintf(" x=%s y=%s", n(*w.X), n(*w.Y))
	}
	return text
}
