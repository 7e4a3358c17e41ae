package plan

import (
	"fmt"
	"io"
	"strings"

	"github.com/gfaas/gfaas/pkg/csvfile"
)

// Demand is the expected load of a function.
type Demand struct {
	Function string
	RPS      float64 // requests per second
	SLOMS    float64 // objective for the p95 latency, in ms; 0: no objective
	Line     int     // line of the file; 0 if the demand was not read from a file
}

// Name returns the name of the function.
func (d Demand) Name() string { return d.Function }

// ReadDemand reads a demand (CSV: function, rps, optionally slo_ms). name is the file's name in error messages.
func ReadDemand(r io.Reader, name string) ([]Demand, error) {
	rps := csvfile.Required("rps", csvfile.Positive, func(d *Demand) *float64 { return &d.RPS })
	rps.Called = []string{"rate", "qps", "req_s", "requests_s", "throughput_rps"}
	slo := csvfile.Field("slo_ms", csvfile.Positive, func(d *Demand) *float64 { return &d.SLOMS })
	slo.Called = []string{"latency", "latency_ms", "p95_ms", "deadline_ms", "objective_ms"}
	demand, err := csvfile.ReadWritten(r, name, []csvfile.Column[Demand]{
		csvfile.Required("function", csvfile.Name, func(d *Demand) *string { return &d.Function }), rps, slo,
	}, func(line int) Demand { return Demand{Line: line} })
	if err != nil {
		return nil, err
	}
	return demand, csvfile.Unique(demand, name, "function", func(d Demand) (string, int) { return d.Function, d.Line })
}

// ParseDemand parses the value of a flag: functions and their requests per second, as in "resnet=250,bert=40".
func ParseDemand(text string) ([]Demand, error) {
	var demand []Demand
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		name, rate, ok := strings.Cut(strings.TrimSpace(part), "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" {
			return nil, fmt.Errorf("invalid demand %s, expected a list of FUNCTION=RPS like resnet=250,bert=40", csvfile.Quote(part))
		}
		if _, err := csvfile.Name(name); err != nil {
			return nil, fmt.Errorf("demand: %w", err)
		}
		rps, err := csvfile.Positive(strings.TrimSpace(rate))
		if err != nil {
			return nil, fmt.Errorf("demand of %s: %w", csvfile.Quote(name), err)
		}
		if seen[name] {
			return nil, fmt.Errorf("the demand of %s appears twice, expected once", csvfile.Quote(name))
		}
		seen[name] = true
		demand = append(demand, Demand{Function: name, RPS: rps})
	}
	return demand, nil
}
