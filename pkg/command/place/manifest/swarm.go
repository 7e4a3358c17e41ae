package manifest

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/plan"
)

// genericResource is a part of what a node of a swarm says it has.
type genericResource struct {
	Discrete discreteResource `yaml:"discrete_resource_spec,flow"`
}

type discreteResource struct {
	Kind  string `yaml:"kind"`
	Value int    `yaml:"value"`
}

// gpuResource is what a GPU's SM time is called among its node's resources, in percent.
func gpuResource(index int) string { return "gfaas-gpu" + strconv.Itoa(index) }

// Swarm writes a plan as a stack: each instance is a service of one task that stays on
// the plan's node, whose token daemon holds it to its slice. Not a service of several
// tasks for instances that are alike: each has its own socket and its own turns at the
// token daemon, and so its own name.
func Swarm(p plan.Plan, o Options) (Manifest, error) {
	list, err := workloads(p, o)
	if err != nil {
		return Manifest{}, err
	}
	network := netspec{Driver: "overlay", Attachable: true}
	if o.Network != "" {
		network = netspec{External: true, Name: o.Network}
	}
	file := project{Version: "3.9", Services: map[string]service{}, Networks: map[string]netspec{"default": network}}
	for _, w := range list {
		if file.Services[w.name], err = swarmService(w, o); err != nil {
			return Manifest{}, err
		}
	}
	head := "gfaas register, on each node, makes its token daemon know the slices, and writes the settings that this file wants, .env."
	if !o.Simulated {
		head += "\n# Nodes need the NVIDIA container toolkit, with its runtime as Docker's default."
	}
	if o.Reserve {
		head += "\n# In the daemon.json of a node, for each of its GPUs: \"node-generic-resources\": [\"" + gpuResource(0) + "=100\"]."
	}
	text, err := write([]document{{head, file}})
	warnings := lost(tokenDaemon, p, list, o)
	if o.Reserve {
		warnings = append(warnings, crowded(p)...)
	}
	if o.Inventory == nil && o.NodeLabel == "" && len(list) > 0 {
		warnings = append(warnings, "tasks wait for nodes of the plan's names, which may be made up without --inventory: --node-label has a label tell nodes")
	}
	if n := count(list, func(w *workload) bool { return !o.Simulated && w.SMPct < 100 }); n > 0 {
		warnings = append(warnings, fmt.Sprintf("swarms share no IPC namespace: %d of the instances have the machine's /dev/shm instead, for MPS", n))
	}
	return Manifest{text, warnings}, err
}

func swarmService(w *workload, o Options) (service, error) {
	s, g, err := newService(w, o.Simulated)
	if err != nil {
		return s, err
	}
	if g.mps {
		s.Volumes = append(s.Volumes, mount{Type: "bind", Source: "/dev/shm", Target: "/dev/shm"})
	}
	if !o.Simulated {
		s.Environment["NVIDIA_VISIBLE_DEVICES"] = strings.Join(w.devices(), ",")
		s.Environment["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
	}
	s.Deploy = &deploy{
		Replicas: 1, Placement: &constraints{[]string{place(o.NodeLabel, w.node)}}, RestartPolicy: &restartPolicy{swarmRestart(w)},
		Resources: containerResources{Limits: w.hostLimits()},
	}
	if o.Reserve {
		r := &reservations{}
		for _, index := range w.gpus {
			r.GenericResources = append(r.GenericResources, genericResource{discreteResource{gpuResource(index), w.cores}})
		}
		s.Deploy.Resources.Reservations = r
	}
	return s, nil
}

// place is the constraint that keeps a task on a node of the plan: by its host's name,
// or by a label.
func place(label, node string) string {
	if label == "" {
		return "node.hostname==" + literal(node)
	}
	return "node.labels." + literal(label) + "==" + literal(node)
}

func swarmRestart(w *workload) string {
	switch w.fn.Restart {
	case "always":
		return "any"
	case "on-failure":
		return "on-failure"
	}
	return "none"
}
