package place

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/place/manifest"
	"github.com/gfaas/gfaas/pkg/grant"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
)

// exportOptions holds the flags of the subcommands of export.
type exportOptions struct {
	env     *cli.Env
	files   inputs
	gpu     string // "sim" or empty
	options manifest.Options
	kind    manifest.Kind
}

func newExport(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write a plan as manifests for a container engine",
		Long: `Write a plan as a Compose file, as a stack for a Docker swarm, or as Kubernetes
objects. Only gfaas up uses all fields of a plan. The command prints a warning for
each field that the chosen format cannot express.

With Compose and on a swarm, gfaas-tokend on each node enforces the SM share, quota,
memory limit and turns of the instances. Run gfaas register on each node before the
first start, so that gfaas-tokend knows the instances, or sign the manifest (--sign).

The file of --functions contains the images, commands and environments of the
functions. Without it, the command uses the name of a function as its image. A
function that has a command but no image cannot be exported; the exit status is 1.`,
		Example: `  # Write a Compose file
  gfaas-place export compose plan.json --functions functions.yaml > compose.yaml
  # Write a stack for a Docker swarm
  gfaas-place export swarm plan.json --functions functions.yaml --inventory gpus.csv > stack.yaml
  # Start a plan on Kubernetes with HAMi
  gfaas-place export hami plan.json --functions functions.yaml | kubectl apply -f -`,
	}
	for _, k := range manifest.Kinds() {
		cmd.AddCommand(newExportKind(env, k))
	}
	return cmd
}

// newExportKind returns the command of one exporter.
func newExportKind(env *cli.Env, k manifest.Kind) *cobra.Command {
	o := &exportOptions{env: env, kind: k}
	cmd := &cobra.Command{
		Use:               k.Name + " PLAN.json",
		Short:             k.Help,
		Long:              k.Long,
		Example:           k.Example,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs("json"),
		RunE:              func(_ *cobra.Command, args []string) error { return o.run(args[0]) },
	}
	o.files.functionsFlag(cmd, "images, commands and environments")
	cmd.Flags().StringVar(&o.files.inventory, "inventory", "", "inventory of GPUs with their UUIDs (CSV)")
	cli.CompleteFiles(cmd, "csv", "inventory")
	if k.Simulates {
		cmd.Flags().StringVar(&o.gpu, "gpu", "", "with the value sim, use simulated GPUs instead of the GPUs of the plan")
		cli.CompleteWords(cmd, "gpu", "sim")
	}
	if k.Flags != nil {
		k.Flags(cmd.Flags(), &o.options)
		if cmd.Flags().Lookup("sign") != nil {
			cli.CompleteFiles(cmd, "key", "sign")
		}
	}
	env.Outputs(cmd, "yaml")
	return cmd
}

func (o *exportOptions) run(path string) error {
	if err := o.options.Check(); err != nil {
		return cli.Usagef("--%w", err)
	}
	if o.gpu != "" && o.gpu != "sim" {
		return cli.Usagef("--gpu %q: expected sim; the plan determines the GPU of each instance", o.gpu)
	}
	if err := cli.CheckStdin(path, o.files.functions, o.files.inventory, o.options.KeyFile); err != nil {
		return err
	}
	p, err := cli.Load(o.env, path, plan.Read)
	if err != nil {
		return err
	}
	m := o.options
	m.Simulated = o.gpu == "sim"
	if m.Functions, err = o.files.loadFunctions(o.env); err != nil {
		return err
	}
	if m.Inventory, err = o.files.loadInventory(o.env); err != nil {
		return err
	}
	if m.KeyFile != "" {
		key, err := cli.Load(o.env, m.KeyFile, grant.ReadPrivate)
		if err != nil {
			return err
		}
		m.Signer = manifest.NewSigner(key, time.Now(), m.Valid)
	}
	out, err := o.kind.Write(p, m)
	if err != nil {
		return err
	}
	if violations := verify.Plan(p, verify.Inputs{Inventory: m.Inventory, Functions: m.Functions}); len(violations) > 0 {
		o.env.Notef("warning: the plan is not valid: %s; list all violations with gfaas-place verify", violations[0].Message)
	}
	for _, warning := range out.Warnings {
		o.env.Notef("warning: %s", warning)
	}
	o.env.Private = m.Signer != nil
	return o.env.Write(out.Text)
}
