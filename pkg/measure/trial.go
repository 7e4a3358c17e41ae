package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/figures"
	"github.com/gfaas/gfaas/pkg/measure/testbed"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/profile/goodput"
)

const (
	stopTimeout     = 30 * time.Second
	firstTries      = 3 // attempts at the first answer
	maxWarmRequests = 5 // single requests for warm_ms
	minWarmRequests = 3 // answers without which warm_ms is unknown
)

// trial measures configurations of one function, each on a new instance.
type trial struct {
	Job
	testbed  testbed.GPUs
	fn       function.Function
	progress Progress
	log      TrialWriter // may be nil
}

// StopError reports an instance that could not be stopped. It may still use the
// GPU, so trials after it would not be valid.
type StopError struct{ err error }

func (e *StopError) Error() string { return "stop the instance: " + e.err.Error() }
func (e *StopError) Unwrap() error { return e.err }

// measure runs one trial (FaST-GShare, section 3.2). The row is valid even if the
// error is a *StopError.
func (t trial) measure(ctx context.Context, c profile.Config) (row profile.Row, err error) {
	begun := time.Now()
	slice := gpu.Slice{SMPct: c.SMPct, QuotaRequest: c.Quota, QuotaLimit: c.Quota, Mem: t.fn.GPUMem}
	err = t.onInstance(ctx, testbed.Options{Slice: slice}, func(s testbed.Instance) (err error) {
		row, err = t.observe(ctx, s, c, begun)
		if ctx.Err() == nil {
			err = checkAlive(ctx, s, err)
		}
		if err != nil {
			row = profile.Row{} // incomplete
		}
		return err
	})
	return row, err
}

// onInstance calls do with a new instance and then stops it. The error of do gets
// the last lines that the instance printed.
func (t trial) onInstance(ctx context.Context, options testbed.Options, do func(testbed.Instance) error) (err error) {
	s, err := t.testbed.Start(ctx, t.fn, options)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = withLastLines(err, s.LastLines(ctx))
		}
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if e := s.Stop(stopCtx); e != nil {
			err = errors.Join(err, &StopError{e})
		}
	}()
	return do(s)
}

// checkAlive returns err if the instance still runs. Else it returns an error that
// gives the end of the instance as the cause of err: a trial is not valid then,
// even if no request failed.
func checkAlive(ctx context.Context, s testbed.Instance, err error) error {
	reason := s.Ended(ctx)
	switch {
	case reason == nil:
		return err
	case err == nil:
		return fmt.Errorf("the instance ended during the trial: %w", reason)
	}
	return fmt.Errorf("the instance ended during the trial: %w (%w)", reason, err)
}

// observe measures a ready instance whose start began at begun.
func (t trial) observe(ctx context.Context, s testbed.Instance, c profile.Config, begun time.Time) (profile.Row, error) {
	row := profile.Row{Function: t.fn.Name, GPU: t.GPU, Config: c}
	send, err := t.target(ctx, s, c.Batch)
	if err != nil {
		return row, err
	}
	if err := t.firstAnswer(ctx, send); err != nil {
		return row, err
	}
	row.ColdMS = figures.Millis(time.Since(begun))
	single := load.WithTimeout(t.Load.Longest(), send)
	warm, err := t.warm(ctx, single)
	if err != nil {
		return row, err
	}
	row.WarmMS = figures.Millis(warm)
	var rest goodput.Trial
	if t.measuresGoodput(t.fn.Name) {
		if rest, err = t.atRest(ctx, single, c.Quota); err != nil {
			return row, err
		}
	}
	meter := t.testbed.Meter()
	samples := watch(ctx, samplePeriod, func(ctx context.Context) sample {
		meter.Sample()
		return sample{mem: s.GPUMemMiB(ctx), imported: s.ImportedMiB(ctx), others: t.testbed.Others(ctx)}
	})
	res, err := load.Run(ctx, send, t.Load)
	used, imported, others := split(samples())
	activity := meter.Close()
	if err != nil {
		return row, err
	}
	if len(others) > 0 && !t.ShareGPU {
		return row, fmt.Errorf("%s ran on the GPU too during the trial", strings.Join(others, ", "))
	}
	row.GPUMemMiB = figures.Round(slices.Max(used)+imported, 3)
	row.ModelMemMiB = modelMem(t.fn, row.GPUMemMiB, imported)
	if err := figures.CheckAnswered(res); err != nil {
		return row, err
	}
	for _, text := range slices.Concat(figures.Remarks(res), leak(used)) {
		t.progress.Note(fmt.Sprintf("for %s: %s", Point{t.fn.Name, c}, text))
	}
	figures.Fill(&row, res)
	row.GPUUtilPct, row.SMOccupancyPct = figures.Round(activity.UtilPct, 2), figures.Round(activity.OccupancyPct, 2)
	row.PowerW = figures.Round(activity.PowerW, 1)
	if t.measuresGoodput(t.fn.Name) {
		err = t.findGoodput(ctx, send, &row, res.Throughput(), rest)
	}
	return row, err
}

// target returns the target of a ready instance. It fails if the instance does not
// describe its requests within the start timeout.
func (t trial) target(ctx context.Context, s testbed.Instance, batch int) (load.Target, error) {
	limited, cancel := context.WithTimeout(ctx, t.StartTimeout)
	defer cancel()
	send, err := s.Target(limited, testbed.Request{Batch: batch, Body: t.Body})
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = fmt.Errorf("the instance is ready but has not told what a request is like after %v", t.StartTimeout)
	}
	return send, err
}

// modelMem returns the memory of the function's model, in MiB: the imported memory,
// else the size that the function file gives, at most the used memory.
func modelMem(fn function.Function, used, imported float64) float64 {
	switch {
	case fn.Model == nil:
		return 0
	case fn.Model.File != "" && imported > 0:
		return figures.Round(imported, 3)
	}
	size := figures.Round(fn.Model.Size.MiB(), 3)
	if used > 0 {
		size = min(size, used)
	}
	return size
}

// firstAnswer sends single requests until one succeeds. It fails after firstTries
// requests or the start timeout.
func (t trial) firstAnswer(ctx context.Context, send load.Target) (err error) {
	first, cancel := context.WithTimeout(ctx, t.StartTimeout)
	defer cancel()
	for range firstTries {
		if err = send(first); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if first.Err() != nil {
			return fmt.Errorf("the instance is ready but has not answered its first request after %v", t.StartTimeout)
		}
	}
	return fmt.Errorf("the instance is ready but does not answer: %w", err)
}

// warm returns the median duration of successive single requests; 0 if fewer than
// minWarmRequests succeed.
func (t trial) warm(ctx context.Context, send load.Target) (time.Duration, error) {
	until := time.Now().Add(t.Load.Duration)
	var took []time.Duration
	for range maxWarmRequests {
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
	if len(took) < minWarmRequests {
		return 0, nil
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// withLastLines appends the last lines of an instance to an error, indented.
func withLastLines(err error, lines string) error {
	lines = strings.TrimRight(lines, "\n")
	if lines == "" {
		return err
	}
	return fmt.Errorf("%w\nit printed last:\n  %s", err, strings.ReplaceAll(lines, "\n", "\n  "))
}

const (
	samplePeriod   = time.Second // of the GPU during a trial
	leakMinSamples = 6           // without which growth does not count as a leak
	leakGrowth     = 1.05        // factor by which the memory of a leak grows
)

// sample is an observation of the GPUs during a trial.
type sample struct {
	mem      float64 // of the instance, in MiB
	imported float64 // see testbed.Instance, in MiB
	others   []string
}

// split returns the memory of each sample, the largest imported memory, and all
// others, sorted, each once.
func split(samples []sample) (mem []float64, imported float64, others []string) {
	for _, s := range samples {
		mem = append(mem, s.mem)
		imported = max(imported, s.imported)
		others = append(others, s.others...)
	}
	slices.Sort(others)
	return mem, imported, slices.Compact(others)
}

// watch calls observe periodically, the first time at once, until the returned
// function is called. That function observes once more and returns all
// observations, at least one.
func watch[T any](ctx context.Context, period time.Duration, observe func(context.Context) T) (stop func() []T) {
	watching, cancel := context.WithCancel(ctx)
	var all []T
	var observer sync.WaitGroup
	observer.Go(func() {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for watching.Err() == nil {
			all = append(all, observe(watching))
			select {
			case <-tick.C:
			case <-watching.Done():
			}
		}
	})
	return func() []T {
		cancel()
		observer.Wait()
		return append(all, observe(ctx))
	}
}

// leak returns a remark if periodic samples of the memory only grow, and go on
// growing after the first third; else nil.
func leak(used []float64) []string {
	if len(used) < leakMinSamples {
		return nil
	}
	third := len(used) / 3
	early, middle, last := used[third], used[2*third], used[len(used)-1]
	if middle <= early || last <= middle || last < leakGrowth*early || !slices.IsSorted(used) {
		return nil
	}
	return []string{fmt.Sprintf("its GPU memory grew from %.0f to %.0f MiB under load and went on growing: it may leak", early, last)}
}
