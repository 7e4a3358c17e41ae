package profile

import (
	"io"
	"strconv"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Trial is what one configuration did at one rate of Poisson arrivals: a trial of
// the search for its goodput. Rates are in requests a second, latencies in ms.
type Trial struct {
	Function string
	GPU      string
	Config
	OfferedRPS  float64 // arrivals, as they came
	AnsweredRPS float64
	P95MS       float64 // 0: more than 5% of the arrivals failed, so that there is none
	P95CIMS     float64 // half the width of its 95% confidence interval; 0 is not known
	SLOMS       float64 // the objective for p95
	Misses      int64   // invocations beyond it, those that failed among them
	Samples     int64   // invocations

	Line int // line in the file it came from
}

// TrialHeader is the first line of a file of trials.
func TrialHeader() []string {
	var names []string
	for _, c := range trialColumns() {
		names = append(names, c.Name)
	}
	return names
}

// Record is the trial as fields in the order of TrialHeader.
func (t Trial) Record() []string {
	n := csvfile.Format
	known := func(v float64) string {
		if v == 0 {
			return ""
		}
		return n(v)
	}
	return []string{
		t.Function, t.GPU, n(t.SMPct), n(t.Quota), strconv.Itoa(t.Batch), n(t.OfferedRPS), n(t.AnsweredRPS), known(t.P95MS), known(t.P95CIMS),
		n(t.SLOMS), strconv.FormatInt(t.Misses, 10), strconv.FormatInt(t.Samples, 10),
	}
}

func trialColumns() []csvfile.Column[Trial] {
	number := func(name string, required bool, parse func(string) (float64, error), at func(*Trial) *float64) csvfile.Column[Trial] {
		return csvfile.Column[Trial]{Name: name, Required: required, Set: func(t *Trial, cell string) (err error) {
			*at(t), err = parse(cell)
			return err
		}}
	}
	count := func(name string, at func(*Trial) *int64) csvfile.Column[Trial] {
		return csvfile.Column[Trial]{Name: name, Set: func(t *Trial, cell string) (err error) {
			*at(t), err = csvfile.Count(cell, 0)
			return err
		}}
	}
	text := func(name string, required bool, at func(*Trial) *string) csvfile.Column[Trial] {
		return csvfile.Column[Trial]{Name: name, Required: required, Set: func(t *Trial, cell string) (err error) {
			*at(t), err = csvfile.Name(cell)
			return err
		}}
	}
	n := csvfile.Number
	return []csvfile.Column[Trial]{
		text("function", true, func(t *Trial) *string { return &t.Function }),
		text("gpu", false, func(t *Trial) *string { return &t.GPU }),
		number("sm_pct", true, csvfile.Percent, func(t *Trial) *float64 { return &t.SMPct }),
		number("quota", true, csvfile.Fraction, func(t *Trial) *float64 { return &t.Quota }),
		{Name: "batch", Set: func(t *Trial, cell string) error {
			var row Row
			err := setBatch(&row, cell)
			t.Batch = row.Batch
			return err
		}},
		number("offered_rps", true, csvfile.Positive, func(t *Trial) *float64 { return &t.OfferedRPS }),
		number("answered_rps", false, n, func(t *Trial) *float64 { return &t.AnsweredRPS }),
		{Name: "p95_ms", Required: true, Sparse: true, Set: func(t *Trial, cell string) (err error) {
			t.P95MS, err = csvfile.Positive(cell)
			return err
		}},
		number("p95_ci_ms", false, n, func(t *Trial) *float64 { return &t.P95CIMS }),
		number("slo_ms", true, csvfile.Positive, func(t *Trial) *float64 { return &t.SLOMS }),
		count("misses", func(t *Trial) *int64 { return &t.Misses }),
		count("samples", func(t *Trial) *int64 { return &t.Samples }),
	}
}

// ReadTrials reads a file of trials; name is what messages call it. A configuration
// has several, in the order in which they were made.
func ReadTrials(r io.Reader, name string) ([]Trial, error) {
	lines, err := csvfile.Read(r, name, trialColumns(), func() Trial { return Trial{Config: Config{Batch: 1}} })
	if err != nil {
		return nil, err
	}
	out := make([]Trial, len(lines))
	for i, line := range lines {
		out[i] = line.Value
		out[i].Line = line.Line
		if out[i].Misses > out[i].Samples {
			return nil, &textfile.Fault{File: name, Line: line.Line, Where: "misses", What: "more than samples, expected at most as many"}
		}
	}
	return out, nil
}
