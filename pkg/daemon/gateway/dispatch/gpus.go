package dispatch

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// openGPU sends a GPU to the policy, which may then use it. Locked.
func (d *Dispatcher) openGPU(number int32) {
	d.policy.step(&queue.GPUSet{GPU: number, Slots: d.cfg.Concurrency, Mem: d.memory.gpus[number].capacity, Class: d.classOf(number)})
}

// GPUs returns all GPUs, by number.
func (d *Dispatcher) GPUs() []GPU {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cfg.GPUs // SetGPUs replaces the list
}

// SetGPUs changes the GPUs that the gateway may use, which are identified by name. It adds unknown ones. On
// a GPU that is not in the list any more, no instance starts, and instances end when they are idle.
func (d *Dispatcher) SetGPUs(usable []GPU) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := len(d.cfg.GPUs)
	d.cfg.GPUs = slices.Clone(d.cfg.GPUs)
	listed := map[int32]bool{}
	for _, g := range usable {
		number := slices.IndexFunc(d.cfg.GPUs, func(known GPU) bool { return known.Name == g.Name })
		if number < 0 {
			number = len(d.cfg.GPUs)
			d.cfg.GPUs = append(d.cfg.GPUs, g)
			d.memory.gpus = append(d.memory.gpus, gpuMemory{capacity: g.Mem})
		}
		listed[int32(number)] = true
	}
	if len(d.cfg.GPUs) > before {
		d.added(before)
	}
	for number := range d.cfg.GPUs {
		n := int32(number)
		switch {
		case listed[n] && d.closed[n]:
			delete(d.closed, n)
			d.log.Info("GPU usable", "gpu", d.cfg.GPUs[n].Name)
			d.openGPU(n)
		case !listed[n] && !d.closed[n]:
			d.closed[n] = true
			d.log.Warn("GPU not usable", "gpu", d.cfg.GPUs[n].Name)
			d.policy.step(&queue.GPURemoved{GPU: n})
		}
	}
}

// added processes new GPUs, from the number first on. Locked.
func (d *Dispatcher) added(first int) {
	models := len(d.gpuModels)
	d.gpuModels = d.classes()
	d.placements.placer, d.placements.scaled, _ = newPlacer(&d.cfg) // New has checked the configuration
	for _, i := range d.instances {
		i.reportPlaced()
	}
	if models == 0 && len(d.gpuModels) > 0 { // so far, all GPUs were of one model and in no class
		for number := range first {
			if !d.closed[int32(number)] {
				d.openGPU(int32(number))
			}
		}
	}
	for number := first; number < len(d.cfg.GPUs); number++ {
		d.log.Info("GPU added", "gpu", d.cfg.GPUs[number].Name)
		d.openGPU(int32(number))
	}
}
