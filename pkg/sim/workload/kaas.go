package workload

import (
	"slices"

	"github.com/gfaas/gfaas/pkg/trace"
)

// kaasApps is Table 1 of KaaS: memory in MB and GPU time in ms.
var kaasApps = []struct {
	name              string
	constant, dynamic float64
	gpuTime           float64
}{
	{"resnet50", 129, 6, 4}, {"bert", 1300, 6, 92}, {"cgemm", 2000, 8, 39}, {"jacobi", 0, 1, 52},
}

const (
	kaasBytesPerMS  = 12 * (1 << 30) / 1e3 // from the host to a GPU; not printed
	kaasProcessMS   = 400                  // start of a Python process (section 5.2)
	bytesPerMB      = 1e6
	kaasKernelTasks = "ktask"
	kaasProcesses   = "etask"
)

// KaaSApps returns the names of the applications.
func KaaSApps() (names []string) {
	for _, a := range kaasApps {
		names = append(names, a.name)
	}
	return names
}

// KaaSWorkers returns the kinds of tasks: kernel tasks, which share the process of an executor, and
// tasks in a process of their own.
func KaaSWorkers() []string { return []string{kaasKernelTasks, kaasProcesses} }

// KaaS describes the multi-tenant workload of KaaS (section 5.3): clients that run the same
// application.
type KaaS struct {
	App         string
	Worker      string
	Clients     int
	Outstanding int     // with Rate 0: invocations of each client at time 0
	Rate        float64 // invocations per second of all clients; 0 means all at time 0
	Duration    float64 // seconds; for a Rate
}

// DefaultKaaS returns four clients for each of the paper's four GPUs. Four outstanding requests let
// a single client use all of them.
func DefaultKaaS() KaaS {
	return KaaS{App: kaasApps[0].name, Worker: kaasKernelTasks, Clients: 16, Outstanding: 4}
}

// Generate draws the workload.
func (k KaaS) Generate(seed uint64) Workload {
	app := kaasApps[slices.Index(KaaSApps(), k.App)]
	load := app.constant * bytesPerMB / kaasBytesPerMS
	cold := app.gpuTime + load
	if k.Worker == kaasProcesses {
		cold += kaasProcessMS
	}
	var w Workload
	for i := range k.Clients {
		f := function(i, k.Clients, costsMS{warm: app.gpuTime, cold: cold, load: load})
		f.MemMiB = (app.constant + app.dynamic) * bytesPerMB / (1 << 20)
		w.Functions = append(w.Functions, f)
	}
	if k.Rate > 0 {
		Mixed{Pattern: Pattern{Shape: "poisson"}, Rate: k.Rate, Duration: k.Duration}.addInvocations(&w, seed)
		return w
	}
	for range k.Outstanding {
		for i := range k.Clients {
			w.Rows = append(w.Rows, trace.Row{Function: int32(i)})
		}
	}
	return w
}
