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

// claimTemplate makes a resource claim for each pod (resource.k8s.io/v1).
type claimTemplate struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   meta   `yaml:"metadata"`
	Spec       struct {
		Spec struct {
			Devices deviceClaim `yaml:"devices"`
		} `yaml:"spec"`
	} `yaml:"spec"`
}

type deviceClaim struct {
	Requests    []deviceRequest `yaml:"requests"`
	Constraints []constraint    `yaml:"constraints,omitempty"`
}

type deviceRequest struct {
	Name    string  `yaml:"name"`
	Exactly exactly `yaml:"exactly"`
}

type exactly struct {
	DeviceClassName string     `yaml:"deviceClassName"`
	AllocationMode  string     `yaml:"allocationMode"`
	Count           int        `yaml:"count"`
	Selectors       []selector `yaml:"selectors,omitempty"`
	Capacity        capacity   `yaml:"capacity"`
}

type selector struct {
	CEL struct {
		Expression string `yaml:"expression"`
	} `yaml:"cel"`
}

type capacity struct {
	Requests map[string]string `yaml:"requests"`
}

type constraint struct {
	Requests          []string `yaml:"requests,flow"`
	DistinctAttribute string   `yaml:"distinctAttribute"`
}

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
		d := newDeployment(w, o.Inventory != nil)
		pod := &d.Spec.Template.Spec
		pod.ResourceClaims = []podClaim{{"gpu", w.name}}
		pod.Containers[0].Resources.Claims = []claimName{{"gpu"}}
		docs = append(docs, document{value: newClaim(w, o)}, document{value: d})
	}
	text, err := write(docs)
	warnings := slices.Concat(lossWarnings(scheduler, p, list, o), coreWarnings(p), memoryWarnings(p, list))
	if len(list) > 0 {
		warnings = append(warnings, "claims consume capacity, which requires Kubernetes 1.34 or later with the feature DRAConsumableCapacity, and a driver whose devices of class "+o.Class+" have the capacities cores and memory")
	}
	return Manifest{text, warnings}, err
}

func newClaim(w *workload, o Options) claimTemplate {
	t := claimTemplate{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaimTemplate",
		Metadata: meta{Name: w.name, Labels: map[string]string{labelName: w.group, labelInstance: w.name, labelManager: manager}}}
	r := deviceRequest{Name: "gpu", Exactly: exactly{
		DeviceClassName: o.Class, AllocationMode: "ExactCount", Count: len(w.gpus),
		Capacity: capacity{map[string]string{"cores": strconv.Itoa(w.cores)}},
	}}
	if w.mem > 0 {
		r.Exactly.Capacity.Requests["memory"] = fmt.Sprintf("%dMi", w.mem)
	}
	if len(w.uuids) == len(w.gpus) {
		var s selector
		s.CEL.Expression = fmt.Sprintf("device.attributes[%q].uuid in [%s]", o.Class, strings.Join(lists.Map(w.uuids, strconv.Quote), ", "))
		r.Exactly.Selectors = []selector{s}
	}
	devices := &t.Spec.Spec.Devices
	devices.Requests = []deviceRequest{r}
	if len(w.gpus) > 1 {
		devices.Constraints = []constraint{{[]string{"gpu"}, o.Class + "/uuid"}}
	}
	return t
}
