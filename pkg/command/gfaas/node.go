package gfaas

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/adapter/swarm"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/lists"
)

func newNode(t *tool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Describe, list and drain the nodes of a Docker swarm",
		Long: `Manage the nodes of a Docker swarm that runs instances. gfaas node describe and gfaas node
agent run on each node and need no swarm. The other commands need a manager: the local
engine, or the one in DOCKER_HOST.`,
	}
	cmd.AddCommand(newNodeAgent(t), newNodeDescribe(t), newNodeLs(t), newNodeDrain(t), newNodeUp(t))
	return cmd
}

type nodeOptions struct {
	name, gpu string
	timeout   time.Duration
}

// daemonJSON is the part of the configuration of a Docker engine that describes a node.
type daemonJSON struct {
	Runtime   string   `json:"default-runtime,omitempty"`
	Labels    []string `json:"labels"`
	Resources []string `json:"node-generic-resources"`
}

func newNodeDescribe(t *tool) *cobra.Command {
	var o nodeOptions
	cmd := &cobra.Command{
		Use:   "describe",
		Short: "Print the entries of daemon.json that describe this node",
		Long: `Print the entries that the file /etc/docker/daemon.json of this machine needs, so that its
engine tells the swarm about its GPUs: their names, memory and models as labels, and 100
units of a generic resource for each of them. Each instance on a GPU reserves a unit. Add
the entries to the file, and restart Docker.

Run this command with the same run directory as the token daemon of this machine: the
label gfaas.folder names the folder granted in it, which containers mount.`,
		Example: `  # Create the configuration of an engine that has none
  gfaas node describe | sudo tee /etc/docker/daemon.json
  sudo systemctl restart docker`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.describe(cmd.Context(), t) },
	}
	cmd.Flags().StringVar(&o.gpu, "gpu", "", "GPUs to describe, like 0,1, or sim (default: the GPUs in CUDA_VISIBLE_DEVICES or all; sim if there is no NVIDIA driver)")
	cmd.Flags().StringVar(&o.name, "name", "", "name of the node, if it is not the host's name")
	cli.CompleteWords(cmd, "gpu", "sim")
	return cmd
}

func (o *nodeOptions) describe(ctx context.Context, t *tool) error {
	if strings.ContainsAny(o.name, "/, \t\n=") {
		return cli.Usagef("--name %q: expected a name without spaces, slashes, commas and equal signs", o.name)
	}
	gpus, err := devices.List(ctx, o.gpu)
	if err != nil {
		return err
	}
	node := swarm.Node{Name: o.name, Folder: filepath.Join(t.runDir, "granted")}
	node.GPUs = lists.Map(gpus, func(g devices.GPU) swarm.GPU { return swarm.GPU{Name: g.Name, Mem: g.Mem, Model: g.Model} })
	doc := daemonJSON{}
	if strings.HasPrefix(gpus[0].Name, "sim") {
		node.SimDir, node.SimShape = simgpu.Dir(), os.Getenv("GFAAS_SIM_GPU")
	} else {
		doc.Runtime = "nvidia"
		node.MPS = mps.Probe().Running()
	}
	doc.Labels, doc.Resources = node.Labels(), node.Resources()
	return t.env.Emit(func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(doc)
	})
}

// managed calls do with a runtime of the swarm.
func managed(ctx context.Context, do func(*swarm.Runtime) error) error {
	r, err := swarm.New(ctx, swarm.Config{})
	if err != nil {
		return err
	}
	defer r.Close()
	return do(r)
}

func newNodeLs(t *tool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the nodes of the swarm and their GPUs",
		Long: `List the nodes of the swarm, sorted by name. A node can start instances if it has GPUs and
the label gfaas.folder, its state is ready, its availability is active, its engine is new
enough (Docker 25), and it has no fault. A node has a fault if the label of a GPU is
invalid, or if another usable node has its name. A note explains each fault.

JSON is a list of {"node", "id", "role", "leader", "state", "availability", "engine",
"instances", "gpus", "fault"}; "fault" is omitted if there is none. The availability is
"draining" while gfaas node drain waits. "gpus" is a list of {"gpu", "mem_mib", "model"}.`,
		Example: `  # List the nodes
  gfaas node ls

  # List the nodes with the models of their GPUs
  gfaas node ls -o wide`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return managed(cmd.Context(), func(r *swarm.Runtime) error {
				nodes, err := r.Nodes(cmd.Context())
				if err != nil {
					return err
				}
				return showNodes(t, nodes)
			})
		},
	}
	t.env.Outputs(cmd, "table", "wide", "json", "jsonl", "csv", "yaml")
	return cmd
}

type nodeDocument struct {
	Node         string        `json:"node"`
	ID           string        `json:"id"`
	Role         string        `json:"role"`
	Leader       bool          `json:"leader"`
	State        string        `json:"state"`
	Availability string        `json:"availability"`
	Engine       string        `json:"engine"`
	Instances    int           `json:"instances"`
	GPUs         []gpuDocument `json:"gpus"`
	Fault        string        `json:"fault,omitempty"`
}

type gpuDocument struct {
	GPU    string  `json:"gpu"`
	MemMiB float64 `json:"mem_mib"`
	Model  string  `json:"model,omitempty"`
}

func showNodes(t *tool, nodes []swarm.Node) error {
	documents := make([]nodeDocument, 0, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		d := nodeDocument{n.Name, n.ID, n.Role, n.Leader, n.State, n.Availability, n.Engine, n.Instances, []gpuDocument{}, n.Fault}
		if n.Draining && n.Availability == "active" {
			d.Availability = "draining"
		}
		for _, g := range n.GPUs {
			d.GPUs = append(d.GPUs, gpuDocument{g.Name, g.Mem.MiB(), g.Model})
		}
		documents = append(documents, d)
		if n.Fault != "" {
			t.env.Notef("note: node %s (%s) cannot be used: %s", n.Name, n.ID, n.Fault)
		}
	}
	return t.env.Show(documents, func() [][]string {
		return cli.Rows(documents, func(d nodeDocument) []cli.Cell {
			names, models, largest := []string{}, []string{}, gpu.Bytes(0)
			for _, g := range d.GPUs {
				names, models = append(names, g.GPU), append(models, g.Model)
				largest = max(largest, gpu.Bytes(g.MemMiB)*gpu.MiB)
			}
			if t.env.Output == "csv" {
				return []cli.Cell{{"node", d.Node}, {"id", d.ID}, {"role", d.Role}, {"leader", strconv.FormatBool(d.Leader)}, {"state", d.State},
					{"availability", d.Availability}, {"engine", d.Engine}, {"instances", strconv.Itoa(d.Instances)}, {"gpus", strings.Join(names, " ")}, {"fault", d.Fault}}
			}
			role := d.Role
			if d.Leader {
				role = "leader"
			}
			cells := []cli.Cell{{"NODE", d.Node}, {"ROLE", role}, {"STATE", d.State}, {"AVAILABILITY", d.Availability},
				{"GPUS", cmp.Or(strings.Join(names, ","), "-")}, {"MEM", cli.OrDash(largest > 0, largest.String())}, {"INSTANCES", strconv.Itoa(d.Instances)}}
			if t.env.Output == "wide" {
				slices.Sort(models)
				cells = append(cells, cli.Cell{"MODEL", cmp.Or(strings.Join(slices.Compact(models), ","), "-")}, cli.Cell{"ENGINE", d.Engine}, cli.Cell{"ID", d.ID})
			}
			return cells
		})
	})
}

func newNodeDrain(t *tool) *cobra.Command {
	var o nodeOptions
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Take a node out of use, for example to reboot it",
		Long: `Take a node out of use. First, the gateway starts no more instances on the node, lets the
calls on it end, and stops its instances. When no instance remains, the command drains
the node in Docker, which stops all other tasks on the node. gfaas node up puts the node
into use again.`,
		Example: `  # Drain a node, and wait up to ten minutes for its calls
  gfaas node drain gpu-2 --timeout 10m`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.timeout < 0 {
				return cli.Usagef("--timeout %v: expected 0 or more", o.timeout)
			}
			return managed(cmd.Context(), func(r *swarm.Runtime) error {
				remaining, err := r.Drain(cmd.Context(), args[0], o.timeout)
				if err == nil && remaining > 0 {
					t.env.Notef("note: %d instances on %s did not end within %v, and Docker stops them", remaining, args[0], o.timeout)
				}
				return err
			})
		},
	}
	cmd.Flags().DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long to let calls on the node end")
	return cmd
}

func newNodeUp(*tool) *cobra.Command {
	return &cobra.Command{
		Use:     "up NODE",
		Short:   "Put a drained node into use again",
		Long:    `Put a node into use again after gfaas node drain.`,
		Example: "  # Use a node again\n  gfaas node up gpu-2",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return managed(cmd.Context(), func(r *swarm.Runtime) error { return r.Up(cmd.Context(), args[0]) })
		},
	}
}
