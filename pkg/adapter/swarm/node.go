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
	Fault        string // why the node cannot be used; empty: no fault
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

// parseNode returns the node that the managers describe. An invalid label of a GPU adds no GPU and sets Fault, unless the
// node is down.
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
	if len(invalid) > 0 && !down(&out) {
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

// down reports whether a node is down. A node that has joined again has a new ID, and the old one is down until docker
// node rm.
func down(n *Node) bool { return n.State == string(swarm.NodeStateDown) }

// list returns the nodes as Runtime.Nodes does. Of several usable nodes with the same name, one remains usable: the one
// with instances or, if several or none have some, the one that joined first. The others get a fault.
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
		return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(min(b.Instances, 1), min(a.Instances, 1)),
			s.nodes[a.ID].CreatedAt.Compare(s.nodes[b.ID].CreatedAt), strings.Compare(a.ID, b.ID))
	})
	named := map[string]string{} // the ID of the usable node with a name
	for i := range out {
		switch n := &out[i]; {
		case !usable(n):
		case named[n.Name] != "":
			n.Fault = fmt.Sprintf("node %s has the same name: set the label %s in the daemon.json of this node", named[n.Name], labelNode)
		default:
			named[n.Name] = n.ID
		}
	}
	return out
}

// byName returns the nodes by their names. Of several with the same name, it contains the usable one or, without one, one
// that is not down.
func (s *snapshot) byName() map[string]Node {
	rank := func(n Node) int {
		switch {
		case usable(&n):
			return 2
		case down(&n):
			return 0
		}
		return 1
	}
	out := map[string]Node{}
	for _, n := range s.list() {
		if old, ok := out[n.Name]; !ok || rank(n) > rank(old) {
			out[n.Name] = n
		}
	}
	return out
}

// node returns the node with a name, as byName does.
func (s *snapshot) node(name string) (Node, error) {
	n, ok := s.byName()[name]
	if !ok {
		return Node{}, fmt.Errorf("the swarm has no node %s", name)
	}
	return n, nil
}

// nodeWithID returns the node with Docker's ID.
func (s *snapshot) nodeWithID(id string) (Node, error) {
	for _, n := range s.list() {
		if n.ID == id {
			return n, nil
		}
	}
	return Node{}, fmt.Errorf("the swarm no longer has the node %s", id)
}
