// Package wire is what the daemons say to the tools and to the preload
// library: the control documents, the client messages with their codec and
// limits. The C header is generated from them by gen.
package wire

import (
	"fmt"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
)

// MaxSocketPath is what fits a unix socket's address, in bytes.
const MaxSocketPath = 107

// Registration asks the token daemon to know an instance. It is the body of
// POST /v1/instances on the control socket.
type Registration struct {
	Instance string `json:"instance"`
	Function string `json:"function"`
	Secret   string `json:"secret"` // what the instance's processes must show in their hello
	Allocation
	More     []Allocation `json:"more,omitempty"`      // of an instance that spans several GPUs, in the order its processes see them
	SLOMS    float64      `json:"slo_ms,omitempty"`    // its latency objective; 0 is best effort (policy introspective)
	OwnerPID int          `json:"owner_pid,omitempty"` // the instance goes when this process and all its own are gone

	// EndWithOwner has all of the instance's processes killed when the owner ends
	// without having left (DELETE /v1/instances/ID/owner).
	EndWithOwner bool `json:"end_with_owner,omitempty"`

	// StopUnmanaged makes the daemon kill each process of the instance that uses the
	// driver without the preload library.
	StopUnmanaged bool `json:"stop_unmanaged,omitempty"`
}

// Allocation is an instance's part of one GPU.
type Allocation struct {
	GPU          string     `json:"gpu"` // "0", "1", … or "sim", "sim:1", …
	SMPct        float64    `json:"sm_pct"`
	QuotaRequest float64    `json:"quota_request"`
	QuotaLimit   float64    `json:"quota_limit"`
	MemLimit     gpu.Bytes  `json:"mem_limit"`       // 0 is no limit
	Turns        []gpu.Turn `json:"turns,omitempty"` // the plan's timetable: parts of each window that are its own
}

// Slice is the part of the GPU as others speak of it.
func (a Allocation) Slice() gpu.Slice {
	return gpu.Slice{SMPct: a.SMPct, QuotaRequest: a.QuotaRequest, QuotaLimit: a.QuotaLimit, Mem: a.MemLimit}
}

// Device is the one name of a GPU that has several: "sim" for "sim:0".
func (a Allocation) Device() string {
	d, err := gpu.ParseDevice(a.GPU)
	if err != nil {
		return a.GPU
	}
	return d.String()
}

// Validate says what is wrong with it, if anything.
func (a Allocation) Validate() error {
	if _, err := gpu.ParseDevice(a.GPU); err != nil {
		return fmt.Errorf("gpu: %w", err)
	}
	if err := a.Slice().Validate(); err != nil {
		return err
	}
	return gpu.ValidateTurns(a.Turns)
}

// Allocations are the instance's parts of all its GPUs, in the order in which its
// processes see the devices.
func (r Registration) Allocations() []Allocation {
	return append([]Allocation{r.Allocation}, r.More...)
}

// maxSLOMS is a latency objective of 30 years: more nanoseconds might be none.
const maxSLOMS = 1e12

// Validate says what is wrong with the registration, if anything.
func (r Registration) Validate() error {
	if !instance.ValidID(r.Instance) {
		return fmt.Errorf("instance %q: expected at most 63 of the characters A-Z a-z 0-9 . _ -, the first not a dot, and not token.sock", r.Instance)
	}
	if r.Secret == "" {
		return fmt.Errorf("instance %s: secret is empty", r.Instance)
	}
	if _, err := MakeName(r.Secret); err != nil {
		return fmt.Errorf("instance %s: the secret is longer than %d bytes or has a NUL", r.Instance, len(Name{})-1)
	}
	taken := map[string]bool{}
	for _, s := range r.Allocations() {
		if err := s.Validate(); err != nil {
			return fmt.Errorf("instance %s: %w", r.Instance, err)
		}
		if taken[s.Device()] {
			return fmt.Errorf("instance %s: gpu %s is named twice", r.Instance, s.GPU)
		}
		taken[s.Device()] = true
	}
	if !(r.SLOMS >= 0 && r.SLOMS <= maxSLOMS) {
		return fmt.Errorf("instance %s: slo_ms %v: expected 0 to %.0g", r.Instance, r.SLOMS, maxSLOMS)
	}
	if r.OwnerPID < 0 {
		return fmt.Errorf("instance %s: owner_pid %d is negative", r.Instance, r.OwnerPID)
	}
	if r.EndWithOwner && r.OwnerPID == 0 {
		return fmt.Errorf("instance %s: end_with_owner, and no owner_pid", r.Instance)
	}
	return nil
}

// Change is what of a registered instance is to be another, on each of its GPUs; what
// is nil stays. It is the body of PATCH /v1/instances/ID. The SM share is none of it:
// the driver takes it when a process begins.
type Change struct {
	QuotaRequest *float64     `json:"quota_request,omitempty"`
	QuotaLimit   *float64     `json:"quota_limit,omitempty"`
	MemLimit     *gpu.Bytes   `json:"mem_limit,omitempty"` // 0 is no limit
	Turns        [][]gpu.Turn `json:"turns,omitempty"`     // of each GPU; without them another quota takes the turns away
	SLOMS        *float64     `json:"slo_ms,omitempty"`    // 0 is best effort
}

// Apply makes the change in a registration.
func (c Change) Apply(r Registration) (Registration, error) {
	all := r.Allocations()
	if c.Turns != nil && len(c.Turns) != len(all) {
		return r, fmt.Errorf("instance %s: turns on %d GPUs, of %d", r.Instance, len(c.Turns), len(all))
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
	r.Allocation, r.More = all[0], all[1:]
	if len(r.More) == 0 {
		r.More = nil
	}
	return r, nil
}

// Registered is the answer to a registration that was accepted.
type Registered struct {
	MPSPipeDir string `json:"mps_pipe_dir,omitempty"` // the instance's processes need it in CUDA_MPS_PIPE_DIRECTORY
	Note       string `json:"note,omitempty"`         // what the instance will not have, and why: for people
	Warning    string `json:"warning,omitempty"`      // what is wrong with a GPU of the instance, such as another daemon that shares it out: for people
	IdleExit   bool   `json:"idle_exit,omitempty"`    // the daemon leaves when it is idle: nobody looks after it but its clients
}

// Stored asks the token daemon to count the memory of a model that a process stores in
// gfaas-modeld against the memory limit of the process's slice. It is the body of POST
// /v1/stored. The memory counts from the answer until the connection ends.
type Stored struct {
	PID   int       `json:"pid"`   // of the process that stores, as the sender sees it
	Start uint64    `json:"start"` // its start time (procfs.Stat), which distinguishes it from a later process with this PID
	GPU   string    `json:"gpu"`   // as in an Allocation
	Bytes gpu.Bytes `json:"bytes"`

	// Held says that the memory is allocated already: it counts even beyond the limit.
	Held bool `json:"held,omitempty"`
	// Sender is the sender's own PID. If the daemon sees another PID for the sender, the two
	// are in different PID namespaces, and the daemon refuses the request.
	Sender int `json:"sender"`
}

// StoredIn answers a Stored that counts. Without a slice the answer has no body (204).
type StoredIn struct {
	Instance string `json:"instance"`
}

// Status is what gfaas-tokend status prints.
type Status struct {
	WindowMS float64     `json:"window_ms"`
	Policy   string      `json:"policy"`
	GPUs     []GPUStatus `json:"gpus"`
}

// GPUStatus is one GPU of a Status.
type GPUStatus struct {
	GPU          string         `json:"gpu"`
	SMRunningPct float64        `json:"sm_running_pct"` // sum of the SM shares that hold a token now; above 100 only while one goes on for longer than it said
	Clients      []ClientStatus `json:"clients"`
}

// ClientStatus is one process of an instance, or an instance that has no
// process on the GPU yet (PID 0, state "absent").
type ClientStatus struct {
	Instance     string  `json:"instance"`
	Function     string  `json:"function"`
	PID          int     `json:"pid"`
	SMPct        float64 `json:"sm_pct"`
	QuotaRequest float64 `json:"quota_request"`
	QuotaLimit   float64 `json:"quota_limit"`
	Used         float64 `json:"used"` // share of the last full window, 0 to 1
	DebtMS       float64 `json:"debt_ms"`
	OwedMS       float64 `json:"owed_ms"` // used beyond its request while others missed theirs
	State        string  `json:"state"`   // absent, idle, waiting, running, draining, suspended or unmanaged
	MemUsedMiB   float64 `json:"mem_used_mib"`
	MemLimitMiB  float64 `json:"mem_limit_mib"`
	MemParkedMiB float64 `json:"mem_parked_mib"` // of mem_used_mib, what waits on the host for the next work
	// What it has mapped of other processes' memory, a model's weights; not in mem_used_mib, nor limited.
	MemImportedMiB float64 `json:"mem_imported_mib"`
	// What the whole instance stores in gfaas-modeld on this GPU and has not committed. It
	// counts against the limit, and is not in mem_used_mib.
	MemStoredMiB float64 `json:"mem_stored_mib"`
	// Allocations and contexts that the driver refused for want of memory, to this process
	// and to those of the instance that have ended; not those above its limit.
	MemRefused uint64  `json:"mem_refused"`
	ContextMiB float64 `json:"context_mib"` // what the driver holds for the process beside its own allocations; 0 where that is not told
	Launches   uint64  `json:"launches"`
	BlockedMS  float64 `json:"blocked_ms"`
	Why        string  `json:"why"` // reason of the last decision about it: of one that waits why it does

	// What the instance's processes have started with an environment without the
	// preload library, or that the library cannot be in, for people; empty if nothing.
	Strays string `json:"strays,omitempty"`

	// The CUDA error after which every call of the process fails until it ends, for
	// people: InstanceFault.String. Empty if there was none.
	Fault string `json:"fault,omitempty"`

	// With the policy introspective only.
	Phase        string `json:"phase,omitempty"`         // NONE, EMERGENCY, RECOVERY or CONTENTION
	BudgetBlocks uint64 `json:"budget_blocks,omitempty"` // blocks that it may have launched since it connected; left out when it is not metered
}

// StateUnmanaged is the state of a process of an instance that uses the driver without
// the preload library.
const StateUnmanaged = "unmanaged"

// Unmanaged is a process of an instance that uses the driver without the preload
// library, so that nothing limits it.
type Unmanaged struct {
	PID     int    `json:"pid"`
	Start   uint64 `json:"start"` // clock ticks from boot to its start, which tell it from a later process with its number
	Program string `json:"program"`
	Stopped bool   `json:"stopped,omitempty"` // the daemon has killed it
}

// UnmanagedList is the answer of GET /v1/instances/ID/unmanaged?after=N: what was found
// after the first N processes. The daemon waits up to a few seconds for one; with wait=0
// in the query it looks for them at once instead.
type UnmanagedList struct {
	Found []Unmanaged `json:"found"`
	Next  int         `json:"next"` // to be asked for after these
}

// String names the process and what is wrong with it in one line.
func (u Unmanaged) String() string {
	if u.Stopped {
		return fmt.Sprintf("process %d (%s) was stopped: it used the GPU without the preload library, outside its slice", u.PID, u.Program)
	}
	return fmt.Sprintf("process %d (%s) uses the GPU without the preload library: it is outside its slice, and nothing limits it", u.PID, u.Program)
}

// Problem is the body of a control answer that is not 2xx.
type Problem struct {
	Message string `json:"message"`
}
