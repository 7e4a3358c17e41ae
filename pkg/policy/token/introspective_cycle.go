package token

import "time"

// # The launch cycle
//
// KLC, the kernel launch cycle, is how long an iteration takes from its first
// launch to its last. The paper's code counts the 5 ms periods between two
// periods without a launch, and so takes iterations that follow each other for
// a long one. Here it is the time per launch: over a run, which is all that a
// process does between two times at which it is idle, its GPU time measured;
// and where a run goes on, over stretches of it. That is the cycle of an
// iteration divided by its number of launches, and their ratio is the same.

const (
	shortestRun = time.Millisecond     // a shorter run is no iteration
	partPeriods = 10                   // periods of a run that give one cycle: launches lead by up to 12 ms
	unseenGap   = 3 * time.Millisecond // pause between iterations that does not end a run
)

// run is what a process does from one idleness to the next.
type run struct {
	on       bool
	began    time.Duration
	launches uint64        // of the process, when it began
	seen     time.Duration // of the run, where the last cycle ended
	at       uint64        // launches there
}

// cycle is what is known of an instance's launch cycle, in time per launch.
type cycle struct {
	best    float64 // Tmin, in ns; 0 is not known
	iter    float64 // launches of a run
	stretch float64 // T/Tmin of the last cycle; 0 is none yet
	fresh   bool    // that came since the last issue
	strange int     // cycles in a row that were outliers
}

func (s *Introspective) beginLease(p *process) {
	if !p.run.on {
		p.run = run{on: true, began: s.now, launches: p.launches, seen: s.now, at: p.launches}
	}
}

// endLease takes a run that is over for a cycle. Time until the last lease
// began is taken as it was; in it, work came to its end after the time it used.
func (s *Introspective) endLease(p *process, used time.Duration, more bool) {
	if more || !p.run.on {
		return
	}
	p.run.on = false
	took, launches := p.since-p.run.began+used, p.launches-p.run.launches
	if took < shortestRun || launches == 0 || !p.acct.sensitive {
		return
	}
	if p.run.seen > p.run.began {
		return // its parts have been looked at
	}
	c := &p.acct.cycle
	c.iter = float64(launches)
	c.observe(float64(took)/float64(launches), true, s.params)
}

// look takes a part of a run that goes on for a cycle.
func (s *Introspective) look(p *process) {
	took, launches := s.now-p.run.seen, p.launches-p.run.at
	c := &p.acct.cycle
	if !p.run.on || !p.acct.sensitive || launches == 0 || took < partPeriods*s.params.Period {
		return
	}
	first := p.run.seen == p.run.began
	p.run.seen, p.run.at = s.now, p.launches
	each := float64(took) / float64(launches)
	if c.iter > 0 {
		each = max(each-float64(unseenGap)/c.iter, c.best)
	}
	c.observe(each, !first, s.params)
}

// observe takes a cycle, in ns per launch; whole says that it is not one whose
// end is still to come.
func (c *cycle) observe(each float64, whole bool, params Params) {
	if c.best == 0 && !whole {
		return
	}
	if whole && (c.best == 0 || each < c.best) {
		c.best = each
	}
	stretch := max(each/c.best, 1)
	if stretch > params.Outlier && c.strange == 0 {
		c.strange++
		return
	}
	if stretch <= params.Outlier {
		c.strange = 0
	}
	c.stretch, c.fresh = stretch, true
}
