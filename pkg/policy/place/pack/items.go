package pack

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/reason"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Items represents items with decimal sides as kinds of rectangles with integer sides.
type Items struct {
	Kinds                 []Kind
	Bin                   Bin
	QuotaDigits, SMDigits int // digits after the decimal point of sides and places

	items     []plan.Item
	ofKind    [][]int // by kind: indexes of its items
	quota, sm plan.Decimal
	mem       gpu.Bytes
}

// NewItems scales all sides of an axis by the same power of ten, so that they are integers. A mem of 0
// means unlimited memory. It returns a textfile.Fault in the file if the decimals of an item are too
// fine, and another error, which begins with the bin's size, if the bin is too large.
func NewItems(items []plan.Item, quota, sm plan.Decimal, mem gpu.Bytes, file string) (*Items, error) {
	c := &Items{items: items, QuotaDigits: quota.Digits, SMDigits: sm.Digits, quota: quota, sm: sm, mem: mem}
	if quota.Scaled(c.QuotaDigits) > MaxArea/sm.Scaled(c.SMDigits) {
		return nil, fmt.Errorf("%s is too large for exact arithmetic: its area is above %d", c.BinSize(), int64(MaxArea))
	}
	for _, i := range items {
		c.QuotaDigits, c.SMDigits = max(c.QuotaDigits, i.Quota.Digits), max(c.SMDigits, i.SMPct.Digits)
		if w, h := quota.Scaled(c.QuotaDigits), sm.Scaled(c.SMDigits); w > MaxArea/h {
			return nil, &textfile.Fault{File: file, Line: i.Line, Where: "quota",
				What: fmt.Sprintf("%s × %s is too fine for exact arithmetic: with sides of %d and %d decimals, the area of a bin of %s is above %d",
					i.Quota, i.SMPct, c.QuotaDigits, c.SMDigits, c.BinSize(), int64(MaxArea))}
		}
	}
	c.Bin = Bin{W: quota.Scaled(c.QuotaDigits), H: sm.Scaled(c.SMDigits), Mem: int64(mem)}
	kindOf := map[Kind]int{}
	for n, i := range items {
		k := Kind{W: i.Quota.Scaled(c.QuotaDigits), H: i.SMPct.Scaled(c.SMDigits)}
		if mem > 0 {
			k.Mem = int64(gpu.FromMiB(i.MemMiB))
		}
		at, known := kindOf[k]
		if !known {
			at = len(c.Kinds)
			kindOf[k] = at
			c.Kinds, c.ofKind = append(c.Kinds, k), append(c.ofKind, nil)
		}
		c.Kinds[at].Count += i.Count
		c.ofKind[at] = append(c.ofKind[at], n)
	}
	return c, nil
}

// BinSize returns the size of a bin, like 1x100.
func (c *Items) BinSize() string { return fmt.Sprintf("%sx%s", c.quota, c.sm) }

// copies returns a function that returns the next item of a kind, in the order of the file,
// and its ID.
func (c *Items) copies() func(kind int) (plan.Item, string) {
	at, count := make([]int, len(c.Kinds)), make([]int, len(c.Kinds))
	return func(kind int) (plan.Item, string) {
		i := c.items[c.ofKind[kind][at[kind]]]
		count[kind]++
		id := i.CopyID(count[kind])
		if count[kind] == i.Count {
			at[kind], count[kind] = at[kind]+1, 0
		}
		return i, id
	}
}

// Each calls newBin for each bin of a packing, and visit for each of its items.
func (c *Items) Each(p Packing, newBin func(), visit func(i plan.Item, id string, at Placed)) {
	next := c.copies()
	for _, b := range p.Bins {
		for range b.Times {
			newBin()
			for _, at := range b.Items {
				i, id := next(at.Kind)
				visit(i, id, at)
			}
		}
	}
}

// EachOversize calls visit for each item that is too large for a bin.
func (c *Items) EachOversize(p Packing, visit func(i plan.Item, id string, why reason.Reason)) {
	next := c.copies()
	for _, kind := range p.Oversize {
		for range c.Kinds[kind].Count {
			i, id := next(kind)
			visit(i, id, c.tooLarge(c.Kinds[kind], i))
		}
	}
}

// tooLarge returns the reason why an item does not fit a bin.
func (c *Items) tooLarge(k Kind, i plan.Item) reason.Reason {
	why := reason.New(largerThanBin)
	compare := func(name string, item, bin float64) {
		why = why.With(reason.Number(name, item), reason.Number("bin_"+name, bin))
	}
	if k.W > c.Bin.W {
		compare("quota", i.Quota.Float(), c.quota.Float())
	}
	if k.H > c.Bin.H {
		compare("sm_pct", i.SMPct.Float(), c.sm.Float())
	}
	if len(why.Params) == 0 {
		compare("mem_mib", i.MemMiB, c.mem.MiB())
	}
	return why
}
