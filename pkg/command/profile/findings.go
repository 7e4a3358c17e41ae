package profile

import (
	"encoding/xml"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/measure"
)

// finding is the verdict on one thing that a run is judged by.
type finding struct {
	about   string // a trial, or the flag that asks
	name    string // what is asked
	verdict verdict
	text    string // what is wrong; empty when passed
}

type verdict int

const (
	passed   verdict = iota
	tripped          // the answer is no
	doubtful         // the answer may be no: the figures are not known well enough
	unknown          // it cannot be judged
	failed           // it could not be measured
)

// What findings are about.
const (
	aboutTrials   = "trial"
	aboutGates    = "--fail-if"
	aboutBaseline = "--baseline"
	aboutSearch   = "--search"
)

// findings are what the run is judged by, in a fixed order.
func (o *runOptions) findings(res measure.Result) []finding {
	return doubts(slices.Concat(trialFindings(res), o.gateFindings(res), o.compare(res), o.searches(res)), o.strict)
}

// doubts are findings of which, if strict, those in doubt are no.
func doubts(all []finding, strict bool) []finding {
	for i := range all {
		if strict && all[i].verdict == doubtful {
			all[i].verdict = tripped
		}
	}
	return all
}

func trialFindings(res measure.Result) (out []finding) {
	for _, row := range res.Rows {
		out = append(out, finding{about: aboutTrials, name: measure.PointOf(row).String()})
	}
	for _, f := range res.Failures {
		out = append(out, finding{aboutTrials, f.At.String(), failed, f.Err.Error()})
	}
	return out
}

// gates judges every row by every gate. A gate for a configuration that was
// not measured cannot be judged.
func (o *runOptions) gateFindings(res measure.Result) (out []finding) {
	for _, g := range o.gates {
		matched := false
		for _, row := range res.Rows {
			if !g.matches(row.Function, row.Config) {
				continue
			}
			matched = true
			out = append(out, g.judge(measure.PointOf(row).String(), figuresOf(row), o.Objective(row.Function)))
		}
		if !matched {
			out = append(out, finding{aboutGates, g.String(), unknown, fmt.Sprintf("%s: no such configuration was measured", g)})
		}
	}
	return out
}

// compare judges every row by the baseline.
func (o *runOptions) compare(res measure.Result) (out []finding) {
	if o.baseline == nil {
		return nil
	}
	for _, row := range res.Rows {
		out = append(out, o.baseline.judge(row)...)
	}
	if len(out) == 0 {
		out = append(out, finding{aboutBaseline, o.baseline.path, unknown, "it has none of the configurations that were measured"})
	}
	return out
}

// searches tells of the searches for one configuration.
func (o *runOptions) searches(res measure.Result) (out []finding) {
	for _, s := range res.Selections {
		if !o.Chooses() || s.Function.Name == "" { // not searched to the end
			continue
		}
		one := finding{about: aboutSearch, name: s.Function.Name}
		if !s.Choice.OK {
			one.verdict, one.text = tripped, s.Function.Name+": "+s.Choice.Reason
		}
		out = append(out, one)
	}
	return out
}

// texts are those of the findings about one thing with that verdict.
func texts(all []finding, about string, want verdict) (out []string) {
	for _, f := range all {
		if f.about == about && f.verdict == want {
			out = append(out, f.text)
		}
	}
	return out
}

// judge turns the findings into an error. That something could not be measured
// outweighs what judge says: a run of which a part is missing has no answer.
func (o *runOptions) judge(res measure.Result, all []finding, again string) error {
	err := judge(o.env, all)
	if len(res.Failures) == 0 {
		return err
	}
	if err != nil {
		o.env.Notef("%v", err)
	}
	return cli.Fail(cli.ExitFailure, again, fmt.Errorf("%d of %d configurations could not be measured",
		len(res.Failures), len(res.Rows)+len(res.Failures)))
}

// judge turns the findings of gates, baselines and searches into an error, and
// warns of what is in doubt. That something could not be judged outweighs the
// answer no.
func judge(env *cli.Env, all []finding) error {
	formats := map[verdict]string{
		unknown: "%s cannot be judged:\n  %s",
		tripped: "%s tripped:\n  %s",
	}
	messages := map[verdict][]string{}
	for _, v := range []verdict{unknown, tripped} {
		for _, about := range []string{aboutGates, aboutBaseline, aboutSearch} {
			lines := texts(all, about, v)
			switch {
			case len(lines) == 0:
			case about == aboutSearch:
				messages[v] = append(messages[v], strings.Join(lines, "\n"))
			default:
				messages[v] = append(messages[v], fmt.Sprintf(formats[v], about, strings.Join(lines, "\n  ")))
			}
		}
	}
	for _, about := range []string{aboutGates, aboutBaseline} {
		for _, text := range texts(all, about, doubtful) {
			env.Notef("warning: %s %s", about, text)
		}
	}
	lines := slices.Concat(messages[unknown], messages[tripped])
	switch {
	case len(messages[unknown]) > 0:
		return errors.New(strings.Join(lines, "\n"))
	case len(lines) > 0:
		return cli.Fail(cli.ExitNo, "", errors.New(strings.Join(lines, "\n")))
	}
	return nil
}

// junitSuites and below are the JUnit XML that CI systems read.
type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Name     string       `xml:"name,attr"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Errors   int          `xml:"errors,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string     `xml:"classname,attr"`
	Name    string     `xml:"name,attr"`
	Failure *junitText `xml:"failure,omitempty"`
	Error   *junitText `xml:"error,omitempty"`
	Out     string     `xml:"system-out,omitempty"`
}

type junitText struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// junit is the findings as JUnit XML: a suite for each thing they are about. A
// tripped finding is a failure, one without an answer an error; one in doubt has
// passed, and says so. With ended the
// run stopped early, which is an error too.
func junit(all []finding, ended error) ([]byte, error) {
	if ended != nil {
		all = append(all, finding{aboutTrials, "the whole run", failed, ended.Error()})
	}
	out := junitSuites{Name: "gfaas-profile"}
	for _, about := range []string{aboutTrials, aboutGates, aboutBaseline, aboutSearch} {
		s := junitSuite{Name: strings.TrimPrefix(about, "--")}
		for _, f := range all {
			if f.about != about {
				continue
			}
			c := junitCase{Class: "gfaas-profile." + s.Name, Name: f.name}
			first, _, _ := strings.Cut(f.text, "\n")
			switch f.verdict {
			case tripped:
				c.Failure = &junitText{first, f.text}
				s.Failures++
			case doubtful:
				c.Out = f.text
			case unknown, failed:
				c.Error = &junitText{first, f.text}
				s.Errors++
			}
			s.Cases = append(s.Cases, c)
		}
		s.Tests = len(s.Cases)
		if s.Tests == 0 {
			continue
		}
		out.Tests, out.Failures, out.Errors = out.Tests+s.Tests, out.Failures+s.Failures, out.Errors+s.Errors
		out.Suites = append(out.Suites, s)
	}
	text, err := xml.MarshalIndent(out, "", "  ")
	return append([]byte(xml.Header), append(text, '\n')...), err
}

// writeJUnit writes the findings to a file, whole or not at all.
func writeJUnit(env *cli.Env, path string, all []finding, ended error) error {
	text, err := junit(all, ended)
	if err != nil {
		return err
	}
	return env.WriteTo(path, text)
}
