package profile

import (
	"io"

	"github.com/gfaas/gfaas/pkg/csvfile"
)

// Measurement is one load of one configuration, as a tool that knows nothing
// of slices measured it.
type Measurement struct {
	Load          float64 // requests outstanding, or a second; 0 if not told
	ThroughputRPS float64 // a batch counts as its size
	P50MS         float64
	P95MS         float64
	P99MS         float64
	Line          int
}

// ReadPerfAnalyzer reads the report of Triton's perf_analyzer (CSV): a line for
// each concurrency or request rate, with inferences a second and percentiles
// of the latency in microseconds. Its other columns are ignored.
func ReadPerfAnalyzer(r io.Reader, name string) ([]Measurement, error) {
	micros := func(column string, required bool, at func(*Measurement) *float64) csvfile.Column[Measurement] {
		return csvfile.Column[Measurement]{Name: column, Required: required, Set: func(m *Measurement, cell string) error {
			v, err := csvfile.Positive(cell)
			*at(m) = v / 1000
			return err
		}}
	}
	number := func(column string, required bool, at func(*Measurement) *float64) csvfile.Column[Measurement] {
		return csvfile.Column[Measurement]{Name: column, Required: required, Set: func(m *Measurement, cell string) (err error) {
			*at(m), err = csvfile.Number(cell)
			return err
		}}
	}
	rows, err := csvfile.Read(r, name, []csvfile.Column[Measurement]{
		number("Concurrency", false, func(m *Measurement) *float64 { return &m.Load }),
		number("Request Rate", false, func(m *Measurement) *float64 { return &m.Load }),
		number("Inferences/Second", true, func(m *Measurement) *float64 { return &m.ThroughputRPS }),
		micros("p50 latency", false, func(m *Measurement) *float64 { return &m.P50MS }),
		micros("p95 latency", true, func(m *Measurement) *float64 { return &m.P95MS }),
		micros("p99 latency", false, func(m *Measurement) *float64 { return &m.P99MS }),
	}, func() Measurement { return Measurement{} })
	out := make([]Measurement, len(rows))
	for i, row := range rows {
		out[i] = row.Value
		out[i].Line = row.Line
	}
	return out, err
}
