package place

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/place/manifest"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
)

// exportOptions are the flags of the commands under export.
type exportOptions struct {
	env   *cli.Env
	files inputs
	gpu   string // sim, or empty
	more  manifest.Options
	write func(plan.Plan, manifest.Options) (manifest.Manifest, error)
}

func newExport(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write a plan as manifests of engines that run containers",
		Long: `Writes a plan as a Compose file, as a stack for a Docker swarm, or as Kubernetes
objects. No engine holds all that a plan says, so a line on standard error names
every field that is lost; gfaas up is the only one that keeps them all. Under
Compose and on a swarm gfaas-tokend, on each node, holds instances to their SM
share, quota, memory and turns, once gfaas register has made it know them.

--functions gives images, commands and environments; without it an image bears
its function's name. Functions without an image cannot be exported (exit 1).`,
		Example: `  gfaas-place export compose plan.json --functions functions.yaml > compose.yaml
  gfaas-place export swarm plan.json --functions functions.yaml --inventory gpus.csv > stack.yaml
  gfaas-place export hami plan.json --functions functions.yaml | kubectl apply -f -`,
	}
	cmd.AddCommand(newExportCompose(env), newExportSwarm(env), newExportHAMi(env), newExportDRA(env))
	return cmd
}

func newExportCompose(env *cli.Env) *cobra.Command {
	o := &exportOptions{env: env, write: manifest.Compose}
	cmd := &cobra.Command{
		Use:   "compose PLAN.json",
		Short: "Write a plan for one machine as a Compose file",
		Long: `Writes each instance as a service, as gfaas up would start it: with its GPUs, the
preload library, the folder of its own socket of the token daemon, its function's
limits, and no capabilities. Each has a free port of 127.0.0.1; services of one
function share its name on the project's network.

On the machine gfaas register makes the token daemon know the slices, and prints
the settings of the file, .env. The folders that the file names are there from
then on; without them nothing starts. A function's restart: is Compose's to keep.`,
		Example: `  gfaas-place export compose plan.json --functions functions.yaml --node gpu-3 --out-file compose.yaml
  gfaas register plan.json --node gpu-3
  docker compose up -d`,
	}
	o.finish(cmd)
	o.gpuFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&o.more.Node, "node", "", "the node of the plan that the file is for (default the only one)")
	f.IntVar(&o.more.Compose, "compose-version", 2, "1 is for docker-compose 1.27 to 1.29, as Debian 12 has it; any later one reads 2")
	return cmd
}

func newExportSwarm(env *cli.Env) *cobra.Command {
	o := &exportOptions{env: env, write: manifest.Swarm}
	cmd := &cobra.Command{
		Use:   "swarm PLAN.json",
		Short: "Write a plan as a stack for a Docker swarm",
		Long: `Writes each instance as a service of one task that stays on the plan's node: the
host of that name, or with --node-label the node whose label has it. It is given
what gfaas up would give its container. Services of one function share its name on
an overlay network that containers can attach to, and publish no port.

Each task reserves its part of its GPUs' SM time, SM share × quota in percent, of
the generic resource gfaas-gpuINDEX, so that a swarm puts no more on a GPU than it
has; the nodes' engines must say that they have 100 of each ("node-generic-resources"
in daemon.json). Without, tasks wait; --generic-resources=false leaves it out.
GPUs are given by NVIDIA_VISIBLE_DEVICES, so NVIDIA's runtime must be the default.

On each node gfaas register makes the token daemon know the slices. The settings that
it writes must be the same on all: docker stack deploy takes them from the environment
and puts them in once for all nodes. A file of settings that the nodes are given
beforehand has the secret that they share.`,
		Example: `  gfaas-place export swarm plan.json --functions functions.yaml --inventory gpus.csv > stack.yaml
  gfaas register plan.json --node gpu-3    # on gpu-3, and so on each node
  set -a; . ./.env; docker stack deploy -c stack.yaml functions`,
	}
	o.finish(cmd)
	o.gpuFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&o.more.NodeLabel, "node-label", "", "label of the swarm's nodes that has their name in the plan (default their host's name)")
	f.StringVar(&o.more.Network, "network", "", "network of the swarm that services join (default one of the stack's own)")
	f.BoolVar(&o.more.Reserve, "generic-resources", true, "reserve SM time of the nodes' gfaas-gpuINDEX")
	return cmd
}

// gpuFlag adds the flag of the engines that can start simulated GPUs.
func (o *exportOptions) gpuFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.gpu, "gpu", "", "sim has all GPUs simulated")
	cli.Words(cmd, "gpu", "sim")
}

func newExportHAMi(env *cli.Env) *cobra.Command {
	o := &exportOptions{env: env, write: manifest.HAMi}
	cmd := &cobra.Command{
		Use:   "hami PLAN.json",
		Short: "Write a plan for HAMi on Kubernetes",
		Long: `Writes each instance as a Deployment of one pod with the resources
nvidia.com/gpu, nvidia.com/gpumem (MiB) and nvidia.com/gpucores (percent of SM
time: SM share × quota), and a Service for each function.

With --inventory pods stay on the plan's nodes and GPUs; without it HAMi chooses.`,
		Example: "  gfaas-place export hami plan.json --functions functions.yaml --inventory gpus.csv | kubectl apply -f -",
	}
	o.finish(cmd)
	return cmd
}

func newExportDRA(env *cli.Env) *cobra.Command {
	o := &exportOptions{env: env, write: manifest.DRA}
	cmd := &cobra.Command{
		Use:   "dra PLAN.json",
		Short: "Write a plan for Kubernetes with dynamic resource allocation",
		Long: `Writes each instance as a Deployment of one pod and the ResourceClaimTemplate
(resource.k8s.io/v1) of its part of a GPU, and a Service for each function. A
claim consumes the capacities memory and cores (percent of SM time: SM share ×
quota) of a device that others share.

With --inventory pods stay on the plan's nodes, and on its GPUs where the
inventory has their UUIDs; without it Kubernetes chooses.`,
		Example: "  gfaas-place export dra plan.json --functions functions.yaml | kubectl apply -f -",
	}
	o.finish(cmd)
	cmd.Flags().StringVar(&o.more.Class, "device-class", manifest.DefaultClass, "device class, and driver, of the GPUs")
	return cmd
}

// finish gives the command what all exports have.
func (o *exportOptions) finish(cmd *cobra.Command) {
	cmd.Args = cobra.ExactArgs(1)
	cmd.ValidArgsFunction = cli.FileArgs("json")
	cmd.RunE = func(_ *cobra.Command, args []string) error { return o.run(args[0]) }
	o.files.functionsFlag(cmd, "images, commands and environments")
	cmd.Flags().StringVar(&o.files.inventory, "inventory", "", "the GPUs there are (CSV), with their UUIDs")
	cli.Files(cmd, "csv", "inventory")
	o.env.Outputs(cmd, "yaml")
}

func (o *exportOptions) run(path string) error {
	if v := o.more.Compose; v < 0 || v > 2 {
		return cli.Usagef("--compose-version %d: expected 1 or 2", v)
	}
	if o.gpu != "" && o.gpu != "sim" {
		return cli.Usagef("--gpu %q: expected sim; which real GPU an instance is on is for the plan to say", o.gpu)
	}
	if err := checkStdin(path, o.files.functions, o.files.inventory); err != nil {
		return err
	}
	p, err := cli.Load(o.env, path, plan.Read)
	if err != nil {
		return err
	}
	m := o.more
	m.Simulated = o.gpu == "sim"
	if m.Functions, err = o.files.loadFunctions(o.env); err != nil {
		return err
	}
	if m.Inventory, err = o.files.loadInventory(o.env); err != nil {
		return err
	}
	out, err := o.write(p, m)
	var many *manifest.ManyNodes
	if errors.As(err, &many) {
		return cli.Fail(cli.ExitUsage, "", err)
	}
	if err != nil {
		return err
	}
	if wrong := verify.Plan(p, verify.Inputs{Inventory: m.Inventory, Functions: m.Functions}); len(wrong) > 0 {
		o.env.Notef("warning: the plan promises what it cannot give: %s; gfaas-place verify lists all", wrong[0].Message)
	}
	for _, warning := range out.Warnings {
		o.env.Notef("warning: %s", warning)
	}
	return o.env.Write(out.Text)
}
