package gate

import (
	"encoding/xml"
	"strings"
)

// junitSuites and the types below are the elements of JUnit XML.
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

// JUnit returns the findings as JUnit XML, with a suite for each subject. A tripped finding
// is a failure, and an unknown or failed one is an error. A doubtful finding passes, with
// its text as output. If ended is not nil, it is the reason why the run stopped early, and
// is reported as an error as well.
func JUnit(all []Finding, ended error) ([]byte, error) {
	if ended != nil {
		all = append(all, Finding{Trial, "the whole run", Failed, ended.Error()})
	}
	out := junitSuites{Name: "gfaas-profile"}
	for _, subject := range []Subject{Trial, FailIf, BaselineSubject, Search} {
		s := junitSuite{Name: string(subject)}
		for _, f := range all {
			if f.Subject != subject {
				continue
			}
			c := junitCase{Class: "gfaas-profile." + s.Name, Name: f.Name}
			first, _, _ := strings.Cut(f.Text, "\n")
			switch f.Verdict {
			case Tripped:
				c.Failure = &junitText{first, f.Text}
				s.Failures++
			case Doubtful:
				c.Out = f.Text
			case Unknown, Failed:
				c.Error = &junitText{first, f.Text}
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
