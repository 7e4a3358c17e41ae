package manifest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/plan"
)

// usualSplit is HAMi's default limit of pods per GPU (deviceSplitCount of its device plugin).
const usualSplit = 10

var hamiKind = Kind{
	Name: "hami", Help: "Write a plan for HAMi on Kubernetes",
	Long: `Write Kubernetes manifests for HAMi, a scheduler and a library that share GPUs among
pods. Each function is a Service, and each instance is a Deployment of one pod. The
pod requests a number of GPUs (nvidia.com/gpu) and, on each, memory in MiB
(nvidia.com/gpumem) and a percentage of the SM time (nvidia.com/gpucores), which is SM
share × quota: 20 for 50% of the SMs and quota 0.4.

HAMi limits the memory and the mean SM time of a pod. A warning on standard error
names each property of the plan that HAMi cannot enforce, such as turns.

With --inventory, each pod is bound to its node and GPUs in the plan. Without it, HAMi
chooses nodes and GPUs.`,
	Example: "  # Start the instances of a plan on the nodes and GPUs of the plan\n  gfaas-place export hami plan.json --functions functions.yaml --inventory gpus.csv | kubectl apply -f -",
	Write:   HAMi,
}

// HAMi writes each instance as a Deployment that requests a part of a GPU from HAMi's scheduler, and a
// Service for each function. HAMi limits memory and the mean use of the SMs.
func HAMi(p plan.Plan, o Options) (Manifest, error) {
	list, err := workloads(p, o)
	if err != nil {
		return Manifest{}, err
	}
	docs := services(list)
	docs = append(docs, lists.Map(list, func(w *workload) document { return document{value: hamiDeployment(w, o.Inventory != nil)} })...)
	text, err := write(docs)
	warnings := slices.Concat(lossWarnings(scheduler, p, list, o), coreWarnings(p), memoryWarnings(p, list))
	largest := 0
	for _, g := range p.GPUs {
		largest = max(largest, len(g.Instances))
	}
	if largest > usualSplit {
		warnings = append(warnings, fmt.Sprintf("a GPU hosts %d instances, but HAMi allows %d by default; raise devicePlugin.deviceSplitCount", largest, usualSplit))
	}
	return Manifest{text, warnings}, err
}

func hamiDeployment(w *workload, pinned bool) object {
	limits := object{"nvidia.com/gpu": strconv.Itoa(len(w.gpus)), "nvidia.com/gpucores": strconv.Itoa(w.cores)}
	if w.mem > 0 {
		limits["nvidia.com/gpumem"] = strconv.FormatInt(w.mem, 10)
	}
	var annotations object
	switch {
	case !pinned:
	case len(w.uuids) == len(w.gpus):
		annotations = object{"nvidia.com/use-gpuuuid": strings.Join(w.uuids, ",")}
	default:
		annotations = object{"nvidia.com/use-gpuindexes": strings.Join(lists.Map(w.gpus, strconv.Itoa), ",")}
	}
	return newDeployment(w, pinned, object{"limits": limits}, annotations, nil)
}
