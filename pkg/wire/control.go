// Package wire defines the messages between gfaas-tokend and its clients: the JSON documents of
// the control socket, the binary messages of the client protocol with their codec, and the layout
// of the instance page. Command gen generates hook/wire.h from the latter two, for the preload
// library. pkg/daemon/token is the server; pkg/adapter/tokend is the client for control documents.
package wire

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/reason"
)

// MaxSocketPath is the longest path of a unix socket, in bytes.
const MaxSocketPath = 107

// Registration registers an instance with the token daemon. It is the body of POST /v1/instances
// on the control socket.
type Registration struct {
	Instance string `json:"instance"`
	Function string `json:"function"`
	Secret   string `json:"secret"` // the instance's processes prove their membership with it in Hello
	Allocation
	More     []Allocation `json:"more,omitempty"`      // further GPUs, in the order in which the processes see them
	SLOMS    float64      `json:"slo_ms,omitempty"`    // latency objective for the policy introspective; 0: best effort
	Kind     string       `json:"kind,omitempty"`      // function.Training for a training job, for the policy introspective; otherwise empty
	LLM      bool         `json:"llm,omitempty"`       // serves a language model, for the policy introspective
	OwnerPID int          `json:"owner_pid,omitempty"` // the instance ends when this process and all of its own have ended

	// EndWithOwner makes the daemon kill the instance's processes if the owner ends without
	// DELETE /v1/instances/ID/owner.
	EndWithOwner bool `json:"end_with_owner,omitempty"`

	// StopUnmanaged makes the daemon kill each process of the instance that uses the driver
	// without the preload library.
	StopUnmanaged bool `json:"stop_unmanaged,omitempty"`
}

// Job is the registration of an instance that one process owns and ends: a command of gfaas run,
// or an executor of gfaas-kerneld.
type Job struct {
	Registration
	OwnerStart uint64 `json:"owner_start"` // start time of the owner, which distinguishes it from a later process with its PID
}

// Allocation is an instance's slice of one GPU.
type Allocation struct {
	GPU          string     `json:"gpu"` // "0", "1", … or "sim", "sim:1", …
	SMPct        float64    `json:"sm_pct"`
	SMLimitPct   float64    `json:"sm_limit_pct,omitempty"` // largest SM share; 0: sm_pct
	QuotaRequest float64    `json:"quota_request"`
	QuotaLimit   float64    `json:"quota_limit"`
	MemLimit     gpu.Bytes  `json:"mem_limit"`       // 0: no limit
	Turns        []gpu.Turn `json:"turns,omitempty"` // the plan's timetable: parts of each window reserved for the instance
}

// Slice returns the allocation as a gpu.Slice.
func (a Allocation) Slice() gpu.Slice {
	return gpu.Slice{SMPct: a.SMPct, SMLimitPct: a.SMLimitPct, QuotaRequest: a.QuotaRequest, QuotaLimit: a.QuotaLimit, Mem: a.MemLimit}
}

// AllocationOf returns the allocation of a slice of a GPU, without turns.
func AllocationOf(name string, s gpu.Slice) Allocation {
	return Allocation{GPU: name, SMPct: s.SMPct, SMLimitPct: s.SMLimitPct, QuotaRequest: s.QuotaRequest, QuotaLimit: s.QuotaLimit, MemLimit: s.Mem}
}

// Device returns the canonical name of the GPU: "sim" for "sim:0".
func (a Allocation) Device() string {
	d, err := gpu.ParseDevice(a.GPU)
	if err != nil {
		return a.GPU
	}
	return d.String()
}

// Validate returns an error if a field is invalid.
func (a Allocation) Validate() error {
	if _, err := gpu.ParseDevice(a.GPU); err != nil {
		return fmt.Errorf("gpu: %w", err)
	}
	if err := a.Slice().Validate(); err != nil {
		return err
	}
	return gpu.ValidateTurns(a.Turns)
}

// Allocations returns the instance's slices of all its GPUs, in the order in which its processes
// see the devices.
func (r Registration) Allocations() []Allocation {
	return append([]Allocation{r.Allocation}, r.More...)
}

// SetAllocations sets the slices of all GPUs, of which there is at least one.
func (r *Registration) SetAllocations(all []Allocation) {
	r.Allocation, r.More = all[0], all[1:]
	if len(r.More) == 0 {
		r.More = nil
	}
}

// DropSMLimits replaces the SM limits by the requests. It reports whether there was a limit above its
// request.
func (r *Registration) DropSMLimits() (dropped bool) {
	all := r.Allocations()
	for i := range all {
		dropped = dropped || all[i].SMLimitPct > all[i].SMPct
		all[i].SMLimitPct = 0
	}
	r.SetAllocations(all)
	return dropped
}

// maxSLOMS is the largest latency objective, about 30 years. Larger values could overflow in ns.
const maxSLOMS = 1e12

// Validate returns an error if a field is invalid.
func (r Registration) Validate() error {
	if !instance.ValidID(r.Instance) {
		return fmt.Errorf("invalid instance %q: expected at most 63 of the characters A-Z a-z 0-9 . _ -, not starting with a dot, and not token.sock", r.Instance)
	}
	if r.Secret == "" {
		return fmt.Errorf("instance %s: secret is empty", r.Instance)
	}
	if _, err := MakeName(r.Secret); err != nil {
		return fmt.Errorf("instance %s: the secret is longer than %d bytes or has a NUL", r.Instance, len(Name{})-1)
	}
	seen := map[string]bool{}
	for _, s := range r.Allocations() {
		if err := s.Validate(); err != nil {
			return fmt.Errorf("instance %s: %w", r.Instance, err)
		}
		if seen[s.Device()] {
			return fmt.Errorf("instance %s: gpu %s is given twice", r.Instance, s.GPU)
		}
		seen[s.Device()] = true
	}
	if !(r.SLOMS >= 0 && r.SLOMS <= maxSLOMS) {
		return fmt.Errorf("instance %s: slo_ms %v: expected 0 to %.0g", r.Instance, r.SLOMS, maxSLOMS)
	}
	if r.Kind != "" && r.Kind != function.Training {
		return fmt.Errorf("instance %s: kind %q: expected %s or none", r.Instance, r.Kind, function.Training)
	}
	if r.Kind != "" && r.SLOMS > 0 {
		return fmt.Errorf("instance %s: slo_ms %v: not allowed with kind %s, which has no latency", r.Instance, r.SLOMS, r.Kind)
	}
	if r.OwnerPID < 0 {
		return fmt.Errorf("instance %s: owner_pid %d is negative", r.Instance, r.OwnerPID)
	}
	if r.EndWithOwner && r.OwnerPID == 0 {
		return fmt.Errorf("instance %s: end_with_owner requires owner_pid", r.Instance)
	}
	return nil
}

// Change changes a registered instance, on all its GPUs. Nil fields stay unchanged. It is the body
// of PATCH /v1/instances/ID. It cannot change the SM share, which the driver reads when a process
// starts.
type Change struct {
	QuotaRequest *float64     `json:"quota_request,omitempty"`
	QuotaLimit   *float64     `json:"quota_limit,omitempty"`
	MemLimit     *gpu.Bytes   `json:"mem_limit,omitempty"` // 0: no limit
	Turns        [][]gpu.Turn `json:"turns,omitempty"`     // by GPU; if nil, a new quota removes the timetable
	SLOMS        *float64     `json:"slo_ms,omitempty"`    // 0: best effort
}

// Apply returns the registration with the change. It fails if Turns has the wrong number of GPUs.
func (c Change) Apply(r Registration) (Registration, error) {
	all := r.Allocations()
	if c.Turns != nil && len(c.Turns) != len(all) {
		return r, fmt.Errorf("instance %s: turns for %d GPUs, expected %d", r.Instance, len(c.Turns), len(all))
	}
	for i := range all {
		a := &all[i]
		if c.QuotaRequest != nil {
			a.QuotaRequest, a.Turns = *c.QuotaRequest, nil
		}
		if c.QuotaLimit != nil {
			a.QuotaLimit, a.Turns = *c.QuotaLimit, nil
		}
		if c.MemLimit != nil {
			a.MemLimit = *c.MemLimit
		}
		if c.Turns != nil {
			a.Turns = c.Turns[i]
		}
	}
	if c.SLOMS != nil {
		r.SLOMS = *c.SLOMS
	}
	r.SetAllocations(all)
	return r, nil
}

// Registered is the answer to an accepted registration.
type Registered struct {
	MPSPipeDir string `json:"mps_pipe_dir,omitempty"` // CUDA_MPS_PIPE_DIRECTORY for the instance's processes
	Note       string `json:"note,omitempty"`         // for people: features that the instance does not get, with the reason
	Warning    string `json:"warning,omitempty"`      // for people: a problem with one of its GPUs, such as another daemon that shares it
	IdleExit   bool   `json:"idle_exit,omitempty"`    // the daemon exits when idle; only its clients supervise it

	// SMPct is the SM share with which the instance's processes start, in percent. It is the SM limit
	// of the slice or, if the daemon's policy cannot use a limit, the request. Older daemons return 0,
	// which stands for the request.
	SMPct float64 `json:"sm_pct,omitempty"`
}

// Stored asks the token daemon to count the memory of a model that a process stores in
// gfaas-modeld against the memory limit of the process's slice. It is the body of POST
// /v1/stored. The memory counts from the answer until the connection ends.
type Stored struct {
	PID   int       `json:"pid"`   // of the storing process, as the sender sees it
	Start uint64    `json:"start"` // its start time (procfs.Stat), which distinguishes it from a later process with this PID
	GPU   string    `json:"gpu"`   // as in an Allocation
	Bytes gpu.Bytes `json:"bytes"`

	// Allocated reports that the memory is already allocated: it counts even beyond the limit.
	Allocated bool `json:"held,omitempty"`
	// Sender is the sender's own PID. If the daemon sees another PID for the sender, the two
	// are in different PID namespaces, and the daemon refuses the request.
	Sender int `json:"sender"`
}

// StoredIn answers a Stored that counts. If the process is in no slice, the answer has no body (204).
type StoredIn struct {
	Instance string `json:"instance"`
}

// Devices is the answer to GET /v1/devices: the memory of all GPUs of the machine.
type Devices struct {
	GPUs []DeviceMemory `json:"gpus"`
}

// DeviceMemory is the memory of a GPU, in bytes, as its driver reports it.
type DeviceMemory struct {
	GPU       string        `json:"gpu"` // as in an Allocation
	Total     int64         `json:"total"`
	Free      int64         `json:"free"`
	Processes map[int]int64 `json:"processes,omitempty"` // by PID, contexts included; nil if the driver does not report them
	Error     string        `json:"error,omitempty"`     // why the driver reports nothing
}

// Status is the state of the token daemon, as printed by gfaas-tokend status.
type Status struct {
	Node     string      `json:"node,omitempty"` // name of the node in grants; empty without trusted keys
	WindowMS float64     `json:"window_ms"`
	Policy   string      `json:"policy"`
	GPUs     []GPUStatus `json:"gpus"`
}

// GPUStatus is one GPU of a Status.
type GPUStatus struct {
	GPU          string  `json:"gpu"`
	SMRunningPct float64 `json:"sm_running_pct"` // sum of the SM shares that hold a lease; above 100 only while a lease drains longer than announced
	// RoundMS and HandoverMS are 0 if clients do not take turns in rounds.
	RoundMS    float64        `json:"round_ms"`     // current length of a round
	HandoverMS float64        `json:"hand_over_ms"` // usual time for which a hand-over leaves the GPU idle, from which RoundMS follows
	Clients    []ClientStatus `json:"clients"`
}

// ClientStatus is the state of one process of an instance, or of an instance without a process on
// the GPU (PID 0, state "absent").
type ClientStatus struct {
	Instance     string  `json:"instance"`
	Function     string  `json:"function"`
	PID          int     `json:"pid"`
	SMPct        float64 `json:"sm_pct"`
	SMLimitPct   float64 `json:"sm_limit_pct,omitempty"` // omitted if it equals sm_pct
	QuotaRequest float64 `json:"quota_request"`
	QuotaLimit   float64 `json:"quota_limit"`
	Used         float64 `json:"used"` // fraction of the last full window, 0 to 1
	DebtMS       float64 `json:"debt_ms"`
	OwedMS       float64 `json:"owed_ms"` // time used beyond its request while others missed theirs
	State        string  `json:"state"`   // absent, idle, waiting, running, draining, suspended or unmanaged
	MemUsedMiB   float64 `json:"mem_used_mib"`
	MemLimitMiB  float64 `json:"mem_limit_mib"`
	MemParkedMiB float64 `json:"mem_parked_mib"` // part of mem_used_mib that is parked on the host
	// MemImportedMiB is memory of other processes that it has mapped (a model's weights). It is
	// not part of mem_used_mib and not limited.
	MemImportedMiB float64 `json:"mem_imported_mib"`
	// MemStoredMiB is memory for models that the whole instance stores in gfaas-modeld on this
	// GPU and has not committed. It counts against the limit, but is not part of mem_used_mib.
	MemStoredMiB float64 `json:"mem_stored_mib"`
	// MemRefused counts allocations and contexts that the driver refused for lack of memory, to
	// this process and to ended processes of the instance. It excludes those above the limit.
	MemRefused uint64  `json:"mem_refused"`
	ContextMiB float64 `json:"context_mib"` // memory of the driver for the process, in addition to its allocations; 0 if unknown
	Launches   uint64  `json:"launches"`
	BlockedMS  float64 `json:"blocked_ms"`
	Why        string  `json:"why"` // text form of Reason

	// Reason is the reason of the last decision; for a waiting process, the reason why it waits. It
	// is zero for an idle process.
	Reason reason.Reason `json:"reason,omitzero"`

	// UnmanagedPrograms describes, for people, programs that the instance's processes started
	// without the preload library in the environment, or that cannot load it. Empty if there are
	// none.
	UnmanagedPrograms string `json:"strays,omitempty"`

	// Fault describes, for people, the CUDA error after which every call of the process fails
	// (InstanceFault.String). Empty if there was none.
	Fault string `json:"fault,omitempty"`

	// Only with the policy introspective.
	Phase        string `json:"phase,omitempty"`         // NONE, EMERGENCY, RECOVERY or CONTENTION
	BudgetBlocks uint64 `json:"budget_blocks,omitempty"` // blocks that it may launch, counted from the connection; omitted if not metered
}

// Busy returns the fraction of the GPU's SM time that the process used in the last full window. Used counts
// the time on the SM share with which the process started.
func (c ClientStatus) Busy() float64 { return c.Used * max(c.SMPct, c.SMLimitPct) / 100 }

// StateUnmanaged is the state of a process of an instance that uses the driver without the preload
// library.
const StateUnmanaged = "unmanaged"

// Unmanaged describes a process of an instance that uses the driver without the preload library,
// and therefore without limits.
type Unmanaged struct {
	PID     int    `json:"pid"`
	Start   uint64 `json:"start"` // start time in clock ticks since boot, which distinguishes it from a later process with its PID
	Program string `json:"program"`
	Stopped bool   `json:"stopped,omitempty"` // killed by the daemon
}

// UnmanagedList answers GET /v1/instances/ID/unmanaged?after=N: the processes found after the first
// N. The daemon waits a few seconds until there is one; with wait=0 in the query it searches at
// once instead.
type UnmanagedList struct {
	Found []Unmanaged `json:"found"`
	Next  int         `json:"next"` // value of after for the next query
}

// String returns one line that names the process and the problem.
func (u Unmanaged) String() string {
	if u.Stopped {
		return fmt.Sprintf("process %d (%s) was stopped: it used the GPU without the preload library, outside its slice", u.PID, u.Program)
	}
	return fmt.Sprintf("process %d (%s) uses the GPU without the preload library: it is outside its slice, so nothing limits it", u.PID, u.Program)
}

// Problem is the body of a control answer with a status other than 2xx.
type Problem struct {
	Message string `json:"message"`
}
