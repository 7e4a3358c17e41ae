package profile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/measure/figures"
	"github.com/gfaas/gfaas/pkg/measure/recorded"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

const searchLong = `Run a search of gfaas-profile run without a GPU. Whenever the search would measure a
configuration (a trial), it gets a row of a recorded profile instead. The command prints
the configuration that the search chooses, and the number of trials. Trials of
configurations that have no row in the profile do not count. -v prints each trial with
the reason for it.

The searches, except for binary, choose the configuration with the best efficacy among
the trials that meet the objective (--slo; without it, all trials do). The efficacy is
the throughput divided by the share of the GPU: throughput_rps / (sm_pct/100 x quota).
For example, 50 requests/s with 25% of the SMs and quota 1 are an efficacy of 200. If a
row has a goodput for the objective, fast compares goodputs instead of throughputs.

    grid    measures all configurations
    binary  for training: measures at the smallest batch and the largest quota, and
            finds by bisection the SM shares that reach 80% (printed as sm_pct) and
            100% (sm_limit_pct) of the throughput with all SMs; both have a tolerance
            of 2% plus the noise (see below)
    hybrid  for inference: the search of the Dilu paper, which increases the SM share
            in steps of 10% of the GPU until the objective is met, then doubles the
            batch, and repeats this until the efficacy is more than 10% below the best
    gpulet  for inference: the search of GPUlet, a baseline of the Dilu paper, which
            measures four SM shares with four batch sizes each, evenly spread from the
            smallest to the largest, at the largest quota
    fast    needs the fewest trials: models the execution time by SM share and batch,
            and measures the configuration with the largest expected gain; ends when
            no other configuration is expected to be better by more than --error, or,
            from the 10th trial on, as soon as a configuration meets the objective; if
            the rows have p95_ci_ms, it prefers a configuration whose p95_ms +
            p95_ci_ms meets the objective

The noise is the largest difference between two throughputs that their confidence
intervals (throughput_ci_rps) can explain. If the efficacy of a row is below the best one
by no more than the noise, and by at most 5%, the row counts as equal to the best. Among
equal rows, the search chooses the one with the largest quota, and among rows with this
quota the one with the smallest SM share, so that repeated searches have the same result.

-o csv prints the row of the chosen configuration as a profile with limits (the columns
sm_limit_pct and quota_limit), for gfaas-place plan --algorithm dilu. The limit of binary
is the SM share that it finds; the others double the SM share, and beyond 100% the quota.
If the row states its limits, they are printed.

If no configuration meets the objective, the exit status is 3, and the output contains
the reason.`

// searchOptions holds the flags of search, unparsed.
type searchOptions struct {
	table    string
	function string
	gpu      string
	search   string
	slo      time.Duration
	goal     search.Goal
	only     search.Space // restricts the configurations; an empty list means no restriction
}

// newSearch returns the command gfaas-profile search.
func newSearch(env *cli.Env) *cobra.Command {
	o := &searchOptions{}
	cmd := &cobra.Command{
		Use:   "search --table PROFILE.csv",
		Short: "Find the best configuration in a recorded profile",
		Long:  searchLong,
		Example: `  # Find the configuration with the best efficacy within 100 ms
  gfaas-profile search --table profile.csv --function resnet --slo 100ms -o json
  # Print each trial of Dilu's search
  gfaas-profile search --table profile.csv --function resnet --slo 69ms --search hybrid -v
  # Plan with the request and limit that Dilu's search chooses
  gfaas-profile search --table profile.csv --function resnet --slo 69ms --search hybrid -o csv > chosen.csv
  gfaas-place plan --algorithm dilu --profile chosen.csv --demand resnet=100
  # Choose SM shares for a training job
  gfaas-profile search --table profile.csv --function bert-train --search binary --batch 8`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(env, cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.table, "table", "", "profile (CSV), - for standard input")
	f.StringVar(&o.function, "function", "", "use the rows of this function (not needed if the profile has only one function)")
	f.StringVar(&o.gpu, "gpu", "", "use the rows for this GPU model, if the profile has several models")
	f.StringVar(&o.search, "search", "fast", "search to try: "+strings.Join(search.Names(), ", "))
	f.DurationVar(&o.slo, "slo", 0, "p95 latency objective, like 100ms (default none)")
	f.Float64Var(&o.goal.Error, "error", search.DefaultError, "for fast: how far the efficacy of the result may be below the best efficacy, as a fraction")
	f.BoolVar(&o.goal.CheckQuota, "check-quota", false, "for fast: at the end, check whether the throughput is proportional to the quota")
	f.Var(floats(&o.only.SMPct), "sm", "SM shares to consider, in percent (default all in the profile)")
	f.Var(floats(&o.only.Quota), "quota", "quotas to consider, as fractions (default all in the profile)")
	f.Var(ints(&o.only.Batch), "batch", "batch sizes to consider (default all in the profile)")
	cli.CompleteWords(cmd, "search", search.Names()...)
	cli.CompleteFiles(cmd, "csv", "table")
	env.Outputs(cmd, "table", "json", "csv")
	cli.Meaning(cmd, cli.ExitNo, "no configuration meets the objective")
	return cmd
}

func (o *searchOptions) run(env *cli.Env, cmd *cobra.Command) error {
	if err := o.valid(cmd.Flags().Changed("slo")); err != nil {
		return err
	}
	rows, err := cli.Load(env, o.table, profile.Read)
	if err != nil {
		return err
	}
	o.gpu = modelAsked(cmd, o.gpu, rows)
	if rows, err = o.pick(rows); err != nil {
		return err
	}
	space, err := o.space(rows)
	if err != nil {
		return err
	}
	o.goal.SLOMS = figures.Millis(o.slo)
	o.goal.Goodput = o.search == "fast" && slices.ContainsFunc(rows, func(r profile.Row) bool {
		_, _, known := r.Goodput(o.goal.SLOMS)
		return known
	})
	s, err := search.New(o.search, space, o.goal)
	if err != nil {
		return cli.Fail(cli.ExitUsage, "", err)
	}
	trials := recorded.Replay(s, rows, func(trial int, row profile.Row) {
		env.Debugf("trial %d %s; reason: %s", trial, trialLine(row, o.goal), s.Reason())
	})
	choice := s.Choice()
	result := newSearchResult(o.function, o.search, trials, choice)
	if env.Output == "csv" {
		err = env.Emit(func(w io.Writer) error { return profile.Write(w, chosenRows(choice)) })
	} else {
		err = env.Show(result, result.table)
	}
	if err != nil {
		return err
	}
	if result.SMPct == nil {
		env.Notef("%s: %s", result.Function, result.Reason)
		return cli.Exit(cli.ExitNo)
	}
	return nil
}

// chosenRows returns the row of the choice with its limits, or no row if there is no choice.
func chosenRows(c search.Choice) []profile.Row {
	if !c.OK {
		return nil
	}
	if _, _, stated := c.Row.Limits(); !stated {
		c.Row.SMLimitPct, c.Row.QuotaLimit = c.LimitSMPct, c.LimitQuota
	}
	return []profile.Row{c.Row}
}

func (o *searchOptions) valid(objective bool) error {
	switch {
	case o.table == "":
		return cli.Fail(cli.ExitUsage, "measure a profile with gfaas-profile run FUNCTION.yaml", errors.New("--table is missing: expected a file"))
	case objective && o.slo <= 0:
		return cli.Usagef("--slo %v: expected more than 0", o.slo)
	case !(o.goal.Error > 0 && o.goal.Error < 1):
		return cli.Usagef("--error %s: expected a fraction above 0 and below 1", number.Plain(o.goal.Error))
	}
	return nil
}

// pick returns the rows of the selected function and GPU model.
func (o *searchOptions) pick(rows []profile.Row) ([]profile.Row, error) {
	name, rows, err := only("function", o.table, o.function, rows, func(r profile.Row) string { return r.Function })
	if err != nil {
		return nil, err
	}
	o.function = name
	_, rows, err = only("gpu", o.table, o.gpu, rows, func(r profile.Row) string { return r.GPU })
	return rows, err
}

// modelAsked returns the GPU model from --gpu. It ignores a setting "gpu" without matching rows, because
// that setting may be a GPU of this host, meant for gfaas run and gfaas-profile run.
func modelAsked(cmd *cobra.Command, gpu string, rows []profile.Row) string {
	if cli.OnCommandLine(cmd.Flags(), "gpu") || slices.ContainsFunc(rows, func(r profile.Row) bool { return r.GPU == gpu }) {
		return gpu
	}
	return ""
}

// noRows returns the error about a profile without rows.
func noRows(file string) error {
	if file == "-" {
		file = textfile.Stdin
	}
	return &textfile.Fault{File: file, Line: 1, What: "the file has only a header, expected at least one row"}
}

// only returns the rows whose key equals want. If want is empty, all rows must have the same key.
func only(flag, file, want string, rows []profile.Row, key func(profile.Row) string) (string, []profile.Row, error) {
	known := lists.Distinct(rows, key)
	if want == "" && len(known) == 1 {
		return known[0], rows, nil
	}
	choices := strings.Join(known, ", ")
	switch {
	case len(known) == 0:
		return "", nil, noRows(file)
	case want == "":
		return "", nil, cli.Usagef("--%s is missing: expected one of the values in %s: %s", flag, file, choices)
	case !slices.Contains(known, want):
		return "", nil, cli.Usagef("--%s %q: not in %s, expected one of %s", flag, want, file, choices)
	}
	return want, slices.DeleteFunc(slices.Clone(rows), func(r profile.Row) bool { return key(r) != want }), nil
}

// space returns the configurations in the rows, restricted by o.only.
func (o *searchOptions) space(rows []profile.Row) (search.Space, error) {
	s := recorded.Space(rows)
	var sm, quota, batch error
	s.SMPct, sm = restrict("sm", s.SMPct, o.only.SMPct, number.Plain)
	s.Quota, quota = restrict("quota", s.Quota, o.only.Quota, number.Plain)
	s.Batch, batch = restrict("batch", s.Batch, o.only.Batch, strconv.Itoa)
	err := cmp.Or(sm, quota, batch)
	if err == nil && len(s.Configs()) == 0 {
		err = cli.Usagef("the profile has no row with this combination of --sm, --quota and --batch")
	}
	return s, err
}

// restrict returns the distinct values of the table that want lists, or all if want is empty.
func restrict[T int | float64](flag string, values, want []T, show func(T) string) ([]T, error) {
	values = slices.Compact(slices.Sorted(slices.Values(values)))
	if len(want) == 0 {
		return values, nil
	}
	for _, v := range want {
		if !slices.Contains(values, v) {
			return nil, cli.Usagef("--%s %s: not in the profile, expected one of %s", flag, show(v), strings.Join(lists.Map(values, show), ", "))
		}
	}
	return want, nil
}

// trialLine summarizes a trial in one line. If there is an objective, the line ends with the verdict.
func trialLine(r profile.Row, goal search.Goal) string {
	text := fmt.Sprintf("at sm_pct %s, quota %s, batch %d: %.4g rps, p95 %.4g ms, efficacy %.4g",
		number.Plain(r.SMPct), number.Plain(r.Quota), r.Batch, r.ThroughputRPS, r.P95MS, r.Efficacy())
	if rps, _, known := r.Goodput(goal.SLOMS); goal.Goodput && known {
		text += fmt.Sprintf(", goodput %.4g rps", rps)
	}
	switch {
	case goal.SLOMS <= 0:
		return text
	case goal.Meets(r):
		return text + "; meets the objective"
	}
	return text + "; misses the objective"
}

// searchResult is the output of search. Missing values are null.
type searchResult struct {
	Function      string   `json:"function"`
	Search        string   `json:"search"`
	Trials        int      `json:"trials"`
	SMPct         *float64 `json:"sm_pct"`
	Quota         *float64 `json:"quota"`
	Batch         *int     `json:"batch"`
	ThroughputRPS *float64 `json:"throughput_rps"`
	P95MS         *float64 `json:"p95_ms"`
	Efficacy      *float64 `json:"efficacy"`
	SMLimitPct    *float64 `json:"sm_limit_pct"`
	QuotaLimit    float64  `json:"quota_limit,omitempty"` // omitted if it equals the quota
	Reason        string   `json:"reason"`
}

func newSearchResult(fn, strategy string, trials int, c search.Choice) searchResult {
	f := searchResult{Function: fn, Search: strategy, Trials: trials, Reason: c.Reason}
	if !c.OK {
		return f
	}
	efficacy := figures.Round(c.Row.Efficacy(), 6)
	f.SMPct, f.Quota, f.Batch = &c.Row.SMPct, &c.Row.Quota, &c.Row.Batch
	f.ThroughputRPS, f.P95MS, f.Efficacy, f.SMLimitPct = &c.Row.ThroughputRPS, &c.Row.P95MS, &efficacy, &c.LimitSMPct
	if c.LimitQuota > c.Row.Quota {
		f.QuotaLimit = c.LimitQuota
	}
	return f
}

func (f searchResult) table() [][]string {
	head := []string{"FUNCTION", "SEARCH", "TRIALS", "SM%", "LIMIT%", "QUOTA", "BATCH", "RPS", "P95 MS", "RPS/GPU"}
	if f.SMPct == nil {
		return [][]string{head, {f.Function, f.Search, strconv.Itoa(f.Trials), "-", "-", "-", "-", "-", "-", "-"}}
	}
	return [][]string{head, {
		f.Function, f.Search, strconv.Itoa(f.Trials), number.Short(*f.SMPct), number.Short(*f.SMLimitPct), number.Short(*f.Quota),
		strconv.Itoa(*f.Batch), number.Fixed(*f.ThroughputRPS, 1), number.Fixed(*f.P95MS, 1), number.Fixed(*f.Efficacy, 1),
	}}
}
