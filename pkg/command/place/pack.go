package place

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/pack"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// packOptions holds the flags of pack.
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
		Short: "Pack slices of GPUs, or other rectangles, into as few bins as possible",
		Long: `Pack rectangles of given sizes into as few bins as possible, and print a lower bound on
the number of bins. For example, the bins can be GPUs and the rectangles slices: the width
is then a fraction of time (a quota), and the height a share of the SMs. Rectangles are
not rotated.

--items is a CSV file with the columns id, quota (width) and sm_pct (height), and
optionally mem_mib and count. Sizes are in the same units as --bin: with the default,
1x100, quota is a fraction and sm_pct a percentage. Decimals are not rounded. A row with
a count of 3 stands for three items, which the output names ID#1 to ID#3. Memory limits
the packing only with --bin-mem. If items are larger than a bin, the command lists them
with the reason, packs all others, and exits with status 3.

The packer first fills bins item by item, in several orders and with several rules for
the place of an item, and uses the best result. It then tries to empty one bin after
the other by moving its items to other bins. It stops when it reaches the lower bound,
after --steps attempts, or when --time-limit has passed since the start, but always
completes at least one packing. The same items and seed give the same output, unless
--time-limit ends the search early.`,
		Example: `  # Pack slices onto whole GPUs
  gfaas-place pack --items items.csv
  # Respect the memory of the GPUs
  gfaas-place pack --items items.csv --bin 1x100 --bin-mem 16GiB -o json
  # Pack any rectangles, with more time for improvements
  gfaas-place pack --items boxes.csv --bin 300x300 --time-limit 1s -o csv
  # Draw the bins
  gfaas-place pack --items items.csv -o svg --out-file bins.svg`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.items, "items", "", "items to pack (CSV: id,quota,sm_pct,mem_mib,count)")
	cli.CompleteFiles(cmd, "csv", "items")
	f.StringVar(&o.bin, "bin", "1x100", "width and height of each bin, `QUOTAxSM`")
	cli.Memory(f, &o.mem, "bin-mem", "memory of each bin, as a `size` like 16GiB (default no limit)")
	f.DurationVar(&o.limit, "time-limit", 100*time.Millisecond, "time limit for improving the packing")
	f.IntVar(&o.steps, "steps", pack.DefaultSteps, "limit on attempts to improve the packing")
	f.Uint64Var(&o.seed, "seed", 1, "seed of the search")
	env.Outputs(cmd, "table", "json", "csv", "svg")
	cli.Meaning(cmd, cli.ExitNo, "an item is larger than a bin")
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
	c, err := pack.NewItems(items, quota, sm, o.mem, o.items)
	if fault := new(textfile.Fault); err != nil && !errors.As(err, &fault) {
		return fmt.Errorf("--bin %w", err)
	}
	if err != nil {
		return err
	}
	expired, done := o.env.Deadline(start, o.limit, "packing")
	packed := pack.Pack(c.Kinds, c.Bin, pack.Options{Seed: o.seed, Steps: o.steps, Stop: expired})
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
