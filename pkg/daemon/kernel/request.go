package kernel

import (
	"time"

	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// request is a request from its arrival until it has finished.
type request struct {
	id      string
	client  *client
	graph   *kgraph.Request
	run     *asyncRun       // nil unless the request is asynchronous
	modules []*storedModule // of the client, which the request uses
	memory  *reservation    // released when the request has finished
	arrived time.Time

	// Guarded by the daemon's lock.
	pendingDeps int        // number of earlier requests on which this one depends
	dependents  []*request // requests that depend on this one
	withdrawn   bool       // the caller disconnected; the request ends once pendingDeps is 0
	policyID    int64      // 0 if the policy does not know the request
	dev         *device    // the GPU that the policy chose; nil while queued
	instance    residency.ID
	coldStart   bool // a cold start: the policy expects a Started event
	dispatched  time.Time
	finished    bool
	squeeze     bool            // retry with an otherwise empty GPU, which has less memory than its budget
	missed      map[string]bool // keys of objects that gather copied from another GPU

	launched *plan // set by wakeDispatched; nil if the request must launch itself

	phases  phases
	turn    chan struct{}   // closed when the request is dispatched or refused
	refusal *kgraph.Problem // reason for a refusal; nil if dispatched
	answer  Answer
}

// Answer is the result of a request.
type Answer struct {
	ID         string            `json:"id"`
	Client     string            `json:"client"`
	GPU        int               `json:"gpu"`
	Iterations int               `json:"iterations"`
	QueueMS    float64           `json:"queue_ms"`
	GPUMS      float64           `json:"gpu_ms"`
	TotalMS    float64           `json:"total_ms"`
	Phases     Phases            `json:"phases"`
	Outputs    map[string]Output `json:"outputs"`
	Cache      Cache             `json:"cache"`
}

// Output describes the result in one buffer.
type Output struct {
	Key  string `json:"key,omitempty"`
	Size int64  `json:"size"`
	Data []byte `json:"data,omitempty"` // base64, if requested inline

	from *object // holds the bytes of Data until they are sent; nil if there are none
}

// Cache counts where the request's objects were found, and the transfers that it caused.
type Cache struct {
	GPUHits       int   `json:"gpu_hits"`
	HostHits      int   `json:"host_hits"`
	Misses        int   `json:"misses"`
	BytesUp       int64 `json:"bytes_up"`
	Evicted       int64 `json:"evicted"`
	ModulesLinked int   `json:"modules_linked"`
}

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

func (r *request) onOtherGPU(o *object) bool { return o != nil && o.host == nil && o.home != r.dev }

// needsGather reports whether an object that the request reads is on another GPU alone. The
// caller holds the lock.
func (r *request) needsGather() bool {
	for i := range r.graph.Buffers {
		if b := &r.graph.Buffers[i]; b.Reads() && r.onOtherGPU(r.client.objects[b.Key]) {
			return true
		}
	}
	return false
}
