// Kubetypes checks Kubernetes objects, given as YAML documents on standard input, with the types of the
// API and the strict decoder of the API server. Unknown or mistyped fields are errors. It is a separate
// module so that gfaas does not depend on the Kubernetes types.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func main() {
	if err := check(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "kubetypes:", err)
		os.Exit(1)
	}
}

// check decodes all documents, and prints the kind and name of each.
func check(in io.Reader) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, appsv1.AddToScheme, resourcev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	for documents := yaml.NewYAMLReader(bufio.NewReader(in)); ; {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		object, kind, err := decoder.Decode(text, nil, nil)
		if err == nil {
			err = checkNames(object)
		}
		if err != nil {
			return fmt.Errorf("%w in\n%s", err, text)
		}
		about, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		fmt.Println(kind.GroupVersion().String(), kind.Kind, about.GetName())
	}
}

// checkNames validates fields that are plain strings in the Go types, but that the server validates as names.
func checkNames(object runtime.Object) error {
	about, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	faults := validation.IsDNS1123Label(about.GetName())
	labels := []map[string]string{about.GetLabels()}
	switch o := object.(type) {
	case *corev1.Service:
		faults = slices.Concat(faults, validation.IsDNS1035Label(o.Name))
		labels = append(labels, o.Spec.Selector)
	case *appsv1.Deployment:
		pod := o.Spec.Template
		labels = append(labels, pod.Labels, o.Spec.Selector.MatchLabels, pod.Spec.NodeSelector)
		for _, c := range pod.Spec.Containers {
			for name, quantity := range c.Resources.Limits {
				faults = slices.Concat(faults, validation.IsQualifiedName(string(name)))
				if quantity.Sign() <= 0 {
					faults = append(faults, fmt.Sprintf("%s is %s", name, &quantity))
				}
			}
			for _, e := range c.Env {
				faults = slices.Concat(faults, validation.IsEnvVarName(e.Name))
			}
			for _, p := range c.Ports {
				faults = slices.Concat(faults, validation.IsValidPortNum(int(p.ContainerPort)), validation.IsValidPortName(p.Name))
			}
		}
		for key := range pod.Annotations {
			faults = slices.Concat(faults, validation.IsQualifiedName(key))
		}
	}
	for _, set := range labels {
		for key, value := range set {
			faults = slices.Concat(faults, validation.IsQualifiedName(key), validation.IsValidLabelValue(value))
		}
	}
	if len(faults) > 0 {
		return fmt.Errorf("%s: %v", about.GetName(), faults)
	}
	return nil
}
