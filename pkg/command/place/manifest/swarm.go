package manifest

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/plan"
)

// gpuResource returns the name of a GPU's SM time among its node's resources, counted in percent.
func gpuResource(index int) string { return "gfaas-gpu" + strconv.Itoa(index) }

var swarmKind = Kind{
	Name: "swarm", Help: "Write a plan as a stack for a Docker swarm",
	Long: `Write a stack file in which each instance is a service with one task. The container of
the task gets the settings that gfaas up would give it. The task runs only on the
instance's node in the plan. This is the swarm node whose host name is the name of the
node in the plan or, with --node-label LABEL, the swarm node whose label LABEL has this
name as its value. Other containers on the attachable overlay network of the stack reach
the services of a function under the name of the function. No ports are published.

Each task reserves SM time on each of its GPUs, so that the swarm cannot overload a
GPU. The reservation is SM share × quota, in percent, of the generic resource
gfaas-gpuINDEX: an instance with 50% of the SMs and quota 0.4 on GPU 0 reserves 20 of
gfaas-gpu0. For each of its GPUs, each node must declare 100 of this resource in
daemon.json ("node-generic-resources": ["gfaas-gpu0=100"]); otherwise, tasks stay
pending. --generic-resources=false omits the reservations. Containers get their GPUs
through NVIDIA_VISIBLE_DEVICES, so NVIDIA's runtime must be Docker's default runtime
on each node.

Before you deploy the stack, run gfaas register on each node. It registers the slices
with the token daemon of the node, and writes settings to the file .env. They include a
secret with which instances identify themselves to the token daemon. docker stack deploy
reads the settings from its environment and uses them for all nodes, so they must be the
same on all nodes. To get the same secret everywhere, run gfaas register on one node, and
copy its .env to the other nodes before you run gfaas register there.

` + signHelp,
	Example: `  # Write the stack, register the instances of each node, and deploy
  gfaas-place export swarm plan.json --functions functions.yaml --inventory gpus.csv > stack.yaml
  gfaas register plan.json --node gpu-3    # on gpu-3; likewise on the other nodes
  set -a; . ./.env; docker stack deploy -c stack.yaml functions
  # The same without gfaas register, if the token daemons of the nodes trust the key
  gfaas-place export swarm plan.json --functions functions.yaml --inventory gpus.csv --sign grant.key --out-file stack.yaml
  docker stack deploy -c stack.yaml functions`,
	Simulates: true,
	Flags: func(f *pflag.FlagSet, o *Options) {
		signFlags(f, o)
		f.StringVar(&o.NodeLabel, "node-label", "", "label whose value, on each swarm node, is the name of this node in the plan (without the flag, the host name is that name)")
		f.StringVar(&o.Network, "network", "", "existing overlay network for the services (default a new network of the stack)")
		f.BoolVar(&o.Reserve, "generic-resources", true, "reserve SM time as the generic resource gfaas-gpuINDEX, which each node must declare")
	},
	Write: Swarm,
}

// Swarm writes a plan as a stack. Each instance is a service of one task that stays on the plan's node,
// whose token daemon enforces its slice. Equal instances are not tasks of one service, because each
// needs a name of its own for its socket and its turns at the token daemon.
func Swarm(p plan.Plan, o Options) (Manifest, error) {
	list, err := workloads(p, o)
	if err != nil {
		return Manifest{}, err
	}
	if err := o.sign(p, list); err != nil {
		return Manifest{}, err
	}
	network := object{"driver": "overlay", "attachable": true}
	if o.Network != "" {
		network = object{"external": true, "name": o.Network}
	}
	services := object{}
	for _, w := range list {
		if services[w.name], err = swarmService(w, o); err != nil {
			return Manifest{}, err
		}
	}
	// Docker before 2024 needs the version.
	file := object{"version": "3.9", "services": services, "networks": object{"default": network}}
	head := "On each node, gfaas register registers the slices with the token daemon, and writes the settings of this file to .env."
	if o.Signer != nil {
		head = o.signedHead()
	}
	if !o.Simulated {
		head += "\n# Nodes need the NVIDIA container toolkit, with its runtime as Docker's default."
	}
	if o.Reserve {
		head += "\n# In the daemon.json of a node, for each of its GPUs: \"node-generic-resources\": [\"" + gpuResource(0) + "=100\"]."
	}
	text, err := write([]document{{head, file}})
	warnings := lossWarnings(tokenDaemon, p, list, o)
	if o.Reserve {
		warnings = append(warnings, coreWarnings(p)...)
	}
	if o.Inventory == nil && o.NodeLabel == "" && len(list) > 0 {
		warnings = append(warnings, "tasks are constrained to the node names in the plan, which may be placeholders without --inventory; --node-label selects nodes by a label")
	}
	if n := count(list, func(w *workload) bool { return !o.Simulated && w.SMPct < 100 }); n > 0 {
		warnings = append(warnings, fmt.Sprintf("a swarm cannot share the IPC namespace of the host: %d instances get /dev/shm of the host instead, for MPS", n))
	}
	return Manifest{text, warnings}, err
}

func swarmService(w *workload, o Options) (object, error) {
	s, g, err := newService(w, o.Simulated)
	if err != nil {
		return nil, err
	}
	if g.mps {
		s["volumes"] = append(g.mounts, bind("/dev/shm", "/dev/shm"))
	}
	if !o.Simulated {
		g.env["NVIDIA_VISIBLE_DEVICES"] = strings.Join(w.devices(), ",")
		g.env["NVIDIA_DRIVER_CAPABILITIES"] = "compute,utility"
	}
	resources := object{"limits": w.hostLimits()}
	if o.Reserve {
		resources["reservations"] = object{"generic_resources": lists.Map(w.gpus, func(index int) object {
			return object{"discrete_resource_spec": object{"kind": gpuResource(index), "value": w.cores}}
		})}
	}
	s["deploy"] = object{
		"replicas": 1, "placement": object{"constraints": []string{place(o.NodeLabel, w.node)}},
		"restart_policy": object{"condition": swarmRestart(w)}, "resources": resources,
	}
	return s, nil
}

// place returns the constraint that keeps a task on a node of the plan, by host name or by label.
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
