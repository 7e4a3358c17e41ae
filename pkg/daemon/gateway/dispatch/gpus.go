package dispatch

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// GPUs are the GPUs that the gateway knows. A GPU keeps its number, the index in the list, for good.
// Dispatcher.mu guards them.
type GPUs struct {
	d      *Dispatcher
	list   []GPU          // replaced as a whole, never modified
	models []string       // by class minus 1; empty if all GPUs have the same model
	closed map[int32]bool // those that Set has closed: no instance starts there
}

// newGPUs returns the GPUs of a configuration.
func newGPUs(d *Dispatcher, list []GPU) GPUs {
	return GPUs{d: d, list: list, models: modelsOf(list, nil), closed: map[int32]bool{}}
}

// All returns all GPUs, by number.
func (g *GPUs) All() []GPU {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	return g.list
}

// Set changes the GPUs that the gateway may use, which are identified by name. It adds unknown ones. On
// a GPU that is not in the list any more, no instance starts, and instances end when they are idle.
func (g *GPUs) Set(usable []GPU) {
	g.d.mu.Lock()
	defer g.d.mu.Unlock()
	before := len(g.list)
	g.list = slices.Clone(g.list)
	listed := map[int32]bool{}
	for _, u := range usable {
		number := g.number(u.Name)
		if number < 0 {
			number = int32(len(g.list))
			g.list = append(g.list, u)
			g.d.memory.gpus = append(g.d.memory.gpus, gpuMemory{capacity: u.Mem})
		}
		listed[number] = true
	}
	if len(g.list) > before {
		g.addedFrom(before)
	}
	for number := range g.list {
		n := int32(number)
		switch {
		case listed[n] && g.closed[n]:
			delete(g.closed, n)
			g.d.log.Info("GPU usable", "gpu", g.list[n].Name)
			g.open(n)
		case !listed[n] && !g.closed[n]:
			g.closed[n] = true
			g.d.log.Warn("GPU not usable", "gpu", g.list[n].Name)
			g.d.policy.step(&queue.GPURemoved{GPU: n})
		}
	}
}

// addedFrom processes new GPUs, from the number first on. Locked.
func (g *GPUs) addedFrom(first int) {
	models := len(g.models)
	g.models = modelsOf(g.list, g.models)
	g.d.placements.placer, g.d.placements.scaled, _ = newPlacer(&g.d.cfg, g.list) // New has checked the configuration
	for _, i := range g.d.Instances.byID {
		i.reportPlaced()
	}
	if models == 0 && len(g.models) > 0 { // so far, all GPUs were of one model and in no class
		for number := range int32(first) {
			if !g.closed[number] {
				g.open(number)
			}
		}
	}
	for number := first; number < len(g.list); number++ {
		g.d.log.Info("GPU added", "gpu", g.list[number].Name)
		g.open(int32(number))
	}
}

// open sends a GPU to the policy, which may then use it. Locked.
func (g *GPUs) open(number int32) {
	g.d.policy.step(&queue.GPUSet{GPU: number, Slots: g.d.cfg.Concurrency, Mem: g.d.memory.gpus[number].capacity, Class: g.classOf(number)})
}

// modelsOf returns the models of GPUs: those in known, in that order, then new ones, sorted. It returns nil if
// there is only one. A class of GPUs is 1 plus the index of its model, and does not change.
func modelsOf(list []GPU, known []string) []string {
	var further []string
	for _, g := range list {
		if !slices.Contains(known, g.Model) {
			further = append(further, g.Model)
		}
	}
	slices.Sort(further)
	models := append(slices.Clone(known), slices.Compact(further)...)
	if len(models) < 2 {
		return nil
	}
	return models
}

// classOf returns the class of a GPU, or 0 if all GPUs have the same model.
func (g *GPUs) classOf(number int32) int32 {
	return int32(slices.Index(g.models, g.list[number].Model)) + 1
}

// number returns the number of a GPU, or -1 for a GPU that this gateway does not serve.
func (g *GPUs) number(name string) int32 {
	return int32(slices.IndexFunc(g.list, func(known GPU) bool { return known.Name == name }))
}

// numbers is number for several GPUs.
func (g *GPUs) numbers(names []string) (out []int32) {
	for _, name := range names {
		out = append(out, g.number(name))
	}
	return out
}

// names returns the names of GPUs.
func (g *GPUs) names(numbers []int) (names []string) {
	for _, n := range numbers {
		names = append(names, g.list[n].Name)
	}
	return names
}
