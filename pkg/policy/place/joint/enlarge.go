package joint

import (
	"cmp"
	"slices"
)

// enlargeTries is how many sizes are tried for one instance.
const enlargeTries = 4

// enlarge gives instances of functions that want more a larger configuration,
// where the GPU has room for it: when memory is what is short, SMs and time are
// left over, and one instance more would take memory again.
func (s *solver) enlarge(h *host, price, left []float64) {
	for i := h.pinned; i < len(h.items); i++ {
		it := h.items[i]
		if left[it.Func] <= 0 || price[it.Func] <= 0 {
			continue
		}
		all := s.p.Funcs[it.Func].Options
		now := &all[it.Option]
		var failed [][2]int64
		for range enlargeTries {
			best, serves := -1, now.Rate
			room := h.area() + now.W*(now.H/scale)
			for _, ch := range s.cutters[h.class].choices[it.Func] {
				o := &all[ch.opt]
				rate := min(o.Rate, now.Rate+left[it.Func])
				if rate > serves && o.W*(o.H/scale) <= room && h.used-now.Mem+o.Mem <= s.p.Classes[h.class].Room &&
					!slices.ContainsFunc(failed, func(side [2]int64) bool { return o.W >= side[0] && o.H >= side[1] }) {
					best, serves = ch.opt, rate
				}
			}
			s.work += int64(len(s.cutters[h.class].choices[it.Func]))
			if best < 0 {
				break
			}
			if s.exchange(h, i, best) {
				left[it.Func] = s.after(it.Func, left[it.Func], all[best].Rate-now.Rate)
				break
			}
			failed = append(failed, [2]int64{all[best].W, all[best].H})
		}
	}
}

// exchange gives an item of a host another option, and all that may move a new
// place, largest first. It says whether all had room; if not, nothing changes.
func (s *solver) exchange(h *host, at, option int) bool {
	items := slices.Clone(h.items)
	items[at].Option = option
	area := func(it Item) int64 {
		o := &s.p.Funcs[it.Func].Options[it.Option]
		return o.W * (o.H / scale)
	}
	order := items[h.pinned:]
	again := s.host(h.class, items[:h.pinned])
	again.node, again.pinned = h.node, h.pinned
	sorted := slices.Clone(order)
	slices.SortStableFunc(sorted, func(a, b Item) int { return cmp.Compare(area(b), area(a)) })
	for i := range sorted {
		if !s.spot(again, &sorted[i]) {
			return false
		}
		again.add(s.p, sorted[i])
		s.work += hostWork
	}
	*h = *again
	return true
}
