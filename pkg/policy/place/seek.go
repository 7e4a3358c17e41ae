package place

import (
	"cmp"
	"container/heap"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/profile"
)

// need is all of a configuration that decides where it fits.
type need struct {
	w, h int64
	mem  gpu.Bytes
	gpu  string
}

func needOf(row profile.Row) need {
	return need{share(row.Quota), share(row.SMPct / 100), gpu.FromMiB(row.GPUMemMiB), row.GPU}
}

// offer is the best place for a need on one GPU.
type offer struct {
	host  *host
	at    maxrect.Rect
	slack int64
}

func (n need) of(h *host) (offer, bool) {
	if h.room < n.mem || n.gpu != "" && h.device.Model != "" && n.gpu != h.device.Model {
		return offer{}, false
	}
	at, slack, ok := h.space.Best(n.w, n.h)
	return offer{h, at, slack}, ok
}

// seek finds the best offer for one need after the other. Instances of one
// configuration mostly come in a row, so that from the second on the offers of
// all GPUs are kept, and only that of the GPU that changed is asked again:
// looking at every GPU for every instance would make large plans take the
// square of their size.
type seek struct {
	need   need
	asked  int // how often in a row
	offers offers
}

// find is the offer of least slack for a need; of several as good, that of the
// first GPU.
func (f *fleet) find(n need) (best offer, ok bool) {
	s := &f.seek
	if s.asked == 0 || s.need != n {
		*s = seek{need: n, offers: s.offers[:0]}
	}
	if s.asked++; s.asked == 1 {
		return f.scan(n)
	}
	if s.asked == 2 {
		for _, h := range f.open {
			if o, ok := n.of(h); ok {
				s.offers = append(s.offers, o)
			}
		}
		heap.Init(&s.offers)
	}
	if len(s.offers) == 0 {
		return offer{}, false
	}
	return s.offers[0], true
}

// scan finds the same by looking at every GPU.
func (f *fleet) scan(n need) (best offer, found bool) {
	for _, h := range f.open {
		if o, ok := n.of(h); ok && (!found || o.slack < best.slack) {
			best, found = o, true
		}
	}
	return best, found
}

// changed renews the offer of the GPU that the instance was placed on: the best
// one, or one that has just come.
func (s *seek) changed(h *host) {
	if s.asked < 2 {
		return
	}
	o, ok := s.need.of(h)
	switch known := len(s.offers) > 0 && s.offers[0].host == h; {
	case known && ok:
		s.offers[0] = o
		heap.Fix(&s.offers, 0)
	case known:
		heap.Pop(&s.offers)
	case ok:
		heap.Push(&s.offers, o)
	}
}

// offers is a heap, the best on top.
type offers []offer

func (o offers) Len() int      { return len(o) }
func (o offers) Swap(i, j int) { o[i], o[j] = o[j], o[i] }
func (o offers) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(o[i].slack, o[j].slack), cmp.Compare(o[i].host.number, o[j].host.number)) < 0
}
func (o *offers) Push(x any) { *o = append(*o, x.(offer)) }
func (o *offers) Pop() any {
	last := len(*o) - 1
	x := (*o)[last]
	*o = (*o)[:last]
	return x
}
