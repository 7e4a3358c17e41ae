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
	"github.com/gfaas/gfaas/pkg/profile/goodput"
)

const (
	stopTimeout = 30 * time.Second // for an instance to be gone
	firstTries  = 3                // requests until the first answer
	warmRequests,
	warmLeast = 5, 3 // single requests for warm_ms: at most, and at least for it to count
)

// trial measures configurations of one function, each on a new instance.
type trial struct {
	job
	machine machine
	fn      function.Function
	note    func(string) // is told what to know about a row
	// trying is told what is about to be tried for the goodput, tried what was.
	trying, tried func(at point, text string)
	keep          func(profile.Trial) error // is given each trial for the goodput
}

// stopError says that an instance could not be stopped: it may still use the
// GPU, so nothing measured after it can be trusted.
type stopError struct{ err error }

func (e *stopError) Error() string { return "stop the instance: " + e.err.Error() }
func (e *stopError) Unwrap() error { return e.err }

// start is how an instance is started.
type start struct {
	slice gpu.Slice
	parks bool // its memory goes to the host while it has no work
}

// measure runs one trial (FaST-GShare, section 3.2). With a stopError the row
// is good all the same.
func (t trial) measure(ctx context.Context, c profile.Config) (row profile.Row, err error) {
	begun := time.Now()
	slice := gpu.Slice{SMPct: c.SMPct, QuotaRequest: c.Quota, QuotaLimit: c.Quota, Mem: t.fn.GPUMem}
	err = t.during(ctx, start{slice: slice}, func(s subject) (err error) {
		row, err = t.observe(ctx, s, c, begun)
		if ctx.Err() == nil {
			err = checkAlive(ctx, s, err)
		}
		if err != nil {
			row = profile.Row{} // whatever it holds is of no use
		}
		return err
	})
	return row, err
}

// during does something with a new instance and stops it.
func (t trial) during(ctx context.Context, how start, do func(subject) error) (err error) {
	s, err := t.machine.Start(ctx, t.fn, how)
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
			err = errors.Join(err, &stopError{e})
		}
	}()
	return do(s)
}

// checkAlive is the error of a trial: that the instance ended, when it did, for
// that is why its requests failed, and what it did before is not what it
// sustains; else err.
func checkAlive(ctx context.Context, s subject, err error) error {
	how := s.Ended(ctx)
	switch {
	case how == nil:
		return err
	case err == nil:
		return fmt.Errorf("the instance ended during the trial: %w", how)
	}
	return fmt.Errorf("the instance ended during the trial: %w (%w)", how, err)
}

// observe measures a ready instance that was started at begun.
func (t trial) observe(ctx context.Context, s subject, c profile.Config, begun time.Time) (profile.Row, error) {
	row := profile.Row{Function: t.fn.Name, GPU: t.model, Config: c}
	send, err := t.target(ctx, s, c.Batch)
	if err != nil {
		return row, err
	}
	if err := t.firstAnswer(ctx, send); err != nil {
		return row, err
	}
	row.ColdMS = millis(time.Since(begun))
	single := within(t.load.Longest(), send)
	warm, err := t.warm(ctx, single)
	if err != nil {
		return row, err
	}
	row.WarmMS = millis(warm)
	var rest goodput.Trial
	if t.wantsGoodput(t.fn.Name) {
		if rest, err = t.atRest(ctx, single, c.Quota); err != nil {
			return row, err
		}
	}
	figures := t.machine.Meter()
	seen := watch(ctx, lookPeriod, func(ctx context.Context) sample {
		figures.Look()
		return sample{mem: s.GPUMemMiB(ctx), imported: s.ImportedMiB(ctx), others: t.machine.Others(ctx)}
	})
	res, err := load.Run(ctx, send, t.load)
	used, imported, others := split(seen())
	did := figures.Close()
	if err != nil {
		return row, err
	}
	if len(others) > 0 && !t.share {
		return row, fmt.Errorf("%s ran on the GPU too during the trial", strings.Join(others, ", "))
	}
	row.GPUMemMiB = round(slices.Max(used)+imported, 3)
	row.ModelMemMiB = modelMem(t.fn, row.GPUMemMiB, imported)
	if res.Completed == 0 || res.Samples == 0 {
		return row, nothingFinished(res)
	}
	for _, text := range slices.Concat(remarks(res), leak(used)) {
		t.note(fmt.Sprintf("for %s: %s", point{t.fn.Name, c}, text))
	}
	fill(&row, res)
	row.GPUUtilPct, row.SMOccupancyPct, row.PowerW = round(did.UtilPct, 2), round(did.OccupancyPct, 2), round(did.PowerW, 1)
	if t.wantsGoodput(t.fn.Name) {
		err = t.findGoodput(ctx, send, &row, res.Throughput(), rest)
	}
	return row, err
}

// target is what sends requests to a ready instance. One that is asked what requests
// are like, and does not say, is given up on.
func (t trial) target(ctx context.Context, s subject, batch int) (load.Target, error) {
	limited, cancel := context.WithTimeout(ctx, t.startTimeout)
	defer cancel()
	send, err := s.Target(limited, request{batch: batch, body: t.body})
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = fmt.Errorf("the instance is ready but has not told what a request is like after %v", t.startTimeout)
	}
	return send, err
}

// fill puts what was measured under load into the row. An answer to a batch is
// as many requests.
func fill(row *profile.Row, res load.Result) {
	batch := float64(row.Batch)
	row.TrialS = round(res.Duration.Seconds(), 6)
	row.ThroughputRPS = round(batch*res.Throughput(), 4)
	row.ThroughputCIRPS = max(round(batch*res.ThroughputCI, 4), 1e-4) // 0 would say not known
	row.P50MS, row.P95MS, row.P99MS = millis(res.P50), millis(res.P95), millis(res.P99)
	row.P95CIMS = millis(res.P95CI)
	row.Errors, row.Samples = res.Errors, res.Samples
	if res.Unstable != "" {
		row.Unstable = 1
	}
}

// modelMem is the part of the memory that is the model's, in MiB: what the instance
// has mapped of the model daemon's, else as the function file says; all of it when
// that says more than was seen.
func modelMem(fn function.Function, seen, imported float64) float64 {
	switch {
	case fn.Model == nil:
		return 0
	case fn.Model.File != "" && imported > 0:
		return round(imported, 3)
	}
	size := round(fn.Model.Size.MiB(), 3)
	if seen > 0 {
		size = min(size, seen)
	}
	return size
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

// remarks are what the columns errors and unstable do not tell.
func remarks(res load.Result) (texts []string) {
	if res.Unstable != "" {
		texts = append(texts, "unstable: "+res.Unstable)
	}
	late := res.Cut + res.Unsent
	switch {
	case late > 0:
		texts = append(texts, fmt.Sprintf("%d requests had no answer when the trial ended, %d of them not sent yet: the load is more than is sustained",
			late, res.Unsent))
	case res.Errors > 0:
		texts = append(texts, fmt.Sprintf("%d requests failed, the last with: %v", res.Errors, res.LastFailed))
	}
	return texts
}

func nothingFinished(res load.Result) error {
	err := fmt.Errorf("no request finished in %v", res.Duration)
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

const (
	lookPeriod = time.Second // between two looks at the GPU
	leakLooks  = 6           // looks at the memory that tell a leak
	leakGrowth = 1.05        // and what it must have grown by
)

// sample is what was seen of the GPU at one time during a trial.
type sample struct {
	mem      float64 // of the instance, in MiB
	imported float64 // of the model daemon's
	others   []string
}

// split returns the memory seen, look by look, the most that was mapped of others',
// and all others that were seen, sorted.
func split(seen []sample) (mem []float64, imported float64, others []string) {
	for _, s := range seen {
		mem = append(mem, s.mem)
		imported = max(imported, s.imported)
		others = append(others, s.others...)
	}
	slices.Sort(others)
	return mem, imported, slices.Compact(others)
}

// watch looks at something now and then until the returned function is called,
// which looks once more and returns all that was seen.
func watch[T any](ctx context.Context, every time.Duration, look func(context.Context) T) (seen func() []T) {
	watching, cancel := context.WithCancel(ctx)
	var all []T
	var looking sync.WaitGroup
	looking.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for watching.Err() == nil {
			all = append(all, look(watching))
			select {
			case <-tick.C:
			case <-watching.Done():
			}
		}
	})
	return func() []T {
		cancel()
		looking.Wait()
		return append(all, look(ctx))
	}
}

// leak says when memory, seen at regular times, only grows, after what the
// first requests needed.
func leak(used []float64) []string {
	if len(used) < leakLooks {
		return nil
	}
	third := len(used) / 3
	early, middle, last := used[third], used[2*third], used[len(used)-1]
	if middle <= early || last <= middle || last < leakGrowth*early || !slices.IsSorted(used) {
		return nil
	}
	return []string{fmt.Sprintf("its GPU memory grew from %.0f to %.0f MiB under load and went on growing: it may leak", early, last)}
}
