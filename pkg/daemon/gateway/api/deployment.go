package api

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gfaas/gfaas/pkg/function"
)

const (
	envProcess    = "fprocess" // command that OpenFaaS's watchdog runs
	keyAnnotation = "gfaas."   // prefix of annotations that set keys of a function file
	scaleMin      = "com.openfaas.scale.min"
	scaleMax      = "com.openfaas.scale.max"
	scaleIdle     = "com.openfaas.scale.zero-duration"
)

// requested lists the keys that dedicated fields of a deployment set.
var requested = []string{"name", "image", "env", "labels", "annotations"}

// function returns the function that a deployment describes. It is checked like a document
// of a function file.
func (d deployment) function() (function.Function, error) {
	var fn function.Function
	switch {
	case d.Service == "":
		return fn, fmt.Errorf("service: missing, expected a name like resnet-50")
	case d.Image == "":
		return fn, fmt.Errorf("image: missing, expected an image like registry/resnet:1")
	case len(d.Secrets) > 0:
		return fn, fmt.Errorf("secrets: %s: not supported, expected values in envVars", strings.Join(d.Secrets, ", "))
	}
	doc := map[string]any{"name": strings.TrimSuffix(d.Service, "."+namespace), "image": d.Image}
	env := maps.Clone(d.EnvVars)
	if d.EnvProcess != "" {
		if env == nil {
			env = map[string]string{}
		}
		env[envProcess] = d.EnvProcess
	}
	set(doc, "env", env)
	if d.ReadOnly {
		doc["read_only"] = true
	}
	if limits := d.Limits.document(); len(limits) > 0 {
		doc["limits"] = limits
	}
	labels, scale := maps.Clone(d.Labels), map[string]any{}
	for label, key := range map[string]string{scaleMin: "min", scaleMax: "max", scaleIdle: "idle"} {
		if value, given := labels[label]; given {
			scale[key] = value
			delete(labels, label)
		}
	}
	if len(scale) > 0 {
		doc["scale"] = scale
	}
	set(doc, "labels", labels)
	annotations := maps.Clone(d.Annotations)
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		key, ours := strings.CutPrefix(name, keyAnnotation)
		if !ours {
			continue
		}
		if _, twice := doc[key]; twice || slices.Contains(requested, key) {
			return fn, fmt.Errorf("annotations.%s: the request already has %s, expected it once", name, key)
		}
		var value yaml.Node
		if err := yaml.Unmarshal([]byte(annotations[name]), &value); err != nil {
			return fn, fmt.Errorf("annotations.%s: %s, expected a value as in a function file", name, strings.TrimPrefix(err.Error(), "yaml: "))
		}
		if len(value.Content) == 0 {
			return fn, fmt.Errorf("annotations.%s: empty, expected a value as in a function file", name)
		}
		doc[key] = value.Content[0]
		delete(annotations, name)
	}
	set(doc, "annotations", annotations)
	return parseDocument(doc)
}

// set sets a key of a document, unless the mapping is empty.
func set(doc map[string]any, key string, texts map[string]string) {
	if len(texts) > 0 {
		doc[key] = texts
	}
}

func parseDocument(doc map[string]any) (fn function.Function, err error) {
	text, err := yaml.Marshal(doc)
	if err != nil {
		return fn, err
	}
	list, err := function.Parse(bytes.NewReader(text), "the request")
	if err != nil {
		return fn, err
	}
	if len(list) != 1 {
		return fn, fmt.Errorf("%d functions, expected one", len(list))
	}
	fn = list[0]
	fn.Dir = ""
	return fn, nil
}

// document returns the value of the key limits. Sizes and CPUs may be in Kubernetes
// notation, such as 128Mi and 250m.
func (r *resources) document() map[string]any {
	limits := map[string]any{}
	if r == nil {
		return limits
	}
	if r.Memory != "" {
		limits["memory"] = r.Memory
		if strings.HasSuffix(r.Memory, "i") {
			limits["memory"] = r.Memory + "B"
		}
	}
	if r.CPU != "" {
		limits["cpus"] = r.CPU
		if thousandths, ok := strings.CutSuffix(r.CPU, "m"); ok {
			if n, err := strconv.ParseFloat(thousandths, 64); err == nil {
				limits["cpus"] = n / 1000
			}
		}
	}
	return limits
}

// labelsOf returns a function's labels, extended by labels for its scale.
func labelsOf(fn function.Function) map[string]string {
	labels := map[string]string{scaleMin: strconv.Itoa(fn.Scale.Min), scaleMax: strconv.Itoa(fn.Scale.Max), scaleIdle: fn.Scale.Idle.String()}
	maps.Copy(labels, fn.Labels)
	return labels
}

// annotationsOf returns a function's annotations, extended by one for each further key of
// its function file.
func annotationsOf(fn function.Function) map[string]string {
	annotations := map[string]string{}
	maps.Copy(annotations, fn.Annotations)
	text, err := function.Format([]function.Function{fn})
	if err != nil {
		return annotations
	}
	var doc map[string]yaml.Node
	if yaml.Unmarshal(text, &doc) != nil {
		return annotations
	}
	for key, value := range doc {
		if key == "scale" || slices.Contains(requested, key) {
			continue
		}
		value.Style |= yaml.FlowStyle
		if value.Kind == yaml.ScalarNode {
			annotations[keyAnnotation+key] = value.Value
		} else if text, err := yaml.Marshal(&value); err == nil {
			annotations[keyAnnotation+key] = strings.TrimSpace(string(text))
		}
	}
	return annotations
}
