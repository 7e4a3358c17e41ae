package place

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// remembers says whether the GPU has memory for one more instance.
func (s *site) remembers(b *berth, function string, own gpu.Bytes) bool {
	return b.room == unlimited || b.used+s.cost(b, function, own) <= b.room
}

// find is where an instance of the row goes on the GPU, and how much is left
// beside it.
func (s *site) find(b *berth, row profile.Row) (at spot, slack int64, ok bool) {
	if !matches(row, b.device) || !s.remembers(b, row.Function, s.private(row)) {
		return spot{}, 0, false
	}
	w, h := share(row.Quota), share(row.SMPct/100)
	if b.line != nil {
		turns := b.line.Find(w, h)
		return spot{on: b, turns: turns}, b.line.Free() - w*h, turns != nil
	}
	r, slack, ok := b.space.Best(w, h)
	return spot{on: b, at: r}, slack, ok
}

// put finds the GPUs for an instance of the row over span GPUs of one node,
// among those that may be, where the least is left beside it.
func (s *site) put(row profile.Row, span int, may func(*berth) bool) ([]spot, bool) {
	type option struct {
		at    spot
		slack int64
	}
	byNode := map[string][]option{}
	var best option
	found := false
	for _, b := range s.berths {
		if !may(b) {
			continue
		}
		at, slack, ok := s.find(b, row)
		switch {
		case !ok:
		case span > 1:
			byNode[b.device.Node] = append(byNode[b.device.Node], option{at, slack})
		case !found || slack < best.slack:
			best, found = option{at, slack}, true
		}
	}
	if span == 1 {
		return []spot{best.at}, found
	}
	for _, b := range s.berths { // nodes in the order of the GPUs
		options := byNode[b.device.Node]
		if len(options) < span {
			continue
		}
		slices.SortStableFunc(options, func(x, y option) int { return cmp.Compare(x.slack, y.slack) })
		var out []spot
		for _, o := range options[:span] {
			out = append(out, o.at)
		}
		return out, true
	}
	return nil, false
}

func used(b *berth) bool   { return len(b.tenants) > 0 }
func anywhere(*berth) bool { return true }
func unused(b *berth) bool { return !used(b) }

// roomFor finds where an instance of the row can go: on GPUs in use, then on those
// whose free rectangles are listed anew, then on empty ones, then on GPUs that
// come when as many come as it takes.
func (s *site) roomFor(row profile.Row, span int, onlyUsed bool) ([]spot, bool) {
	if spots, ok := s.put(row, span, used); ok {
		return spots, true
	}
	if s.restructure() {
		if spots, ok := s.put(row, span, used); ok {
			return spots, true
		}
	}
	if onlyUsed {
		return nil, false
	}
	if spots, ok := s.put(row, span, unused); ok || !s.elastic() {
		if !ok && span > 1 {
			return s.put(row, span, anywhere)
		}
		return spots, ok
	}
	var out []spot
	for range span {
		b := s.come()
		at, _, ok := s.find(b, row)
		if !ok {
			return nil, false
		}
		out = append(out, at)
	}
	return out, true
}

// come opens one more GPU.
func (s *site) come() *berth {
	b := s.open(plan.Device{Node: "node0", Index: s.next, MemMiB: s.in.MemMiB})
	s.next++
	return b
}

// restructure lists all free rectangles of GPUs that something was released on
// since, and says whether there were any.
func (s *site) restructure() bool {
	some := false
	for _, b := range s.berths {
		if b.released && b.space != nil {
			b.space.Restructure()
			some = true
		}
		b.released = false
	}
	return some
}
