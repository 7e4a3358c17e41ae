package goodput

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/splitmix"
	"github.com/gfaas/gfaas/pkg/transcript"
)

// server simulates a queue in virtual time. Its servers process requests in the order of
// their arrival, each for service ms, spread by noise. It refuses requests beyond the
// rate in refuses.
type server struct {
	service float64 // ms
	servers int
	noise   float64 // 0 constant, 1 exponential
	refuses float64 // requests per second; 0 refuses none
	seconds float64 // length of a trial
	warmup  float64
	seed    uint64
	made    int // number of trials
}

func newServer(service float64, seed uint64) *server {
	return &server{service: service, servers: 1, seconds: 10, warmup: 2, seed: seed}
}

// capacity returns the capacity in requests per second.
func (s *server) capacity() float64 {
	c := float64(s.servers) * 1000 / s.service
	if s.refuses > 0 {
		c = min(c, s.refuses)
	}
	return c
}

// try runs one trial at the given rate.
func (s *server) try(rps float64) Trial {
	s.made++
	rng := splitmix.Source(splitmix.Mix(s.seed*1000 + uint64(s.made)))
	length := max(s.seconds, min(1500/rps, 4*s.seconds))
	free := make([]float64, s.servers) // time at which each server is free, in ms
	const batches = 10
	var all []float64
	var parts [batches][]float64
	var t Trial
	answered, credit, last := 0, 0.0, 0.0
	for at := rng.Exponential() * 1000 / rps; at < (s.warmup+length)*1000; at += rng.Exponential() * 1000 / rps {
		serviceTime := s.service * (1 - s.noise + s.noise*rng.Exponential())
		k := 0
		for i := range free {
			if free[i] < free[k] {
				k = i
			}
		}
		refused := false
		if s.refuses > 0 { // a token bucket that holds the tokens of 50 ms
			credit = min(credit+(at-last)*s.refuses/1000, s.refuses/20)
			if refused = credit < 1; !refused {
				credit--
			}
			last = at
		}
		end := at
		if !refused {
			end = max(at, free[k]) + serviceTime
			free[k] = end
		}
		if !refused && end >= s.warmup*1000 && end < (s.warmup+length)*1000 {
			answered++
		}
		if at < s.warmup*1000 {
			continue
		}
		latency := end - at
		if refused {
			latency = math.Inf(1)
		}
		t.Count++
		all = append(all, latency)
		b := int((at/1000 - s.warmup) / length * batches)
		parts[b] = append(parts[b], latency)
	}
	t.RPS, t.Answered = float64(t.Count)/length, float64(answered)/length
	t.P95, t.P95CI = interval(all, parts[:])
	for _, v := range all {
		if v > objective {
			t.Misses++
		}
	}
	return t
}

// objective is the latency objective of the running test, in ms; server counts slower
// requests as misses. Tests of this package do not run in parallel.
var objective float64

// interval returns the p95 and half its 95% confidence interval, computed as in the trial
// of a real instance.
func interval(all []float64, parts [][]float64) (p95, ci float64) {
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	n := float64(len(all))
	p95 = all[int(math.Ceil(0.95*n))-1]
	deviation := normal * math.Sqrt(n*0.95*0.05)
	low, high := int(math.Floor(0.95*n-deviation)), int(math.Ceil(0.95*n+deviation))
	if low < 0 || high >= len(all) || math.IsInf(all[high], 1) {
		return p95, 0
	}
	ci = (all[high] - all[low]) / 2
	var mean, squares float64
	var of []float64
	for _, part := range parts {
		if len(part) < 20 {
			return p95, ci
		}
		slices.Sort(part)
		v := part[int(math.Ceil(0.95*float64(len(part))))-1]
		if math.IsInf(v, 1) {
			return p95, ci
		}
		of = append(of, v)
		mean += v / float64(len(parts))
	}
	for _, v := range of {
		squares += (v - mean) * (v - mean)
	}
	return p95, max(ci, 2.262*math.Sqrt(squares/9/10))
}

// idleTrial is what single requests see.
func (s *server) idleTrial() Trial {
	rng := splitmix.Source(s.seed)
	t := Trial{Count: 20}
	var all []float64
	for range t.Count {
		serviceTime := s.service * (1 - s.noise + s.noise*rng.Exponential())
		if serviceTime > objective {
			t.Misses++
		}
		all = append(all, serviceTime)
	}
	slices.Sort(all)
	t.P95 = all[18]
	return t
}

// truth determines the goodput by brute force: the highest rate whose p95 meets the
// objective in a trial of 50,000 requests.
func truth(s server, slo float64) float64 {
	s.seconds, s.warmup = 50*s.service/float64(s.servers), 10
	low, high := s.capacity()/50, s.capacity()*0.9999
	for high/low > 1.003 {
		middle := math.Sqrt(low * high)
		s.made = 0
		if t := s.try(middle); t.P95 <= slo {
			low = middle
		} else {
			high = middle
		}
	}
	return math.Sqrt(low * high)
}

// run performs a complete search.
func run(s *server, slo float64) Outcome {
	objective = slo
	search := New(Setting{Objective: slo, Throughput: s.capacity(), Idle: s.idleTrial(), Precision: 0.05})
	for rps, more := search.Next(); more; rps, more = search.Next() {
		search.Record(s.try(rps))
	}
	return search.Outcome()
}

// TestAccuracyAndTrials checks that for many kinds of queues, the error of a known
// goodput is at most 5% of the goodput or 2% of the throughput at the median, and at most
// 11% or 3% in 9 of 10 cases. The median number of trials is at most 6. The goodput often
// remains unknown for objectives close to the latency at rest, where the p95 hardly
// depends on the rate.
func TestAccuracyAndTrials(t *testing.T) {
	const seeds = 20
	var all []int
	for _, c := range []struct {
		name  string
		of    server
		times []float64 // multiples of the p95 at rest
		known int       // least number of the 20 searches with a known goodput
	}{
		{"M/D/1 of 1 ms", server{service: 1, servers: 1}, []float64{2, 3, 5, 10, 30}, 19},
		{"M/D/1 of 10 ms", server{service: 10, servers: 1}, []float64{2, 3, 5, 10, 30}, 17},
		{"M/D/1 of 30 ms", server{service: 30, servers: 1}, []float64{3, 5, 10, 30}, 17},
		{"M/M/1 of 5 ms", server{service: 5, servers: 1, noise: 1}, []float64{2, 3, 5, 10, 30}, 12},
		{"M/D/4 of 20 ms", server{service: 20, servers: 4}, []float64{1.5, 2, 3, 5, 10, 30}, 17},
		{"16 of 50 ms", server{service: 50, servers: 16, noise: 0.2}, []float64{1.5, 2, 3, 5, 10, 30}, 17},
		{"M/D/1 of 1 ms, close", server{service: 1, servers: 1}, []float64{1.5}, 0},
		{"M/D/1 of 10 ms, close", server{service: 10, servers: 1}, []float64{1.5}, 0},
	} {
		for _, times := range c.times {
			s := c.of
			slo := times * s.service * (1 - s.noise + 3*s.noise)
			s.seed, objective = 99, slo
			want := truth(s, slo)
			var trials []int
			var deviations []float64
			for seed := range uint64(seeds) {
				one := s
				one.seed, one.seconds, one.warmup = seed+1, 10, 2
				o := run(&one, slo)
				trials = append(trials, o.Trials)
				if o.Known {
					deviations = append(deviations, math.Abs(o.RPS-want))
				}
			}
			slices.Sort(trials)
			slices.Sort(deviations)
			all = append(all, trials...)
			text := fmt.Sprintf("%s, objective %v x p95 at rest: %d of %d known, trials median %d", c.name, times, len(deviations), seeds, trials[seeds/2])
			if len(deviations) >= 5 { // fewer results have no meaningful quantiles
				middle, most := deviations[len(deviations)/2], deviations[len(deviations)*9/10]
				text += fmt.Sprintf("; goodput %.4g rps, error %.3g rps (median), %.3g rps (90%%)", want, middle, most)
				if middle > max(0.05*want, 0.02*s.capacity()) || most > max(0.11*want, 0.03*s.capacity()) {
					t.Errorf("%s; want an error of at most 5%% of the goodput or 2%% of the throughput at the median, and 11%% or 3%% at 90%%", text)
				}
			}
			t.Log(text)
			if len(deviations) < c.known {
				t.Errorf("%s; want at least %d known", text, c.known)
			}
		}
	}
	slices.Sort(all)
	if median := all[len(all)/2]; median > 6 {
		t.Errorf("median number of trials: got %d, want at most 6", median)
	}
}

// TestObjectiveBelowTheLatencyAtRest checks that for an objective below the latency at
// rest, the goodput is known to be 0.
func TestObjectiveBelowTheLatencyAtRest(t *testing.T) {
	s := newServer(10, 1)
	if o := run(s, 9); !o.Known || o.RPS != 0 || o.Trials != 0 || !strings.Contains(o.Reason, "20 of 20 single requests at rest took more than 9 ms") {
		t.Errorf("got %+v, want a known goodput of 0 without trials", o)
	}
	s = newServer(10, 1)
	search := New(Setting{Objective: 9, Throughput: s.capacity(), Precision: 0.05})
	for rps, more := search.Next(); more; rps, more = search.Next() {
		search.Record(s.try(rps))
	}
	if o := search.Outcome(); !o.Known || o.RPS != 0 || o.Trials > 4 {
		t.Errorf("without the latency at rest: got %+v, want a known goodput of 0 after at most 4 trials", o)
	}
}

// TestTooFewRequestsGiveNoGoodput checks that a search that does not converge returns a
// reason and no goodput.
func TestTooFewRequestsGiveNoGoodput(t *testing.T) {
	for seed := range uint64(20) {
		s := newServer(2000, seed+1)
		if o := run(s, 5000); o.Known || o.RPS != 0 || o.CI != 0 || o.Reason == "" || o.Trials != maxTrials {
			t.Errorf("seed %d: got %+v, want an unknown goodput with a reason after %d trials", seed+1, o, maxTrials)
		}
	}
}

// TestRefusalsAreMisses checks that refused requests are misses, however fast the others
// are.
func TestRefusalsAreMisses(t *testing.T) {
	for seed := range uint64(20) {
		s := newServer(1, seed+1)
		s.refuses = 200 // beyond about 210 a second, more than 5% are refused
		o := run(s, 50)
		if !o.Known || math.Abs(o.RPS-205) > 20 || o.Trials > 6 {
			t.Errorf("got %+v, want a known goodput of 185 to 225 rps after at most 6 trials", o)
		}
	}
}

// TestGoodputBeyondTheThroughputOfTheLoop checks that a closed loop of few workers
// underestimates an instance with more places, so the search tries higher rates.
func TestGoodputBeyondTheThroughputOfTheLoop(t *testing.T) {
	for seed := range uint64(20) {
		s := &server{service: 50, servers: 16, seconds: 10, warmup: 2, seed: seed + 1}
		objective = 100
		search := New(Setting{Objective: 100, Throughput: 8 / 0.05, Idle: s.idleTrial(), Precision: 0.05})
		for rps, more := search.Next(); more; rps, more = search.Next() {
			search.Record(s.try(rps))
		}
		if o := search.Outcome(); !o.Known || o.RPS < 250 || o.RPS > 320 {
			t.Errorf("got %+v, want a known goodput of 250 to 320 rps", o)
		}
	}
}

// TestRepeats checks that equal trials lead to equal outcomes.
func TestRepeats(t *testing.T) {
	a, b := newServer(10, 3), newServer(10, 3)
	if x, y := run(a, 50), run(b, 50); x != y {
		t.Errorf("got %+v, then %+v; want the same", x, y)
	}
}

// TestTranscripts replays testdata/*.txt. Each line gives a server, an objective and a
// seed. The lines below it are the trials and the outcome of the search.
func TestTranscripts(t *testing.T) {
	transcript.Test(t, "testdata/*.txt", func(text string) (string, error) {
		return transcript.Lines(text, func(line string) ([]string, error) {
			s := newServer(0, 1)
			slo, rest := 0.0, true
			for word := range strings.FieldsSeq(line) {
				key, value, _ := strings.Cut(word, "=")
				v, err := strconv.ParseFloat(value, 64)
				if err != nil && key != "norest" {
					return nil, err
				}
				switch key {
				case "service":
					s.service = v
				case "servers":
					s.servers = int(v)
				case "noise":
					s.noise = v
				case "refuses":
					s.refuses = v
				case "seed":
					s.seed = uint64(v)
				case "slo":
					slo = v
				case "norest":
					rest = false
				default:
					return nil, fmt.Errorf("%q is not known", key)
				}
			}
			objective = slo
			var at Trial
			if rest {
				at = s.idleTrial()
			}
			var out []string
			search := New(Setting{Objective: slo, Throughput: s.capacity(), Idle: at, Precision: 0.05})
			for rps, more := search.Next(); more; rps, more = search.Next() {
				seen := s.try(rps)
				out = append(out, fmt.Sprintf("at %.4g: %.4g rps came, p95 %.4g ± %.2g ms, %d of %d missed", rps, seen.RPS, seen.P95, seen.P95CI, seen.Misses, seen.Count))
				search.Record(seen)
			}
			o := search.Outcome()
			if o.Known {
				return append(out, fmt.Sprintf("goodput %.4g ± %.2g rps: %s", o.RPS, o.CI, o.Reason)), nil
			}
			return append(out, "unstable: "+o.Reason), nil
		})
	})
}
