package measure

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/figures"
	"github.com/gfaas/gfaas/pkg/measure/testbed"
)

const (
	parkedRequests   = 3                     // number of requests sent while the memory is parked
	parkPollInterval = 10 * time.Millisecond // time between queries of the parked memory
	parkStallTimeout = 5 * time.Second       // parking fails after this time without progress
)

// reload is the time to bring the memory of a function back from the host,
// measured once for all of its configurations.
type reload struct {
	done chan struct{} // closed when ms and err are set
	ms   float64       // 0: not measured
	err  error
}

// loadMS returns the load_ms of the trial's function. If an earlier run has not measured
// it, the first caller measures it, and concurrent callers wait for the result. The result
// is 0 if it cannot be measured. An error ends the run.
func (r *runner) loadMS(ctx context.Context, t trial, batch int) (float64, error) {
	if !r.Park || t.fn.Kind == function.Training {
		return 0, nil
	}
	r.mu.Lock()
	p, started := r.reloads[t.fn.Name]
	if !started {
		p = &reload{done: make(chan struct{})}
		r.reloads[t.fn.Name] = p
	}
	r.mu.Unlock()
	if started {
		<-p.done
		return p.ms, p.err
	}
	defer close(p.done)
	for at, row := range r.Earlier {
		if at.Function == t.fn.Name {
			p.ms = max(p.ms, row.LoadMS)
		}
	}
	if p.ms == 0 {
		p.ms, p.err = t.loadMS(ctx, batch)
	}
	return p.ms, p.err
}

// loadMS measures how much longer a request takes if the memory of its instance is
// parked on the host (a host-warm start, in the terms of MQFQ-Sticky), in ms. The
// instance has the whole GPU: the amount of memory does not depend on the slice,
// and with a quota the time would depend on the windows of the quota. If the time
// cannot be measured, loadMS notes the reason and returns 0. The error is a *StopError.
func (t trial) loadMS(ctx context.Context, batch int) (ms float64, err error) {
	if t.fn.GPUMem == 0 {
		t.progress.Note(fmt.Sprintf("load_ms of %s is not measured: the function has no gpu_mem, so parking it could use all of the host's memory", t.fn.Name))
		return 0, nil
	}
	whole := gpu.Slice{SMPct: 100, QuotaRequest: 1, QuotaLimit: 1, Mem: t.fn.GPUMem}
	err = t.onInstances(ctx, testbed.Options{Slice: whole, Parks: true}, 1, func(all []testbed.Instance) (err error) {
		s := all[0]
		limited, cancel := context.WithTimeout(ctx, t.StartTimeout)
		defer cancel()
		ms, err = t.reloadMS(limited, s, batch)
		if ctx.Err() == nil {
			err = checkAlive(ctx, s, err)
		}
		if err != nil {
			ms = 0
		}
		return err
	})
	_, stuck := errors.AsType[*StopError](err)
	switch {
	case stuck:
		return ms, err
	case err != nil && ctx.Err() == nil && !endsRun(err): // otherwise the next trial reports the error
		t.progress.Note(fmt.Sprintf("load_ms of %s is not measured: %v", t.fn.Name, err))
	}
	return ms, nil
}

// reloadMS returns the median duration of requests that find the memory parked,
// minus that of requests that find it on the GPU, in ms.
func (t trial) reloadMS(ctx context.Context, s testbed.Instance, batch int) (float64, error) {
	send, err := t.sender(ctx, s, batch)
	if err != nil {
		return 0, err
	}
	if err := t.firstAnswer(ctx, send); err != nil {
		return 0, err
	}
	warm, err := t.warm(ctx, send)
	if err != nil {
		return 0, err
	}
	if warm == 0 {
		return 0, fmt.Errorf("fewer than %d single requests were answered in %v", minWarmRequests, t.Load.Duration)
	}
	elapsed, err := parkedDuration(ctx, s, send)
	if err != nil {
		return 0, err
	}
	if otherUsers := t.testbed.OtherUsers(ctx); len(otherUsers) > 0 && !t.ShareGPU {
		return 0, fmt.Errorf("%s also used the GPU", strings.Join(otherUsers, ", "))
	}
	ms := figures.Millis(elapsed - warm)
	if ms <= 0 {
		return 0, fmt.Errorf("a request took %v ms with parked memory and %v ms without: the difference is too small to measure", figures.Millis(elapsed), figures.Millis(warm))
	}
	return ms, nil
}

// parkedDuration returns the median duration of requests that find the memory
// parked.
func parkedDuration(ctx context.Context, s testbed.Instance, send load.Sender) (time.Duration, error) {
	var durations []time.Duration
	for range parkedRequests {
		if err := awaitParked(ctx, s); err != nil {
			return 0, err
		}
		started := time.Now()
		if err := send(ctx); err != nil {
			return 0, err
		}
		durations = append(durations, time.Since(started))
	}
	return median(durations), nil
}

// awaitParked returns when all memory of the instance is parked. It fails if
// parking makes no progress for parkStallTimeout.
func awaitParked(ctx context.Context, s testbed.Instance) error {
	most, since := 0.0, time.Now()
	poll := time.NewTicker(parkPollInterval)
	defer poll.Stop()
	for {
		used, parked := s.Parked(ctx)
		switch {
		case used > 0 && parked >= used:
			return nil
		case parked > most:
			most, since = parked, time.Now()
		case time.Since(since) < parkStallTimeout:
		case used == 0:
			return errors.New("the instance holds no GPU memory between requests")
		default:
			return fmt.Errorf("only %.4g of the instance's %.4g MiB were parked while it was idle", parked, used)
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
