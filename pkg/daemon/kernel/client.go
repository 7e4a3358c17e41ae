package kernel

import (
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// client owns requests and objects. The policy treats each client as one function.
type client struct {
	name         string
	number       int32
	weight       float64
	weightSet    bool    // the weight was set explicitly; forget spares this client
	dom          *domain // host memory for its objects
	objects      map[string]*object
	reserved     int   // reserved places for objects that are not stored yet
	bytes        int64 // charged to the host's budget
	deps         dependencies
	pending      int                      // requests in progress, queued ones included
	waiting      int                      // queued requests
	modules      map[string]*storedModule // by name
	runs         map[string]*asyncRun     // by ID
	finishedRuns []*asyncRun              // in the order in which they finished
	lastUsed     time.Duration            // time of the last request or upload, in policy time

	completed, failed int           // finished requests
	busy              int           // requests refused because its queue or its memory was full
	gpuTime           time.Duration // kernel time of its requests
	ran               time.Duration // time for which its requests occupied GPUs
	phases            phases        // of its completed requests
	lastReason        queue.Reason  // the policy's reason for its last dispatch
}

// ValidClient reports whether name is a valid client name.
func ValidClient(name string) bool {
	return kgraph.ValidKey(name) && !strings.Contains(name, "/") && len(name) <= 63
}

// expects returns the size that the object under key will have when a request that arrives
// now runs: the size that the last writer in progress gives it, or else the current size. It
// returns false if there will be no object. A nil client has none. The caller holds the lock.
func (c *client) expects(key string) (int64, bool) {
	if c == nil {
		return 0, false
	}
	if a := c.deps[key]; a != nil {
		for _, writer := range slices.Backward(a.writers) {
			if writer.withdrawn {
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

// dependencies records dependencies between the requests of one client that access the same
// objects. The map's key is the object's key.
type dependencies map[string]*access

// access lists the requests in progress that access one key.
type access struct {
	writers []*request // in order of arrival; each waits for its predecessor
	readers []*request // readers that arrived after the last writer
}

// lastWriter returns the last writer, or nil if there is none.
func (a *access) lastWriter() *request {
	if len(a.writers) == 0 {
		return nil
	}
	return a.writers[len(a.writers)-1]
}

// add adds a request. It makes the request depend on each earlier request that writes an object
// that the request accesses, or accesses an object that the request writes. r.pendingDeps counts
// these dependencies.
func (d dependencies) add(r *request) {
	after := func(earlier *request) {
		if earlier != nil && earlier != r && !slices.Contains(earlier.dependents, r) {
			earlier.dependents = append(earlier.dependents, r)
			r.pendingDeps++
		}
	}
	for i := range r.graph.Buffers {
		b := &r.graph.Buffers[i]
		if b.Key == "" {
			continue
		}
		a := d[b.Key]
		if a == nil {
			a = &access{}
			d[b.Key] = a
		}
		after(a.lastWriter())
		if b.Writes() {
			for _, reader := range a.readers {
				after(reader)
			}
			a.writers, a.readers = append(a.writers, r), nil
		} else if a.lastWriter() != r { // a writer of the object needs no entry as a reader
			a.readers = append(a.readers, r)
		}
	}
}

// remove removes a request that no longer depends on others. It returns the requests that it was the
// last dependency of.
func (d dependencies) remove(r *request) (ready []*request) {
	for i := range r.graph.Buffers {
		key := r.graph.Buffers[i].Key
		a := d[key]
		if a == nil {
			continue
		}
		isR := func(other *request) bool { return other == r }
		a.writers, a.readers = slices.DeleteFunc(a.writers, isR), slices.DeleteFunc(a.readers, isR)
		if len(a.writers)+len(a.readers) == 0 {
			delete(d, key)
		}
	}
	for _, next := range r.dependents {
		if next.pendingDeps--; next.pendingDeps == 0 {
			ready = append(ready, next)
		}
	}
	r.dependents = nil
	return ready
}
