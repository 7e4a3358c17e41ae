package manifest

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/lists"
)

const (
	labelName     = "app.kubernetes.io/name"
	labelInstance = "app.kubernetes.io/instance"
	labelManager  = "app.kubernetes.io/managed-by"
	manager       = "gfaas-place"
	hostLabel     = "kubernetes.io/hostname"
)

// object is a part of a manifest. The encoder sorts its keys.
type object = map[string]any

// newDeployment returns a Deployment of one instance, whose container has the given resources. It recreates
// pods instead of rolling updates, because an instance must free its part of the GPU before its replacement
// starts. annotations and fields are added to the pod's metadata and spec; each may be nil.
func newDeployment(w *workload, pinned bool, resources, annotations, fields object) object {
	own := object{labelName: w.group, labelInstance: w.name}
	all := object{labelName: w.group, labelInstance: w.name, labelManager: manager}
	variables := map[string]string{}
	maps.Copy(variables, w.fn.Env)
	variables["PORT"] = strconv.Itoa(w.fn.Port)
	env := lists.Map(slices.Sorted(maps.Keys(variables)), func(name string) object {
		return object{"name": name, "value": kubeLiteral(variables[name])}
	})
	container := object{"name": "function", "image": w.fn.Image, "env": env, "resources": resources,
		"ports": []object{{"name": "http", "containerPort": w.fn.Port}}}
	if len(w.fn.Command) > 0 {
		container["command"] = lists.Map(w.fn.Command, kubeLiteral)
	}
	pod := object{"containers": []object{container}}
	maps.Copy(pod, fields)
	if pinned {
		pod["nodeSelector"] = object{hostLabel: w.node}
	}
	template := object{"labels": all}
	if annotations != nil {
		template["annotations"] = annotations
	}
	return object{"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": object{"name": w.name, "labels": all,
			"annotations": object{"gfaas/instance": w.ID, "gfaas/function": w.Function, "gfaas/slice": w.slice()}},
		"spec": object{"replicas": 1, "strategy": object{"type": "Recreate"}, "selector": object{"matchLabels": own},
			"template": object{"metadata": template, "spec": pod}}}
}

// services returns a Service for each function, in the order of their first instances. Each Service
// distributes the requests of its function over the instances.
func services(list []*workload) (docs []document) {
	seen := map[string]bool{}
	for _, w := range list {
		name := w.group
		if seen[name] {
			continue
		}
		seen[name] = true
		labels := object{labelName: name, labelManager: manager}
		docs = append(docs, document{value: object{"apiVersion": "v1", "kind": "Service",
			"metadata": object{"name": name, "labels": labels},
			"spec":     object{"selector": labels, "ports": []object{{"name": "http", "port": 80, "targetPort": "http"}}}}})
	}
	return docs
}

// kubeLiteral escapes a text so that Kubernetes substitutes no variables, written $(NAME).
func kubeLiteral(text string) string { return strings.ReplaceAll(text, "$(", "$$(") }
