package profile

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/profile"
)

// finding is the answer to one thing that a run is judged by.
type finding struct {
	about   string // a trial, or the flag that asks
	name    string // what is asked
	outcome answer
	text    string // what is wrong; empty when passed
}

type answer int

const (
	passed  answer = iota
	tripped        // the answer is no
	unknown        // it cannot be judged
	failed         // it could not be measured
)

// What findings are about.
const (
	aboutTrials   = "trial"
	aboutGates    = "--fail-if"
	aboutBaseline = "--baseline"
	aboutSearch   = "--search"
)

// failure is a configuration that could not be measured.
type failure struct {
	cell cell
	err  error
}

// findings are what the run is judged by, in a fixed order.
func (r *runner) findings() []finding {
	return slices.Concat(r.trials(), r.gates(), r.compare(), r.searches())
}

func (r *runner) trials() (out []finding) {
	for _, row := range r.rows {
		out = append(out, finding{about: aboutTrials, name: caseName(row.Function, row.Config)})
	}
	for _, f := range r.failures {
		out = append(out, finding{aboutTrials, caseName(f.cell.function, f.cell.config), failed, f.err.Error()})
	}
	return out
}

// gates judges every row by every gate. A gate for a configuration that was
// not measured cannot be judged.
func (r *runner) gates() (out []finding) {
	for _, g := range r.job.gates {
		covered := false
		for _, row := range r.rows {
			if !g.covers(row.Function, row.Config) {
				continue
			}
			covered = true
			one := finding{about: aboutGates, name: g.String() + " " + cellName(row.Function, row.Config)}
			if trip, miss := g.judge(row); trip != "" {
				one.outcome, one.text = tripped, trip
			} else if miss != "" {
				one.outcome, one.text = unknown, miss
			}
			out = append(out, one)
		}
		if !covered {
			out = append(out, finding{aboutGates, g.String(), unknown, fmt.Sprintf("%s: no such configuration was measured", g)})
		}
	}
	return out
}

// compare judges every row by the baseline.
func (r *runner) compare() (out []finding) {
	if r.job.baseline == nil {
		return nil
	}
	for _, row := range r.rows {
		out = append(out, r.job.baseline.judge(row)...)
	}
	if len(out) == 0 {
		out = append(out, finding{aboutBaseline, r.job.baseline.path, unknown, "it has none of the configurations that were measured"})
	}
	return out
}

// searches tells of the searches for one configuration.
func (r *runner) searches() (out []finding) {
	for _, o := range r.found {
		if !r.job.choosing() || o.function.Name == "" { // not searched to the end
			continue
		}
		one := finding{about: aboutSearch, name: o.function.Name}
		if !o.choice.OK {
			one.outcome, one.text = tripped, o.function.Name+": "+o.choice.Reason
		}
		out = append(out, one)
	}
	return out
}

// texts are those of the findings with an outcome about one thing.
func texts(all []finding, about string, outcome answer) (out []string) {
	for _, f := range all {
		if f.about == about && f.outcome == outcome {
			out = append(out, f.text)
		}
	}
	return out
}

// judge turns the findings into an error. That something could not be measured
// outweighs that something could not be judged, and both the answer no: a run
// of which a part is missing has no answer.
func (r *runner) judge(env *cli.Env, all []finding, again string) error {
	said := map[answer]string{
		unknown: "%s cannot be judged:\n  %s",
		tripped: "%s tripped:\n  %s",
	}
	messages := map[answer][]string{}
	for _, outcome := range []answer{unknown, tripped} {
		for _, about := range []string{aboutGates, aboutBaseline, aboutSearch} {
			lines := texts(all, about, outcome)
			switch {
			case len(lines) == 0:
			case about == aboutSearch:
				messages[outcome] = append(messages[outcome], strings.Join(lines, "\n"))
			default:
				messages[outcome] = append(messages[outcome], fmt.Sprintf(said[outcome], about, strings.Join(lines, "\n  ")))
			}
		}
	}
	lines := slices.Concat(messages[unknown], messages[tripped])
	switch {
	case len(r.failures) > 0:
		for _, text := range lines {
			env.Notef("%s", text)
		}
		return cli.Fail(cli.ExitFailure, again, fmt.Errorf("%d of %d configurations could not be measured",
			len(r.failures), len(r.rows)+len(r.failures)))
	case len(messages[unknown]) > 0:
		return errors.New(strings.Join(lines, "\n"))
	case len(lines) > 0:
		return cli.Fail(cli.ExitNo, "", errors.New(strings.Join(lines, "\n")))
	}
	return nil
}

// caseName is how a report calls a configuration.
func caseName(fn string, c profile.Config) string {
	return strings.TrimPrefix(cellName(fn, c), "for ")
}
