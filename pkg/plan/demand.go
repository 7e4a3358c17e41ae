package plan

import (
	"fmt"
	"io"
	"strings"

	"github.com/gfaas/gfaas/pkg/csvfile"
)

// Demand is a function's wanted rate.
type Demand struct {
	Function string
	RPS      float64 // requests a second
	SLOMS    float64 // objective for the p95 latency; 0 is none
	Line     int     // line in the file it came from
}

// ReadDemand reads a demand (CSV: function, rps, optionally slo_ms); name is
// what messages call it.
func ReadDemand(r io.Reader, name string) ([]Demand, error) {
	rows, err := csvfile.ReadWritten(r, name, []csvfile.Column[Demand]{
		{Name: "function", Required: true, Set: func(d *Demand, cell string) (err error) {
			d.Function, err = csvfile.Name(cell)
			return err
		}},
		{Name: "rps", Required: true, Called: []string{"rate", "qps", "req_s", "requests_s", "throughput_rps"}, Set: func(d *Demand, cell string) (err error) {
			d.RPS, err = csvfile.Positive(cell)
			return err
		}},
		{Name: "slo_ms", Called: []string{"latency", "latency_ms", "p95_ms", "deadline_ms", "objective_ms"}, Set: func(d *Demand, cell string) (err error) {
			d.SLOMS, err = csvfile.Positive(cell)
			return err
		}},
	}, func() Demand { return Demand{} })
	if err != nil {
		return nil, err
	}
	if err := csvfile.Unique(rows, name, "function", func(d Demand) string { return d.Function }); err != nil {
		return nil, err
	}
	demand := make([]Demand, len(rows))
	for i, row := range rows {
		demand[i] = row.Value
		demand[i].Line = row.Line
	}
	return demand, nil
}

// ParseDemand reads a demand as given on a command line: "resnet=250,bert=40".
func ParseDemand(text string) ([]Demand, error) {
	var demand []Demand
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		name, rate, ok := strings.Cut(strings.TrimSpace(part), "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			return nil, fmt.Errorf("demand %s is not FUNCTION=RPS, expected a list like resnet=250,bert=40", csvfile.Quote(part))
		}
		if _, err := csvfile.Name(name); err != nil {
			return nil, fmt.Errorf("demand: %w", err)
		}
		rps, err := csvfile.Positive(strings.TrimSpace(rate))
		if err != nil {
			return nil, fmt.Errorf("demand of %s: %w", csvfile.Quote(name), err)
		}
		if seen[name] {
			return nil, fmt.Errorf("demand of %s is given twice, expected once", csvfile.Quote(name))
		}
		seen[name] = true
		demand = append(demand, Demand{Function: name, RPS: rps})
	}
	return demand, nil
}
