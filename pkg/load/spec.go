package load

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gfaas/gfaas/pkg/number"
)

// Kind is a way to load an instance.
type Kind int

// The loads that Run knows.
const (
	Closed  Kind = iota + 1 // a fixed number of workers, each waiting for its answer
	Poisson                 // arrivals of a Poisson process
	Max                     // the closed loop that just saturates the instance
)

// Limits of what ParseSpec accepts.
const (
	maxWorkers = 10_000
	maxRPS     = 1_000_000
)

// Spec names a load.
type Spec struct {
	Kind    Kind
	Workers int     // of Closed
	RPS     float64 // of Poisson, requests a second
}

// ParseSpec reads closed:N, poisson:RPS or max.
func ParseSpec(s string) (Spec, error) {
	kind, value, given := strings.Cut(s, ":")
	switch {
	case s == "max":
		return Spec{Kind: Max}, nil
	case kind == "closed" && given:
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 || n > maxWorkers {
			return Spec{}, fmt.Errorf("load %q: expected closed:N with N from 1 to %d", s, maxWorkers)
		}
		return Spec{Kind: Closed, Workers: n}, nil
	case kind == "poisson" && given:
		rps, err := strconv.ParseFloat(value, 64)
		if err != nil || math.IsNaN(rps) || rps <= 0 || rps > maxRPS {
			return Spec{}, fmt.Errorf("load %q: expected poisson:RPS with RPS above 0 and at most %d", s, maxRPS)
		}
		return Spec{Kind: Poisson, RPS: rps}, nil
	}
	return Spec{}, fmt.Errorf("load %q is not known: expected closed:N, poisson:RPS or max", s)
}

// String prints the load as ParseSpec reads it.
func (s Spec) String() string {
	switch s.Kind {
	case Closed:
		return "closed:" + strconv.Itoa(s.Workers)
	case Poisson:
		return "poisson:" + number.Significant(s.RPS, -1)
	case Max:
		return "max"
	}
	return ""
}
