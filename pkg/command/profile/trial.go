package profile

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/profile"
)

const (
	stopTimeout = 30 * time.Second // for an instance to be gone
	memPeriod   = time.Second      // between two looks at the memory
	firstTries  = 3                // requests until the first answer
	warmRequests,
	warmLeast = 5, 3 // single requests for warm_ms: at most, and at least for it to count
)

// trial measures configurations of one function, each on a new instance.
type trial struct {
	machine      machine
	fn           function.Function
	gpus         []string
	model        string // of the GPU, for the row
	body         []byte
	load         load.Options
	startTimeout time.Duration
	note         func(string) // is told what to know about a row
}

// stopError says that an instance could not be stopped: it may still use the
// GPU, so nothing measured after it can be trusted.
type stopError struct{ err error }

func (e *stopError) Error() string { return "stop the instance: " + e.err.Error() }
func (e *stopError) Unwrap() error { return e.err }

// measure runs one trial (FaST-GShare, section 3.2). With a stopError the row
// is good all the same.
func (t trial) measure(ctx context.Context, c profile.Config) (row profile.Row, err error) {
	begun := time.Now()
	s, err := t.machine.Start(ctx, t.fn, t.gpus, gpu.Slice{
		SMPct: c.SMPct, QuotaRequest: c.Quota, QuotaLimit: c.Quota, Mem: t.fn.GPUMem,
	})
	if err != nil {
		return row, err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = withLastLines(err, s.LastLines(ctx))
		}
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if e := s.Stop(stopCtx); e != nil {
			err = errors.Join(err, &stopError{e})
		}
	}()
	return t.observe(ctx, s, c, begun)
}

// observe measures a ready instance that was started at begun.
func (t trial) observe(ctx context.Context, s subject, c profile.Config, begun time.Time) (profile.Row, error) {
	row := profile.Row{Function: t.fn.Name, GPU: t.model, Config: c, TrialS: round(t.load.Duration.Seconds(), 6)}
	send := func(ctx context.Context) error { return s.Invoke(ctx, request{Batch: c.Batch, Body: t.body}) }
	if err := t.firstAnswer(ctx, send); err != nil {
		return row, err
	}
	row.ColdMS = millis(time.Since(begun))
	warm, err := t.warm(ctx, send)
	if err != nil {
		return row, err
	}
	row.WarmMS = millis(warm)
	peak := watchMemory(ctx, s)
	res, err := load.Run(ctx, send, t.load)
	row.GPUMemMiB = round(peak(), 3)
	if err != nil {
		return row, err
	}
	if res.Completed == 0 || res.Samples == 0 {
		return row, nothingFinished(t.load.Duration, res)
	}
	if text := remark(res); text != "" {
		t.note(cellName(t.fn.Name, c) + ": " + text)
	}
	row.ThroughputRPS = round(res.Throughput(), 4)
	row.P50MS, row.P95MS, row.P99MS = millis(res.P50), millis(res.P95), millis(res.P99)
	row.Errors, row.Samples = res.Errors, res.Samples
	return row, nil
}

// firstAnswer sends single requests until one is answered.
func (t trial) firstAnswer(ctx context.Context, send load.Target) (err error) {
	first, cancel := context.WithTimeout(ctx, t.startTimeout)
	defer cancel()
	for range firstTries {
		if err = send(first); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if first.Err() != nil {
			return fmt.Errorf("the instance is ready but has not answered its first request after %v", t.startTimeout)
		}
	}
	return fmt.Errorf("the instance is ready but does not answer: %w", err)
}

// warm is the median duration of single requests, one after the other; 0 when
// too few were answered to tell.
func (t trial) warm(ctx context.Context, send load.Target) (time.Duration, error) {
	until := time.Now().Add(t.load.Duration)
	var took []time.Duration
	for range warmRequests {
		begun := time.Now()
		if begun.After(until) {
			break
		}
		err := send(ctx)
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if err == nil {
			took = append(took, time.Since(begun))
		}
	}
	if len(took) < warmLeast {
		return 0, nil
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// watchMemory looks at the instance's memory until the returned function is
// called, which tells the most that was seen.
func watchMemory(ctx context.Context, s subject) (peak func() float64) {
	ctx, cancel := context.WithCancel(ctx)
	var most float64
	var looking sync.WaitGroup
	looking.Go(func() {
		tick := time.NewTicker(memPeriod)
		defer tick.Stop()
		for ctx.Err() == nil {
			most = max(most, s.GPUMemMiB(ctx))
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return func() float64 {
		last := s.GPUMemMiB(ctx)
		cancel()
		looking.Wait()
		return max(most, last)
	}
}

// remark is what the column errors does not tell; empty without errors.
func remark(res load.Result) string {
	late := res.Cut + res.Unsent
	switch {
	case late > 0:
		return fmt.Sprintf("%d requests had no answer when the trial ended, %d of them not sent yet: the load is more than the instance sustains",
			late, res.Unsent)
	case res.Errors > 0:
		return fmt.Sprintf("%d requests failed, the last with: %v", res.Errors, res.LastFailed)
	}
	return ""
}

func nothingFinished(d time.Duration, res load.Result) error {
	err := fmt.Errorf("no request finished in %v", d)
	if res.LastFailed != nil {
		return fmt.Errorf("%w; %d failed, the last with: %w", err, res.Errors, res.LastFailed)
	}
	return err
}

// withLastLines adds what the instance printed last, indented, to an error.
func withLastLines(err error, lines string) error {
	lines = strings.TrimRight(lines, "\n")
	if lines == "" {
		return err
	}
	return fmt.Errorf("%w\nit printed last:\n  %s", err, strings.ReplaceAll(lines, "\n", "\n  "))
}

func millis(d time.Duration) float64 { return round(float64(d)/float64(time.Millisecond), 3) }

// round keeps so many digits behind the point: no more than was measured.
func round(v float64, digits int) float64 {
	scale := math.Pow10(digits)
	return math.Round(v*scale) / scale
}
