package kernel

import (
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// client is whoever requests and objects belong to; to the policy it is a function.
type client struct {
	name    string
	number  int32
	weight  float64
	dom     *domain // where its objects are on the host
	objects map[string]*object
	coming  int   // objects that have a place and are not there yet
	bytes   int64 // of the host's budget
	order   order
	pending int           // requests that have come and are not over
	waiting int           // those of them that do not run
	kept    bool          // somebody gave it its weight
	came    time.Duration // since the daemon began, with its last request or object

	done, failed, busy int
	gpuTime            time.Duration // of its requests' kernels
	ran                time.Duration // GPUs were taken by it
	why                queue.Reason  // why its last request ran when and where it did
}

// ValidClient says whether a client may have that name.
func ValidClient(name string) bool {
	for i := range len(name) {
		c := name[i]
		word := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !word && (i == 0 || !strings.ContainsRune("._-", rune(c))) {
			return false
		}
	}
	return name != "" && len(name) <= 63
}

// client is the one of that name, a new one if there is none, for what is taken of it.
// Locked.
func (d *Daemon) client(name string) (*client, *Problem) {
	if c := d.clients[name]; c != nil {
		c.came = d.now()
		return c, nil
	}
	if len(d.clients) >= maxClients && !d.forget() {
		return nil, problem(CodeBusy, "", "there are %d clients already", maxClients)
	}
	dom := d.shared
	if dom == nil {
		var err error
		if dom, err = d.newDomain(); err != nil {
			return nil, problem(CodeInternal, "", "%v", err)
		}
	}
	c := &client{name: name, number: d.numbers.Of(name), dom: dom, objects: map[string]*object{}, order: order{}, came: d.now()}
	d.clients[name] = c
	d.weigh(c, 1)
	return c, nil
}

// forget has the client go that came last the longest ago, of those of which nothing
// is left but what they did; false if there is none. Locked.
func (d *Daemon) forget() bool {
	var oldest *client
	for _, c := range d.clients {
		if !c.kept && c.pending == 0 && c.bytes == 0 && (oldest == nil || c.came < oldest.came) {
			oldest = c
		}
	}
	if oldest == nil || d.draining {
		return false
	}
	delete(d.clients, oldest.name)
	d.step(queue.Event{Kind: queue.FunctionGone, Function: oldest.number})
	if oldest.dom != d.shared {
		d.retire(oldest.dom)
	}
	return true
}

// keep gives a client a weight for as long as the daemon runs. Locked.
func (d *Daemon) keep(name string, weight float64) *Problem {
	c, p := d.client(name)
	if p != nil {
		return p
	}
	c.kept = true
	d.weigh(c, weight)
	return nil
}

// weigh tells the policy a client's weight. Locked.
func (d *Daemon) weigh(c *client, weight float64) {
	c.weight = weight
	// What the policy expects at first; what requests take it learns at their ends.
	const expected = time.Millisecond
	d.step(queue.Event{Kind: queue.FunctionSet, Function: c.number, Spec: &queue.Function{
		Warm: expected, Cold: expected, Weight: weight, Inflight: 1, Name: c.name}})
}

// order keeps a client's requests apart that touch the same objects: by key, who
// has to end before the next may begin.
type order map[string]*access

// access is who uses a key, of the requests that are not over.
type access struct {
	writers []*request // that write it: each waits for the one before
	readers []*request // those after the last of them that read it
}

// last is the last that writes it; nil if none does.
func (a *access) last() *request {
	if len(a.writers) == 0 {
		return nil
	}
	return a.writers[len(a.writers)-1]
}

// enter has a request wait for the earlier ones that write what it touches, or
// touch what it writes.
func (o order) enter(r *request) {
	after := func(earlier *request) {
		if earlier != nil && earlier != r && !slices.Contains(earlier.next, r) {
			earlier.next = append(earlier.next, r)
			r.behind++
		}
	}
	at := func(key string) *access {
		if o[key] == nil {
			o[key] = &access{}
		}
		return o[key]
	}
	for i := range r.graph.Buffers {
		b := &r.graph.Buffers[i]
		if b.Key == "" {
			continue
		}
		a := at(b.Key)
		after(a.last())
		if b.Writes() {
			for _, reader := range a.readers {
				after(reader)
			}
			a.writers, a.readers = append(a.writers, r), nil
		} else if a.last() != r {
			a.readers = append(a.readers, r)
		}
	}
}

// leave takes a request out that waits for none, and names those that need wait no longer.
func (o order) leave(r *request) (ready []*request) {
	for i := range r.graph.Buffers {
		key := r.graph.Buffers[i].Key
		a := o[key]
		if a == nil {
			continue
		}
		a.writers, a.readers = without(a.writers, r), without(a.readers, r)
		if len(a.writers)+len(a.readers) == 0 {
			delete(o, key)
		}
	}
	for _, next := range r.next {
		if next.behind--; next.behind == 0 {
			ready = append(ready, next)
		}
	}
	r.next = nil
	return ready
}

func without(list []*request, r *request) []*request {
	if i := slices.Index(list, r); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}
