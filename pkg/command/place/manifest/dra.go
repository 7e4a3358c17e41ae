package manifest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/plan"
)

// DefaultClass is the device class of the one driver known to publish memory
// and cores of GPUs as capacities that claims consume.
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

// DRA writes each instance as a Deployment with a ResourceClaimTemplate for its
// part of a GPU (Kubernetes 1.34 or later with the feature
// DRAConsumableCapacity), and a Service for each function.
func DRA(p plan.Plan, o Options) (Manifest, error) {
	if o.Class == "" {
		o.Class = DefaultClass
	}
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
	warnings := slices.Concat(lost(scheduler, p, list, o), crowded(p), wholeMiB(p, list))
	if len(list) > 0 {
		warnings = append(warnings, "claims consume capacity: Kubernetes 1.34 or later with the feature DRAConsumableCapacity, and a driver whose devices of class "+o.Class+" have the capacities cores and memory")
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
		s.CEL.Expression = fmt.Sprintf("device.attributes[%q].uuid in [%s]", o.Class, quoted(w.uuids))
		r.Exactly.Selectors = []selector{s}
	}
	devices := &t.Spec.Spec.Devices
	devices.Requests = []deviceRequest{r}
	if len(w.gpus) > 1 {
		devices.Constraints = []constraint{{[]string{"gpu"}, o.Class + "/uuid"}}
	}
	return t
}

func quoted(list []string) string {
	var out []string
	for _, s := range list {
		out = append(out, strconv.Quote(s))
	}
	return strings.Join(out, ", ")
}
