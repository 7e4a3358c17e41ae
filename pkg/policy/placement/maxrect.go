package placement

import (
	"cmp"
	"math"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy/place/maxrect"
	"github.com/gfaas/gfaas/pkg/reason"
)

// side is the length of each side of a GPU: the whole window, and all SMs.
const side = 1_000_000_000

// rectangles places instances by FaST-GShare's Algorithm 2 (section 3.4.2): a GPU is a square of quota ×
// SM share, an instance a rectangle in it, and it goes to the free rectangle that it fills best, of those
// on all GPUs. A released rectangle returns to the list of its GPU (keep), and the list is rebuilt
// when it is too long (restructure). An instance that spans several GPUs has a rectangle on each: on those
// with the most free memory, of the GPUs with a rectangle for it.
//
// An instance that another component has placed gets a rectangle if one is free. Otherwise it
// waits for one: the slices on its GPU do not fit side by side, so the GPU gets no further instance until
// others have ended and the instance has its rectangle.
type rectangles struct {
	gpus      []GPU
	spaces    []*maxrect.Space
	instances map[string]*hosted
	waiting   []*hosted // instances without rectangles, in the order of Put
}

// hosted is an instance with its rectangles.
type hosted struct {
	id    string
	w, h  int64
	gpus  []int
	rects []maxrect.Rect // by index in gpus; all zero while the instance waits for them
}

func newRectangles(gpus []GPU, o Options) Placer {
	p := &rectangles{gpus: gpus, instances: map[string]*hosted{}}
	for range gpus {
		p.spaces = append(p.spaces, maxrect.New(side, side, o.Threshold))
	}
	return p
}

func newHosted(r *Request, gpus []int) *hosted {
	billionths := func(fraction float64) int64 { return int64(math.Round(fraction * side)) }
	return &hosted{id: r.ID, w: billionths(r.Slice.QuotaRequest), h: billionths(r.Slice.SMPct / 100), gpus: gpus, rects: make([]maxrect.Rect, len(gpus))}
}

func (p *rectangles) Place(r Request, free []gpu.Bytes, except func(int) bool) ([]int, reason.Reason) {
	able, slack := p.able(&r, free, except)
	if len(able) < r.GPUs {
		for _, s := range p.spaces { // after releases, the lists may lack a free rectangle
			s.Restructure()
		}
		able, slack = p.able(&r, free, except)
	}
	if len(able) < r.GPUs {
		return nil, reason.New(NoRectangle, reason.Number("gpus", r.GPUs), reason.Number("sm_pct", r.Slice.SMPct),
			reason.Number("quota", r.Slice.QuotaRequest), reason.Number("mem_mib", r.Mem.MiB()))
	}
	why := reason.New(mostFreeMemory)
	if r.GPUs == 1 {
		slices.SortFunc(able, func(a, b int) int { return cmp.Or(cmp.Compare(slack[a], slack[b]), cmp.Compare(a, b)) })
		why = reason.New(bestAreaFit, reason.Number("slack_pct", math.Round(float64(slack[able[0]])/side/side*1e4)/1e2))
	}
	chosen := able[:r.GPUs]
	slices.Sort(chosen)
	p.Put(r, chosen)
	return chosen, why
}

// able returns the GPUs with enough free memory and a free rectangle for an instance, in descending order
// of free memory. slack is, by GPU, the area of that rectangle that the instance leaves free.
func (p *rectangles) able(r *Request, free []gpu.Bytes, except func(int) bool) (gpus []int, slack map[int]int64) {
	n := newHosted(r, nil)
	slack = map[int]int64{}
	gpus = slices.DeleteFunc(mostFree(p.gpus, *r, free, except), func(g int) bool {
		_, s, ok := p.spaces[g].Best(n.w, n.h)
		slack[g] = s
		return !ok || slices.ContainsFunc(p.waiting, func(h *hosted) bool { return slices.Contains(h.gpus, g) })
	})
	return gpus, slack
}

func (p *rectangles) Put(r Request, gpus []int) {
	p.Remove(r.ID)
	n := newHosted(&r, slices.Clone(gpus))
	p.instances[r.ID] = n
	if !p.reserve(n) {
		p.waiting = append(p.waiting, n)
	}
}

// reserve reserves a rectangle for the instance on each of its GPUs. If a GPU has none, it reserves
// nothing and returns false.
func (p *rectangles) reserve(n *hosted) bool {
	for i, g := range n.gpus {
		at, _, ok := p.spaces[g].Best(n.w, n.h)
		if !ok {
			p.spaces[g].Restructure() // after releases, the list may lack a free rectangle
			at, _, ok = p.spaces[g].Best(n.w, n.h)
		}
		if !ok {
			p.release(n)
			return false
		}
		p.spaces[g].Place(at)
		n.rects[i] = at
	}
	return true
}

// release frees the rectangles of an instance.
func (p *rectangles) release(n *hosted) {
	for i, g := range n.gpus {
		if n.rects[i].W > 0 {
			p.spaces[g].Release(n.rects[i])
		}
		n.rects[i] = maxrect.Rect{}
	}
}

func (p *rectangles) Remove(id string) {
	n := p.instances[id]
	if n == nil {
		return
	}
	delete(p.instances, id)
	p.waiting = slices.DeleteFunc(p.waiting, func(h *hosted) bool { return h == n })
	p.release(n)
	p.waiting = slices.DeleteFunc(p.waiting, p.reserve)
}
