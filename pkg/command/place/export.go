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
	node  string
	class string
	write func(plan.Plan, manifest.Options) (manifest.Manifest, error)
}

func newExport(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write a plan as manifests of engines that run containers",
		Long: `Writes a plan as a Compose file or as Kubernetes objects. No engine holds all
that a plan says, so a line on standard error names every field that is lost;
gfaas up is the only one that keeps them all.

--functions gives images, commands and environments; without it an image bears
its function's name. Functions without an image cannot be exported.`,
		Example: `  gfaas-place export compose plan.json --functions functions.yaml > compose.yaml
  gfaas-place export hami plan.json --functions functions.yaml | kubectl apply -f -`,
	}
	cmd.AddCommand(newExportCompose(env), newExportHAMi(env), newExportDRA(env))
	return cmd
}

func newExportCompose(env *cli.Env) *cobra.Command {
	o := &exportOptions{env: env, write: manifest.Compose}
	cmd := &cobra.Command{
		Use:   "compose PLAN.json",
		Short: "Write a plan for one machine as a Compose file",
		Long: `Writes each instance as a service with its GPUs, its share of the SMs and its
limit on memory. The last two are held by the machine's MPS daemon
(nvidia-cuda-mps-control), whose pipes are mounted; without one they are not.
Services of one function share its name on the network.`,
		Example: `  gfaas-place export compose plan.json --functions functions.yaml > compose.yaml
  gfaas-place export compose plan.json --node gpu-3 --inventory gpus.csv --out-file gpu-3.yaml`,
	}
	o.finish(cmd)
	cmd.Flags().StringVar(&o.node, "node", "", "the node of the plan that the file is for (default the only one)")
	return cmd
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
	cmd.Flags().StringVar(&o.class, "device-class", manifest.DefaultClass, "device class, and driver, of the GPUs")
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
	if err := checkStdin(path, o.files.functions, o.files.inventory); err != nil {
		return err
	}
	p, err := cli.Load(o.env, path, plan.Read)
	if err != nil {
		return err
	}
	m := manifest.Options{Node: o.node, Class: o.class}
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
