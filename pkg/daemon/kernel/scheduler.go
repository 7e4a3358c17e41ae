package kernel

import (
	"context"
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// scheduler queues requests and carries out the policy's actions.
type scheduler struct {
	*runner
	epoch         time.Time
	metrics       *metrics
	requestMemory *requestBudget // memory of requests in progress
	parser        requestParser

	policy     queue.Policy
	numbers    queue.Numbers
	actions    []queue.Action
	timer      *time.Timer
	clients    map[string]*client
	requests   map[int64]*request // known to the policy, by policyID
	lastID     int64              // last policyID
	lastRun    uint64             // number in the latest request's public ID (r-1, r-2, ...)
	runSuffix  string             // last part of the IDs of asynchronous runs; a daemon that replaces this one has another
	deferWake  bool               // dispatch adds requests to dispatched and does not wake them
	dispatched []*request         // requests that wakeDispatched will wake
	pending    int                // requests in progress, queued ones included
	idle       chan struct{}      // closed when pending drops to 0; nil unless drain waits
	draining   bool
}

// now returns the policy's time: the time since the daemon started.
func (q *scheduler) now() time.Duration { return time.Since(q.epoch) }

// client returns the client with the given name and creates it if necessary. It returns a
// CodeBusy problem if there are maxClients clients and forget cannot remove one. The caller
// holds the lock.
func (q *scheduler) client(name string) (*client, *kgraph.Problem) {
	if c := q.clients[name]; c != nil {
		c.lastUsed = q.now()
		return c, nil
	}
	if len(q.clients) >= maxClients && !q.forget() {
		return nil, problem(CodeBusy, "", "there are already %d clients, which is the limit", maxClients)
	}
	dom := q.shared
	if dom == nil {
		var err error
		if dom, err = q.newDomain(); err != nil {
			return nil, problem(CodeInternal, "", "%v", err)
		}
	}
	c := &client{name: name, number: q.numbers.Of(name), dom: dom, objects: map[string]*object{}, deps: dependencies{}, runs: map[string]*asyncRun{}, modules: map[string]*storedModule{}, lastUsed: q.now()}
	q.clients[name] = c
	q.applyWeight(c, 1)
	return c, nil
}

// forget removes the client that has been unused longest, among the clients that have no requests
// in progress, no asynchronous runs, no objects and no weight from setWeight. It reports whether it removed one; while
// the daemon shuts down, it removes none. The caller holds the lock.
func (q *scheduler) forget() bool {
	var oldest *client
	for _, c := range q.clients {
		if !c.weightSet && c.pending == 0 && c.bytes == 0 && len(c.runs) == 0 && (oldest == nil || c.lastUsed < oldest.lastUsed) {
			oldest = c
		}
	}
	if oldest == nil || q.draining {
		return false
	}
	delete(q.clients, oldest.name)
	q.step(&queue.FunctionRemoved{Function: oldest.number})
	if oldest.dom != q.shared {
		q.retire(oldest.dom)
	}
	return true
}

// setWeight sets a client's weight and protects the client from forget. The caller holds the lock.
func (q *scheduler) setWeight(name string, weight float64) *kgraph.Problem {
	c, p := q.client(name)
	if p != nil {
		return p
	}
	c.weightSet = true
	q.applyWeight(c, weight)
	return nil
}

// applyWeight passes a client's weight to the policy. The caller holds the lock.
func (q *scheduler) applyWeight(c *client, weight float64) {
	c.weight = weight
	// The initial estimate; the policy learns the real duration from completed requests.
	const expected = time.Millisecond
	q.step(&queue.FunctionSet{Function: c.number, Spec: queue.Function{
		Warm: expected, Cold: expected, Weight: weight, Inflight: 1, Name: c.name}})
}

// submit reads, parses and queues a request. A run that is not nil makes it asynchronous.
func (q *scheduler) submit(ctx context.Context, run *asyncRun, memory *reservation, body *bodyReader, length int64) (*request, *kgraph.Problem) {
	text, p := memory.read(body, length)
	if p != nil {
		return nil, q.countRefusal(memory, p)
	}
	body.clearDeadline()
	arrived := time.Now()
	if len(text) > maxCachedRequest {
		release, p := memory.acquireParser(ctx)
		if p != nil {
			return nil, p
		}
		defer release()
	}
	graph, sigs, p := q.parser.parse(text)
	if p != nil {
		return nil, p
	}
	if p := memory.resize(parsedSize(graph)); p != nil { // the text is not needed after submit, so only the parsed request counts
		return nil, q.countRefusal(memory, p)
	}
	r := &request{graph: graph, run: run, memory: memory, arrived: arrived, turn: make(chan struct{})}
	q.mu.Lock()
	defer q.mu.Unlock()
	if p := q.accept(r, memory.name, sigs); p != nil {
		return nil, p
	}
	return r, nil
}

// countRefusal returns p. If p is CodeBusy, because there is no request memory for the request, it
// first adds the request to the client's refused requests.
func (q *scheduler) countRefusal(memory *reservation, p *kgraph.Problem) *kgraph.Problem {
	q.mu.Lock()
	defer q.mu.Unlock()
	if c := q.clients[memory.name]; c != nil && p.Code == CodeBusy {
		c.busy++
	}
	return p
}

// await waits for a request's turn and runs it. It returns when the request has finished, or
// earlier if the caller disconnects while the request is still queued.
func (q *scheduler) await(ctx context.Context, r *request) (*Answer, *kgraph.Problem) {
	select {
	case <-r.turn:
	case <-ctx.Done():
		if q.withdraw(r) {
			return nil, problem(CodeInternal, "", "the client has disconnected")
		}
		<-r.turn // already dispatched: a running request is not interrupted
	}
	if r.refusal != nil {
		return nil, r.refusal
	}
	p := q.execute(r)
	q.finish(r, p)
	if p != nil {
		return nil, p
	}
	return &r.answer, nil
}

// accept validates a request against the client's objects and queues it. The caller holds the
// lock.
func (q *scheduler) accept(r *request, name string, sigs signatures) *kgraph.Problem {
	if q.draining {
		return problem(CodeBusy, "", "the daemon is shutting down")
	}
	c := q.clients[name]
	if c != nil && c.waiting >= maxWaiting {
		c.busy++
		return problem(CodeBusy, "", "%d requests of %s are already waiting, which is the limit", c.waiting, c.name)
	}
	p := c.resolveModules(r, sigs)
	if p == nil {
		p = c.missingResult(r.graph)
	}
	if p == nil {
		p = q.check(r.graph, c, sigs)
	}
	if p == nil && r.run == nil {
		p = refuseResults(r.graph)
	}
	if p != nil {
		if c != nil {
			c.failed++
		}
		return p
	}
	if r.run != nil && !q.makeRoomForRun(c) {
		c.busy++
		return problem(CodeBusy, "", "%s has %d asynchronous runs, which is the limit: delete finished ones", c.name, len(c.runs))
	}
	if c, p = q.client(name); p != nil {
		return p
	}
	r.memory.retain()
	for _, m := range r.modules {
		m.users++
	}
	q.lastRun++
	r.id, r.client = "r-"+strconv.FormatUint(q.lastRun, 10), c
	if r.run != nil {
		r.id += "-" + q.runSuffix
		q.register(r)
	}
	r.answer = Answer{ID: r.id, Client: c.name, Iterations: r.graph.Iterations, Outputs: map[string]Output{}}
	q.pending++
	c.pending++
	c.waiting++
	if c.deps.add(r); r.pendingDeps == 0 {
		q.step(q.arrival(r))
	}
	return nil
}

// refuseResults returns a problem if a request that is not asynchronous has results.
func refuseResults(graph *kgraph.Request) *kgraph.Problem {
	for i := range graph.Buffers {
		if b := &graph.Buffers[i]; b.Result {
			return problem(kgraph.BadRequest, "/buffers/"+kgraph.Pointer(b.Name)+"/result", "result, expected only in an asynchronous run (POST /v1/runs)")
		}
	}
	return nil
}

// check returns nil if at least one GPU can run the request with the objects that will exist when
// it runs. Otherwise it returns the request's first problem. A nil client has no objects. The
// caller holds the lock.
func (q *scheduler) check(graph *kgraph.Request, c *client, sigs signatures) *kgraph.Problem {
	var last *kgraph.Problem
	for _, dev := range q.devices { // accept the request if any GPU is large enough
		w := kgraph.World{Object: c.expects, Device: &dev.limits, Signature: sigs.of, Footprint: job.Footprint}
		problems := graph.Check(w)
		if len(problems) == 0 {
			return nil
		}
		last = problems[0]
		if last.Code != kgraph.TooLarge {
			break
		}
	}
	if last == nil {
		return problem(CodeInternal, "", "there is no GPU")
	}
	return last
}

// arrival registers a request and returns its Arrived event. The policy learns of a request
// only when its dependencies have finished.
func (q *scheduler) arrival(r *request) queue.Event {
	q.lastID++
	r.policyID = q.lastID
	q.requests[r.policyID] = r
	return &queue.Arrived{Function: r.client.number, ID: r.policyID, At: r.arrived.Sub(q.epoch)}
}

// withdraw cancels a queued request. It returns false if the request was already dispatched
// or has finished.
func (q *scheduler) withdraw(r *request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if r.dev != nil || r.finished {
		return false
	}
	q.conclude(r, problem(CodeInternal, "", "cancelled"))
	if r.withdrawn = true; r.pendingDeps > 0 { // it stays in deps, so that requests that depend on it still wait for earlier ones
		return true
	}
	var events []queue.Event
	if r.policyID != 0 {
		delete(q.requests, r.policyID)
		events = append(events, &queue.Cancelled{Function: r.client.number, ID: r.policyID})
	}
	q.step(append(events, q.removeRequest(r)...)...)
	return true
}

// removeRequest removes a request that has finished. It returns the arrivals of the requests that
// depended on it, and ends those of them that were withdrawn or read a result that does not exist. The caller holds the lock.
func (q *scheduler) removeRequest(r *request) (events []queue.Event) {
	r.memory.release()
	q.releaseModules(r)
	r.client.pending--
	if r.finished = true; r.dev == nil {
		r.client.waiting--
	}
	for _, next := range r.client.deps.remove(r) {
		p := next.client.missingResult(next.graph)
		switch {
		case next.withdrawn:
			events = append(events, q.removeRequest(next)...)
		case p != nil:
			events = append(events, q.refuse(next, p)...)
		default:
			events = append(events, q.arrival(next))
		}
	}
	if q.pending--; q.pending == 0 && q.idle != nil {
		close(q.idle)
		q.idle = nil
	}
	return events
}

// refuse ends a request that will not run, and removes it as removeRequest does. The caller holds the lock.
func (q *scheduler) refuse(r *request, p *kgraph.Problem) []queue.Event {
	r.refusal = p
	r.client.failed++
	q.conclude(r, p)
	events := q.removeRequest(r)
	close(r.turn)
	return events
}

// finish records the result of a request that ran and reports its completion to the policy.
func (q *scheduler) finish(r *request, p *kgraph.Problem) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	executed := now.Sub(r.dispatched)
	r.phases[0] = r.dispatched.Sub(r.arrived)
	r.answer.TotalMS, r.answer.Phases = ms(now.Sub(r.arrived)), r.phases.encode()
	r.answer.QueueMS = r.answer.Phases.QueueMS
	c := r.client
	if p != nil {
		c.failed++
	} else {
		c.completed++
		c.phases.add(&r.phases)
	}
	c.ran += executed
	r.dev.ran += executed
	r.dev.running = nil
	q.metrics.observe(r, p)
	q.conclude(r, p)
	delete(q.requests, r.policyID)
	var events []queue.Event
	if r.coldStart {
		events = append(events, &queue.Started{ID: r.policyID, Instance: r.instance, Function: c.number})
	}
	events = append(events, &queue.Completed{Execution: queue.Execution{ID: r.policyID, Instance: r.instance, Function: c.number, Executed: executed}})
	q.deferWake = true
	q.step(append(events, q.removeRequest(r)...)...)
	q.deferWake = false
	q.wakeDispatched()
}

// step passes events to the policy and carries out its actions. The caller holds the lock.
func (q *scheduler) step(events ...queue.Event) {
	for len(events) > 0 {
		q.actions = q.policy.Step(q.now(), events, q.actions[:0])
		events = events[:0:0]
		for i := range q.actions {
			switch a := &q.actions[i]; a.Kind {
			case queue.Run:
				q.dispatch(a)
			case queue.Reject:
				if r := q.requests[a.ID]; r != nil {
					delete(q.requests, a.ID)
					events = append(events, q.refuse(r, problem(CodeInternal, "", "the policy rejected the request: %s", a.Reason.Code))...)
				}
			case queue.Start, queue.Remove, queue.Offload, queue.Prefetch:
				// Confirm at once, without moving memory: runner.plan evicts objects when the next request runs.
				event, _ := a.Confirmation()
				events = append(events, event)
			case queue.Forget:
				q.numbers.Forget(a.Function)
			case queue.Wake:
				if q.timer.Stop(); a.At != queue.Never {
					q.timer.Reset(a.At - q.now())
				}
			}
		}
	}
}

// dispatch dispatches a request: it wakes the goroutine in await, or leaves that to
// wakeDispatched. The caller holds the lock.
func (q *scheduler) dispatch(a *queue.Action) {
	r := q.requests[a.ID]
	if r == nil {
		return
	}
	r.dev, r.instance, r.coldStart, r.dispatched = q.devices[a.GPU], a.Instance, a.Start == residency.Cold, time.Now()
	r.dev.running = r
	r.answer.GPU = int(a.GPU)
	r.client.waiting--
	r.client.lastReason = a.Reason
	if q.deferWake {
		q.dispatched = append(q.dispatched, r)
		return
	}
	close(r.turn)
}

// wakeDispatched wakes the goroutines of the requests in scheduler.dispatched. Before it wakes one,
// it launches the request itself if that needs no preparation (the client's executor runs, no
// object must come from another GPU, and the lane is free), so that the GPU does not idle until the
// goroutine runs. The caller holds the lock.
func (q *scheduler) wakeDispatched() {
	for _, r := range q.dispatched {
		if w := r.dev.workers[r.client.dom]; w != nil && w.exec != nil && !r.needsGather() && r.dev.lane.TryLock() {
			r.launched = q.launch(r, w)
		}
		close(r.turn)
	}
	clear(q.dispatched)
	q.dispatched = q.dispatched[:0]
}

// timerExpired passes the timer's expiry to the policy.
func (q *scheduler) timerExpired() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.step(&queue.Woke{})
}

// drainGrace is how much longer than KernelTimeout drain waits. A running request whose kernel hangs
// then still fails with CodeTimeout.
const drainGrace = 10 * time.Second

// drain refuses new requests and waits for those in progress, for at most KernelTimeout and drainGrace.
func (q *scheduler) drain() {
	q.mu.Lock()
	q.draining = true
	idle := make(chan struct{})
	if q.pending == 0 {
		close(idle)
	} else {
		q.idle = idle
	}
	q.mu.Unlock()
	limit := q.cfg.KernelTimeout + drainGrace
	select {
	case <-idle:
	case <-time.After(limit):
		q.log.Warn("stopping without waiting for the remaining requests", "after", limit.String())
	}
}
