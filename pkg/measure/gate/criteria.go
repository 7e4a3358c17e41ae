package gate

import (
	"fmt"
	"slices"

	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/measure"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Finding is the verdict on one aspect of a run.
type Finding struct {
	Subject Subject
	Name    string // of the aspect
	Verdict Verdict
	Text    string // the reason; empty if it passed
}

// Verdict is the result of judging one aspect.
type Verdict int

// Verdicts.
const (
	Passed   Verdict = iota
	Tripped          // it did not pass
	Doubtful         // it may not have passed: the figures are not precise enough
	Unknown          // there are no figures to judge
	Failed           // it could not be measured
)

// Subject is the kind of a finding.
type Subject string

// Subjects, in the order in which they are reported.
const (
	Trial           Subject = "trial"
	FailIf          Subject = "fail-if"
	BaselineSubject Subject = "baseline"
	Search          Subject = "search"
)

// Measured returns the finding that a subject could be measured.
func Measured(name string) Finding { return Finding{Subject: Trial, Name: name} }

// Criteria decide whether results pass.
type Criteria struct {
	Gates    []Gate
	Baseline *Baseline // nil: no comparison
	Strict   bool      // a doubtful finding counts as tripped
}

// Judge returns the findings about the result of a job, in a fixed order: trials,
// gates, baseline, search.
func (c Criteria) Judge(job measure.Job, res measure.Result) []Finding {
	return c.decide(slices.Concat(trials(res), c.gates(job, res), c.compare(res), searches(job, res)))
}

// JudgeFigures returns the findings of the gates about the figures of one subject,
// whose objective is sloMS (in ms, 0 is none).
func (c Criteria) JudgeFigures(subject string, figures Figures, sloMS float64) []Finding {
	return c.decide(lists.Map(c.Gates, func(g Gate) Finding { return g.Judge(subject, figures, sloMS) }))
}

// decide turns doubtful findings into tripped ones if the criteria are strict.
func (c Criteria) decide(all []Finding) []Finding {
	for i := range all {
		if c.Strict && all[i].Verdict == Doubtful {
			all[i].Verdict = Tripped
		}
	}
	return all
}

func trials(res measure.Result) (out []Finding) {
	out = lists.Map(res.Rows, func(row profile.Row) Finding { return Measured(measure.PointOf(row).String()) })
	for _, f := range res.Failures {
		out = append(out, Finding{Trial, f.At.String(), Failed, f.Err.Error()})
	}
	return out
}

// gates applies each gate to each row. The finding about a gate is unknown if none of
// its configurations was measured.
func (c Criteria) gates(job measure.Job, res measure.Result) (out []Finding) {
	for _, g := range c.Gates {
		matched := lists.Filter(res.Rows, func(row profile.Row) bool { return g.matches(row.Function, row.Config) })
		for _, row := range matched {
			out = append(out, g.Judge(measure.PointOf(row).String(), FiguresOf(row), job.Objective(row.Function)))
		}
		if len(matched) == 0 {
			out = append(out, Finding{FailIf, g.String(), Unknown, fmt.Sprintf("%s: no configuration that it applies to was measured", g)})
		}
	}
	return out
}

// compare compares each row with the baseline.
func (c Criteria) compare(res measure.Result) (out []Finding) {
	if c.Baseline == nil {
		return nil
	}
	for _, row := range res.Rows {
		out = append(out, c.Baseline.judge(row)...)
	}
	if len(out) == 0 {
		out = append(out, Finding{BaselineSubject, c.Baseline.path, Unknown, "none of the measured configurations is in the baseline"})
	}
	return out
}

// searches returns a finding for each search that ended.
func searches(job measure.Job, res measure.Result) (out []Finding) {
	for _, s := range res.Selections {
		if !job.Chooses() || s.Function.Name == "" {
			continue
		}
		f := Finding{Subject: Search, Name: s.Function.Name}
		if !s.Choice.OK {
			f.Verdict, f.Text = Tripped, s.Function.Name+": "+s.Choice.Reason
		}
		out = append(out, f)
	}
	return out
}

// Texts returns the texts of the findings with that subject and verdict.
func Texts(all []Finding, subject Subject, verdict Verdict) []string {
	found := lists.Filter(all, func(f Finding) bool { return f.Subject == subject && f.Verdict == verdict })
	return lists.Map(found, func(f Finding) string { return f.Text })
}
