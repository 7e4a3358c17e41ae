package place

import (
	"cmp"
	"slices"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/reason"
)

// sharedWeights is the memory of weights that functions of one model share on a GPU.
type sharedWeights struct {
	shared       bool // weights are kept once on a GPU
	demands      []functionDemand
	model        map[string]plan.Model    // by function, without its size
	keepers      map[plan.Model]gpu.Bytes // by model: the most on any GPU
	currentSizes map[weightsKey]gpu.Bytes // size in the current plan
}

// weightsKey is a model, without its size, and a GPU model.
type weightsKey struct {
	plan.Model
	gpu string
}

// share sets the size of the weights of each model. This is the size that the current plan keeps
// on GPUs of the same GPU model, or otherwise the largest that any configuration shares. It
// excludes configurations with larger weights than these.
func (s *sharedWeights) share(in Input, current plan.Plan) {
	if !s.shared {
		return
	}
	for _, w := range s.demands {
		for _, r := range undominated(w.rows) { // the rows that planners use
			model := s.model[r.Function]
			s.keepers[model] = max(s.keepers[model], plan.Model{MemMiB: r.ModelMemMiB}.Bytes())
		}
	}
	listed := map[plan.GPUName]string{}
	for _, d := range in.Devices {
		listed[d.Name()] = d.Model
	}
	largest := map[plan.Model]gpu.Bytes{}
	var models []string
	for _, g := range current.GPUs {
		model := cmp.Or(listed[g.Name()], g.Model, in.Model)
		models = append(models, model)
		for _, m := range g.Copies(s.weightsOf) {
			size := m.Bytes()
			m.MemMiB = 0
			if s.keepers[m] > 0 {
				s.currentSizes[weightsKey{m, model}] = size
				largest[m] = max(largest[m], size)
			}
		}
	}
	slices.Sort(models)
	models = slices.Compact(models)
	for i := range s.demands {
		w := &s.demands[i]
		fitting := filter(w.rows, func(r profile.Row) bool { return s.weightsFit(r, models) })
		if len(fitting) == 0 && len(w.rows) > 0 {
			w.reason = reason.New(weightsTooLarge, reason.Text("model", s.model[w.demand.Function].Name))
		}
		w.rows = fitting
		for _, r := range undominated(w.rows) {
			model := s.model[r.Function]
			largest[model] = max(largest[model], plan.Model{MemMiB: r.ModelMemMiB}.Bytes())
		}
	}
	for model := range s.keepers {
		s.keepers[model] = largest[model]
	}
	devices := in.Devices
	if devices == nil {
		devices = []plan.Device{in.newDevice(0)}
	}
	for i := range s.demands {
		w := &s.demands[i]
		w.rows = filter(w.rows, func(r profile.Row) bool { return s.covers(r, devices) })
	}
}

// covers reports whether the weights kept on each device are at least those of a configuration that may
// run there. Those of a dominated configuration may be larger.
func (s *sharedWeights) covers(r profile.Row, devices []plan.Device) bool {
	size := plan.Model{MemMiB: r.ModelMemMiB}.Bytes()
	return !slices.ContainsFunc(devices, func(d plan.Device) bool {
		return matches(r, d) && size > s.weightsOn(s.model[r.Function], d)
	})
}

// weightsOf returns the model, without its size, of a function in the demand, or the zero Model.
func (s *sharedWeights) weightsOf(function string) plan.Model { return s.model[function] }

// weightsFit reports whether the weights of a configuration are no larger than the current plan
// keeps on any GPU model, among models, that the configuration may use.
func (s *sharedWeights) weightsFit(r profile.Row, models []string) bool {
	for _, model := range models {
		size, known := s.currentSizes[weightsKey{s.model[r.Function], model}]
		applies := model == "" || r.GPU == "" || model == r.GPU
		if known && applies && gpu.FromMiB(r.ModelMemMiB) > size {
			return false
		}
	}
	return true
}

// weightsOn returns the size of a model's weights on a device: the size in the current plan on that
// GPU model, or otherwise the largest that any configuration shares there.
func (s *sharedWeights) weightsOn(model plan.Model, d plan.Device) gpu.Bytes {
	if s.keepers[model] == 0 {
		return 0
	}
	if size, known := s.currentSizes[weightsKey{model, d.Model}]; known {
		return size
	}
	largest := 0.0
	for _, w := range s.demands {
		if s.model[w.demand.Function] == model {
			largest = max(largest, weightsOn(undominated(w.rows), d))
		}
	}
	return min(plan.Model{MemMiB: largest}.Bytes(), s.keepers[model])
}

// models returns the weights kept on a GPU, in the order of the instances that need them.
func (s *sharedWeights) models(h *host) []plan.Model {
	out := slices.Clone(h.fixed)
	for _, t := range h.residents {
		m := s.model[t.Function]
		if size := s.weightsOn(m, h.device); size > 0 && !slices.ContainsFunc(out, m.Is) {
			m.MemMiB = size.MiB()
			out = append(out, m)
		}
	}
	return out
}

// cost returns the memory that one more instance needs on the GPU: its own and, if it is the
// first of its model, the shared weights.
func (s *sharedWeights) cost(h *host, function string, own gpu.Bytes) gpu.Bytes {
	model := s.model[function]
	if !slices.ContainsFunc(h.residents, func(t *resident) bool { return s.model[t.Function] == model }) {
		own += s.keepers[model]
	}
	return own
}

// private returns the memory of an instance without shared weights.
func (s *sharedWeights) private(row profile.Row) gpu.Bytes {
	return gpu.FromMiB(privateMemory(row, s.shared))
}
