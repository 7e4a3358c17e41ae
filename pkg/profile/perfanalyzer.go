package profile

import (
	"io"

	"github.com/gfaas/gfaas/pkg/csvfile"
)

// Measurement is the result of one load, measured by a tool that does not know about slices.
type Measurement struct {
	Load          float64 // concurrent requests, or requests per second; 0 if unknown
	ThroughputRPS float64 // a batch counts as several requests
	P50MS         float64
	P95MS         float64
	P99MS         float64
	Line          int
}

// ReadPerfAnalyzer reads the report of Triton's perf_analyzer (CSV): one line per concurrency or request rate, with
// inferences per second and percentiles of the latency in microseconds. It ignores other columns.
func ReadPerfAnalyzer(r io.Reader, name string) ([]Measurement, error) {
	micros := func(cell string) (float64, error) {
		v, err := csvfile.Positive(cell)
		return v / 1000, err
	}
	return csvfile.Read(r, name, []csvfile.Column[Measurement]{
		csvfile.Field("Concurrency", csvfile.Number, func(m *Measurement) *float64 { return &m.Load }),
		csvfile.Field("Request Rate", csvfile.Number, func(m *Measurement) *float64 { return &m.Load }),
		csvfile.Required("Inferences/Second", csvfile.Number, func(m *Measurement) *float64 { return &m.ThroughputRPS }),
		csvfile.Field("p50 latency", micros, func(m *Measurement) *float64 { return &m.P50MS }),
		csvfile.Required("p95 latency", micros, func(m *Measurement) *float64 { return &m.P95MS }),
		csvfile.Field("p99 latency", micros, func(m *Measurement) *float64 { return &m.P99MS }),
	}, func(line int) Measurement { return Measurement{Line: line} })
}
