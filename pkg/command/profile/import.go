package profile

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/measure"
	"github.com/gfaas/gfaas/pkg/measure/figures"
	"github.com/gfaas/gfaas/pkg/measure/journal"
	"github.com/gfaas/gfaas/pkg/measure/recorded"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

const importLong = `Convert a report of another tool to a row of a profile. The report does not contain
the slice of the GPU in which the function ran: give it with --sm and --quota.

With --from perf-analyzer, REPORT is the file that Triton's perf_analyzer writes with its
flag -f. It has a line for each concurrency or request rate. The command uses the line
with the highest throughput. With --slo, it uses only lines whose p95 latency is within
this objective; if there is no such line, the exit status is 3. throughput_rps in the row
is the report's inferences per second, in which a batch of 4 counts as 4. Columns of the
profile that the report does not have are empty.

--append adds the row to the end of a profile and prints nothing. The profile must not
contain a row for the same configuration.`

// sources maps the names of report formats to their parsers.
var sources = map[string]func(r io.Reader, name string) ([]profile.Measurement, error){
	"perf-analyzer": profile.ReadPerfAnalyzer,
}

// importOptions holds the flags of import, unparsed.
type importOptions struct {
	from     string
	function string
	sm       float64
	quota    float64
	batch    int
	gpu      string
	slo      time.Duration
	append   string
}

// newImport returns the command gfaas-profile import.
func newImport(env *cli.Env) *cobra.Command {
	o := &importOptions{}
	names := slices.Sorted(maps.Keys(sources))
	cmd := &cobra.Command{
		Use:   "import --from FORM REPORT",
		Short: "Convert a report of another tool to a row of a profile",
		Long:  importLong,
		Example: `  # Print a row of a profile
  gfaas-profile import --from perf-analyzer perf.csv --function resnet --sm 50 --quota 1 --gpu V100
  # Append the best load within an objective to a profile
  gfaas-profile import --from perf-analyzer b8.csv --function resnet --sm 50 --quota 1 --batch 8 \
      --slo 69ms --append profile.csv`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.CompleteFileArgs(""),
		RunE:              func(_ *cobra.Command, args []string) error { return o.run(env, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "format of the report: "+strings.Join(names, ", "))
	f.StringVar(&o.function, "function", "", "name of the measured function")
	f.Float64Var(&o.sm, "sm", 0, "SM share of the function, in percent")
	f.Float64Var(&o.quota, "quota", 0, "quota of the function, as a fraction of a window")
	f.IntVar(&o.batch, "batch", 1, "batch size of the requests")
	f.StringVar(&o.gpu, "gpu", "", "model of the GPU")
	f.DurationVar(&o.slo, "slo", 0, "p95 latency objective (default none)")
	f.StringVar(&o.append, "append", "", "profile to append the row to")
	cli.CompleteWords(cmd, "from", names...)
	cli.CompleteFiles(cmd, "csv", "append")
	env.Outputs(cmd, "csv", "table", "json")
	cli.Meaning(cmd, cli.ExitNo, "no load in the report meets --slo")
	return cmd
}

func (o *importOptions) check(env *cli.Env) error {
	if sources[o.from] == nil {
		return cli.Usagef("--from %q: unknown format, expected %s", o.from, strings.Join(slices.Sorted(maps.Keys(sources)), ", "))
	}
	for flag, name := range map[string]string{"function": o.function, "gpu": o.gpu} {
		if _, err := csvfile.Name(name); err != nil {
			return cli.Usagef("--%s: %w", flag, err)
		}
	}
	switch {
	case o.function == "":
		return cli.Usagef("--function is missing: expected a name")
	case !(o.sm > 0 && o.sm <= 100):
		return cli.Usagef("--sm %s: expected a percentage above 0 and at most 100", number.Plain(o.sm))
	case !(o.quota > 0 && o.quota <= 1):
		return cli.Usagef("--quota %s: expected a fraction above 0 and at most 1", number.Plain(o.quota))
	case o.batch < 1 || o.batch > maxBatch:
		return cli.Usagef("--batch %d: expected a whole number from 1 to %d", o.batch, maxBatch)
	case o.slo < 0:
		return cli.Usagef("--slo %v: expected more than 0", o.slo)
	case o.append != "" && env.OutFile != "":
		return cli.Usagef("--append %s and --out-file %s both name a file for the row: they cannot be used together", o.append, env.OutFile)
	}
	return nil
}

func (o *importOptions) run(env *cli.Env, path string) error {
	if err := o.check(env); err != nil {
		return err
	}
	report, err := cli.Load(env, path, sources[o.from])
	if err != nil {
		return err
	}
	row, err := o.row(path, report)
	if err != nil {
		return err
	}
	switch {
	case o.append != "":
		return o.appendRow(env, row)
	case env.Output == "csv":
		return env.Emit(func(w io.Writer) error { return profile.Write(w, []profile.Row{row}) })
	}
	return printRows(env, []profile.Row{row})
}

// row returns the row of the best measurement in the report.
func (o *importOptions) row(path string, report []profile.Measurement) (profile.Row, error) {
	row := profile.Row{
		Function: o.function, GPU: o.gpu, Config: profile.Config{SMPct: o.sm, Quota: o.quota, Batch: o.batch},
	}
	if len(report) == 0 {
		return row, fmt.Errorf("%s:1: there is only a header, expected a line for each load", path)
	}
	best, ok := recorded.Highest(report, figures.Millis(o.slo))
	if !ok {
		return row, cli.Fail(cli.ExitNo, "", fmt.Errorf("%s: no load has a p95 latency within %v: the lowest is %s ms, on line %d",
			path, o.slo, number.Plain(best.P95MS), best.Line))
	}
	if best.ThroughputRPS == 0 {
		return row, fmt.Errorf("%s:%d: Inferences/Second: 0, expected more than 0", path, best.Line)
	}
	row.ThroughputRPS, row.P50MS, row.P95MS, row.P99MS = best.ThroughputRPS, best.P50MS, best.P95MS, best.P99MS
	return row, nil
}

// appendRow appends the row to the profile of --append.
func (o *importOptions) appendRow(env *cli.Env, row profile.Row) (err error) {
	p, j, err := journal.Resume(o.append, profile.Form{})
	if err != nil {
		return asUsage(err)
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	for _, old := range p.Rows {
		if old.Function == row.Function && old.GPU == row.GPU && old.Config == row.Config {
			return fmt.Errorf("%s:%d: the profile already contains the configuration %s", o.append, old.Line, measure.PointOf(row))
		}
	}
	if p.Torn {
		env.Notef("%s ends with an incomplete line, which is dropped", o.append)
	}
	return j.Append(row)
}
