package kernel

import (
	"slices"
	"strings"
)

// Stats is how a daemon stands.
type Stats struct {
	Policy   string        `json:"policy"`
	Host     HostStats     `json:"host"`
	Requests RequestStats  `json:"requests"`
	GPUs     []GPUStats    `json:"gpus"`
	Clients  []ClientStats `json:"clients"`
}

// HostStats is the host's tier.
type HostStats struct {
	Used   int64 `json:"used"` // bytes of all objects, of those on GPUs alone, of those gone that are still read, and of answers that are sent
	Budget int64 `json:"budget"`
}

// RequestStats is what requests take of the host, from when they come until their
// answers are taken.
type RequestStats struct {
	Used   int64 `json:"used"` // bytes
	Budget int64 `json:"budget"`
}

// GPUStats is one GPU.
type GPUStats struct {
	GPU       int     `json:"gpu"`
	Device    string  `json:"device"` // as --gpu names it
	Name      string  `json:"name"`   // as the driver does
	Running   string  `json:"running,omitempty"`
	Client    string  `json:"client,omitempty"` // whose request runs
	Used      int64   `json:"used"`             // bytes of what is kept there
	Budget    int64   `json:"budget"`
	Objects   int     `json:"objects"`
	Modules   int     `json:"modules"`
	BusyMS    float64 `json:"busy_ms"`
	Evicted   int64   `json:"evicted"`
	Executors int     `json:"executors"`
	PIDs      []int   `json:"pids"`    // of those, sorted
	Started   int     `json:"started"` // executors, since the beginning
	Faults    int     `json:"faults"`  // executors that ended with a request
}

// ClientStats is one client.
type ClientStats struct {
	Client  string  `json:"client"`
	Weight  float64 `json:"weight"`
	Objects int     `json:"objects"`
	Bytes   int64   `json:"bytes"` // its part of what the host has used
	Waiting int     `json:"waiting"`
	Running int     `json:"running"`
	Done    int     `json:"done"`
	Failed  int     `json:"failed"`
	Held    int64   `json:"held"`   // bytes that those take, and others that are not over
	Busy    int     `json:"busy"`   // refused because too many waited, or too much of them
	RanMS   float64 `json:"ran_ms"` // GPUs were its
	GPUMS   float64 `json:"gpu_ms"` // of its kernels
	Why     string  `json:"why"`    // why its next request waits
	LastWhy string  `json:"last"`   // why its last went when it did
	Share   float64 `json:"share"`  // of all that GPUs ran, 0 to 1
}

// status is the state; of one client alone where it is named. Locked.
func (d *Daemon) status(only string) Stats {
	used, held := d.held.has()
	s := Stats{Policy: d.cfg.Policy, Host: HostStats{d.hostUsed, d.cfg.HostMem}, Requests: RequestStats{used, d.held.budget}, GPUs: []GPUStats{}, Clients: []ClientStats{}}
	var all float64
	for _, dev := range d.devices {
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
		all += ms(dev.ran)
		s.GPUs = append(s.GPUs, g)
	}
	why := map[int32]string{}
	running := map[int32]int{}
	for _, f := range d.policy.Snapshot().Functions {
		why[f.Function], running[f.Function] = f.Why, f.InFlight
	}
	for _, c := range d.clients {
		if only != "" && c.name != only {
			continue
		}
		st := ClientStats{Client: c.name, Weight: c.weight, Objects: len(c.objects), Bytes: c.bytes, Waiting: c.waiting, Running: running[c.number],
			Held: held[c.name], Done: c.done, Failed: c.failed, Busy: c.busy, RanMS: ms(c.ran), GPUMS: ms(c.gpuTime), Why: why[c.number], LastWhy: c.why.Rule}
		if st.Why == "" && c.waiting > 0 {
			st.Why = "an earlier request of its own writes what it touches, or touches what it writes"
		}
		if all > 0 {
			st.Share = ms(c.ran) / all
		}
		s.Clients = append(s.Clients, st)
	}
	slices.SortFunc(s.Clients, func(a, b ClientStats) int { return strings.Compare(a.Client, b.Client) })
	return s
}
