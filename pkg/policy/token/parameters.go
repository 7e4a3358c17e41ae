package token

import (
	"errors"
	"fmt"
	"time"

	"github.com/gfaas/gfaas/pkg/policy"
)

// IntrospectiveParameters are the constants of the policy introspective. The zero value stands for
// DefaultIntrospective. The stretch is the launch cycle of an instance divided by its shortest
// launch cycle, T/Tmin; the paper's ΔT is the stretch minus one.
type IntrospectiveParameters struct {
	// Constants of Algorithm 2, with the values of Dilu's published code.
	period    time.Duration // between two issues of tokens (section 3.4.1)
	violation float64       // η_violation: a larger stretch is an emergency
	llm       float64       // η_violation of instances of language models (AddInstance.LLM)
	outlier   float64       // a stretch above this counts only if the previous one was above it, too
	recovery  float64       // below this stretch, an emergency ends
	increase  float64       // η_increase: factor of growth per period

	// Constants that the paper does not give, with our values.
	rateWindow int     // number of periods in a rate window (published code: 100, evaluated after 10 to 120)
	floor      float64 // part of its request that a best-effort instance keeps in an emergency (published code: 0.01)
}

// published holds the values with which Dilu was evaluated. The values that the paper leaves open
// are ours: a rate window as long as the usual scheduling window, and a floor with which training
// makes visible progress.
var published = IntrospectiveParameters{
	period: 5 * time.Millisecond, violation: 1.6, llm: 1.3, outlier: 4, recovery: 1.2, increase: 1.3,
	rateWindow: 20, floor: 0.1,
}

// DefaultIntrospective returns the default parameters.
func DefaultIntrospective() IntrospectiveParameters { return published }

// Check returns an error if the parameters contradict each other or are out of range.
func (p IntrospectiveParameters) Check() error {
	switch {
	case p.period < time.Millisecond || p.period > time.Second:
		return fmt.Errorf("period=%v: expected between 1ms and 1s", p.period)
	case !(p.violation > 1):
		return fmt.Errorf("violation=%v: expected more than 1", p.violation)
	case !(p.llm > 1):
		return fmt.Errorf("violation-llm=%v: expected more than 1", p.llm)
	case !(p.outlier >= p.violation):
		return fmt.Errorf("outlier=%v: expected violation (%v) or more", p.outlier, p.violation)
	case !(p.recovery > 1 && p.recovery <= p.violation):
		return fmt.Errorf("recovery=%v: expected more than 1 and at most violation (%v)", p.recovery, p.violation)
	case !(p.increase > 1):
		return fmt.Errorf("increase=%v: expected more than 1", p.increase)
	case p.rateWindow < 1 || p.rateWindow > 10_000:
		return fmt.Errorf("window=%v: expected between 1 and 10000 periods", p.rateWindow)
	case !(p.floor > 0 && p.floor <= 1):
		return fmt.Errorf("floor=%v: expected more than 0 and at most 1", p.floor)
	}
	return nil
}

// IntrospectiveSettings returns the parameters as users set them.
func IntrospectiveSettings() []policy.Parameter[IntrospectiveParameters] {
	ratio := func(key, byDefault, help string, at func(*IntrospectiveParameters) *float64) policy.Parameter[IntrospectiveParameters] {
		return policy.Value(key, byDefault, help, policy.Number, at)
	}
	period := func(value string) (time.Duration, error) {
		d, err := time.ParseDuration(value)
		if err != nil {
			return 0, errors.New("expected a duration, like 5ms")
		}
		return d, nil
	}
	return []policy.Parameter[IntrospectiveParameters]{
		policy.Value("period", "5ms", "time between two issues of tokens", period,
			func(p *IntrospectiveParameters) *time.Duration { return &p.period }),
		ratio("violation", "1.6", "a launch cycle that is longer than the shortest by more than this factor is an emergency (η_violation)",
			func(p *IntrospectiveParameters) *float64 { return &p.violation }),
		ratio("violation-llm", "1.3", "the same factor for functions of language models (contract: openai) and commands of gfaas run --llm",
			func(p *IntrospectiveParameters) *float64 { return &p.llm }),
		ratio("recovery", "1.2", "the emergency ends when the factor is below this",
			func(p *IntrospectiveParameters) *float64 { return &p.recovery }),
		ratio("outlier", "4", "a larger factor counts only if the next cycle has one, too",
			func(p *IntrospectiveParameters) *float64 { return &p.outlier }),
		ratio("increase", "1.3", "factor by which a share may grow per period (η_increase)",
			func(p *IntrospectiveParameters) *float64 { return &p.increase }),
		policy.Value("window", "20", "number of periods over which use is observed", policy.Whole,
			func(p *IntrospectiveParameters) *int { return &p.rateWindow }),
		ratio("floor", "0.1", "part of its request that an instance without a latency objective keeps in an emergency",
			func(p *IntrospectiveParameters) *float64 { return &p.floor }),
	}
}
