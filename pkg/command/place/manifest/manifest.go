// Package manifest writes plans as manifests of engines that run containers:
// Compose, Docker's swarms, HAMi on Kubernetes, Kubernetes with dynamic resource
// allocation. It says which fields of a plan the engine has no place for.
package manifest

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
)

// Options of a manifest.
type Options struct {
	// Functions give image, command and environment. Nil is none: then an
	// instance's image is its function's name.
	Functions []function.Function
	// Inventory holds the GPUs' UUIDs and shows that the plan's nodes exist. Nil
	// is none: then Kubernetes chooses nodes and GPUs itself.
	Inventory []plan.Device
	Node      string // the plan's node that a Compose file is for; empty is the only one
	Class     string // device class of resource claims

	Compose   int    // 1 leaves out what Compose of that version does not know
	Simulated bool   // GPUs are simulated, on Compose and on a swarm
	NodeLabel string // of a swarm's nodes: has their name in the plan; empty is the host's name
	Network   string // of a swarm, which its services join; empty is one of the stack's own
	Reserve   bool   // whether a swarm counts the GPUs' SM time
}

// Manifest is a plan in an engine's form.
type Manifest struct {
	Text     []byte
	Warnings []string // what is lost, or must be known; one sentence each
}

// noImageError is the error about functions that run as processes.
type noImageError struct{ functions []string }

func (e *noImageError) Error() string {
	who := "function " + e.functions[0] + " has"
	if len(e.functions) > 1 {
		who = "functions " + strings.Join(e.functions, ", ") + " have"
	}
	return who + " a command and no image: the manifest can only run containers"
}

// Hint is what to do about it.
func (e *noImageError) Hint() string { return "give it an image:, or start the plan with gfaas up" }

// document is one YAML document with a comment at its head.
type document struct {
	comment string
	value   any
}

func write(docs []document) ([]byte, error) {
	var out bytes.Buffer
	for i, d := range docs {
		if i > 0 {
			out.WriteString("---\n")
		}
		if d.comment != "" {
			out.WriteString("# " + d.comment + "\n")
		}
		enc := yaml.NewEncoder(&out)
		enc.SetIndent(2)
		if err := enc.Encode(d.value); err != nil {
			return nil, fmt.Errorf("write manifest: %w", err)
		}
		if err := enc.Close(); err != nil {
			return nil, fmt.Errorf("write manifest: %w", err)
		}
	}
	return out.Bytes(), nil
}
