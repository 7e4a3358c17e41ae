package place

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/pack"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// cargo is items as kinds of rectangles with whole sides.
type cargo struct {
	items     []plan.Item
	bin       pack.Bin
	quota, sm int // digits after the point that sides and places have
	kinds     []pack.Kind
	ofKind    [][]int32 // the items of each kind
	binQuota  plan.Decimal
	binSM     plan.Decimal
	binMem    gpu.Bytes
}

// newCargo scales all sides by the same power of ten, so that they are whole.
func newCargo(items []plan.Item, quota, sm plan.Decimal, mem gpu.Bytes, name string) (*cargo, error) {
	c := &cargo{items: items, quota: quota.Digits, sm: sm.Digits, binQuota: quota, binSM: sm, binMem: mem}
	if quota.Scaled(c.quota) > pack.MaxArea/sm.Scaled(c.sm) {
		return nil, fmt.Errorf("--bin %sx%s is too large to be exact: its area is above %d", quota, sm, int64(pack.MaxArea))
	}
	for _, i := range items {
		c.quota, c.sm = max(c.quota, i.Quota.Digits), max(c.sm, i.SMPct.Digits)
		if w, h := quota.Scaled(c.quota), sm.Scaled(c.sm); w > pack.MaxArea/h {
			return nil, &textfile.Fault{File: name, Line: i.Line, Where: "quota",
				What: fmt.Sprintf("%s × %s is too fine to be exact: in sides of %d and %d decimals a bin of %sx%s has an area above %d",
					i.Quota, i.SMPct, c.quota, c.sm, quota, sm, int64(pack.MaxArea))}
		}
	}
	c.bin = pack.Bin{W: quota.Scaled(c.quota), H: sm.Scaled(c.sm), Mem: int64(mem)}
	kindOf := map[pack.Kind]int{}
	for n, i := range items {
		k := pack.Kind{W: i.Quota.Scaled(c.quota), H: i.SMPct.Scaled(c.sm)}
		if mem > 0 {
			k.Mem = int64(gpu.FromMiB(i.MemMiB))
		}
		at, known := kindOf[k]
		if !known {
			at = len(c.kinds)
			kindOf[k] = at
			c.kinds, c.ofKind = append(c.kinds, k), append(c.ofKind, nil)
		}
		c.kinds[at].Count += i.Count
		c.ofKind[at] = append(c.ofKind[at], int32(n))
	}
	return c, nil
}

// hand gives out the items of each kind, one after the other, in the order of
// the file.
type hand struct {
	cargo *cargo
	at    []int // of each kind, which of its items is next
	copy  []int // and which copy of that, from 0
}

func (c *cargo) hand() *hand {
	return &hand{c, make([]int, len(c.kinds)), make([]int, len(c.kinds))}
}

// next is the next item of a kind and its id.
func (h *hand) next(kind int) (plan.Item, string) {
	i := h.cargo.items[h.cargo.ofKind[kind][h.at[kind]]]
	h.copy[kind]++
	id := i.CopyID(h.copy[kind])
	if h.copy[kind] == i.Count {
		h.at[kind], h.copy[kind] = h.at[kind]+1, 0
	}
	return i, id
}

// size is a bin's, as --bin has it.
func (c *cargo) size() string { return fmt.Sprintf("%sx%s", c.binQuota, c.binSM) }

// tooLarge says why no bin holds an item.
func (c *cargo) tooLarge(k pack.Kind, i plan.Item) string {
	bin := "a bin is " + c.size()
	switch {
	case k.W > c.bin.W && k.H > c.bin.H:
		return fmt.Sprintf("quota %s and sm_pct %s are larger than the bin: %s", i.Quota, i.SMPct, bin)
	case k.W > c.bin.W:
		return fmt.Sprintf("quota %s is larger than the bin: %s", i.Quota, bin)
	case k.H > c.bin.H:
		return fmt.Sprintf("sm_pct %s is larger than the bin: %s", i.SMPct, bin)
	}
	return fmt.Sprintf("mem_mib %s is more than a bin has: %s", csvfile.Format(i.MemMiB), csvfile.Format(c.binMem.MiB()))
}
