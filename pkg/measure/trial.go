package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/figures"
	"github.com/gfaas/gfaas/pkg/measure/testbed"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/profile/goodput"
)

const (
	stopTimeout      = 30 * time.Second
	maxFirstRequests = 3 // limit of requests until the first one succeeds
	maxWarmRequests  = 5 // limit of single requests for warm_ms
	minWarmRequests  = 3 // warm_ms is unknown if fewer requests succeed
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
	started := time.Now()
	slice := gpu.Slice{SMPct: c.SMPct, QuotaRequest: c.Quota, QuotaLimit: c.Quota, Mem: t.fn.GPUMem}
	err = t.onInstances(ctx, testbed.Options{Slice: slice}, t.Together(), func(all []testbed.Instance) (err error) {
		row, err = t.observe(ctx, all, c, started)
		for _, s := range all {
			if ctx.Err() == nil && t.fn.Kind != function.Training { // observeJob notices the end of a job
				err = checkAlive(ctx, s, err)
			}
		}
		if err != nil {
			row = profile.Row{} // incomplete
		}
		return err
	})
	return row, err
}

// onInstances calls do with n new instances and then stops them. If do fails, the error
// includes the last lines that an instance printed, preferably one that has ended.
func (t trial) onInstances(ctx context.Context, options testbed.Options, n int, do func([]testbed.Instance) error) (err error) {
	all, err := t.startAll(ctx, options, n)
	defer func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if e := stopAll(stopCtx, all); e != nil {
			err = errors.Join(err, e)
		}
	}()
	if err != nil {
		return err
	}
	if err = do(all); err != nil && ctx.Err() == nil {
		ended := max(slices.IndexFunc(all, func(s testbed.Instance) bool { return s.CheckRunning(ctx) != nil }), 0)
		err = withLastLines(err, all[ended].LastLines(ctx))
	}
	return err
}

// startAll starts n instances at the same time. After an error, it returns those that have started.
func (t trial) startAll(ctx context.Context, options testbed.Options, n int) ([]testbed.Instance, error) {
	started := make([]testbed.Instance, n)
	starts, ctx := errgroup.WithContext(ctx)
	for i := range n {
		starts.Go(func() (err error) {
			own := options
			own.Number = i
			started[i], err = t.testbed.Start(ctx, t.fn, own)
			return err
		})
	}
	err := starts.Wait()
	return slices.DeleteFunc(started, func(s testbed.Instance) bool { return s == nil }), err
}

// stopAll stops instances at the same time. The error is a *StopError.
func stopAll(ctx context.Context, all []testbed.Instance) error {
	failures := make([]error, len(all))
	var stops sync.WaitGroup
	for i, s := range all {
		stops.Go(func() { failures[i] = s.Stop(ctx) })
	}
	stops.Wait()
	if err := errors.Join(failures...); err != nil {
		return &StopError{err}
	}
	return nil
}

// checkAlive returns err, the outcome of a trial, if the instance still runs.
// Otherwise the trial is invalid even if no request failed, and checkAlive returns
// an error that states why the instance ended, followed by err.
func checkAlive(ctx context.Context, s testbed.Instance, err error) error {
	reason := s.CheckRunning(ctx)
	switch {
	case reason == nil:
		return err
	case err == nil:
		return fmt.Errorf("the instance ended during the trial: %w", reason)
	}
	return fmt.Errorf("the instance ended during the trial: %w (%w)", reason, err)
}

// observe measures ready instances whose start began at started.
func (t trial) observe(ctx context.Context, all []testbed.Instance, c profile.Config, started time.Time) (profile.Row, error) {
	row := profile.Row{Function: t.fn.Name, GPU: t.GPU, Config: c}
	if t.fn.Kind == function.Training {
		err := t.observeJob(ctx, all[0], &row, started)
		return row, err
	}
	if n := len(all); n > 1 {
		row.Instances = n
	}
	senders, err := t.senders(ctx, all, c.Batch)
	if err != nil {
		return row, err
	}
	if err := t.firstAnswers(ctx, senders); err != nil {
		return row, err
	}
	send := inTurn(senders, t.Load.Spec.Kind, t.Load.Seed)
	row.ColdMS = figures.Millis(time.Since(started))
	single := load.WithTimeout(t.Load.Longest(), send)
	warm, err := t.warm(ctx, single)
	if err != nil {
		return row, err
	}
	row.WarmMS = figures.Millis(warm)
	var idleTrial goodput.Trial
	if t.measuresGoodput(t.fn.Name) {
		if idleTrial, err = t.measureIdle(ctx, single, c.Quota); err != nil {
			return row, err
		}
	}
	res, err := t.underLoad(ctx, all, &row, func() (load.Result, error) { return load.Run(ctx, send, forAll(t.Load, len(all))) })
	if err == nil && t.measuresGoodput(t.fn.Name) {
		err = t.findGoodput(ctx, inTurn(senders, load.Poisson, t.Load.Seed), &row, res.Throughput(), idleTrial)
	}
	return row, err
}

// underLoad sets the figures of a row: those that run returns, and those of the GPUs and the instances while it
// runs.
func (t trial) underLoad(ctx context.Context, all []testbed.Instance, row *profile.Row, run func() (load.Result, error)) (load.Result, error) {
	meter := t.testbed.Meter()
	samples := watch(ctx, samplePeriod, func(ctx context.Context) sample {
		meter.Sample()
		return sampleOf(ctx, all, t.testbed.OtherUsers(ctx))
	})
	res, err := run()
	used, imported, others := summarize(samples())
	activity := meter.Close()
	if err != nil {
		return res, err
	}
	if len(others) > 0 && !t.ShareGPU {
		return res, fmt.Errorf("%s also used the GPU during the trial", strings.Join(others, ", "))
	}
	row.GPUMemMiB = figures.Round(slices.Max(used)+imported, 3)
	row.ModelMemMiB = modelMem(t.fn, row.GPUMemMiB, imported)
	if err := figures.CheckAnswered(res); err != nil {
		return res, err
	}
	for _, text := range slices.Concat(figures.Remarks(res), leak(used)) {
		t.progress.Note(fmt.Sprintf("for %s: %s", Point{t.fn.Name, row.Config}, text))
	}
	figures.Fill(row, res)
	row.GPUUtilPct, row.SMOccupancyPct = figures.Round(activity.UtilPct, 2), figures.Round(activity.OccupancyPct, 2)
	row.PowerW = figures.Round(activity.PowerW, 1)
	return res, nil
}

// sender returns a function that sends one request to a ready instance. It fails if
// the instance does not describe its requests within the start timeout.
func (t trial) sender(ctx context.Context, s testbed.Instance, batch int) (load.Sender, error) {
	limited, cancel := context.WithTimeout(ctx, t.StartTimeout)
	defer cancel()
	send, err := s.Target(limited, testbed.Request{Batch: batch, Body: t.Body})
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = fmt.Errorf("the instance is ready but has not described its requests within %v", t.StartTimeout)
	}
	return send, err
}

// modelMem returns the memory of the function's model, in MiB. If the instance has
// imported the model from a file, that is the imported memory. Otherwise it is the
// size in the function file, but at most the used memory.
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

// firstAnswer sends single requests until one succeeds. It fails after
// maxFirstRequests requests or the start timeout.
func (t trial) firstAnswer(ctx context.Context, send load.Sender) (err error) {
	first, cancel := context.WithTimeout(ctx, t.StartTimeout)
	defer cancel()
	for range maxFirstRequests {
		if err = send(first); err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if first.Err() != nil {
			return fmt.Errorf("the instance is ready but has not answered its first request within %v", t.StartTimeout)
		}
	}
	return fmt.Errorf("the instance is ready but does not answer: %w", err)
}

// warm returns the median duration of successive single requests; 0 if fewer than
// minWarmRequests succeed.
func (t trial) warm(ctx context.Context, send load.Sender) (time.Duration, error) {
	until := time.Now().Add(t.Load.Duration)
	var durations []time.Duration
	for range maxWarmRequests {
		started := time.Now()
		if started.After(until) {
			break
		}
		err := send(ctx)
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if err == nil {
			durations = append(durations, time.Since(started))
		}
	}
	if len(durations) < minWarmRequests {
		return 0, nil
	}
	return median(durations), nil
}

// median returns the median of durations, and sorts them.
func median(durations []time.Duration) time.Duration {
	slices.Sort(durations)
	return durations[len(durations)/2]
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
	samplePeriod   = time.Second // time between two samples during a trial
	leakMinSamples = 6           // growth in fewer samples does not count as a leak
	leakGrowth     = 1.05        // growth by a smaller factor does not count as a leak
)

// sample is an observation of instances and their GPUs during a trial.
type sample struct {
	mem        float64  // GPU memory that an instance holds, in MiB; of several, the most
	imported   float64  // memory of other processes that the instance has mapped, in MiB
	otherUsers []string // names of the other users of the GPUs
}

// sampleOf returns an observation of instances of one function.
func sampleOf(ctx context.Context, all []testbed.Instance, otherUsers []string) sample {
	out := sample{otherUsers: otherUsers}
	for _, s := range all {
		out.mem = max(out.mem, s.GPUMemMiB(ctx))
		out.imported = max(out.imported, s.ImportedMiB(ctx))
	}
	return out
}

// summarize returns the memory of each sample, the largest imported memory, and the
// names of all other users, sorted and without duplicates.
func summarize(samples []sample) (mem []float64, imported float64, others []string) {
	for _, s := range samples {
		mem = append(mem, s.mem)
		imported = max(imported, s.imported)
		others = append(others, s.otherUsers...)
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

// leak returns a remark if periodic samples of the memory only grow and continue to
// grow after the first third. Otherwise it returns nil.
func leak(used []float64) []string {
	if len(used) < leakMinSamples {
		return nil
	}
	third := len(used) / 3
	early, middle, last := used[third], used[2*third], used[len(used)-1]
	if middle <= early || last <= middle || last < leakGrowth*early || !slices.IsSorted(used) {
		return nil
	}
	return []string{fmt.Sprintf("the GPU memory of the instance grew from %.0f to %.0f MiB under load and was still growing: the function may leak memory", early, last)}
}
