package profile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/load"
)

const (
	parkRounds   = 3                     // requests that find the memory parked
	parkLook     = 10 * time.Millisecond // between two looks at how much of it is
	parkPatience = 5 * time.Second       // for some more of it to be
)

// parking is what a function's memory takes to come back from the host,
// measured once for all of its configurations.
type parking struct {
	known chan struct{} // closed once the rest is
	ms    float64       // 0: not measured
	err   error
}

// loadMS is the load_ms of the trial's function: what an earlier run measured,
// or else what the first that asks here measures. Only what must end the whole
// run is an error.
func (r *runner) loadMS(ctx context.Context, t trial, batch int) (float64, error) {
	if !r.park {
		return 0, nil
	}
	r.mu.Lock()
	p, asked := r.parkings[t.fn.Name]
	if !asked {
		p = &parking{known: make(chan struct{})}
		r.parkings[t.fn.Name] = p
	}
	r.mu.Unlock()
	if asked {
		<-p.known
		return p.ms, p.err
	}
	defer close(p.known)
	for c, row := range r.old {
		if c.function == t.fn.Name {
			p.ms = max(p.ms, row.LoadMS)
		}
	}
	if p.ms == 0 {
		p.ms, p.err = t.loadMS(ctx, batch)
	}
	return p.ms, p.err
}

// loadMS measures how much longer a request takes when the memory of its
// instance waits on the host (MQFQ-Sticky calls such a start host-warm). The
// instance has the whole GPU: what is moved does not depend on a slice, and a
// quota would show its windows. 0, with a note that says why, when that cannot
// be measured; the error is a *stopError.
func (t trial) loadMS(ctx context.Context, batch int) (ms float64, err error) {
	if t.fn.GPUMem == 0 {
		t.note(fmt.Sprintf("load_ms of %s is not measured: its file sets no gpu_mem, without which it could take all of the host's memory", t.fn.Name))
		return 0, nil
	}
	whole := gpu.Slice{SMPct: 100, QuotaRequest: 1, QuotaLimit: 1, Mem: t.fn.GPUMem}
	err = t.during(ctx, start{slice: whole, parks: true}, func(s subject) (err error) {
		limited, cancel := context.WithTimeout(ctx, t.startTimeout)
		defer cancel()
		ms, err = t.reload(limited, s, batch)
		if ctx.Err() == nil {
			err = checkAlive(ctx, s, err)
		}
		if err != nil {
			ms = 0
		}
		return err
	})
	var stuck *stopError
	switch {
	case errors.As(err, &stuck):
		return ms, err
	case err != nil && ctx.Err() == nil && !endsRun(err): // or else the trial that follows says so
		t.note(fmt.Sprintf("load_ms of %s is not measured: %v", t.fn.Name, err))
	}
	return ms, nil
}

// reload is the median time of requests that found the memory parked, less
// that of requests that did not, in ms.
func (t trial) reload(ctx context.Context, s subject, batch int) (float64, error) {
	send, err := t.target(ctx, s, batch)
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
		return 0, fmt.Errorf("fewer than %d single requests were answered in %v", warmLeast, t.load.Duration)
	}
	took, err := reloads(ctx, s, send)
	if err != nil {
		return 0, err
	}
	if others := t.machine.Others(ctx); len(others) > 0 && !t.share {
		return 0, fmt.Errorf("%s ran on the GPU too", strings.Join(others, ", "))
	}
	ms := millis(took - warm)
	if ms <= 0 {
		return 0, fmt.Errorf("with its memory parked a request took %v ms, without %v: too little is moved to tell", millis(took), millis(warm))
	}
	return ms, nil
}

// reloads is the median duration of requests that found the memory parked.
func reloads(ctx context.Context, s subject, send load.Target) (time.Duration, error) {
	var took []time.Duration
	for range parkRounds {
		if err := parked(ctx, s); err != nil {
			return 0, err
		}
		begun := time.Now()
		if err := send(ctx); err != nil {
			return 0, err
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// parked returns once all memory of the instance is seen to be parked. It is an
// error when that makes no progress.
func parked(ctx context.Context, s subject) error {
	most, since := 0.0, time.Now()
	look := time.NewTicker(parkLook)
	defer look.Stop()
	for {
		used, there := s.Parked(ctx)
		switch {
		case used > 0 && there >= used:
			return nil
		case there > most:
			most, since = there, time.Now()
		case time.Since(since) < parkPatience:
		case used == 0:
			return errors.New("it holds no GPU memory between requests")
		default:
			return fmt.Errorf("of its %.4g MiB only %.4g went to the host while it had no work", used, there)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
