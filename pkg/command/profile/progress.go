package profile

import (
	"fmt"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/profile"
)

// progress shows where the run is: on a terminal a bar with the time left,
// under --verbose a line for each configuration. The bar is as long as the run
// is expected to take, in seconds, so that its reckoning is right from the
// first second on.
type progress struct {
	env   *cli.Env
	bar   *progressbar.ProgressBar
	cells int
	each  int // seconds of one configuration
	stop  chan struct{}
	ended sync.WaitGroup

	mu    sync.Mutex
	done  int       // configurations
	begun time.Time // of the one that is measured now
	last  string    // the last result
}

func newProgress(env *cli.Env, cells int, each time.Duration) *progress {
	p := &progress{env: env, cells: cells, each: int(each/time.Second) + 1, stop: make(chan struct{}), begun: time.Now()}
	p.bar = env.Progress(max(cells*p.each, 1), "")
	p.ended.Go(p.tick)
	return p
}

// tick moves the bar while a configuration is measured.
func (p *progress) tick() {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.mu.Lock()
			// Until the configuration is done, its part of the bar is not full.
			_ = p.bar.Set(p.done*p.each + min(int(time.Since(p.begun)/time.Second), p.each-1))
			p.mu.Unlock()
		case <-p.stop:
			return
		}
	}
}

// measuring shows the configuration that is measured from now on.
func (p *progress) measuring(fn string, c profile.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = time.Now()
	p.bar.Describe(fmt.Sprintf("%d of %d: %s sm_pct %s quota %s batch %d%s", p.done+1, p.cells,
		fn, number.Plain(c.SMPct), number.Plain(c.Quota), c.Batch, p.last))
}

// why says why a configuration is measured next.
func (p *progress) why(fn string, c profile.Config, reason string) {
	if p.env.Verbose {
		p.note("next " + cellName(fn, c) + ": " + reason)
	}
}

// measured shows a result.
func (p *progress) measured(r profile.Row) {
	p.step(fmt.Sprintf(" (last %.4g rps, p95 %.4g ms)", r.ThroughputRPS, r.P95MS))
	p.env.Debugf("%s: %s rps, p95 %s ms, %d requests, %d errors", cellName(r.Function, r.Config),
		number.Plain(r.ThroughputRPS), number.Plain(r.P95MS), r.Samples, r.Errors)
}

// note tells of something beside the result.
func (p *progress) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.bar.Clear()
	p.env.Notef("%s", text)
}

// failed says that a configuration could not be measured, even when quiet.
func (p *progress) failed(fn string, c profile.Config, err error) {
	p.step(" (last failed)")
	fmt.Fprintf(p.env.Err, "%s: failed %s: %v\n", p.env.Prog, cellName(fn, c), err)
}

// step counts a configuration and clears the line for what is said of it.
func (p *progress) step(last string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done++
	p.last, p.begun = last, time.Now()
	_ = p.bar.Set(p.done * p.each)
	_ = p.bar.Clear()
}

// close takes the bar away.
func (p *progress) close() {
	close(p.stop)
	p.ended.Wait()
	_ = p.bar.Clear()
}
