package gateway

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/record"
)

// recorder writes down what the policy is told and decides. Who steps the policy
// waits for the file only when that is far behind.
type recorder struct {
	log   *slog.Logger
	steps int64

	mu     sync.Mutex
	room   *sync.Cond   // signalled when the writer took what there was
	full   bytes.Buffer // not written yet
	failed bool         // nothing is written any more
	ended  bool
	due    chan struct{} // something is there to be written
}

const (
	mostUnwritten = 64 << 20
	writeEvery    = 200 * time.Millisecond
)

func newRecorder(log *slog.Logger) *recorder {
	r := &recorder{log: log, due: make(chan struct{}, 1)}
	r.room = sync.NewCond(&r.mu)
	return r
}

// begin writes the first line.
func (r *recorder) begin(h record.Header) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.append(h)
}

// step writes one call of the policy.
func (r *recorder) step(now time.Duration, events []queue.Event, actions []queue.Action, name func(int32) string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.full.Len() > mostUnwritten && !r.failed && !r.ended {
		r.room.Wait()
	}
	step := r.steps
	r.steps++
	for i := range events {
		r.append(record.Tell(step, now, &events[i], name))
	}
	for i := range actions {
		d := record.Decide(now, &actions[i], name)
		d.Step = &step
		r.append(d)
	}
	select {
	case r.due <- struct{}{}:
	default:
	}
}

// append writes a line. Locked.
func (r *recorder) append(line any) {
	if r.failed || r.ended {
		return
	}
	if err := record.Append(&r.full, line); err != nil {
		r.fail(err)
	}
}

// fail gives up: calls are more important. Locked.
func (r *recorder) fail(err error) {
	r.log.Error("the record ends: it cannot be written", "err", err)
	r.failed = true
	r.room.Broadcast()
}

// write writes to a file until end is closed and all is written.
func (r *recorder) write(to io.Writer, end <-chan struct{}) {
	var out bytes.Buffer
	for last := false; !last; {
		select {
		case <-r.due:
		case <-end:
			last = true
		}
		r.mu.Lock()
		out, r.full = r.full, out
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
		if !last {
			select { // so that one write is of many lines
			case <-time.After(writeEvery):
			case <-end:
			}
		}
	}
}

// record begins a record of what happens from now on. What it returns ends it.
func (g *Gateway) record(ctx context.Context) (stop func()) {
	r := newRecorder(g.log)
	known, err := g.cfg.Catalog.Look(ctx)
	if err != nil {
		g.log.Warn("the record begins without functions: the state cannot be read", "err", err)
	}
	e := &g.engine
	e.mu.Lock()
	var functions []*target
	for _, fn := range known.Functions {
		t := &target{name: fn.Name, function: fn, generation: &generation{}}
		t.spec = e.spec(t)
		functions = append(functions, t)
	}
	r.begin(g.header(functions))
	e.recorder = r
	e.mu.Unlock()
	end := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() { r.write(g.cfg.Record, end) })
	return func() { close(end); writing.Wait() }
}

// header is the first line of a record: what is known before anything happens.
func (g *Gateway) header(functions []*target) record.Header {
	h := record.Header{Version: record.Version, Policy: g.cfg.Policy.Policy, GPUs: len(g.cfg.GPUs), Concurrency: g.cfg.Concurrency,
		Pool: g.cfg.Policy.Pool, Set: g.cfg.Set, Functions: []record.Costs{}}
	if h.Set == nil {
		h.Set = map[string]string{}
	}
	for i, gpu := range g.cfg.GPUs {
		if i == 0 || mib(gpu.Mem) == h.GPUMemMiB {
			h.GPUMemMiB = mib(gpu.Mem)
		} else {
			h.GPUMemMiB = 0
			break
		}
	}
	for _, t := range functions {
		c := record.Costs{Function: t.name, WarmMS: record.Millis(t.spec.Warm), ColdMS: record.Millis(t.spec.Cold), LoadMS: record.Millis(t.spec.Load),
			MemMiB: mib(t.spec.Mem), Weight: t.spec.Weight, Tenant: t.function.Tenant}
		if t.function.Model != nil {
			c.Model = t.function.Model.Name
		}
		h.Functions = append(h.Functions, c)
	}
	return h
}
