package dispatch

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/reason"
	"github.com/gfaas/gfaas/pkg/status"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Status returns the status of the gateway.
func (d *Dispatcher) Status() status.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	snapshot := d.policy.policy.Snapshot()
	s := status.Status{GPUs: []status.GPU{}, Functions: []status.Function{}, Instances: []status.Instance{}}
	busy := map[int32]int{}
	standings := map[residency.ID]residency.InstanceStatus{}
	for _, i := range snapshot.Instances {
		standings[i.Instance] = i
		busy[i.GPU] += i.InFlight
	}
	queues := map[int32]queue.FunctionStatus{}
	for _, f := range snapshot.Functions {
		queues[f.Function] = f
	}
	for _, i := range d.Instances.byID {
		for _, gpu := range i.further {
			busy[gpu] += standings[i.id].InFlight
		}
	}
	slots := d.cfg.Concurrency
	if queue.OneAtATime(d.cfg.Policy.Policy) {
		slots = 1
	}
	for i, gpu := range d.GPUs.list {
		row := status.GPU{GPU: gpu.Name, Slots: &slots, Running: new(busy[int32(i)])}
		row.Closed = d.GPUs.closed[int32(i)]
		if gpu.Mem > 0 {
			row.MemMiB = new(mib(gpu.Mem))
		}
		if used, mem, known := usageOf(d.usage, gpu.Name); known {
			row.BusyPct, row.MemUsedMiB = new(100*used), new(mem)
		}
		if m := &d.memory.gpus[i]; m.known {
			row.MemUsedMiB, row.MemOtherMiB = new(mib(m.driver.Total-m.driver.Free)), new(mib(m.others))
		}
		s.GPUs = append(s.GPUs, row)
	}
	ready, planned, inFlight := map[*Function]int{}, map[*Function]float64{}, map[*Function]int{}
	loaded := d.Instances.loadedGPUs()
	for _, i := range d.Instances.byID {
		for _, a := range i.attempts {
			inFlight[a.function] += max(a.batch, 1)
		}
		if i.state == instanceReady {
			ready[i.function]++
			planned[i.function] += planRate(&i.function.definition, i.record)
		}
		s.Instances = append(s.Instances, i.status(standings[i.id]))
	}
	for _, f := range d.Instances.faults {
		faulted := summary(f.instance, "faulted")
		faulted.Fault = f.fault.String()
		s.Instances = append(s.Instances, faulted)
	}
	s.Instances = append(s.Instances, d.jobs...)
	slices.SortFunc(s.Instances, func(a, b status.Instance) int { return cmp.Compare(a.ID, b.ID) })
	for _, f := range d.inOrder() {
		if f.removed {
			continue
		}
		row := f.status(queues[f.number], ready[f])
		row.FalseMisses, row.LoadedGPUs = new(f.falseMisses), new(len(loaded[f.number]))
		if f.maxBatch > 0 { // the policy counts batches
			row.Waiting, row.InFlight = new(f.alone+f.gathered), new(inFlight[f])
		}
		if rps := planned[f]; rps > 0 {
			row.PlannedRPS = &rps
		}
		s.Functions = append(s.Functions, row)
	}
	slices.SortFunc(s.Functions, func(a, b status.Function) int { return cmp.Compare(a.Function, b.Function) })
	return s
}

// status returns the status of the function. Locked.
func (f *Function) status(q queue.FunctionStatus, ready int) status.Function {
	s := status.Function{Function: f.name, State: status.Idle, Waiting: &q.Waiting, InFlight: &q.InFlight, Instances: len(f.instances),
		ColdStarts: new(f.found[residency.Cold]), HostWarmStarts: new(f.found[residency.HostWarm]), GPUWarmStarts: new(f.found[residency.GPUWarm]),
		GPUSeconds: new(f.served.Seconds()), Reason: q.WaitReason}
	switch {
	case ready > 0:
		s.State = status.Ready
	case f.fails >= failing:
		if s.State = status.Failing; s.Reason.IsZero() && f.failure != nil {
			s.Reason = reason.New(reason.Code(refusal.StartFailed), reason.Text("error", firstLine(f.failure)))
		}
	case len(f.instances) > 0:
		s.State = status.Starting
	}
	if own := f.d.jobs.of(f.name); f.definition.Kind == function.Training && own.state() != "" {
		s.State, s.Instances = own.state(), len(own)
	}
	s.Why = s.Reason.String()
	f.Counts.Status(&s)
	return s
}

// failing is the number of consecutive failed starts after which a function's state is
// Failing.
const failing = 3

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// status returns the status of the instance, of which the policy has the given standing.
// Locked.
func (i *Instance) status(standing residency.InstanceStatus) status.Instance {
	s := summary(i, standing.State)
	switch i.state {
	case instanceStarts:
		s.State = "starting"
	case instanceStops:
		s.State = "stopping"
	case instanceReady:
		s.Residency = "gpu"
		if standing.Mem == 0 && i.function.spec.Mem > 0 {
			s.Residency = "host"
		}
		if len(i.attempts) == 0 {
			s.IdleS = new((i.d.policy.now() - i.idleSince).Seconds())
		}
	case instanceGone:
	}
	if i.d.usage != nil {
		if mem, known := MemoryOf(i.d.usage, i.record.ID); known {
			s.MemUsedMiB = &mem
		}
	}
	return s
}

// summary returns the part of an instance's status that does not depend on its state. Locked.
func summary(i *Instance, state string) status.Instance {
	s := StatusOf(*i.record, state)
	s.InFlight = new(callsIn(i.attempts))
	return s
}

// StatusOf returns the status of a job or an instance with a record, in the given state.
func StatusOf(r instance.Record, state string) status.Instance {
	return status.Instance{
		ID: r.ID, Function: r.Function, GPU: strings.Join(r.GPUs, ","), State: state, InFlight: new(0),
		Address: r.Handle.Address,
		SMPct:   r.Slice.SMPct, SMLimitPct: r.Slice.SMLimitPct, QuotaRequest: r.Slice.QuotaRequest, QuotaLimit: r.Slice.QuotaLimit,
	}
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// usageOf returns the busy fraction of a GPU in the token daemon's last window, and the
// memory of instances on that GPU in MiB, contexts included. It returns false if s, which may be nil, does not cover the
// GPU.
func usageOf(s *wire.Status, gpu string) (busy, mem float64, known bool) {
	clients, known := clientsOn(s, gpu)
	for _, c := range clients {
		busy += c.Busy()
		mem += c.MemUsedMiB - c.MemParkedMiB + c.ContextMiB
	}
	return min(busy, 1), mem, known
}

// MemoryOf returns an instance's memory on all GPUs in MiB, as the token daemon reports it.
// It returns false if the report does not list the instance.
func MemoryOf(s *wire.Status, instance string) (mem float64, known bool) {
	for _, g := range s.GPUs {
		for _, c := range g.Clients {
			if c.Instance == instance {
				mem, known = mem+c.MemUsedMiB-c.MemParkedMiB, true
			}
		}
	}
	return mem, known
}

// SetUsage stores a report of the token daemon; nil means that it did not answer.
func (d *Dispatcher) SetUsage(s *wire.Status) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.usage = s
}

// BusyOf returns the utilization of a GPU in the token daemon's last window, 0 to 1. It returns false if s, which may
// be nil, does not cover the GPU.
func BusyOf(s *wire.Status, gpu string) (busy float64, known bool) {
	busy, _, known = usageOf(s, gpu)
	return busy, known
}

// SetBusy sends the policy the utilization of a GPU, 0 to 1.
func (d *Dispatcher) SetBusy(gpu int, busy float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.policy.step(&queue.Used{GPU: int32(gpu), Busy: busy})
}

// Snapshot returns the policy's snapshot.
func (d *Dispatcher) Snapshot() queue.Snapshot {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.policy.policy.Snapshot()
}

// Info describes an applied function.
type Info struct {
	Definition   function.Function
	Spec         queue.Function // as last sent to the policy
	Contract     string         // as its latest instance declared it
	Since        time.Time      // when the gateway learned of it
	Applied      time.Time      // when it was applied or, if that is unknown, Since
	Ready        int            // number of ready instances, or of jobs that have started
	Loaded       int            // number of ready instances with their memory on the GPU
	Context      int64          // context length that the latest instance reported, in tokens; 0 means unknown
	Instances    int            // number of instances, starting and stopping ones included, or of unfinished jobs
	FailedStarts int            // consecutive failures
	Invocations  int64          // dispatches since the gateway started
}

// Info describes the function.
func (f *Function) Info() Info {
	f.d.mu.Lock()
	defer f.d.mu.Unlock()
	return f.info()
}

// Functions describes the applied functions, by name.
func (d *Dispatcher) Functions() (out []Info) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.inOrder() {
		if !f.removed {
			out = append(out, f.info())
		}
	}
	slices.SortFunc(out, func(a, b Info) int { return cmp.Compare(a.Definition.Name, b.Definition.Name) })
	return out
}

// info describes the function. Locked.
func (f *Function) info() Info {
	in := Info{Definition: f.definition, Spec: f.spec, Contract: f.contract, Since: f.since, Instances: len(f.instances), FailedStarts: f.fails, Context: f.context, Applied: f.applied}
	if in.Applied.IsZero() {
		in.Applied = f.since
	}
	for _, i := range f.instances {
		if i.state == instanceReady {
			in.Ready++
			if !i.parked && i.loaded() {
				in.Loaded++
			}
		}
	}
	own := f.d.jobs.of(f.name)
	in.Ready += len(own) - own.count(instance.Starting)
	in.Instances += own.count(instance.Starting, instance.Running)
	for _, n := range f.found {
		in.Invocations += n
	}
	return in
}
