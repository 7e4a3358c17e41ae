package token

import (
	"slices"
	"time"
)

// # Trials
//
// The number of blocks that a GPU completes per second for an instance (MaxTokens in the paper,
// which section 5.2 shows to be important) differs between instances by orders of magnitude. It
// cannot be derived from ordinary launches: an instance that shares the GPU, or is bounded by its
// tokens, shows the speed that it had and not the speed that it could have. So from time to time an
// instance has a trial:
//
//  1. All other clients are asked to return their leases.
//  2. When their work has ended, one client of the instance runs alone for a moment, without a
//     budget and under a lease of its own.
//  3. The speed is the number of blocks launched divided by the GPU time from the first launch to
//     the end of the last one (Return.Used).
//
// Precision. If an instance saturates the GPU with one kind of kernel, the speed is as precise as
// the GPU time (microseconds in a trial of 20 ms). If its kernels differ, a trial is a sample of
// its mix of kernels: a trial that disagrees with the known speed makes the next trials longer, up
// to a scheduling window, and the median of three trials counts. If an instance waits for its
// host, idle moments between its launches count as used, as under every lease: its share is then
// relative to its own speed alone on the GPU.
//
// Cost. Trials take at most 4% of the time, and the instance pays that time back to the others.

const (
	minTrialLength   = 20 * time.Millisecond  // length of a first trial
	maxTrialLength   = 100 * time.Millisecond // length of the longest trials
	trialPauseFactor = 25                     // pause after a trial, in lengths of the trial
	maxTrialPause    = 16 * time.Second       // longest pause between two trials of an instance
	trialPatience    = 100 * time.Millisecond // time for other clients to drain, and for SLO-sensitive instances to pause
	sameSpeed        = 0.1                    // relative difference up to which two speeds count as equal
	repayOver        = 500 * time.Millisecond // time over which the cost of trials is paid back to the others
)

// gauge measures the speed of the GPU for an instance.
type gauge struct {
	speed  float64       // blocks per second alone on the GPU; 0: unknown
	rates  []float64     // results of the last trials, at most 3
	trials int           // number of completed trials
	length time.Duration // of the next trial; 0: minTrialLength
	pause  time.Duration // between the last trial and the next
	due    time.Duration // earliest time of the next trial
}

func (g *gauge) untried() bool { return g.speed == 0 && g.trials == 0 }

// timeOf returns how long the GPU takes for a number of blocks of the instance alone, or 0 if the
// speed is unknown.
func (g *gauge) timeOf(blocks float64) time.Duration {
	if g.speed == 0 {
		return 0
	}
	return time.Duration(blocks / g.speed * float64(time.Second))
}

func (g *gauge) before(o *gauge) bool {
	if g.untried() != o.untried() {
		return g.untried()
	}
	return g.due < o.due
}

// recordFailure records a trial without a result.
func (g *gauge) recordFailure(now time.Duration) {
	g.trials++
	g.setPause(2*g.pause, now)
}

func (g *gauge) setPause(pause, now time.Duration) {
	g.pause = min(max(pause, trialPauseFactor*g.length), maxTrialPause)
	g.due = now + g.pause
}

// measure adds the result of a trial. The speed is the median of the last three results, or the
// higher of two, because a host that stalls during a trial makes the result too low.
func (g *gauge) measure(blocks, seconds float64, now time.Duration) {
	rate, known := blocks/seconds, g.speed
	g.rates = append(g.rates, rate)
	if len(g.rates) > 3 {
		g.rates = g.rates[1:]
	}
	sorted := slices.Sorted(slices.Values(g.rates))
	g.speed = sorted[len(sorted)/2]
	g.trials++
	if known > 0 && rate > known*(1-sameSpeed) && rate < known*(1+sameSpeed) {
		g.setPause(2*g.pause, now)
		return
	}
	if known > 0 {
		g.length = min(2*g.length, maxTrialLength)
	}
	g.setPause(0, now)
}

// # The launch cycle
//
// The kernel launch cycle (KLC) is the time that an iteration takes from its first launch to its
// last. The paper's code counts the 5 ms periods between two periods without a launch, and so takes
// consecutive iterations for one long iteration. Here the cycle is the time per launch. A run is
// everything that a client does between two idle times. For a whole run, the cycle is its measured
// GPU time divided by its number of launches; during a long run, the same is computed for parts of
// it. This is the cycle of an iteration divided by its number of launches, so the ratio of two
// cycles, the stretch, is the same as in the paper.

const (
	shortestRun = time.Millisecond     // a shorter run is not an iteration
	partPeriods = 10                   // periods per part of a run: launches are up to 12 ms ahead of the GPU
	unseenGap   = 3 * time.Millisecond // pause between iterations that is too short to end a run
)

// run describes the work of a client from one idle time to the next.
type run struct {
	active           bool
	start            time.Duration
	launches         uint64        // the client's launches before the run
	observedUntil    time.Duration // end of the last part observed
	observedLaunches uint64        // the client's launches until then
	inParts          bool          // began in a trial that was abandoned, without tokens: only its parts are cycles
}

// cycle describes an instance's launch cycle, in time per launch.
type cycle struct {
	best     float64 // Tmin, in ns; 0: unknown
	iter     float64 // launches in the last whole run; 0: unknown
	stretch  float64 // T/Tmin of the last cycle; 0: none yet
	fresh    bool    // stretch was measured since the last issue of tokens
	outliers int     // consecutive cycles that were outliers
}

func (c *meteredClient) beginRun(now time.Duration) {
	if !c.run.active {
		c.run = run{active: true, start: now, launches: c.launches, observedUntil: now, observedLaunches: c.launches}
	}
}

// abandonTrial restarts the client's run: until now, no tokens bounded it, so that its cycle was shorter than it can
// be outside a trial.
func (c *meteredClient) abandonTrial(now time.Duration) {
	if c.run.active {
		c.run = run{active: true, start: now, observedUntil: now, observedLaunches: c.launches, inParts: true}
	}
}

// endRun observes a finished run as one cycle, unless parts of it have been observed. It counts
// the elapsed time until the last lease, and the measured GPU time of that lease (used).
func (c *meteredClient) endRun(used time.Duration, wantsMore bool, params IntrospectiveParameters) {
	if wantsMore || !c.run.active {
		return
	}
	c.run.active = false
	elapsed, launches := c.since-c.run.start+used, c.launches-c.run.launches
	if elapsed < shortestRun || launches == 0 || !c.inst.sensitive {
		return
	}
	if c.run.observedUntil > c.run.start || c.run.inParts {
		return // parts of it have been observed
	}
	klc := &c.inst.cycle
	klc.iter = float64(launches)
	klc.observe(float64(elapsed)/float64(launches), true, params)
}

// observePart observes a part of a continuing run as a cycle, once the part is long enough.
func (c *meteredClient) observePart(now time.Duration, params IntrospectiveParameters) {
	elapsed, launches := now-c.run.observedUntil, c.launches-c.run.observedLaunches
	klc := &c.inst.cycle
	if !c.run.active || !c.inst.sensitive || launches == 0 || elapsed < partPeriods*params.period {
		return
	}
	first := c.run.observedUntil == c.run.start
	c.run.observedUntil, c.run.observedLaunches = now, c.launches
	each := float64(elapsed) / float64(launches)
	if klc.iter > 0 {
		each = max(each-float64(unseenGap)/klc.iter, klc.best)
	}
	klc.observe(each, !first, params)
}

// observe adds a cycle, in ns per launch. whole is false for the first part of a run, which cannot
// become the best cycle because its launches are ahead of the GPU.
func (klc *cycle) observe(each float64, whole bool, params IntrospectiveParameters) {
	if klc.best == 0 && !whole {
		return
	}
	if whole && (klc.best == 0 || each < klc.best) {
		klc.best = each
	}
	stretch := max(each/klc.best, 1)
	if stretch > params.outlier && klc.outliers == 0 {
		klc.outliers++
		return
	}
	if stretch <= params.outlier {
		klc.outliers = 0
	}
	klc.stretch, klc.fresh = stretch, true
}
