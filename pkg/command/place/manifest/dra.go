package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/plan"
)

// DefaultClass is the device class of the only known driver that publishes memory and cores of GPUs as
// consumable capacities.
const DefaultClass = "hami-core-gpu.project-hami.io"

var draKind = Kind{
	Name: "dra", Help: "Write a plan for Kubernetes with dynamic resource allocation",
	Long: `Write Kubernetes manifests for dynamic resource allocation (DRA, resource.k8s.io/v1).
Each function is a Service, and each instance is a Deployment of one pod, with a
ResourceClaimTemplate for its part of a GPU. The claim consumes two capacities of a shared
device: memory, and cores, a percentage of the SM time, which is SM share × quota.

With --inventory, pods run on the nodes of the plan, and on its GPUs if the inventory
contains their UUIDs. Without it, Kubernetes chooses nodes and GPUs.`,
	Example: "  # Start a plan on Kubernetes\n  gfaas-place export dra plan.json --functions functions.yaml | kubectl apply -f -",
	Flags: func(f *pflag.FlagSet, o *Options) {
		f.StringVar(&o.Class, "device-class", DefaultClass, "device class and driver of the GPUs")
	},
	Write: DRA,
}

// DRA writes each instance as a Deployment with a ResourceClaimTemplate for its part of a GPU, and a
// Service for each function. It needs Kubernetes 1.34 or later with the feature
// DRAConsumableCapacity.
func DRA(p plan.Plan, o Options) (Manifest, error) {
	o.Class = cmp.Or(o.Class, DefaultClass)
	list, err := workloads(p, o)
	if err != nil {
		return Manifest{}, err
	}
	docs := services(list)
	for _, w := range list {
		d := newDeployment(w, o.Inventory != nil, object{"claims": []object{{"name": "gpu"}}}, nil,
			object{"resourceClaims": []object{{"name": "gpu", "resourceClaimTemplateName": w.name}}})
		docs = append(docs, document{value: newClaim(w, o)}, document{value: d})
	}
	text, err := write(docs)
	warnings := slices.Concat(lossWarnings(scheduler, p, list, o), coreWarnings(p), memoryWarnings(p, list))
	if len(list) > 0 {
		warnings = append(warnings, "claims consume capacity, which requires Kubernetes 1.34 or later with the feature DRAConsumableCapacity, and a driver whose devices of class "+o.Class+" have the capacities cores and memory")
	}
	return Manifest{text, warnings}, err
}

// newClaim returns a template from which Kubernetes makes a resource claim for each pod (resource.k8s.io/v1).
func newClaim(w *workload, o Options) object {
	capacity := object{"cores": strconv.Itoa(w.cores)}
	if w.mem > 0 {
		capacity["memory"] = fmt.Sprintf("%dMi", w.mem)
	}
	exactly := object{"deviceClassName": o.Class, "allocationMode": "ExactCount", "count": len(w.gpus),
		"capacity": object{"requests": capacity}}
	if len(w.uuids) == len(w.gpus) {
		expression := fmt.Sprintf("device.attributes[%q].uuid in [%s]", o.Class, strings.Join(lists.Map(w.uuids, strconv.Quote), ", "))
		exactly["selectors"] = []object{{"cel": object{"expression": expression}}}
	}
	devices := object{"requests": []object{{"name": "gpu", "exactly": exactly}}}
	if len(w.gpus) > 1 {
		devices["constraints"] = []object{{"requests": []string{"gpu"}, "distinctAttribute": o.Class + "/uuid"}}
	}
	labels := object{labelName: w.group, labelInstance: w.name, labelManager: manager}
	return object{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
		"metadata": object{"name": w.name, "labels": labels}, "spec": object{"spec": object{"devices": devices}}}
}
