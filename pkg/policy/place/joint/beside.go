package joint

import (
	"cmp"
	"slices"
)

// besideWork allows for about 3,000 instances on 700 GPUs, which take a tenth of
// a second; from some 10,000 on gangs are nearly as good.
const besideWork = 4

// placeBeside places what spans several GPUs, the largest spans first: whole
// gangs of the program's solution, then each instance where it takes the fewest
// GPUs more. It says whether that took no more than besideWork times the work
// there may be; if not, the draft is good for nothing.
func (s *solver) placeBeside(d *draft, uses []use, price []float64) bool {
	from, limit := s.done(), s.limit
	defer func() { s.limit += s.done() - from }() // it leaves the search its own
	for _, n := range s.widths() {
		for _, u := range uses {
			items := s.spanning(s.pool[u.pattern].gpu.Items)
			if s.widestOf(items) != n {
				continue
			}
			for range int(u.count+1e-6) / s.gang(items) {
				if !s.openGang(d, items) {
					break
				}
			}
		}
		for _, f := range s.wide(n) {
			for s.placeOne(d, f) {
				if s.done()-from > besideWork*limit || s.expired() {
					return false
				}
			}
		}
	}
	s.fillHosts(d, d.hosts, price)
	return true
}

// widths are the spans of more than one GPU, largest first.
func (s *solver) widths() (out []int) {
	for f := range s.p.Funcs {
		if n := s.span(f); n > 1 {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b int) int { return cmp.Compare(b, a) })
	return slices.Compact(out)
}

func (s *solver) widestOf(items []Item) int {
	n := 0
	for _, it := range items {
		n = max(n, s.span(it.Func))
	}
	return n
}

// wide are the functions that span n GPUs, those whose densest configuration is
// largest first.
func (s *solver) wide(n int) (out []int) {
	size := make([]float64, len(s.p.Funcs))
	for f := range s.p.Funcs {
		if s.span(f) != n || s.unit[f] == 0 {
			continue
		}
		out = append(out, f)
		if all := s.dense(f, s.p.Funcs[f].Demand); len(all) > 0 {
			size[f] = s.share(&s.p.Funcs[f].Options[all[0].opt])
		}
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(size[b], size[a]) })
	return out
}

// ranked is an option and what it serves of what is wanted, by area.
type ranked struct {
	fn, opt int
	dens    float64
}

// dense are the options of a function by what an instance serves of what is
// left for its share of a GPU, most first.
func (s *solver) dense(f int, left float64) (out []ranked) {
	for i := range s.p.Funcs[f].Options {
		o := &s.p.Funcs[f].Options[i]
		if slices.Contains(o.On, true) {
			out = append(out, ranked{f, i, min(o.Rate, left/float64(s.span(f))) / s.share(o)})
		}
	}
	slices.SortStableFunc(out, func(a, b ranked) int { return cmp.Compare(b.dens, a.dens) })
	return out
}

// share is the part of a GPU that an instance takes on each: of its area, or of
// the memory of the largest, whichever is more.
func (s *solver) share(o *Option) float64 {
	room := int64(0)
	for _, c := range s.p.Classes {
		room = max(room, c.Room)
	}
	return max(float64(o.W)/One*(float64(o.H)/One), float64(o.Mem)/float64(max(1, room)))
}

// landing is where an instance may go.
type landing struct {
	node  int
	hosts []*host // in use, in order of what is free on them
	items []Item  // for each of hosts, where on it
	fresh []int   // classes of GPUs to be taken besides
	area  int64   // free on hosts
	spare int     // GPUs of the node that are not taken, where they are counted
}

func (l *landing) compare(o *landing) int {
	return cmp.Or(cmp.Compare(len(l.fresh), len(o.fresh)), cmp.Compare(l.area, o.area), cmp.Compare(l.spare, o.spare))
}

// placeOne places one instance of a function, if it wants one and there is
// room. Of the options at least half as dense as the densest, that is taken
// which needs the fewest GPUs more; others only if none of those has room.
func (s *solver) placeOne(d *draft, f int) bool {
	left := s.left(d.served)[f]
	if left == 0 {
		return false
	}
	var best *landing
	option := 0
	all, seats := s.dense(f, left), s.seats(d)
	for _, r := range all {
		if best != nil && (len(best.fresh) == 0 || 2*r.dens < all[0].dens) {
			break
		}
		if l := s.land(d, seats, Item{Func: f, Option: r.opt}); l != nil && (best == nil || len(l.fresh) < len(best.fresh)) {
			best, option = l, r.opt
		}
	}
	if best == nil {
		return false
	}
	s.take(d, best, Item{Func: f, Option: option})
	return true
}

// land finds the node and GPUs where an instance takes the fewest GPUs more,
// then leaves the least area free beside it; nil if there is no room.
func (s *solver) land(d *draft, seats [][]seat, it Item) (best *landing) {
	for node := range s.nodes() {
		if l := s.landOn(d, seats[node], it, node); l != nil && (best == nil || l.compare(best) < 0) {
			best = l
		}
	}
	return best
}

func (s *solver) landOn(d *draft, seats []seat, it Item, node int) *landing {
	n, l := s.span(it.Func), &landing{node: node}
	s.sit(seats, it, l)
	if len(l.hosts) < n {
		l.fresh = s.together(d, []Item{it}, node, n-len(l.hosts))
	}
	if len(l.hosts)+len(l.fresh) < n {
		return nil
	}
	for k, c := range s.p.Classes {
		if c.Count != Elastic {
			l.spare += s.freeOn(d, k, node)
		}
	}
	return l
}

// seat is a GPU in use, with the area that is free on it.
type seat struct {
	h    *host
	area int64
}

// seats are the GPUs in use, by node, the fullest first.
func (s *solver) seats(d *draft) [][]seat {
	out := make([][]seat, s.nodes())
	for _, h := range d.hosts {
		out[h.node] = append(out[h.node], seat{h, h.area()})
	}
	for _, on := range out {
		slices.SortStableFunc(on, func(a, b seat) int { return cmp.Compare(a.area, b.area) })
	}
	s.work += int64(len(d.hosts))
	return out
}

// sit finds the fullest GPUs that have room for an instance, as many as it
// spans. Under tokens what is there keeps its turns.
func (s *solver) sit(seats []seat, it Item, l *landing) {
	o := &s.p.Funcs[it.Func].Options[it.Option]
	need := o.W * (o.H / scale)
	from, _ := slices.BinarySearchFunc(seats, need, func(at seat, need int64) int { return cmp.Compare(at.area, need) })
	for _, at := range seats[from:] {
		if len(l.hosts) == s.span(it.Func) {
			return
		}
		s.work += int64(1 + len(at.h.items))
		if !o.On[at.h.class] || !at.h.remembers(s.p, it) {
			continue
		}
		if at.h.has(&it, o) {
			l.hosts, l.items, l.area = append(l.hosts, at.h), append(l.items, it), l.area+at.area
		}
	}
}

// take places an instance.
func (s *solver) take(d *draft, l *landing, it Item) {
	s.gangs++
	for i, h := range l.hosts {
		l.items[i].Gang = s.gangs
		h.add(s.p, l.items[i])
		h.pinned = len(h.items)
		d.served[it.Func] += s.rate(it)
	}
	for _, k := range l.fresh {
		h := s.host(k, nil)
		h.node = l.node
		s.spot(h, &it)
		it.Gang = s.gangs
		h.add(s.p, it)
		h.pinned = len(h.items)
		s.join(d, h)
	}
}
