package swarm

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/swarm"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// Labels of a node. Those of its engine are in its daemon.json; gfaas node describe prints them.
const (
	labelNode   = "gfaas.node"    // the node's name; without it, the host's name
	labelFolder = "gfaas.folder"  // see Node.Folder
	labelMPS    = "gfaas.mps"     // "true" if Folder contains the pipes of an MPS daemon
	labelSim    = "gfaas.sim"     // folder of the simulated GPUs
	labelShape  = "gfaas.sim-gpu" // GFAAS_SIM_GPU of the node
	labelDrain  = "gfaas.drain"   // label of the node in the swarm, which Drain sets
	labelGPU    = "gfaas.gpu."    // followed by the name of a GPU; the value is MEM_MIB,MODEL
)

// GPU is a GPU of a node.
type GPU struct {
	Name  string    // as in gpu.ParseDevice
	Model string    // empty if unknown
	Mem   gpu.Bytes // 0 if unknown
}

// Node is a node of a swarm with GPUs.
type Node struct {
	ID     string // Docker's ID
	Name   string // unique in the swarm
	GPUs   []GPU  // in order of name
	Memory int64  // bytes of the host

	// Folder contains what containers on the node mount at /opt/gfaas: the token daemon's socket for
	// instances with grants, libgfaas.so, ld.so.preload, the folder sim with the simulated driver if GPUs
	// are simulated, and the folder mps with the pipes of an MPS daemon if MPS is set.
	Folder string
	MPS    bool

	SimDir   string // folder of the simulated GPUs; empty without them
	SimShape string

	Role         string // manager or worker
	Leader       bool
	State        string // ready, down, disconnected or unknown
	Availability string // active, pause or drain
	Draining     bool   // Drain was called
	Engine       string // version
	Instances    int    // tasks of instances that are to run on it
	Fault        string // why nothing starts on the node whatever its state: an invalid label, or the name of another node
}

// Ready reports whether the node can start instances.
func (n *Node) Ready() bool {
	return n.State == string(swarm.NodeStateReady) && n.Availability == string(swarm.NodeAvailabilityActive) && !n.Draining && n.Fault == ""
}

// Outdated reports whether the node's engine is too old to keep its tasks from gaining privileges.
func (n *Node) Outdated() bool {
	major, _, _ := strings.Cut(n.Engine, ".")
	number, err := strconv.Atoi(major)
	return err != nil || number < minEngine
}

// Labels returns the engine labels of a node, sorted, as KEY=VALUE.
func (n *Node) Labels() []string {
	out := []string{labelFolder + "=" + n.Folder}
	for _, l := range []struct{ key, value string }{{labelNode, n.Name}, {labelSim, n.SimDir}, {labelShape, n.SimShape}} {
		if l.value != "" {
			out = append(out, l.key+"="+l.value)
		}
	}
	if n.MPS {
		out = append(out, labelMPS+"=true")
	}
	for _, g := range n.GPUs {
		out = append(out, fmt.Sprintf("%s%s=%d,%s", labelGPU, g.Name, g.Mem/gpu.MiB, g.Model))
	}
	slices.Sort(out)
	return out
}

// Resources returns the generic resources of a node: 100 units of each GPU, as KIND=AMOUNT.
func (n *Node) Resources() (out []string) {
	for _, g := range n.GPUs {
		out = append(out, resource(g.Name)+"=100")
	}
	return out
}

// resource returns the generic resource of a GPU.
func resource(device string) string {
	if d, err := gpu.ParseDevice(device); err == nil && d.MIG == "" {
		return "gfaas-gpu" + strconv.Itoa(d.Index)
	}
	return "gfaas-" + device
}

// parseNode returns the node that the managers describe. It ignores invalid labels of GPUs except for the node's Fault.
func parseNode(n *swarm.Node) Node {
	d := n.Description
	out := Node{
		ID: n.ID, Name: d.Hostname, Memory: d.Resources.MemoryBytes, Engine: d.Engine.EngineVersion,
		Role: string(n.Spec.Role), State: string(n.Status.State), Availability: string(n.Spec.Availability),
		Draining: n.Spec.Labels[labelDrain] != "",
		Leader:   n.ManagerStatus != nil && n.ManagerStatus.Leader,
	}
	var invalid []string
	for key, value := range d.Engine.Labels {
		switch key {
		case labelNode:
			out.Name = value
		case labelFolder:
			out.Folder = path.Clean(value)
		case labelMPS:
			out.MPS = value == "true"
		case labelSim:
			out.SimDir = value
		case labelShape:
			out.SimShape = value
		default:
			name, ok := strings.CutPrefix(key, labelGPU)
			if !ok {
				continue
			}
			fields := strings.SplitN(value, ",", 2)
			mem, err := strconv.ParseInt(fields[0], 10, 44)
			device, fault := gpu.ParseDevice(name)
			if err != nil || fault != nil || mem < 0 || len(fields) != 2 || device.String() != name {
				invalid = append(invalid, key+"="+value)
				continue
			}
			out.GPUs = append(out.GPUs, GPU{Name: name, Mem: gpu.Bytes(mem) * gpu.MiB, Model: fields[1]})
		}
	}
	slices.SortFunc(out.GPUs, func(a, b GPU) int { return strings.Compare(a.Name, b.Name) })
	if len(invalid) > 0 {
		out.Fault = fmt.Sprintf("its label %q is invalid: put the output of gfaas node describe into its daemon.json", slices.Min(invalid))
	}
	return out
}

// Nodes returns the nodes of the swarm in order of name.
func (r *Runtime) Nodes(ctx context.Context) ([]Node, error) {
	s, err := r.view.since(ctx, time.Now())
	if err != nil {
		return nil, err
	}
	return s.list(), nil
}

// list returns the nodes as Runtime.Nodes does. Of several nodes with the same name, only the one that joined first has
// no fault.
func (s *snapshot) list() (out []Node) {
	for _, n := range s.nodes {
		node := parseNode(n)
		for _, t := range s.tasks {
			if t.NodeID == n.ID && wanted(t) && !ended(t) {
				node.Instances++
			}
		}
		out = append(out, node)
	}
	slices.SortFunc(out, func(a, b Node) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), s.nodes[a.ID].CreatedAt.Compare(s.nodes[b.ID].CreatedAt), strings.Compare(a.ID, b.ID))
	})
	running := map[string]bool{}
	for i := range out {
		switch n := &out[i]; {
		case n.State == string(swarm.NodeStateDown): // a node that has joined again has a new ID, and the old one stays until docker node rm
		case running[n.Name]:
			n.Fault = fmt.Sprintf("another node has the same name: set the label %s in the daemon.json of one of them", labelNode)
		default:
			running[n.Name] = true
		}
	}
	return out
}

// node returns the node with a name. If there are several, it prefers the one that joined first among those that are not
// down.
func (s *snapshot) node(name string) (Node, error) {
	var found Node
	for _, n := range s.list() {
		if n.Name == name && (found.ID == "" || found.State == string(swarm.NodeStateDown)) {
			found = n
		}
	}
	if found.ID == "" {
		return Node{}, fmt.Errorf("the swarm has no node %s", name)
	}
	return found, nil
}
