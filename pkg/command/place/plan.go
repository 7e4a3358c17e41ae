package place

import (
	"bytes"
	"encoding/csv"
	"io"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/place/picture"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	policy "github.com/gfaas/gfaas/pkg/policy/place"
)

// planOptions are the flags of plan, as given.
type planOptions struct {
	env       *cli.Env
	files     inputs
	gpus      int
	mem       gpu.Bytes
	algorithm string
	model     string
	tieBreak  string
	order     string
}

func newPlan(env *cli.Env) *cobra.Command {
	o := planOptions{env: env}
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Plan instances on GPUs for a demand",
		Long: `Chooses for each function how many instances of which configurations of its
profile serve its demand within its objective, and places them on GPUs. Every
instance has a rectangle of its GPU for itself: a share of the SMs for a share
of the scheduling window.

Without --inventory or --gpus as many GPUs are taken as needed. Memory is
limited only by --inventory or --gpu-mem. What cannot be placed is listed with
the reason, and the exit status is 3; the rest is planned all the same.

The algorithm is that of FaST-GShare: each function's configurations are chosen
by heuristic scaling (the most efficient one, then the least that covers the
rest) and packed by the maximal rectangles algorithm. The plan says how many
GPUs are needed at least, whatever the choice of configurations.`,
		Example: `  gfaas-place plan --profile profile.csv --demand resnet=250,bert=40
  gfaas-place plan --profile profile.csv --demand demand.csv --gpu-mem 16GiB -o json > plan.json
  gfaas-place plan --profile profile.csv --demand demand.csv --inventory gpus.csv -o svg --out-file plan.svg`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	o.files.flags(f)
	f.IntVar(&o.gpus, "gpus", 0, "how many GPUs there are (default as many as it takes)")
	f.TextVar(&o.mem, "gpu-mem", gpu.Bytes(0), "memory of each GPU, or the most to use of it, like `16GiB` (default no limit)")
	choice(cmd, &o.algorithm, "algorithm", "how to plan", "fast")
	choice(cmd, &o.model, "model", "what a GPU can host side by side", plan.ModelRect)
	choice(cmd, &o.tieBreak, "tie-break", "which of equally efficient configurations to take",
		string(policy.LargerQuota), string(policy.SmallerQuota))
	choice(cmd, &o.order, "order", "pack the largest rectangles first, or as they arrive by the demand",
		string(policy.Largest), string(policy.Arrival))
	env.Outputs(cmd, "table", "json", "csv", "svg")
	return cmd
}

func (o *planOptions) run(cmd *cobra.Command) error {
	in, err := o.input(cmd)
	if err != nil {
		return err
	}
	o.notes(in)
	p, err := policy.Fast(in, policy.FastOptions{TieBreak: policy.TieBreak(o.tieBreak), Order: policy.Order(o.order)})
	if err != nil {
		return err
	}
	if err := o.print(p); err != nil {
		return err
	}
	if len(p.Unplaced) > 0 {
		return cli.Exit(cli.ExitNo)
	}
	return nil
}

// print writes the plan in the chosen form. What a form cannot hold goes to
// standard error.
func (o *planOptions) print(p plan.Plan) error {
	if o.env.Output == "csv" {
		for _, u := range p.Unplaced {
			o.env.Notef("unplaced: %s requests a second of %s: %s", csvfile.Format(u.RPS), u.Function, u.Reason)
		}
	}
	return o.env.Emit(func(w io.Writer) error {
		switch o.env.Output {
		case "json":
			return p.WriteJSON(w)
		case "csv":
			return csv.NewWriter(w).WriteAll(records(p))
		case "svg":
			_, err := io.Copy(w, bytes.NewReader(picture.SVG(p)))
			return err
		}
		return printTable(w, p)
	})
}

// notes says what the reader of the plan should know about its inputs.
func (o *planOptions) notes(in policy.Input) {
	if o.files.inventory == "" && in.MemMiB == 0 {
		o.env.Notef("note: memory is not limited, since neither --inventory nor --gpu-mem was given")
	}
	without := map[string]bool{}
	models := map[string]bool{}
	for _, r := range in.Profile {
		without[r.Function] = without[r.Function] || r.GPUMemMiB == 0
		if r.GPU != "" {
			models[r.GPU] = true
		}
	}
	for _, d := range in.Demand {
		if without[d.Function] && (o.files.inventory != "" || in.MemMiB > 0) {
			o.env.Notef("note: the profile does not say how much memory every configuration of %s needs: where it does not, none is counted", d.Function)
		}
	}
	if len(models) > 1 && o.files.inventory == "" {
		o.env.Notef("note: the profile is of %d models of GPU and no --inventory says which there are: configurations of all are mixed", len(models))
	}
}
