package profile

import (
	"fmt"
	"sync"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/measure"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

// progress prints the progress of a run. On a terminal it shows a bar of the configurations, with the
// remaining time after the first measurement. Under --verbose it prints a line for each configuration. It
// implements measure.Progress.
type progress struct {
	env  *cli.Env
	bar  *cli.Bar
	stop func() // stops the update of the elapsed time

	mu   sync.Mutex
	last string // summary of the last result
}

// newProgress returns the progress of a run with the given number of configurations, or -1 if the number
// is unknown. The caller closes it.
func newProgress(env *cli.Env, points int) *progress {
	p := &progress{env: env}
	if points == 0 {
		points = -1 // the bar does not support a total of 0
	}
	p.bar = env.Progress(points, "measuring", "configurations")
	p.stop = cli.EverySecond(func() { // shows the elapsed time
		p.mu.Lock()
		defer p.mu.Unlock()
		_ = p.bar.Show()
	})
	return p
}

// Measuring shows the point that the run is measuring.
func (p *progress) Measuring(at measure.Point) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar.Describe(at.String() + p.last)
}

// Trying announces the next trial for the goodput.
func (p *progress) Trying(at measure.Point, trial string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bar.Describe(fmt.Sprintf("%s: %s", at, trial))
}

// Tried prints the outcome of a trial for the goodput under --verbose.
func (p *progress) Tried(at measure.Point, trial string) {
	if p.env.Verbose {
		p.Note(fmt.Sprintf("for %s: %s", at, trial))
	}
}

// Next prints the reason for measuring a point next under --verbose.
func (p *progress) Next(at measure.Point, reason string) {
	if p.env.Verbose {
		p.Note(fmt.Sprintf("next configuration: %s; reason: %s", at, reason))
	}
}

// Measured shows a new row.
func (p *progress) Measured(r profile.Row) {
	p.step(fmt.Sprintf(" (last %.4g rps, p95 %.4g ms)", r.ThroughputRPS, r.P95MS))
	p.env.Debugf("for %s: %s rps, p95 %s ms, %d requests, %d errors", measure.PointOf(r),
		number.Plain(r.ThroughputRPS), number.Plain(r.P95MS), r.Samples, r.Errors)
}

// Note prints a note.
func (p *progress) Note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.env.Notef("%s", text)
}

// Failed prints the error about a point that could not be measured, even under --quiet.
func (p *progress) Failed(at measure.Point, err error) {
	p.step(" (last failed)")
	fmt.Fprintf(p.env.Err, "%s: cannot measure %s: %v\n", p.env.Prog, at, err)
}

// step counts a finished configuration and clears the line for the message about it.
func (p *progress) step(last string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = last
	_ = p.bar.Add(1)
	_ = p.bar.Clear()
}

// close removes the bar.
func (p *progress) close() {
	p.stop()
	_ = p.bar.Close()
}
