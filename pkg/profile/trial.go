package profile

import (
	"io"

	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/textfile"
)

// Trial is the result of one configuration at one rate of Poisson arrivals, from a search
// for its goodput (pkg/profile/goodput). Rates are in requests per second, latencies in ms.
type Trial struct {
	Function string
	GPU      string
	Config
	OfferedRPS  float64 // measured arrivals
	AnsweredRPS float64 // answers
	P95MS       float64 // 0 means that it does not exist because more than 5% of the arrivals failed
	P95CIMS     float64 // half the width of its 95% confidence interval; 0 means unknown
	SLOMS       float64 // objective for p95
	Misses      int64   // invocations that exceeded the objective or failed
	Samples     int64   // all invocations

	Line int // line in the input file
}

// trialColumns are the columns of a file of trials, in the order in which it is written.
var trialColumns = []csvfile.Column[Trial]{
	text("function", required, func(t *Trial) *string { return &t.Function }),
	text("gpu", optional, func(t *Trial) *string { return &t.GPU }),
	number("sm_pct", required, csvfile.Percent, func(t *Trial) *float64 { return &t.SMPct }),
	number("quota", required, csvfile.Fraction, func(t *Trial) *float64 { return &t.Quota }),
	batch(func(t *Trial) *Config { return &t.Config }),
	number("offered_rps", required, csvfile.Positive, func(t *Trial) *float64 { return &t.OfferedRPS }),
	{Name: "answered_rps", Set: func(t *Trial, cell string) (err error) {
		t.AnsweredRPS, err = csvfile.Number(cell)
		return err
	}, Print: func(t *Trial) string { return csvfile.Format(t.AnsweredRPS) }},
	sparse(number("p95_ms", optional, csvfile.Positive, func(t *Trial) *float64 { return &t.P95MS })),
	number("p95_ci_ms", optional, csvfile.Number, func(t *Trial) *float64 { return &t.P95CIMS }),
	number("slo_ms", required, csvfile.Positive, func(t *Trial) *float64 { return &t.SLOMS }),
	count("misses", always, func(t *Trial) *int64 { return &t.Misses }),
	count("samples", always, func(t *Trial) *int64 { return &t.Samples }),
}

// sparse makes a column required, although its cells may be empty.
func sparse(c csvfile.Column[Trial]) csvfile.Column[Trial] {
	c.Required, c.Sparse = true, true
	return c
}

func always(*Trial) bool { return true }

// TrialHeader returns the header of a file of trials.
func TrialHeader() []string { return csvfile.Header(trialColumns) }

// Record returns the trial's fields in the order of TrialHeader.
func (t Trial) Record() []string { return csvfile.Record(trialColumns, t) }

// ReadTrials reads a file of trials; name is its name in error messages. A configuration
// has several trials, in the order of their execution.
func ReadTrials(r io.Reader, name string) ([]Trial, error) {
	trials, err := csvfile.Read(r, name, trialColumns, func(line int) Trial { return Trial{Config: Config{Batch: 1}, Line: line} })
	for _, t := range trials {
		if t.Misses > t.Samples {
			return nil, &textfile.Fault{File: name, Line: t.Line, Where: "misses", What: "more than samples, expected at most samples"}
		}
	}
	return trials, err
}
