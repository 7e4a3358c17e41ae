package manifest

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/lists"
)

// meta is the metadata of a Kubernetes object.
type meta struct {
	Name        string            `yaml:"name,omitempty"`
	Labels      map[string]string `yaml:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty"`
}

// deployment keeps one pod of one instance running.
type deployment struct {
	APIVersion string         `yaml:"apiVersion"`
	Kind       string         `yaml:"kind"`
	Metadata   meta           `yaml:"metadata"`
	Spec       deploymentSpec `yaml:"spec"`
}

type deploymentSpec struct {
	Replicas int               `yaml:"replicas"`
	Strategy map[string]string `yaml:"strategy,flow"`
	Selector labelSelector     `yaml:"selector"`
	Template podTemplate       `yaml:"template"`
}

type labelSelector struct {
	MatchLabels map[string]string `yaml:"matchLabels"`
}

type podTemplate struct {
	Metadata meta    `yaml:"metadata"`
	Spec     podSpec `yaml:"spec"`
}

type podSpec struct {
	NodeSelector   map[string]string `yaml:"nodeSelector,omitempty"`
	Containers     []container       `yaml:"containers"`
	ResourceClaims []podClaim        `yaml:"resourceClaims,omitempty"`
}

type container struct {
	Name      string          `yaml:"name"`
	Image     string          `yaml:"image"`
	Command   []string        `yaml:"command,omitempty,flow"`
	Env       []envVar        `yaml:"env"`
	Ports     []containerPort `yaml:"ports"`
	Resources resources       `yaml:"resources"`
}

type envVar struct {
	Name  string `yaml:"name"`
	Value string `yaml:"value"`
}

type containerPort struct {
	Name          string `yaml:"name"`
	ContainerPort int    `yaml:"containerPort"`
}

type resources struct {
	Limits map[string]string `yaml:"limits,omitempty"`
	Claims []claimName       `yaml:"claims,omitempty"`
}

type claimName struct {
	Name string `yaml:"name"`
}

type podClaim struct {
	Name                      string `yaml:"name"`
	ResourceClaimTemplateName string `yaml:"resourceClaimTemplateName"`
}

// kubeService distributes a function's requests over its instances.
type kubeService struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Metadata   meta   `yaml:"metadata"`
	Spec       struct {
		Selector map[string]string `yaml:"selector"`
		Ports    []servicePort     `yaml:"ports"`
	} `yaml:"spec"`
}

type servicePort struct {
	Name       string `yaml:"name"`
	Port       int    `yaml:"port"`
	TargetPort string `yaml:"targetPort"`
}

const (
	labelName     = "app.kubernetes.io/name"
	labelInstance = "app.kubernetes.io/instance"
	labelManager  = "app.kubernetes.io/managed-by"
	manager       = "gfaas-place"
	hostLabel     = "kubernetes.io/hostname"
)

// newDeployment returns a Deployment of one instance. It recreates pods instead of rolling updates,
// because an instance must free its part of the GPU before its replacement starts.
func newDeployment(w *workload, pinned bool) deployment {
	own := map[string]string{labelName: w.group, labelInstance: w.name}
	all := maps.Clone(own)
	all[labelManager] = manager
	notes := map[string]string{"gfaas/instance": w.ID, "gfaas/function": w.Function, "gfaas/slice": w.slice()}
	d := deployment{APIVersion: "apps/v1", Kind: "Deployment", Metadata: meta{Name: w.name, Labels: all, Annotations: notes}}
	d.Spec.Replicas = 1
	d.Spec.Strategy = map[string]string{"type": "Recreate"}
	d.Spec.Selector.MatchLabels = own
	d.Spec.Template.Metadata = meta{Labels: all}
	c := container{
		Name: "function", Image: w.fn.Image, Command: lists.Map(w.fn.Command, kubeLiteral),
		Ports: []containerPort{{Name: "http", ContainerPort: w.fn.Port}},
	}
	env := map[string]string{}
	maps.Copy(env, w.fn.Env)
	env["PORT"] = strconv.Itoa(w.fn.Port)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		c.Env = append(c.Env, envVar{name, kubeLiteral(env[name])})
	}
	d.Spec.Template.Spec.Containers = []container{c}
	if pinned {
		d.Spec.Template.Spec.NodeSelector = map[string]string{hostLabel: w.node}
	}
	return d
}

// services returns a Service for each function, in the order of their first instances.
func services(list []*workload) []document {
	var docs []document
	seen := map[string]bool{}
	for _, w := range list {
		name := w.group
		if seen[name] {
			continue
		}
		seen[name] = true
		s := kubeService{APIVersion: "v1", Kind: "Service", Metadata: meta{Name: name, Labels: map[string]string{labelName: name, labelManager: manager}}}
		s.Spec.Selector = map[string]string{labelName: name, labelManager: manager}
		s.Spec.Ports = []servicePort{{Name: "http", Port: 80, TargetPort: "http"}}
		docs = append(docs, document{value: s})
	}
	return docs
}

// kubeLiteral escapes a text so that Kubernetes substitutes no variables, written $(NAME).
func kubeLiteral(text string) string { return strings.ReplaceAll(text, "$(", "$$(") }
