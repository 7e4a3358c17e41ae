package profile

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/measure/figures"
	"github.com/gfaas/gfaas/pkg/measure/recorded"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/policy/search"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

const searchLong = `Runs a search against a recorded profile instead of a machine: which rows it
would have measured, and which configuration it chooses. Efficacy is requests a
second per whole GPU: throughput_rps / (sm_pct/100 x quota).

  grid    every row; the best efficacy within the objective
  binary  for training: the SM shares with 80% (sm_pct) and 100% (sm_limit_pct)
          of the throughput of all SMs, at the smallest batch and largest quota
  hybrid  for inference: Dilu's growth search
  fast    the least trials: models the execution time over SM share and batch,
          looks where the gain may be largest, and ends when no other
          configuration is expected to be better by --error, or after 10
          trials once one meets the objective; where rows tell how well
          their p95 is known (p95_ci_ms), it chooses one that meets the
          objective with that added, if it finds one

Where the profile has confidence intervals (throughput_ci_rps), rows that differ
from the best efficacy by no more than these explain, at most 5%, are as good:
of them the largest quota, then the smallest SM share is chosen, so that a search
that is repeated chooses the same. Binary's parts are within 2% and that noise.

Without --slo any latency will do. Only rows that were looked at and meet the
objective are chosen; a configuration that the table does not have is no trial.
With -v each trial is told with its reason. When nothing meets the objective,
the exit status is 3 and the reason is in the output.`

// searchOptions are the flags of search, as given.
type searchOptions struct {
	table    string
	function string
	gpu      string
	search   string
	slo      time.Duration
	goal     search.Goal
	only     search.Space // consider no others; what is empty has all
}

// newSearch is gfaas-profile search.
func newSearch(env *cli.Env) *cobra.Command {
	o := &searchOptions{}
	cmd := &cobra.Command{
		Use:   "search --table PROFILE.csv",
		Short: "Try a search on a recorded profile",
		Long:  searchLong,
		Example: `  gfaas-profile search --table profile.csv --function resnet --slo 100ms -o json
  gfaas-profile search --table profile.csv --function resnet --slo 69ms --search hybrid -v
  gfaas-profile search --table profile.csv --function bert-train --search binary --batch 8`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(env, cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.table, "table", "", "the profile (CSV), - for standard input")
	f.StringVar(&o.function, "function", "", "function to search for (default the only one of the table)")
	f.StringVar(&o.gpu, "gpu", "", "model of GPU, where the table has several")
	f.StringVar(&o.search, "search", "fast", "how to search: "+strings.Join(search.Names(), ", "))
	f.DurationVar(&o.slo, "slo", 0, "p95 latency to keep, like 100ms (default any)")
	f.Float64Var(&o.goal.Error, "error", search.DefaultError, "how far below the best efficacy fast may end, as a fraction")
	f.BoolVar(&o.goal.CheckQuota, "check-quota", false, "have --search fast try at the end whether a smaller quota costs throughput in proportion")
	f.Var(floats(&o.only.SMPct), "sm", "consider these SM shares only, in percent (default all of the table)")
	f.Var(floats(&o.only.Quota), "quota", "consider these quotas only, as fractions (default all of the table)")
	f.Var(ints(&o.only.Batch), "batch", "consider these batch sizes only (default all of the table)")
	cli.Words(cmd, "search", search.Names()...)
	cli.Files(cmd, "csv", "table")
	env.Outputs(cmd, "table", "json")
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
	result := o.try(env, s, rows)
	if err := env.Show(result, result.table); err != nil {
		return err
	}
	if result.SMPct == nil {
		env.Notef("%s: %s", result.Function, result.Reason)
		return cli.Exit(cli.ExitNo)
	}
	return nil
}

func (o *searchOptions) valid(objective bool) error {
	switch {
	case o.table == "":
		return cli.Fail(cli.ExitUsage, "gfaas-profile run FUNCTION.yaml measures one", errors.New("--table is missing: expected a file"))
	case objective && o.slo <= 0:
		return cli.Usagef("--slo %v: expected more than 0", o.slo)
	case !(o.goal.Error > 0 && o.goal.Error < 1):
		return cli.Usagef("--error %s: expected a fraction above 0 and below 1", number.Plain(o.goal.Error))
	}
	return nil
}

// pick keeps the rows of the one function and GPU.
func (o *searchOptions) pick(rows []profile.Row) ([]profile.Row, error) {
	name, rows, err := only("function", o.table, o.function, rows, func(r profile.Row) string { return r.Function })
	if err != nil {
		return nil, err
	}
	o.function = name
	_, rows, err = only("gpu", o.table, o.gpu, rows, func(r profile.Row) string { return r.GPU })
	return rows, err
}

// modelAsked is the model of GPU that --gpu asks for. As a setting it may be
// the GPU that gfaas run and gfaas-profile run take, of which no row is.
func modelAsked(cmd *cobra.Command, gpu string, rows []profile.Row) string {
	if cli.Given(cmd.Flags(), "gpu") || slices.ContainsFunc(rows, func(r profile.Row) bool { return r.GPU == gpu }) {
		return gpu
	}
	return ""
}

// noRows is the fault of a profile that measured nothing.
func noRows(file string) error {
	if file == "-" {
		file = textfile.Stdin
	}
	return &textfile.Fault{File: file, Line: 1, What: "the file has a header only, expected at least one line"}
}

// only keeps the rows whose key is as wanted; when nothing is, they must all
// have the same.
func only(flag, file, want string, rows []profile.Row, key func(profile.Row) string) (string, []profile.Row, error) {
	var known []string
	for _, r := range rows {
		known = append(known, key(r))
	}
	slices.Sort(known)
	known = slices.Compact(known)
	if want == "" && len(known) == 1 {
		return known[0], rows, nil
	}
	has := strings.Join(known, ", ")
	switch {
	case len(known) == 0:
		return "", nil, noRows(file)
	case want == "":
		return "", nil, cli.Usagef("--%s is missing: %s has %s, expected one of them", flag, file, has)
	case !slices.Contains(known, want):
		return "", nil, cli.Usagef("--%s %q: %s has %s", flag, want, file, has)
	}
	return want, slices.DeleteFunc(slices.Clone(rows), func(r profile.Row) bool { return key(r) != want }), nil
}

// space is what there is to look at: the rows, as far as the lists allow.
func (o *searchOptions) space(rows []profile.Row) (search.Space, error) {
	s := recorded.Space(rows)
	var err error
	if s.SMPct, err = restrict("sm", s.SMPct, o.only.SMPct, number.Plain); err != nil {
		return s, err
	}
	if s.Quota, err = restrict("quota", s.Quota, o.only.Quota, number.Plain); err != nil {
		return s, err
	}
	if s.Batch, err = restrict("batch", s.Batch, o.only.Batch, strconv.Itoa); err != nil {
		return s, err
	}
	if len(s.Configs()) == 0 {
		return s, cli.Usagef("the table has no row with such --sm, --quota and --batch together")
	}
	return s, nil
}

// restrict is what of the table's values is wanted: all unless some are named.
func restrict[T int | float64](flag string, has, want []T, show func(T) string) ([]T, error) {
	has = slices.Compact(slices.Sorted(slices.Values(has)))
	if len(want) == 0 {
		return has, nil
	}
	for _, v := range want {
		if !slices.Contains(has, v) {
			texts := make([]string, len(has))
			for i, h := range has {
				texts[i] = show(h)
			}
			return nil, cli.Usagef("--%s %s: the table has %s", flag, show(v), strings.Join(texts, ", "))
		}
	}
	return want, nil
}

// try runs the strategy on the rows.
func (o *searchOptions) try(env *cli.Env, s search.Strategy, rows []profile.Row) searchResult {
	trials := recorded.Replay(s, rows, func(trial int, row profile.Row) {
		env.Debugf("trial %d %s: %s", trial, trialLine(row, o.goal), s.Why())
	})
	return newSearchResult(o.function, o.search, trials, s.Choice())
}

// trialLine tells a trial in short.
func trialLine(r profile.Row, goal search.Goal) string {
	verdict := "meets the objective"
	if !goal.Meets(r) {
		verdict = "misses the objective"
	}
	text := fmt.Sprintf("at sm_pct %s, quota %s, batch %d: %.4g rps, p95 %.4g ms (%s), efficacy %.4g",
		number.Plain(r.SMPct), number.Plain(r.Quota), r.Batch, r.ThroughputRPS, r.P95MS, verdict, r.Efficacy())
	if rps, _, known := r.Goodput(goal.SLOMS); goal.Goodput && known {
		text += fmt.Sprintf(", goodput %.4g rps", rps)
	}
	return text
}

// searchResult is what search prints. What there is not is null.
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
	Reason        string   `json:"reason"`
}

func newSearchResult(fn, how string, trials int, c search.Choice) searchResult {
	f := searchResult{Function: fn, Search: how, Trials: trials, Reason: c.Reason}
	if !c.OK {
		return f
	}
	efficacy := figures.Round(c.Row.Efficacy(), 6)
	f.SMPct, f.Quota, f.Batch = &c.Row.SMPct, &c.Row.Quota, &c.Row.Batch
	f.ThroughputRPS, f.P95MS, f.Efficacy, f.SMLimitPct = &c.Row.ThroughputRPS, &c.Row.P95MS, &efficacy, &c.LimitSMPct
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
