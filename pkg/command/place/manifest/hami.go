package manifest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/plan"
)

// usualSplit is how many pods HAMi lets share a GPU unless its device plugin is
// told otherwise (deviceSplitCount).
const usualSplit = 10

// HAMi writes each instance as a Deployment that asks HAMi's scheduler for a
// part of a GPU, and a Service for each function. HAMi limits memory and the
// mean use of the SMs.
func HAMi(p plan.Plan, o Options) (Manifest, error) {
	list, err := workloads(p, o)
	if err != nil {
		return Manifest{}, err
	}
	docs := services(list)
	for _, w := range list {
		docs = append(docs, document{value: hamiDeployment(w, o.Inventory != nil)})
	}
	text, err := write(docs)
	warnings := slices.Concat(lost(scheduler, p, list, o), crowded(p), wholeMiB(p, list))
	most := 0
	for _, g := range p.GPUs {
		most = max(most, len(g.Instances))
	}
	if most > usualSplit {
		warnings = append(warnings, fmt.Sprintf("a GPU hosts %d instances: HAMi allows %d unless devicePlugin.deviceSplitCount is raised", most, usualSplit))
	}
	return Manifest{text, warnings}, err
}

func hamiDeployment(w *workload, pinned bool) deployment {
	d := newDeployment(w, pinned)
	limits := map[string]string{
		"nvidia.com/gpu":      strconv.Itoa(len(w.gpus)),
		"nvidia.com/gpucores": strconv.Itoa(w.cores),
	}
	if w.mem > 0 {
		limits["nvidia.com/gpumem"] = strconv.FormatInt(w.mem, 10)
	}
	pod := &d.Spec.Template
	pod.Spec.Containers[0].Resources.Limits = limits
	switch {
	case !pinned:
	case len(w.uuids) == len(w.gpus):
		pod.Metadata.Annotations = map[string]string{"nvidia.com/use-gpuuuid": strings.Join(w.uuids, ",")}
	default:
		pod.Metadata.Annotations = map[string]string{"nvidia.com/use-gpuindexes": strings.Join(w.indexes(), ",")}
	}
	return d
}

func (w *workload) indexes() (out []string) {
	for _, index := range w.gpus {
		out = append(out, strconv.Itoa(index))
	}
	return out
}
