package dispatch

import (
	"reflect"
	"slices"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// sharedModels returns the queue.Function.Model of each function whose instances are interchangeable with
// those of another one: both name a model, belong to one tenant, and differ only in their names and in
// fields that only the gateway uses. It numbers new functions.
func sharedModels(functions []function.Function, numbers *queue.Numbers) map[string]int32 {
	type first struct {
		function.Function // as started, without its name
		name, tenant      string
	}
	firsts, models := map[string][]first{}, map[string]int32{}
	for _, fn := range functions {
		if fn.Model == nil {
			continue
		}
		started := fn.Versioned()
		started.Name = ""
		known := firsts[fn.Model.Name]
		i := slices.IndexFunc(known, func(o first) bool { return o.tenant == fn.Tenant && reflect.DeepEqual(o.Function, started) })
		if i < 0 {
			firsts[fn.Model.Name] = append(known, first{started, fn.Name, fn.Tenant})
			continue
		}
		models[known[i].name] = numbers.Of(known[i].name) + 1
		models[fn.Name] = models[known[i].name]
	}
	return models
}

// loadedGPUs returns, by number of a function, the GPUs on which an instance of the function, or of
// one with the same model, has its memory. Locked.
func (s *Instances) loadedGPUs() map[int32]map[int32]bool {
	byModel := map[int32]map[int32]bool{} // key: modelKey
	for _, i := range s.byID {
		if i.loaded() {
			key := i.function.modelKey()
			if byModel[key] == nil {
				byModel[key] = map[int32]bool{}
			}
			byModel[key][i.gpu] = true
		}
	}
	loaded := map[int32]map[int32]bool{}
	for number, f := range s.d.functions {
		loaded[number] = byModel[f.modelKey()]
	}
	return loaded
}

// modelKey returns a number that is the same for all functions with the same model. Locked.
func (f *Function) modelKey() int32 {
	if f.model > 0 {
		return f.model - 1
	}
	return f.number
}

// missesFalsely reports whether a Run action needs a start or a load although another GPU has the
// memory for the call (a false miss; LALB, section V). Locked.
func (s *Instances) missesFalsely(a *queue.Action) bool {
	if a.Start == residency.GPUWarm {
		return false
	}
	key := s.d.functions[a.Function].modelKey()
	for _, i := range s.byID {
		if i.gpu != a.GPU && i.loaded() && i.function.modelKey() == key {
			return true
		}
	}
	return false
}
