package kernel

import (
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/reason"
)

const waitingForOwn reason.Code = "waiting-for-own-request"

// Reasons documents the code that the daemon itself gives as a reason, in addition to the policy's.
var Reasons = reason.Table{
	reason.Doc(waitingForOwn, "waits for an earlier request of the same client: both use an object that at least one of them writes"),
}

// Stats describes the state of a daemon.
type Stats struct {
	Policy   string        `json:"policy"`
	Host     HostStats     `json:"host"`
	Requests RequestStats  `json:"requests"`
	GPUs     []GPUStats    `json:"gpus"`
	Clients  []ClientStats `json:"clients"`
}

// HostStats describes the host tier.
type HostStats struct {
	Used   int64 `json:"used"` // bytes of all objects (those only on GPUs and dropped ones with readers included) and of answers
	Budget int64 `json:"budget"`
}

// RequestStats describes the host memory that requests use, from their arrival until their
// answers are sent.
type RequestStats struct {
	Used   int64 `json:"used"` // bytes
	Budget int64 `json:"budget"`
}

// GPUStats describes the state of one GPU.
type GPUStats struct {
	GPU       int     `json:"gpu"`
	Device    string  `json:"device"` // as given to --gpu
	Name      string  `json:"name"`   // as reported by the driver
	Running   string  `json:"running,omitempty"`
	Client    string  `json:"client,omitempty"` // owner of the running request
	Used      int64   `json:"used"`             // bytes of blocks in GPU memory
	Budget    int64   `json:"budget"`
	Objects   int     `json:"objects"`
	Modules   int     `json:"modules"`
	BusyMS    float64 `json:"busy_ms"`
	Evicted   int64   `json:"evicted"`
	Executors int     `json:"executors"`
	PIDs      []int   `json:"pids"`    // of the executors, sorted
	Started   int     `json:"started"` // number of executors started so far
	Faults    int     `json:"faults"`  // number of executors killed after a failed job
}

// ClientStats describes the state of one client.
type ClientStats struct {
	Client       string  `json:"client"`
	Weight       float64 `json:"weight"`
	Objects      int     `json:"objects"`
	Bytes        int64   `json:"bytes"`   // charged to HostStats.Used
	Modules      int     `json:"modules"` // stored under a name
	Runs         int     `json:"runs"`    // asynchronous runs, finished ones included
	Waiting      int     `json:"waiting"`
	Running      int     `json:"running"`
	Completed    int     `json:"done"`
	Failed       int     `json:"failed"`
	RequestBytes int64   `json:"held"`   // bytes of its requests in progress
	Busy         int     `json:"busy"`   // requests refused because its queue or its memory was full
	RanMS        float64 `json:"ran_ms"` // time for which its requests occupied GPUs
	GPUMS        float64 `json:"gpu_ms"` // kernel time of its requests
	Phases       Phases  `json:"phases"` // sums over its completed requests
	Why          string  `json:"why"`    // text form of QueueReason
	Last         string  `json:"last"`   // text form of DispatchReason
	Share        float64 `json:"share"`  // fraction of the time of all GPUs' requests, 0 to 1

	QueueReason    reason.Reason `json:"reason,omitzero"`      // why its next request is queued
	DispatchReason reason.Reason `json:"last_reason,omitzero"` // why its last request was dispatched
}

// status returns the state. If only is not empty, it hides the other clients. The caller holds
// the lock.
func (q *scheduler) status(only string) Stats {
	used, byClient := q.requestMemory.usage()
	s := Stats{Policy: q.cfg.Policy, Host: HostStats{q.bytes, q.cfg.HostMem}, Requests: RequestStats{used, q.requestMemory.limit}, GPUs: []GPUStats{}, Clients: []ClientStats{}}
	var total float64
	for _, dev := range q.devices {
		g := GPUStats{GPU: int(dev.number), Device: dev.name, Name: dev.limits.Name, Used: dev.cache.Used(), Budget: dev.cache.Budget(),
			Objects: dev.cache.Len(), BusyMS: ms(dev.ran), Evicted: dev.evicted, Started: dev.starts, Faults: dev.faults, PIDs: []int{}}
		for _, w := range dev.workers {
			if w.exec != nil {
				g.Executors++
				g.PIDs = append(g.PIDs, w.exec.Pid())
				g.Modules += len(w.modules)
			}
		}
		slices.Sort(g.PIDs)
		if r := dev.running; r != nil && (only == "" || r.client.name == only) {
			g.Running, g.Client = r.id, r.client.name
		}
		total += ms(dev.ran)
		s.GPUs = append(s.GPUs, g)
	}
	reasons := map[int32]reason.Reason{}
	running := map[int32]int{}
	for _, f := range q.policy.Snapshot().Functions {
		reasons[f.Function], running[f.Function] = f.WaitReason, f.InFlight
	}
	for _, c := range q.clients {
		if only != "" && c.name != only {
			continue
		}
		st := ClientStats{Client: c.name, Weight: c.weight, Objects: len(c.objects), Bytes: c.bytes, Modules: len(c.modules), Runs: len(c.runs), Waiting: c.waiting, Running: running[c.number],
			RequestBytes: byClient[c.name], Completed: c.completed, Failed: c.failed, Busy: c.busy, RanMS: ms(c.ran), GPUMS: ms(c.gpuTime), Phases: c.phases.encode(), QueueReason: reasons[c.number], DispatchReason: c.lastReason.Full()}
		if st.QueueReason.IsZero() && c.waiting > 0 {
			st.QueueReason = reason.New(waitingForOwn)
		}
		st.Why, st.Last = st.QueueReason.String(), st.DispatchReason.String()
		if total > 0 {
			st.Share = ms(c.ran) / total
		}
		s.Clients = append(s.Clients, st)
	}
	slices.SortFunc(s.Clients, func(a, b ClientStats) int { return strings.Compare(a.Client, b.Client) })
	return s
}
