package place

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/joint"
	"github.com/gfaas/gfaas/pkg/profile"
)

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

// nodes numbers the nodes of the inventory.
func (in Input) nodes() map[string]int {
	out := map[string]int{}
	for _, d := range in.Devices {
		if _, known := out[d.Node]; !known {
			out[d.Node] = len(out)
		}
	}
	return out
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
