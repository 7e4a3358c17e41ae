package profile

import (
	"encoding/xml"
	"strings"

	"github.com/gfaas/gfaas/pkg/command/cli"
)

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
}

type junitText struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// junit is the findings as JUnit XML: a suite for each thing they are about. A
// tripped finding is a failure, one without an answer an error. With ended the
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
			switch f.outcome {
			case tripped:
				c.Failure = &junitText{first, f.text}
				s.Failures++
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
