package profile

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure"
	"github.com/gfaas/gfaas/pkg/measure/gate"
	"github.com/gfaas/gfaas/pkg/number"
)

// minAnnounced is the shortest measuring time whose estimate is printed without --verbose.
const minAnnounced = 10 * time.Second

// announce prints the configurations to measure and an estimate of the time.
func (o *runOptions) announce(testbeds, measured int) {
	extent := o.Extent(measured, testbeds)
	separator := ","
	if len(extent.Points) > 1 {
		separator = ";"
	}
	text := fmt.Sprintf("%s%s %d already measured. Each takes %v of load and one start of an instance", o.countText(extent), separator, measured, o.TimePerPoint())
	precision := "about"
	switch {
	case o.Chooses():
		precision = "at most about"
	case o.Load.Spec.Kind == load.Max:
		precision = "at least"
	}
	if o.Form().Goodput {
		text += fmt.Sprintf("; the goodput search makes this %d to %d times as long (--goodput=false omits it)", measure.LeastGoodputFactor, measure.MostGoodputFactor)
	}
	if extent.Testbeds > 1 {
		text += fmt.Sprintf("; %d are measured at a time", extent.Testbeds)
	}
	var durations []string
	for _, rounds := range extent.Rounds {
		e := o.Estimate(rounds)
		each := roughly(e.Min)
		if longest := roughly(e.Max); longest != each {
			each += " to " + longest
		}
		durations = append(durations, each)
	}
	durations = slices.Compact(durations)
	text += fmt.Sprintf(". Estimated time: %s %s", precision, durations[0])
	if len(durations) > 1 {
		text += fmt.Sprintf(" in the first case, %s in the second", durations[1])
	}
	if o.Estimate(extent.Rounds[0]).Loaded >= minAnnounced {
		o.env.Notef("%s", text)
	} else {
		o.env.Debugf("%s", text)
	}
}

// countText describes the number of configurations to measure.
func (o *runOptions) countText(e measure.Extent) string {
	switch {
	case !o.Chooses():
		return configurations(e.Points[0]) + " to measure"
	case len(e.Points) == 1:
		return "at most " + configurations(e.Points[0]) + " to measure"
	}
	verb := "answers requests"
	if slices.ContainsFunc(o.Functions, func(fn function.Function) bool { return o.Objective(fn.Name) > 0 }) {
		verb = "meets the objective"
	}
	return fmt.Sprintf("at most %s to measure if an early one %s, and at most %d otherwise", configurations(e.Points[0]), verb, e.Points[1])
}

// configurations returns a number of configurations as text.
func configurations(n int) string { return number.Count(n, "configuration") }

// roughly formats an estimated duration, such as 12s, 8m or 1h40m.
func roughly(d time.Duration) string {
	switch {
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Round(time.Minute)/time.Minute))
	}
	d = d.Round(5 * time.Minute)
	return fmt.Sprintf("%dh%02dm", int(d/time.Hour), int(d%time.Hour/time.Minute))
}

// conclude prints the result and returns the command's error.
func (o *runOptions) conclude(out outcome) error {
	env, res, ended := o.env, out.Result, out.ended
	file := o.file()
	if env.Output == "table" {
		env.OutFile = "" // the file already contains the rows
	}
	if env.Output != "csv" {
		if err := printRows(env, res.Rows); err != nil {
			return errors.Join(ended, err)
		}
	}
	all := o.criteria.Judge(o.Job, res)
	if err := writeJUnit(env, o.junit, all, ended); err != nil {
		return errors.Join(ended, err)
	}
	resume := ""
	// Without a row of this run, the file may have those of another version of the function, or not exist.
	if out.written > 0 && isRegular(file) {
		resume = "continue with --resume " + file
	} else if ended != nil || len(res.Failures) > 0 {
		o.noteOldRows(file)
	}
	switch {
	case ended != nil && out.interrupted && file != "" && len(res.Rows) > 0:
		if stuck, ok := errors.AsType[*measure.StopError](ended); ok {
			env.Notef("%v", stuck)
		}
		return cli.Fail(cli.ExitPartial, resume, fmt.Errorf("interrupted: %d of %d configurations are in %s",
			len(res.Rows), o.Size(), file))
	case ended != nil:
		return withHint(ended, resume)
	}
	o.announceChoice(res.Selections)
	return o.judge(res, all, resume)
}

// noteOldRows prints a note if the file for the rows has only the rows of an earlier run, which this run was
// to replace.
func (o *runOptions) noteOldRows(file string) {
	if o.resume == "" && isRegular(file) {
		o.env.Notef("no row was written; %s still has the content of an earlier run", file)
	}
}

// isRegular reports whether there is a regular file at the path.
func isRegular(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// judge returns the error that follows from the findings. A configuration that could not be measured
// takes precedence over all findings, because such a run has no conclusive result.
func (o *runOptions) judge(res measure.Result, all []gate.Finding, resume string) error {
	err := conclude(o.env, all)
	if len(res.Failures) == 0 {
		return err
	}
	if err != nil {
		o.env.Notef("%v", err)
	}
	return cli.Fail(cli.ExitFailure, resume, fmt.Errorf("%d of %d configurations could not be measured",
		len(res.Failures), len(res.Rows)+len(res.Failures)))
}

// announceChoice prints the configuration that the search chose for each function.
func (o *runOptions) announceChoice(selections []measure.Selection) {
	for _, s := range selections {
		if o.Chooses() && s.Choice.OK {
			o.env.Notef("%s: chosen after %d trials, %s. Largest useful SM share (limit): %s%%. Reason: %s", s.Function.Name, s.Trials,
				trialLine(s.Choice.Row, o.GoalOf(s.Function)), number.Plain(s.Choice.LimitSMPct), s.Choice.Reason)
		}
	}
}

// hinted is an error with a hint. It preserves the exit status of the error.
type hinted struct {
	error
	hint string
}

func (h hinted) Hint() string  { return h.hint }
func (h hinted) Unwrap() error { return h.error }

// withHint adds a hint to an error that has neither a hint nor an exit status of its own.
func withHint(err error, hint string) error {
	var known interface{ Hint() string }
	var chosen *cli.Error
	if hint == "" || errors.As(err, &known) || errors.As(err, &chosen) {
		return err
	}
	return hinted{err, hint}
}
