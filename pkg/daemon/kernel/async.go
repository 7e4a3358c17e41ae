package kernel

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// asyncRun is an asynchronous request and, after it has finished, its answer or its problem. It
// exists until its client deletes it or its time has run out. Its results are objects whose keys are
// references (kgraph.Reference). No request can write such a key, so a reference always means the
// result of this run, or nothing.
type asyncRun struct {
	id        string
	client    *client
	submitted time.Time
	results   []string      // keys of the results
	cancel    func()        // withdraws the request if it is still queued
	done      chan struct{} // closed when the request has finished

	// Guarded by the daemon's lock.
	request *request        // nil after the request has finished
	problem *kgraph.Problem // why the request failed; nil if it has not
	answer  *Answer         // nil unless the request completed; holds a reader of each inline output
	memory  *reservation    // memory of the record
	expiry  *time.Timer     // deletes the record; nil until the request has finished
	deleted bool
}

// States of an asynchronous run.
const (
	stateQueued  = "queued"
	stateRunning = "running"
	stateDone    = "done"
	stateFailed  = "failed"
)

// state returns the state of the run. The caller holds the lock.
func (x *asyncRun) state() string {
	switch {
	case x.answer != nil:
		return stateDone
	case x.problem != nil:
		return stateFailed
	case x.request.dev != nil:
		return stateRunning
	}
	return stateQueued
}

// Memory of the record of a finished run, in bytes: for itself, and for each of its outputs.
const (
	recordSize = 1 << 10
	outputSize = 512
)

// size returns the memory of the record of a finished run.
func (x *asyncRun) size() int64 {
	size := int64(recordSize)
	if x.answer != nil {
		size += int64(len(x.answer.Outputs)) * outputSize
	}
	if x.problem != nil {
		size += int64(len(x.problem.Message) + len(x.problem.Where))
	}
	return size
}

// storesResults reports whether a result of the run is stored.
func (x *asyncRun) storesResults() bool {
	return slices.ContainsFunc(x.results, func(key string) bool { return x.client.objects[key] != nil })
}

// missing returns the reason why there is no result for a reference. A nil client has no runs. The caller
// holds the lock.
func (c *client) missing(key, where string) *kgraph.Problem {
	id, name, _ := kgraph.Reference(key)
	var run *asyncRun
	if c != nil {
		run = c.runs[id]
	}
	switch {
	case run == nil:
		return problem(kgraph.NotFound, where, "unknown run %s: it was cancelled or deleted, has expired, or never existed", id)
	case run.problem != nil:
		return problem(CodeFailedDependency, where, "the run %s, whose result %q is read, failed: %s: %s", id, name, run.problem.Code, run.problem.Error())
	case !slices.Contains(run.results, key):
		return problem(kgraph.NotFound, where, "the run %s has no result %q: expected an output with \"result\":true", id, name)
	case run.answer == nil:
		return problem(kgraph.NotFound, where, "the run %s has not finished: there is no result %q yet", id, name)
	}
	return problem(kgraph.NotFound, where, "the result %q of the run %s was deleted, or lost with its executor (volatile)", name, id)
}

// missingResult returns a problem if a result that the request reads neither exists nor will exist when
// the request runs. The caller holds the lock.
func (c *client) missingResult(graph *kgraph.Request) *kgraph.Problem {
	for i := range graph.Buffers {
		b := &graph.Buffers[i]
		if _, _, isReference := kgraph.Reference(b.Key); !isReference || !b.Reads() {
			continue
		}
		if _, expected := c.expects(b.Key); !expected {
			return c.missing(b.Key, "/buffers/"+kgraph.Pointer(b.Name)+"/key")
		}
	}
	return nil
}

// makeRoomForRun reports whether the client can have one more run. If necessary, it deletes the run that
// finished first among those without stored results. The caller holds the lock.
func (q *scheduler) makeRoomForRun(c *client) bool {
	if c == nil || len(c.runs) < q.cfg.MaxRuns {
		return true
	}
	i := slices.IndexFunc(c.finishedRuns, func(x *asyncRun) bool { return !x.storesResults() })
	if i >= 0 {
		q.deleteRun(c.finishedRuns[i])
	}
	return i >= 0
}

// register makes a request, which has its ID, an asynchronous run of its client. The caller holds the lock.
func (q *scheduler) register(r *request) {
	x := r.run
	x.id, x.client, x.submitted, x.request, x.memory = r.id, r.client, r.arrived, r, r.memory
	for i := range r.graph.Buffers {
		if b := &r.graph.Buffers[i]; b.Result {
			b.Key = kgraph.MakeReference(r.id, b.Name)
			x.results = append(x.results, b.Key)
		}
	}
	x.memory.retain()
	r.client.runs[x.id] = x
}

// conclude records the end of a request if it is an asynchronous run, before requests that depend on it
// can run. A nil problem means that the request completed. The caller holds the lock.
func (q *scheduler) conclude(r *request, p *kgraph.Problem) {
	x := r.run
	if x == nil || x.request == nil {
		return
	}
	x.request, x.problem = nil, p
	if p == nil {
		answer := r.answer // a copy, so that the record does not keep the request in memory
		x.answer = &answer
	}
	close(x.done)
	if x.deleted {
		q.discard(x)
		return
	}
	_ = x.memory.resize(min(x.size(), x.memory.bytes)) // reducing the size never fails
	x.client.finishedRuns = append(x.client.finishedRuns, x)
	x.expiry = time.AfterFunc(q.cfg.RunTTL, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.deleteRun(x)
	})
}

// deleteRun deletes a run and its results. If the run is queued, it is cancelled; if its kernels run, they
// run to their end. The caller holds the lock.
func (q *scheduler) deleteRun(x *asyncRun) {
	if x.deleted {
		return
	}
	x.deleted = true
	delete(x.client.runs, x.id)
	if x.request != nil {
		x.cancel() // conclude discards the results
		return
	}
	x.expiry.Stop()
	x.client.finishedRuns = slices.DeleteFunc(x.client.finishedRuns, func(o *asyncRun) bool { return o == x })
	q.discard(x)
}

// discard frees the results and the memory of a run that has finished and was deleted. The caller holds
// the lock.
func (q *scheduler) discard(x *asyncRun) {
	for _, key := range x.results {
		if o := x.client.objects[key]; o != nil {
			q.drop(o)
		}
	}
	if x.answer != nil {
		for _, output := range x.answer.Outputs {
			if output.from != nil {
				output.from.readers--
				q.release(output.from)
			}
		}
	}
	x.memory.release()
}
