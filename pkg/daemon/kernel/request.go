package kernel

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// request is one that was accepted.
type request struct {
	id     string
	client *client
	graph  *kgraph.Request
	hold   *hold // while it has a place in the queue
	came   time.Time

	// Under the daemon's lock.
	behind   int        // earlier ones that have to end first
	next     []*request // that wait for this one
	left     bool       // by its caller: it keeps its place, and ends when its turn comes
	policyID int64      // 0: the policy does not know it
	dev      *device    // where it runs; nil until it does
	instance residency.ID
	fresh    bool // the policy starts an instance for it
	began    time.Time
	over     bool
	squeeze  bool            // the GPU has less memory than its budget: nothing else stays there
	missed   map[string]bool // keys of objects that were on another GPU alone

	launched *flight // by who made room for it; nil: it launches itself

	turn   chan struct{} // closed when it may run, or is refused
	refuse *Problem      // why then; nil: it may run
	answer Answer
}

// Answer is what a request came to.
type Answer struct {
	ID         string            `json:"id"`
	Client     string            `json:"client"`
	GPU        int               `json:"gpu"`
	Iterations int               `json:"iterations"`
	QueueMS    float64           `json:"queue_ms"`
	GPUMS      float64           `json:"gpu_ms"`
	TotalMS    float64           `json:"total_ms"`
	Outputs    map[string]Output `json:"outputs"`
	Cache      Cache             `json:"cache"`
}

// Output is what became of a buffer that was asked for.
type Output struct {
	Key  string `json:"key,omitempty"`
	Size int64  `json:"size"`
	Data []byte `json:"data,omitempty"` // base64, where inline was asked for

	from *object // whose bytes the data is, until it is sent; nil: there is none
}

// Cache is what a request found where, and what was moved for it.
type Cache struct {
	GPUHits       int   `json:"gpu_hits"`
	HostHits      int   `json:"host_hits"`
	Misses        int   `json:"misses"`
	BytesUp       int64 `json:"bytes_up"`
	Evicted       int64 `json:"evicted"`
	ModulesLinked int   `json:"modules_linked"`
}

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// enter reads a request and has it wait for its turn.
func (d *Daemon) enter(ctx context.Context, h *hold, body *steady, length int64) (*request, *Problem) {
	text, p := h.read(body, length)
	if p != nil {
		return nil, d.noRoom(h, p)
	}
	body.rest()
	came := time.Now()
	if len(text) > keptRequest {
		over, p := h.parsing(ctx)
		if p != nil {
			return nil, p
		}
		defer over()
	}
	graph, read, p := d.parse(text)
	if p != nil {
		return nil, p
	}
	if p := h.want(takes(graph)); p != nil { // the text goes when this returns
		return nil, d.noRoom(h, p)
	}
	r := &request{graph: graph, hold: h, came: came, turn: make(chan struct{})}
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.accept(r, h.name, read); p != nil {
		return nil, p
	}
	return r, nil
}

// noRoom counts a request that was refused for what others of its client take.
func (d *Daemon) noRoom(h *hold, p *Problem) *Problem {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.clients[h.name]; c != nil && p.Code == CodeBusy {
		c.busy++
	}
	return p
}

// await runs a request when its turn comes and returns when it is over, or when its
// caller has left before it began.
func (d *Daemon) await(ctx context.Context, r *request) (*Answer, *Problem) {
	select {
	case <-r.turn:
	case <-ctx.Done():
		if d.withdraw(r) {
			return nil, problem(CodeInternal, "", "the caller has left")
		}
		<-r.turn // it was about to run: it is not cut
	}
	if r.refuse != nil {
		return nil, r.refuse
	}
	p := d.execute(r)
	d.finish(r, p)
	if p != nil {
		return nil, p
	}
	return &r.answer, nil
}

// accept checks a request against what is there and has it wait. Locked.
func (d *Daemon) accept(r *request, name string, read signatures) *Problem {
	if d.draining {
		return problem(CodeBusy, "", "the daemon is shutting down")
	}
	c := d.clients[name]
	if c != nil && c.waiting >= maxWaiting {
		c.busy++
		return problem(CodeBusy, "", "%d requests of %s wait already", c.waiting, c.name)
	}
	if p := d.check(r.graph, c, read); p != nil {
		if c != nil {
			c.failed++
		}
		return p
	}
	c, p := d.client(name)
	if p != nil {
		return p
	}
	r.hold.join()
	d.lastRun++
	r.id, r.client = "r-"+strconv.FormatUint(d.lastRun, 10), c
	r.answer = Answer{ID: r.id, Client: c.name, Iterations: r.graph.Iterations, Outputs: map[string]Output{}}
	d.pending++
	c.pending++
	c.waiting++
	if c.order.enter(r); r.behind == 0 {
		d.step(d.arrival(r))
	}
	return nil
}

// check finds what is wrong with a request, given the objects that are there or
// will be when it runs; a client that is nil has none. Locked.
func (d *Daemon) check(graph *kgraph.Request, c *client, read signatures) *Problem {
	var last *kgraph.Problem
	for _, dev := range d.devices { // the largest takes what any can
		w := kgraph.World{Object: c.expects, Device: &dev.limits, Signature: read.of, Footprint: footprint}
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
	return problem(last.Code, last.Where, "%s", last.Message)
}

// expects is the size that the object of a key will have when a request that comes
// now runs. Locked.
func (c *client) expects(key string) (int64, bool) {
	if c == nil {
		return 0, false
	}
	if a := c.order[key]; a != nil {
		for _, writer := range slices.Backward(a.writers) {
			if writer.left {
				continue
			}
			for i := range writer.graph.Buffers {
				if b := &writer.graph.Buffers[i]; b.Key == key && b.Writes() {
					return b.Size, true
				}
			}
		}
	}
	if o := c.objects[key]; o != nil {
		return o.size, true
	}
	return 0, false
}

// arrival tells the policy of a request. It knows those alone that could run now.
func (d *Daemon) arrival(r *request) queue.Event {
	d.lastID++
	r.policyID = d.lastID
	d.requests[r.policyID] = r
	return queue.Event{Kind: queue.Arrived, Function: r.client.number, ID: r.policyID, At: r.came.Sub(d.epoch)}
}

// withdraw takes a request out that waits; false if it does not any more.
func (d *Daemon) withdraw(r *request) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.dev != nil || r.over {
		return false
	}
	if r.left = true; r.behind > 0 { // those behind it wait for those before it
		return true
	}
	var events []queue.Event
	if r.policyID != 0 {
		delete(d.requests, r.policyID)
		events = append(events, queue.Event{Kind: queue.Cancelled, Function: r.client.number, ID: r.policyID})
	}
	d.step(append(events, d.ended(r)...)...)
	return true
}

// ended takes a request out that is over, and has those come that waited for it.
// Locked.
func (d *Daemon) ended(r *request) (events []queue.Event) {
	r.hold.leave()
	r.client.pending--
	if r.over = true; r.dev == nil {
		r.client.waiting--
	}
	for _, next := range r.client.order.leave(r) {
		if next.left {
			events = append(events, d.ended(next)...)
		} else {
			events = append(events, d.arrival(next))
		}
	}
	if d.pending--; d.pending == 0 && d.idle != nil {
		close(d.idle)
		d.idle = nil
	}
	return events
}

// finish tells the policy that a request has run.
func (d *Daemon) finish(r *request, p *Problem) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	took := now.Sub(r.began)
	r.answer.QueueMS, r.answer.TotalMS = ms(r.began.Sub(r.came)), ms(now.Sub(r.came))
	c := r.client
	if p != nil {
		c.failed++
	} else {
		c.done++
	}
	c.ran += took
	r.dev.ran += took
	r.dev.running = nil
	d.metrics.observe(r, p)
	delete(d.requests, r.policyID)
	var events []queue.Event
	if r.fresh {
		events = append(events, queue.Event{Kind: queue.Started, ID: r.policyID, Instance: r.instance, Function: c.number, GPU: r.dev.number})
	}
	events = append(events, queue.Event{Kind: queue.Completed, ID: r.policyID, Instance: r.instance, Function: c.number, GPU: r.dev.number, Executed: took})
	d.handing = true
	d.step(append(events, d.ended(r)...)...)
	d.handing = false
	d.hand()
}

// step tells the policy what happened and does what it says. Locked.
func (d *Daemon) step(events ...queue.Event) {
	for len(events) > 0 {
		d.actions = d.policy.Step(d.now(), events, d.actions[:0])
		events = events[:0:0]
		for i := range d.actions {
			switch a := &d.actions[i]; a.Kind {
			case queue.Run:
				d.begin(a)
			case queue.Reject:
				if r := d.requests[a.ID]; r != nil {
					delete(d.requests, a.ID)
					r.refuse = problem(CodeInternal, "", "%s", a.Reason.Rule)
					events = append(events, d.ended(r)...)
					close(r.turn)
				}
			case queue.Start, queue.Remove, queue.Offload, queue.Prefetch:
				// The objects go when the next client's first request comes (plan).
				answer, _ := a.Answer()
				events = append(events, answer)
			case queue.Forget:
				d.numbers.Forget(a.Function)
			case queue.Wake:
				if d.timer.Stop(); a.At != queue.Never {
					d.timer.Reset(a.At - d.now())
				}
			}
		}
	}
}

// begin has a request run: whoever waits for it executes it. Locked.
func (d *Daemon) begin(a *queue.Action) {
	r := d.requests[a.ID]
	if r == nil {
		return
	}
	r.dev, r.instance, r.fresh, r.began = d.devices[a.GPU], a.Instance, a.Start == residency.Cold, time.Now()
	r.dev.running = r
	r.answer.GPU = int(a.GPU)
	r.client.waiting--
	r.client.why = a.Reason
	if d.handing {
		d.begun = append(d.begun, r)
		return
	}
	close(r.turn)
}

// hand launches what begins now that another request is over, where that is simple,
// so that the GPU need not wait for whoever waits for it to wake up. Locked.
func (d *Daemon) hand() {
	for _, r := range d.begun {
		if w := r.dev.workers[r.client.dom]; w != nil && w.exec != nil && !d.scattered(r) && r.dev.lane.TryLock() {
			r.launched = d.launch(r, w)
		}
		close(r.turn)
	}
	clear(d.begun)
	d.begun = d.begun[:0]
}

// woke is when the policy wanted to be asked again.
func (d *Daemon) woke() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.step(queue.Event{Kind: queue.Woke})
}
