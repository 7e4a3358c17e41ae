package manifest

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
)

// workload is one instance of a plan on all its GPUs, as engines see it.
type workload struct {
	plan.Instance
	name  string // a DNS label, unlike any other instance's
	group string // the same for all instances of the function
	fn    function.Function
	node  string
	gpus  []int    // indexes on the node
	uuids []string // of the GPUs, where all are known
	exact float64  // MiB on each GPU, weights included; 0 is no limit
	mem   int64    // the same in whole MiB
	cores int      // percent of each GPU's SM time, from 1
}

// workloads are the instances of a plan, in its order.
func workloads(p plan.Plan, o Options) ([]*workload, error) {
	functions := map[string]function.Function{}
	for _, fn := range o.Functions {
		functions[fn.Name] = fn
	}
	devices := map[string]plan.Device{}
	for _, d := range o.Inventory {
		devices[at(d.Node, d.Index)] = d
	}
	names, groups, group := namer{used: map[string]bool{}}, namer{used: map[string]bool{}}, map[string]string{}
	byID := map[string]*workload{}
	var out []*workload
	var bare []string // functions without an image
	unknown := ""     // the first that is in no file
	for _, g := range p.GPUs {
		device, known := devices[at(g.Node, g.Index)]
		if o.Inventory != nil && !known && len(g.Instances) > 0 {
			return nil, fmt.Errorf("the plan has instances on %s gpu %d, which is not in the inventory", g.Node, g.Index)
		}
		cores := shares(g)
		for i, in := range g.Instances {
			fn, ok := functions[in.Function]
			switch {
			case o.Functions == nil:
				fn = function.Function{Name: in.Function, Image: label(in.Function), Port: function.DefaultPort}
			case !ok:
				unknown = cmp.Or(unknown, in.Function)
			case fn.Image == "":
				bare = append(bare, fn.Name)
			}
			if group[in.Function] == "" {
				group[in.Function] = groups.label(in.Function)
			}
			w, more := byID[in.ID]
			if !more {
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
	case len(bare) > 0:
		slices.Sort(bare)
		return nil, &noImageError{slices.Compact(bare)}
	case unknown != "":
		return nil, fmt.Errorf("the plan has instances of %s, which is not among the functions", unknown)
	}
	roundMemory(p, byID)
	return out, nil
}

// roundMemory gives instances their memory in whole MiB: rounded up, but where those
// of a GPU would only then have more than it has, some are rounded down, those first
// that lose the least. Nothing is rounded down to 0, which is no limit.
func roundMemory(p plan.Plan, byID map[string]*workload) {
	for _, w := range byID {
		w.mem = w.roundedUp()
	}
	for _, g := range p.GPUs {
		list, exact, over := hostedBy(g, byID)
		if exact > g.MemMiB+1e-6 {
			continue
		}
		slices.SortStableFunc(list, func(a, b *workload) int { return cmp.Compare(a.lost(), b.lost()) })
		for _, w := range list {
			if whole := int64(w.exact + 1e-6); over > 0 && 0 < whole && whole < w.mem {
				w.mem, over = whole, over-1
			}
		}
	}
}

// roundedUp is an instance's memory in whole MiB, no less than the plan's.
func (w *workload) roundedUp() int64 { return int64(math.Ceil(w.exact - 1e-6)) }

// lost is what rounding down takes of an instance's memory, in MiB.
func (w *workload) lost() float64 { return w.exact - math.Floor(w.exact) }

// hostedBy returns the instances of a GPU, their memory together in MiB, and by how
// many whole MiB their rounded memory is more than the GPU has: 0 or less if it fits,
// or if the GPU's is not limited.
func hostedBy(g plan.GPU, byID map[string]*workload) (list []*workload, exact float64, over int64) {
	for _, in := range g.Instances {
		w := byID[in.ID]
		list, exact, over = append(list, w), exact+w.exact, over+w.mem
	}
	if g.MemMiB == 0 {
		return list, exact, 0
	}
	return list, exact, over - int64(g.MemMiB+1e-6)
}

func at(node string, index int) string { return fmt.Sprintf("%s/%d", node, index) }

// memory is an instance's limit in MiB, as gfaas up sets it: what the function
// states and at least what the plan counts on, with the weights that the plan
// counts once for all, since each instance loads its own.
func memory(fn function.Function, g plan.GPU, in plan.Instance) float64 {
	mib := in.MemMiB
	if m, shared := g.Shared(plan.WeightsOf(fn)); shared && mib > 0 {
		mib += m.MemMiB
	}
	return max(mib, fn.GPUMem.MiB())
}

// shares are the instances' parts of a GPU's SM time in whole percent. They
// sum to no more than the exact parts rounded up together, so that a GPU that
// is full stays so; each has at least 1.
func shares(g plan.GPU) []int {
	out := make([]int, len(g.Instances))
	order := make([]int, len(g.Instances))
	rest := make([]float64, len(g.Instances))
	sum, given := 0.0, 0
	for i, in := range g.Instances {
		exact := in.SMPct * in.QuotaRequest
		sum += exact
		out[i] = max(1, int(exact+1e-9))
		given += out[i]
		rest[i], order[i] = exact-float64(out[i]), i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(rest[b], rest[a]) })
	for _, i := range order {
		if float64(given) < sum-1e-9 && rest[i] > 1e-9 {
			out[i]++
			given++
		}
	}
	return out
}

// namer makes DNS labels of ids.
type namer struct{ used map[string]bool }

// label is the id as a label, with a number behind it when it is taken.
func (n *namer) label(id string) string {
	base := label(id)
	for i := 0; ; i++ {
		name := base
		if i > 0 {
			suffix := fmt.Sprintf("-x%d", i)
			name = strings.TrimRight(base[:min(len(base), 63-len(suffix))], "-") + suffix
		}
		if !n.used[name] {
			n.used[name] = true
			return name
		}
	}
}

// label is a text as a DNS label: small letters, digits and dashes, at most 63,
// a letter first.
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

// slice describes what an instance has, for those who read the manifest.
func (w *workload) slice() string {
	n := csvfile.Format
	text := fmt.Sprintf("sm_pct=%s quota_request=%s quota_limit=%s batch=%d rps=%s", n(w.SMPct), n(w.QuotaRequest), n(w.QuotaLimit), w.Batch, n(w.RPS))
	if w.X != nil && w.Y != nil {
		text += fmt.Sprintf(" x=%s y=%s", n(*w.X), n(*w.Y))
	}
	return text
}
