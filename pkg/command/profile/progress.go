package profile

import (
	"fmt"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/measure"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

// progress prints the progress of a run: on a terminal as a bar of the
// configurations, with the remaining time once one is measured; under --verbose as a
// line for each. It implements measure.Progress.
type progress struct {
	env   *cli.Env
	bar   *cli.Bar
	stop  chan struct{}
	ended sync.WaitGroup

	mu   sync.Mutex
	last string // the last result
}

// newProgress returns the progress of a run of so many configurations, -1 if the
// number is unknown. The caller closes it.
func newProgress(env *cli.Env, points int) *progress {
	p := &progress{env: env, stop: make(chan struct{})}
	if points == 0 {
		points = -1
	}
	p.bar = env.Progress(points, "measuring", "configurations")
	p.ended.Go(p.tick)
	return p
}

// tick updates the time while a configuration is measured.
func (p *progress) tick() {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.mu.Lock()
			_ = p.bar.Begin()
			p.mu.Unlock()
		case <-p.stop:
			return
		}
	}
}

// Measuring shows the point that is being measured.
func (p *progress) Measuring(at measure.Point) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar.Describe(at.String() + p.last)
}

// Trying shows a trial for the goodput that is about to start.
func (p *progress) Trying(at measure.Point, trial string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar.Describe(fmt.Sprintf("%s: %s", at, trial))
}

// Tried prints the outcome of a trial for the goodput, under --verbose.
func (p *progress) Tried(at measure.Point, trial string) {
	if p.env.Verbose {
		p.Note(fmt.Sprintf("for %s: %s", at, trial))
	}
}

// Next prints why a point is measured next, under --verbose.
func (p *progress) Next(at measure.Point, reason string) {
	if p.env.Verbose {
		p.Note(fmt.Sprintf("next for %s: %s", at, reason))
	}
}

// Measured shows a row.
func (p *progress) Measured(r profile.Row) {
	p.step(fmt.Sprintf(" (last %.4g rps, p95 %.4g ms)", r.ThroughputRPS, r.P95MS))
	p.env.Debugf("for %s: %s rps, p95 %s ms, %d requests, %d errors", measure.PointOf(r),
		number.Plain(r.ThroughputRPS), number.Plain(r.P95MS), r.Samples, r.Errors)
}

// Note prints a remark.
func (p *progress) Note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.bar.Clear()
	p.env.Notef("%s", text)
}

// Failed prints that a point could not be measured, also under --quiet.
func (p *progress) Failed(at measure.Point, err error) {
	p.step(" (last failed)")
	fmt.Fprintf(p.env.Err, "%s: failed for %s: %v\n", p.env.Prog, at, err)
}

// step counts a configuration and clears the line for the text about it.
func (p *progress) step(last string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = last
	_ = p.bar.Add(1)
	_ = p.bar.Clear()
}

// close removes the bar.
func (p *progress) close() {
	close(p.stop)
	p.ended.Wait()
	_ = p.bar.Close()
}
