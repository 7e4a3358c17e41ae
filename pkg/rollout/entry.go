package rollout

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Entry is an instance or a job in the output of gfaas ps.
type Entry struct {
	ID           string  `json:"id"`
	Function     string  `json:"function"`
	Runtime      string  `json:"runtime"`
	GPU          string  `json:"gpu"`           // several names are joined by commas
	PID          int     `json:"pid,omitempty"` // of a job's owner
	Container    string  `json:"container,omitempty"`
	SMPct        float64 `json:"sm_pct"`
	SMLimitPct   float64 `json:"sm_limit_pct,omitempty"`
	QuotaRequest float64 `json:"quota_request"`
	QuotaLimit   float64 `json:"quota_limit"`
	MemLimitMiB  float64 `json:"mem_limit_mib"` // 0: no limit
	Address      string  `json:"address"`
	State        string  `json:"state"`               // starting, ready, exited, unknown, lost or faulted; for a command of gfaas run, running or faulted; see State.Name for other jobs
	Started      string  `json:"started"`             // RFC 3339; empty before the start
	Restarts     int     `json:"restarts"`            // restarts by the gateway or the engine
	Model        string  `json:"model,omitempty"`     // model with shared weights, which do not count as the instance's memory
	Unmanaged    []int   `json:"unmanaged,omitempty"` // PIDs of its processes that use the GPU without the preload library

	// Fault is the CUDA error after which every CUDA call of the instance's process fails, with the call that
	// returned it. It is empty unless the state is faulted.
	Fault string `json:"fault,omitempty"`

	ExitCode *int   `json:"exit_code,omitempty"` // of the last run of a job that has succeeded or failed
	Detail   string `json:"detail,omitempty"`    // how the last run of a job ended
}

// Observations holds the state that the runtimes and the token daemon report about the instances in an
// Inventory.
type Observations struct {
	States  []State // same order as Inventory.Instances
	Jobs    []wire.Job
	Clients []wire.ClientStatus
	Faults  map[string]wire.InstanceFault // by instance ID
}

// Entries returns the entries of the records, in the order of Records, followed by the entries of the jobs.
func (v Inventory) Entries(o Observations) []Entry {
	entries := make([]Entry, 0, len(v.Instances)+len(v.Lost)+len(o.Jobs))
	models := map[string]string{}
	for _, fn := range v.Functions {
		if fn.Model != nil && fn.Model.File != "" {
			models[fn.Name] = fn.Model.Name
		}
	}
	for i, r := range v.Instances {
		r.Restarts = max(r.Restarts, o.States[i].Restarts)
		e := newEntry(r, o.States[i].Name)
		e.Model, e.ExitCode, e.Detail = models[r.Function], o.States[i].ExitCode, o.States[i].Detail
		if f, ok := o.Faults[r.ID]; ok && !f.Ended && !f.Time.Before(r.Handle.Started) {
			e.Fault = f.String()
		}
		if e.Fault != "" && e.State != StateExited && !o.States[i].Over() {
			e.State = StateFaulted
		}
		entries = append(entries, e)
	}
	for _, r := range v.Lost {
		state := StateLost
		if r.Handle.Runtime == "" { // registered only
			state = StateExited
		}
		entries = append(entries, newEntry(r, state))
	}
	for _, j := range o.Jobs {
		entries = append(entries, jobEntry(j, o.Faults))
	}
	for _, c := range o.Clients {
		if i := slices.IndexFunc(entries, func(e Entry) bool { return e.ID == c.Instance }); i >= 0 && c.State == wire.StateUnmanaged {
			entries[i].Unmanaged = append(entries[i].Unmanaged, c.PID)
		}
	}
	return entries
}

func newEntry(r instance.Record, state string) Entry {
	e := Entry{
		ID: r.ID, Function: r.Function, Runtime: r.Runtime, GPU: strings.Join(r.GPUs, ","),
		PID: r.Handle.PID, Container: r.Handle.Container,
		SMPct: r.Slice.SMPct, SMLimitPct: r.Slice.SMLimitPct, QuotaRequest: r.Slice.QuotaRequest, QuotaLimit: r.Slice.QuotaLimit,
		MemLimitMiB: r.Slice.Mem.MiB(), Address: r.Handle.Address, State: state, Restarts: r.Restarts,
	}
	if !r.Handle.Started.IsZero() {
		e.Started = r.Handle.Started.Format(time.RFC3339)
	}
	return e
}

// SharedGPU describes a GPU of a plan that also has slices outside the plan.
type SharedGPU struct {
	GPU            string
	Planned, Other gpu.Bytes // sums of memory limits
	IDs            []string  // of the slices outside the plan
}

// SharedGPUs returns the GPUs of a plan that also have other slices, such as those of the gateway's instances and
// of jobs. With prune, it omits the instances that gfaas up --prune stops.
func SharedGPUs(list []Assignment, existing []instance.Record, gpus []wire.GPUStatus, prune bool) (out []SharedGPU) {
	stays := func(id string) bool {
		return !slices.ContainsFunc(list, func(a Assignment) bool { return a.ID == id }) &&
			!(prune && slices.ContainsFunc(existing, func(r instance.Record) bool { return r.ID == id && r.Owner != instance.Gateway }))
	}
	for _, g := range gpus {
		b := SharedGPU{GPU: g.GPU}
		for _, a := range list {
			if slices.Contains(a.GPUs, g.GPU) {
				b.Planned += a.Slice.Mem
			}
		}
		b.addClients(g.Clients, stays)
		if b.Planned > 0 && b.Other > 0 {
			out = append(out, b)
		}
	}
	return out
}

// addClients adds the instances that stay. It counts an instance's memory limit or, without a limit, its memory
// in use. Clients must be sorted by instance.
func (b *SharedGPU) addClients(clients []wire.ClientStatus, stays func(id string) bool) {
	for _, c := range clients {
		if !stays(c.Instance) {
			continue
		}
		if len(b.IDs) == 0 || b.IDs[len(b.IDs)-1] != c.Instance {
			b.IDs = append(b.IDs, c.Instance)
			b.Other += gpu.FromMiB(c.MemLimitMiB)
		}
		if c.MemLimitMiB == 0 {
			b.Other += gpu.FromMiB(c.MemUsedMiB)
		}
	}
}

const (
	runtimeJob   = "job"     // runtime of a job's entry
	stateRunning = "running" // state of a job's entry
)

// RunningJobs returns the jobs whose owner is alive or which have processes among the token daemon's clients.
// It modifies the slice jobs.
func RunningJobs(jobs []wire.Job, clients []wire.ClientStatus) []wire.Job {
	return slices.DeleteFunc(jobs, func(j wire.Job) bool {
		return !ownerLives(j) && !slices.ContainsFunc(clients, func(c wire.ClientStatus) bool { return c.Instance == j.Instance })
	})
}

func ownerLives(j wire.Job) bool {
	lives, err := procfs.Lives(j.OwnerPID, j.OwnerStart)
	return lives || err != nil
}

// jobEntry returns the entry of a job.
func jobEntry(j wire.Job, faults map[string]wire.InstanceFault) Entry {
	e := newEntry(launch.RegisteredRecord(j.Registration), stateRunning)
	e.Runtime, e.PID = runtimeJob, j.OwnerPID
	if f, ok := faults[j.Instance]; ok && !f.Ended {
		e.State, e.Fault = StateFaulted, f.String()
	}
	if now := procfs.TicksSinceBoot(); j.OwnerStart > 0 && j.OwnerStart <= now {
		const tick = 10 * time.Millisecond
		e.Started = time.Now().Add(-time.Duration(now-j.OwnerStart) * tick).Format(time.RFC3339)
	}
	return e
}

// ExplainJob replaces the error about a missing instance if the name belongs to a job. Only a job's owner can
// end it.
func ExplainJob(err error, jobs []wire.Job) error {
	var missing *ports.NotFoundError
	if !errors.As(err, &missing) {
		return err
	}
	for _, j := range jobs {
		if slices.Contains(missing.Names, j.Instance) && ownerLives(j) {
			return failf(fmt.Sprintf("'kill %d' ends it", j.OwnerPID),
				"cannot stop %s: it is a job of process %d (%s), not an instance of a function", j.Instance, j.OwnerPID, procfs.Program(j.OwnerPID))
		}
	}
	return err
}
