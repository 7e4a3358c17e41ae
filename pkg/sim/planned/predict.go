package planned

import (
	"maps"
	"math"
	"time"

	definition "github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/arrivals"
	"github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/sim/workload"
)

// Requests are drawn for Run.Duration, or for longer if a function then has fewer than minRequests,
// because fewer do not determine a 99th percentile. They are not drawn for longer if the functions of a
// group have maxRequests together. In any case, the time ends when a function has maxRequests, or at
// maxSeconds.
const (
	minRequests = 10_000
	maxRequests = 1_000_000
	maxSeconds  = 9e9 // the clock overflows at 2^63 ns = 9.2e9 s; the last answers come later than the requests
)

// meteredCost is the time that a busy GPU takes to simulate under the policies introspective and TGS, in requests per
// simulated second: 200 issues of tokens take as much time as about 20 requests.
const meteredCost = 20

// Run describes the prediction for a plan.
type Run struct {
	Demand   []plan.Demand
	GPUs     [][]Instance
	Recorded map[string][]float64 // times of requests in ms, by function; nil draws them from Pattern
	Pattern  workload.Pattern
	Duration time.Duration // of the drawn requests
	Routing  Routing
	Seed     uint64
	// Policy and Introspective are those of Config. Under introspective, the instances of a function
	// have its objective in Demand, unless Functions describes it as training.
	Policy        string
	Introspective token.IntrospectiveParameters
	Functions     []definition.Function
	Progress      func(done int) error // called before each group of GPUs; an error ends the run
}

// Prediction is the prediction for one function.
type Prediction struct {
	plan.Demand // with the actual rate of requests
	Outcome     // its Latencies are nil if no instance serves the function
}

// Predict simulates the plan, one group of GPUs after another. The result has an entry for each
// function of the demand that has a request, in that order. silent lists the functions with
// instances for which no request was drawn.
func (r Run) Predict() (predictions []Prediction, silent []string, err error) {
	outcomes := map[string]Outcome{}
	objectives, llms := map[string]float64{}, []string(nil)
	for _, d := range r.Demand {
		objectives[d.Function] = d.SLOMS
	}
	for _, fn := range r.Functions {
		if fn.Kind == "training" {
			delete(objectives, fn.Name)
		}
		if fn.LLM() {
			llms = append(llms, fn.Name)
		}
	}
	for n, group := range Groups(r.GPUs) {
		if err := r.Progress(n); err != nil {
			return nil, nil, err
		}
		times := r.Recorded
		if times == nil {
			times = r.requests(group)
		}
		maps.Copy(outcomes, Simulate(Config{
			GPUs: group, Arrivals: times, Routing: r.Routing, WindowMS: arrivals.Window, Seed: r.Seed + uint64(n),
			Policy: r.Policy, Introspective: r.Introspective, Objectives: objectives, LLMs: llms,
		}))
	}
	for _, d := range r.Demand {
		times, recorded := r.Recorded[d.Function]
		if r.Recorded != nil && !recorded {
			continue
		}
		if last := len(times) - 1; recorded && times[last] > times[0] {
			d.RPS = float64(last) / (times[last] - times[0]) * 1000
		}
		outcome, served := outcomes[d.Function]
		if served && len(outcome.Latencies) == 0 {
			silent = append(silent, d.Function)
			continue
		}
		predictions = append(predictions, Prediction{d, outcome})
	}
	return predictions, silent, nil
}

// requests draws the times, in ms, of the requests to a group's functions. The duration is the
// same for all of them, because they compete.
func (r Run) requests(group [][]Instance) map[string][]float64 {
	served := map[string]bool{}
	minRPS, maxRPS, sum := math.Inf(1), 0.0, 0.0
	for _, gpu := range group {
		if isMetered(r.Policy) {
			sum += meteredCost
		}
		for _, in := range gpu {
			served[in.Function] = true
			if in.Endless && !isMetered(r.Policy) { // it works in every window, which takes as much time to simulate as one request
				sum += 1000 / arrivals.Window
			}
		}
	}
	for _, d := range r.Demand {
		if served[d.Function] {
			minRPS, maxRPS, sum = min(minRPS, d.RPS), max(maxRPS, d.RPS), sum+d.RPS
		}
	}
	seconds := max(r.Duration.Seconds(), min(minRequests/minRPS, maxRequests/sum))
	seconds = min(seconds, maxRequests/maxRPS, maxSeconds)
	times := map[string][]float64{}
	for n, d := range r.Demand {
		if !served[d.Function] {
			continue
		}
		drawn := r.Pattern.Arrivals(d.RPS, seconds, r.Seed, uint64(n))
		for i := range drawn {
			drawn[i] *= 1000 // from s to ms
		}
		times[d.Function] = drawn
	}
	return times
}
