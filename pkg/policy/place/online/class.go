package online

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// class is what GPUs of a kind have in common. Those in use are kept in the
// order of their score.
type class struct {
	mem   gpu.Bytes
	model string
	used  ranking
	gpus  int64 // how many there are
	asked int64 // GPUs that instances asked for by model, in billionths, so far
}

// scarce is how sought after the class is by those who name models: GPUs asked
// for by each there is. It breaks ties only.
func (c *class) scarce() int64 { return c.asked / max(1, c.gpus) }

func (f *Fleet) classOf(mem gpu.Bytes, model string) int32 {
	i := slices.IndexFunc(f.classes, func(c class) bool { return c.mem == mem && c.model == model })
	if i < 0 {
		i = len(f.classes)
		f.classes = append(f.classes, class{mem: mem, model: model})
	}
	return int32(i)
}

// suits says whether GPUs of a class are of a model that will do.
func (c *class) suits(r Request) bool {
	return len(r.Models) == 0 || c.model == "" || slices.Contains(r.Models, c.model)
}

// ask notes which models an instance named, placed or not.
func (f *Fleet) ask(r Request, n need) {
	if len(r.Models) == 0 {
		return
	}
	total := int64(0)
	for i := range f.classes {
		if f.classes[i].suits(r) {
			total += f.classes[i].gpus
		}
	}
	for i := range f.classes {
		if c := &f.classes[i]; c.suits(r) {
			c.asked += n.request * int64(r.GPUs) / max(1, total) * c.gpus
		}
	}
}
