// Package manifest writes plans as manifests for container engines: Compose, Docker swarm, HAMi on
// Kubernetes, and Kubernetes with dynamic resource allocation. Kinds lists the exporters; each turns a
// plan into a Manifest. Its warnings name the fields of the plan that the engine cannot represent.
// Package command/place calls it for gfaas-place export.
package manifest

import (
	"bytes"
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
)

// Options holds the inputs of an exporter besides the plan.
type Options struct {
	// Functions gives images, commands and environments. If it is nil, an instance's image has
	// its function's name.
	Functions []function.Function
	// Inventory gives the GPUs' UUIDs and proves that the plan's nodes exist. If it is nil,
	// Kubernetes chooses nodes and GPUs itself.
	Inventory []plan.Device
	Node      string // for Compose: the plan's node to write; empty means the only one
	Class     string // device class of resource claims

	Compose   int    // version of Compose; 1 leaves out fields that docker-compose 1 does not know
	Simulated bool   // GPUs are simulated; for Compose and swarms
	NodeLabel string // label of a swarm's nodes that holds their name in the plan; empty means the host name
	Network   string // network of a swarm that services join; empty means the stack's own
	Reserve   bool   // reserve the GPUs' SM time as generic resources of a swarm

	KeyFile string        // file of the private key of Signer; for Compose and swarms
	Valid   time.Duration // how long the grants of Signer may be used first
	Signer  *Signer       // signs grants for the instances; if it is nil, gfaas register registers them
}

// Manifest is a plan in an engine's format.
type Manifest struct {
	Text     []byte
	Warnings []string // lost fields and requirements, one sentence each
}

// document is one YAML document with a leading comment.
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
