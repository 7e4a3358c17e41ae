package place

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/pack"
)

// packOptions are the flags of pack, as given.
type packOptions struct {
	env   *cli.Env
	items string
	bin   string
	mem   gpu.Bytes
	limit time.Duration
	steps int
	seed  uint64
}

func newPack(env *cli.Env) *cobra.Command {
	o := packOptions{env: env}
	cmd := &cobra.Command{
		Use:   "pack",
		Short: "Pack fixed rectangles into as few bins as possible",
		Long: `Packs rectangles of fixed sizes into bins, as few as it can, and says how many
are needed at least. Nothing is rotated.

The items are CSV: id,quota,sm_pct and optionally mem_mib,count. Sizes are in
the units of --bin, which is QUOTAxSM, and count exactly as far as they are
written, decimals too. Of an item with a count above 1 the copies are id#1,
id#2 and so on. Memory counts where --bin-mem is given. What is larger than a
bin is listed with the reason, and the exit status is 3; the rest is packed all
the same.

Bins are filled in several orders and by several rules; then a search tries to
empty one more bin at a time until it reaches the lower bound, has tried --steps
times, or --time-limit has passed since the start. The first packing is always
completed. The same items and seed give the same bytes, unless it is the time
that ends the search: then they differ only if the last bin saved came about
that late.`,
		Example: `  gfaas-place pack --items items.csv
  gfaas-place pack --items items.csv --bin 1x100 --bin-mem 16GiB -o json
  gfaas-place pack --items boxes.csv --bin 300x300 --time-limit 1s -o csv
  gfaas-place pack --items items.csv -o svg --out-file bins.svg`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.items, "items", "", "what to pack (CSV: id,quota,sm_pct,mem_mib,count)")
	cli.Files(cmd, "csv", "items")
	f.StringVar(&o.bin, "bin", "1x100", "the size of every bin, `QUOTAxSM`")
	f.TextVar(&o.mem, "bin-mem", gpu.Bytes(0), "memory of every bin, like `16GiB` (default no limit)")
	f.DurationVar(&o.limit, "time-limit", 100*time.Millisecond, "how long to improve the packing")
	f.IntVar(&o.steps, "steps", pack.DefaultSteps, "how often to try to improve the packing")
	f.Uint64Var(&o.seed, "seed", 1, "what the search draws by")
	env.Outputs(cmd, "table", "json", "csv", "svg")
	return cmd
}

func (o *packOptions) run(cmd *cobra.Command) error {
	start := time.Now()
	if err := o.check(cmd); err != nil {
		return err
	}
	quota, sm, err := plan.ParseBin(o.bin)
	if err != nil {
		return cli.Usagef("--bin %s: %w", o.bin, err)
	}
	items, err := cli.Load(o.env, o.items, plan.ReadItems)
	if err != nil {
		return err
	}
	c, err := newCargo(items, quota, sm, o.mem, o.items)
	if err != nil {
		return err
	}
	over, done := o.env.Deadline(start, o.limit, "packing")
	packed := pack.Pack(c.kinds, c.bin, pack.Options{Seed: o.seed, Steps: o.steps, Stop: over})
	done()
	if err := o.print(c, packed); err != nil {
		return err
	}
	if len(packed.Oversize) > 0 {
		return cli.Exit(cli.ExitNo)
	}
	return nil
}

func (o *packOptions) check(cmd *cobra.Command) error {
	switch {
	case o.items == "":
		return cli.Usagef("--items is missing: expected a file (CSV: id,quota,sm_pct,mem_mib,count)")
	case cmd.Flags().Changed("bin-mem") && o.mem <= 0:
		return cli.Usagef("--bin-mem %s: expected more than 0, like 16GiB", o.mem)
	case o.limit < 0:
		return cli.Usagef("--time-limit %s: expected 0 or more, like 100ms", o.limit)
	case o.steps < 0:
		return cli.Usagef("--steps %d: expected 0 or more", o.steps)
	}
	return nil
}
