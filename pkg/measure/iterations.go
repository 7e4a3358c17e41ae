package measure

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/figures"
	"github.com/gfaas/gfaas/pkg/measure/testbed"
	"github.com/gfaas/gfaas/pkg/profile"
)

// A training function is measured by its iterations (Dilu, section 3.2). A trial only reads the lines of
// output that match the function's pattern: each is one iteration or, if the pattern has a group, the group
// is the number of the iterations so far.

// observeJob measures a job that has started.
func (t trial) observeJob(ctx context.Context, s testbed.Instance, row *profile.Row, started time.Time) error {
	pattern, err := regexp.Compile(t.fn.Progress)
	if err != nil {
		return err
	}
	reading, stop := context.WithCancel(ctx)
	defer stop()
	p := &progressReader{instance: s, pattern: pattern, lines: follow(reading, s.Output(reading))}
	first, err := p.first(ctx, t.StartTimeout)
	if err != nil {
		return err
	}
	row.ColdMS = figures.Millis(first.Sub(started))
	_, err = t.underLoad(ctx, []testbed.Instance{s}, row, func() (load.Result, error) { return load.Observe(ctx, first, p.next, t.Load) })
	return err
}

// followed is a line of a log, or the error that ends it.
type followed struct {
	line ports.LogLine
	err  error
}

// follow passes the lines of a log to a channel, which it closes at the end of the log. It ends when ctx does.
func follow(ctx context.Context, lines ports.LogLines) <-chan followed {
	to := make(chan followed)
	go func() {
		defer close(to)
		for line, err := range lines {
			select {
			case to <- followed{line, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return to
}

// progressReader counts the iterations in a job's output.
type progressReader struct {
	instance testbed.Instance
	pattern  *regexp.Regexp
	lines    <-chan followed

	printed    int    // lines read
	iterations int    // iterations counted
	count      uint64 // the highest number in the group
	before     uint64 // the highest number before that

	pending load.Iterations // read, but not yet returned by next
}

// first waits for the first progress line and returns its time.
func (p *progressReader) first(ctx context.Context, timeout time.Duration) (time.Time, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	line, numbers, err := p.match(limited)
	switch {
	case ctx.Err() != nil:
		return time.Time{}, ctx.Err()
	case limited.Err() != nil:
		return time.Time{}, fmt.Errorf("no line of output matched progress (%s) within %v of the start: the job has printed %d lines", p.pattern, timeout, p.printed)
	case err != nil:
		return time.Time{}, err
	}
	if numbers {
		if p.count, err = p.number(line.Text); err != nil {
			return time.Time{}, err
		}
		p.before = p.count
	}
	return line.Time, nil
}

// next waits for the end of further iterations. It implements the parameter next of load.Observe. Lines that
// were printed at the same time, because the job buffers its output, are one report.
func (p *progressReader) next(ctx context.Context) (load.Iterations, error) {
	for p.pending.N == 0 {
		report, err := p.read(ctx)
		if err != nil {
			return load.Iterations{}, err
		}
		p.pending = report
	}
	for {
		soon, cancel := context.WithTimeout(ctx, sameTime)
		report, err := p.read(soon)
		ended := soon.Err() != nil
		cancel()
		switch {
		case err == nil && report.At.Equal(p.pending.At):
			p.pending.N += report.N
			continue
		case err != nil && !ended:
			return load.Iterations{}, err
		}
		whole := p.pending
		p.pending = report // none after a timeout
		return whole, nil
	}
}

// sameTime is the time for which next waits for another line with the same time.
const sameTime = 20 * time.Millisecond

// read waits for the next line that reports the end of iterations.
func (p *progressReader) read(ctx context.Context) (load.Iterations, error) {
	for {
		line, numbers, err := p.match(ctx)
		if err != nil {
			return load.Iterations{}, err
		}
		if !numbers {
			p.iterations++
			return load.Iterations{At: line.Time, N: 1}, nil
		}
		n, err := p.number(line.Text)
		switch {
		case err != nil:
			return load.Iterations{}, err
		case n < p.before:
			return load.Iterations{}, fmt.Errorf("the number of iterations fell from %d to %d: the group in progress (%s) must match a number that only grows", p.count, n, p.pattern)
		case n <= p.count: // another process of the job prints the same iterations
			continue
		case n-p.count > maxStep:
			return load.Iterations{}, fmt.Errorf("the number of iterations rose from %d to %d at once, expected at most %d more", p.count, n, uint64(maxStep))
		}
		step := int(n - p.count)
		p.before, p.count, p.iterations = p.count, n, p.iterations+step
		return load.Iterations{At: line.Time, N: step}, nil
	}
}

// maxStep is the largest number of iterations between two progress lines.
const maxStep = 1 << 20

// match waits for the next line that matches the pattern. numbers reports whether the pattern has a group.
func (p *progressReader) match(ctx context.Context) (line ports.LogLine, numbers bool, err error) {
	for {
		select {
		case <-ctx.Done():
			return line, false, ctx.Err()
		case f, ok := <-p.lines:
			switch {
			case !ok:
				return line, false, p.ended(ctx)
			case f.err != nil:
				return line, false, fmt.Errorf("read the output of the job: %w", f.err)
			}
			if p.printed++; !p.pattern.MatchString(f.line.Text) {
				continue
			}
			if f.line.Time.IsZero() {
				f.line.Time = time.Now()
			}
			return f.line, p.pattern.NumSubexp() > 0, nil
		}
	}
}

// ended returns the error for a job that ended before the trial did.
func (p *progressReader) ended(ctx context.Context) error {
	how := "ended"
	if reason := p.instance.CheckRunning(ctx); reason != nil {
		how = reason.Error()
	}
	return fmt.Errorf("the job was over (%s) after %d measured iterations: for a profile, let it run more iterations, or lower --warmup and --duration", how, p.iterations)
}

// number returns the number that the pattern's first group matches.
func (p *progressReader) number(text string) (uint64, error) {
	group := p.pattern.FindStringSubmatch(text)[1]
	n, err := strconv.ParseUint(group, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("the group in progress (%s) matched %q, expected a whole number, the iterations so far", p.pattern, group)
	}
	return n, nil
}
