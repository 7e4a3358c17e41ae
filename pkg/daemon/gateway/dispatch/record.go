package dispatch

import (
	"bytes"
	"cmp"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/record"
)

// recorder writes the policy's events and actions to a file. A step waits for the file only
// while more than maxUnwritten bytes are pending.
type recorder struct {
	log   *slog.Logger
	steps int64

	mu      sync.Mutex
	room    *sync.Cond   // signalled after the writer has emptied pending, or on failure
	pending bytes.Buffer // lines that are not written yet
	failed  bool         // writing failed: further lines are discarded
	ended   bool         // the last lines are being written: further lines are discarded
}

const (
	maxUnwritten = 64 << 20
	writeEvery   = 200 * time.Millisecond
)

// step writes the events and actions of one step of the policy.
func (r *recorder) step(now time.Duration, events []queue.Event, actions []queue.Action, name func(int32) string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.pending.Len() > maxUnwritten && !r.failed && !r.ended {
		r.room.Wait()
	}
	step := r.steps
	r.steps++
	for i := range events {
		r.append(record.NewEvent(step, now, events[i], name))
	}
	for i := range actions {
		d := record.NewDecision(now, &actions[i], name)
		d.Step = &step
		r.append(d)
	}
}

// load writes the load of a function in the past second, in calls per second, and the number of
// instances that its scaler then wants. A nil recorder writes nothing.
func (r *recorder) load(now time.Duration, function string, rps float64, instances int) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.append(record.Event{Step: r.steps, TimeMS: record.Millis(now), Event: record.Load, Function: function, RPS: rps, Instances: &instances})
}

// append writes a line. The caller holds r.mu.
func (r *recorder) append(line any) {
	if r.failed || r.ended {
		return
	}
	if err := record.Append(&r.pending, line); err != nil {
		r.fail(err)
	}
}

// fail stops recording and logs the error. Calls continue. The caller holds r.mu.
func (r *recorder) fail(err error) {
	r.log.Error("cannot write the record: recording stopped", "err", err)
	r.failed = true
	r.room.Broadcast()
}

// write writes the pending lines to a file every writeEvery, until end is closed and no lines
// remain.
func (r *recorder) write(to io.Writer, end <-chan struct{}) {
	tick := time.NewTicker(writeEvery)
	defer tick.Stop()
	var out bytes.Buffer
	for last := false; !last; {
		select {
		case <-tick.C:
		case <-end:
			last = true
		}
		r.mu.Lock()
		out, r.pending = r.pending, out
		r.ended = last
		r.room.Broadcast()
		r.mu.Unlock()
		if _, err := to.Write(out.Bytes()); err != nil {
			r.mu.Lock()
			if !r.failed {
				r.fail(err)
			}
			r.mu.Unlock()
		}
		out.Reset()
	}
}

// Record begins recording all events and actions. functions are those that are about to be
// applied; set holds the policy's parameters. The returned function ends the record.
func (d *Dispatcher) Record(to io.Writer, functions []function.Function, set map[string]string) (stop func()) {
	r := &recorder{log: d.log}
	r.room = sync.NewCond(&r.mu)
	d.mu.Lock()
	r.append(d.header(functions, set)) // no other goroutine uses r yet
	d.policy.recorder = r
	d.mu.Unlock()
	end := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() { r.write(to, end) })
	return func() { close(end); writing.Wait() }
}

// header returns the header of a record; set holds the policy's parameters as the user gave
// them. Locked.
func (d *Dispatcher) header(functions []function.Function, set map[string]string) record.Header {
	h := record.Header{Version: record.Version, Policy: d.cfg.Policy.Policy, GPUs: len(d.GPUs.list), Concurrency: d.cfg.Concurrency,
		Pool: d.cfg.Policy.Pool, Set: set, Functions: []record.Costs{}}
	if h.Set == nil {
		h.Set = map[string]string{}
	}
	for i, gpu := range d.GPUs.list {
		if i > 0 && mib(gpu.Mem) != h.GPUMemMiB {
			h.GPUMemMiB = 0
			break
		}
		h.GPUMemMiB = mib(gpu.Mem)
	}
	for _, fn := range functions {
		f := &Function{d: d, name: fn.Name, definition: fn, queue: cmp.Or(fn.Queue, d.cfg.Queue), version: &version{}}
		f.placing.f = f
		f.recall()
		spec := f.newSpec()
		c := record.Costs{Function: fn.Name, WarmMS: record.Millis(spec.Warm), ColdMS: record.Millis(spec.Cold), LoadMS: record.Millis(spec.Load),
			MemMiB: mib(spec.Mem), Weight: spec.Weight, Tenant: fn.Tenant}
		if fn.Model != nil {
			c.Model = fn.Model.Name
		}
		h.Functions = append(h.Functions, c)
	}
	return h
}
