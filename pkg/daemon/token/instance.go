package token

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// instance is a registered instance.
type instance struct {
	reg            wire.Registration   // without the secret
	secret         [sha256.Size]byte   // SHA-256 of the secret
	ownerStart     uint64              // distinguishes the owner from a later process with the same PID
	watched        bool                // the owner was seen alive, and its end was not handled yet
	allocations    []*allocation       // in the device order of its processes
	socket         *instanceSocket     // the instance's own socket; nil before Serve, or if it cannot be opened
	unenforced     bool                // its SM share is not enforced
	bypasses       bypasses            // programs outside the slice that its processes have started
	fault          *wire.InstanceFault // the first CUDA error that ended a process's use of CUDA; nil: none
	mps            string              // pipe directory of the MPS server of its processes; empty: none
	findings       findings
	unmanagedFound chan struct{} // closed when an unmanaged process is found; nil while no request waits for it
	parked         parked
	grant          *accepted  // the grant that has registered it; nil: it was registered at the control socket
	moves          sync.Mutex // serializes park and unpark; taken before all other locks
}

// newInstance validates a registration, replaces its secret with a hash and records the start time of
// its owner.
func newInstance(reg wire.Registration) (*instance, error) {
	if err := reg.Validate(); err != nil {
		return nil, err
	}
	i := &instance{secret: sha256.Sum256([]byte(reg.Secret))}
	if reg.OwnerPID != 0 {
		var err error
		if i.ownerStart, err = startTime(reg.OwnerPID); err != nil {
			return nil, fmt.Errorf("instance %s: read the state of owner_pid: %w", reg.Instance, err)
		}
		if i.ownerStart == 0 {
			return nil, fmt.Errorf("instance %s: there is no process with owner_pid %d", reg.Instance, reg.OwnerPID)
		}
	}
	reg.Secret = ""
	i.reg = reg
	return i, nil
}

// startTime returns the start time of a process in clock ticks since boot, or 0 if there is no such
// process or it is a zombie.
func startTime(pid int) (uint64, error) {
	s, err := procfs.Read(pid)
	if procfs.IsNotExist(err) || err == nil && s.Exited() {
		return 0, nil
	}
	return s.Start, err
}

// sessions iterates over the sessions of the instance, on all of its GPUs.
func (i *instance) sessions() iter.Seq[*session] {
	return func(yield func(*session) bool) {
		for _, a := range i.allocations {
			for _, c := range a.sessions {
				if c != nil && !yield(c) {
					return
				}
			}
		}
	}
}

// connected returns the number of sessions.
func (i *instance) connected() (n int) {
	for _, a := range i.allocations {
		n += a.connected
	}
	return n
}

// startTimes returns the start times of the instance's connected processes, by PID.
func (i *instance) startTimes() map[int]uint64 {
	out := map[int]uint64{}
	for c := range i.sessions() {
		if c.pid > 0 {
			out[c.pid] = c.start
		}
	}
	return out
}

// alive reports whether a process of the instance uses the slice, or may use the GPU outside it.
// Processes that have ended do not count even if their connections are open.
func (i *instance) alive() bool {
	if i.findings.outside > 0 {
		return true
	}
	for c := range i.sessions() {
		if c.pid != 0 && procfs.Alive(c.pid) && !c.processEnded() {
			return true
		}
	}
	return false
}

// isConnected reports whether a process is connected and has not ended.
func (i *instance) isConnected(pid int) bool {
	for c := range i.sessions() {
		if c.pid == pid && !c.processEnded() {
			return true
		}
	}
	return false
}

// waiting returns the sessions that want the GPU and have no lease.
func (i *instance) waiting() (out []*session) {
	for c := range i.sessions() {
		if c.requestPending {
			out = append(out, c)
		}
	}
	return out
}

// ownerDead reports whether the instance has an owner that has ended. It returns false if the
// owner's state cannot be determined.
func (i *instance) ownerDead() bool {
	if i.reg.OwnerPID == 0 {
		return false
	}
	lives, err := procfs.Lives(i.reg.OwnerPID, i.ownerStart)
	return err == nil && !lives
}

// orphaned reports whether the instance's processes must be killed because its owner has ended.
func (i *instance) orphaned() bool { return i.reg.EndWithOwner && i.watched && i.ownerDead() }

// tree returns the instance's processes for the killer.
func (i *instance) tree() tree {
	clients := i.startTimes()
	maps.Copy(clients, i.findings.members)
	return tree{instance: i.reg.Instance, secret: i.secret, recordedAt: procfs.TicksSinceBoot(), clients: clients}
}

// allocate creates or updates the instance's allocations. If its GPUs have changed, which happens
// only while it has no session, it replaces them.
func (i *instance) allocate(gpus *schedulers) {
	wanted := i.reg.Allocations()
	if !i.sameGPUs(wanted) {
		i.deallocate()
		for _, w := range wanted {
			i.allocations = append(i.allocations, &allocation{
				inst: i, gpu: gpus.device(w.Device()), sessions: make([]*session, wire.PageSlots),
			})
		}
	}
	for n, a := range i.allocations {
		a.Allocation = wanted[n]
		if a.page != nil {
			a.page.setLimit(a.MemLimit)
		}
		a.gpu.step(policy.AddInstance{
			Instance: i.reg.Instance, Slice: a.Slice(), Turns: a.Turns,
			Training: i.reg.Kind == function.Training,
			SLO:      time.Duration(i.reg.SLOMS * float64(time.Millisecond)), LLM: i.reg.LLM, Unenforced: i.unenforced,
		})
	}
}

// deallocate removes the instance from its GPUs.
func (i *instance) deallocate() {
	for _, a := range i.allocations {
		a.end()
	}
	i.allocations = nil
}

// sameGPUs reports whether the instance's allocations are on the same GPUs as the given ones, in
// the same order.
func (i *instance) sameGPUs(allocations []wire.Allocation) bool {
	return slices.EqualFunc(i.allocations, allocations, func(a *allocation, w wire.Allocation) bool { return a.Device() == w.Device() })
}

// allocationOn returns the instance's allocation on a GPU, or nil.
func (i *instance) allocationOn(g *device) *allocation {
	for _, a := range i.allocations {
		if a.gpu == g {
			return a
		}
	}
	return nil
}

// clearFindings drops the findings about processes of an earlier instance with the same name and another
// secret.
func (i *instance) clearFindings() {
	i.bypasses, i.findings, i.fault, i.watched = bypasses{}, findings{}, nil, false
}

// clearOldFault drops the fault of another process that has ended. The caller calls it when a process of
// the instance connects.
func (i *instance) clearOldFault(pid int) {
	if i.fault != nil && i.fault.PID != pid && !i.isConnected(i.fault.PID) {
		i.fault = nil
	}
}

// faultOf returns the text about the fault of a process for the status, or "". PID 0 stands for all
// processes that have ended.
func (i *instance) faultOf(pid int) string {
	if i.fault == nil || pid != 0 && i.fault.PID != pid {
		return ""
	}
	return i.fault.String()
}

// parked describes the memory of an instance that is on the host. The zero value means that the
// instance is not parked.
type parked struct {
	pids       []int          // processes whose memory is on the host, or may be
	startTimes map[int]uint64 // their start times, by PID; nil if an earlier daemon parked them
	memory     []gpuMemory    // their memory when it was parked; nil if an earlier daemon parked them
	unparking  bool           // a process wants the GPU, and the memory is being moved back
}

// gpuMemory is the memory of an instance on one GPU.
type gpuMemory struct {
	device string
	bytes  gpu.Bytes
}

// alive returns the parked processes that have not ended.
func (p *parked) alive() (pids []int) {
	for _, pid := range p.pids {
		lives := procfs.Alive(pid)
		if start := p.startTimes[pid]; lives && start != 0 {
			same, err := procfs.Lives(pid, start)
			lives = same || err != nil
		}
		if lives {
			pids = append(pids, pid)
		}
	}
	return pids
}

// errBusy is the error for parking an instance that uses the GPU.
var errBusy = errors.New("the instance has work on the GPU")

// idlePIDs returns the PIDs of the instance's processes without duplicates. It returns errBusy if a
// process has a lease or wants one, and another error if a process is not visible.
func (i *instance) idlePIDs() (pids []int, err error) {
	seen := map[int]bool{}
	for c := range i.sessions() {
		switch {
		case seen[c.pid]:
			continue
		case c.pid == 0:
			return nil, errors.New("a process of the instance is in a PID namespace that the token daemon cannot see")
		}
		seen[c.pid] = true
		pids = append(pids, c.pid)
		if c.lease != 0 || c.requestPending {
			err = errBusy
		}
	}
	return pids, err
}

// memoryByGPU returns the memory of the instance's processes per GPU, including the driver's own memory
// for them.
func (i *instance) memoryByGPU() (out []gpuMemory) {
	for _, a := range i.allocations {
		h := gpuMemory{device: a.Device()}
		for _, c := range a.sessions {
			if c != nil {
				h.bytes += gpu.Bytes(min(a.page.counters(c.slot).memUsed, maxBytes)) + c.foreign
			}
		}
		out = append(out, h)
	}
	return out
}

// simulated reports whether the instance is on simulated GPUs.
func (i *instance) simulated() bool {
	d, err := gpu.ParseDevice(i.reg.GPU)
	return err == nil && d.Simulated
}

// markUnparked records that no memory of the instance is on the host. It passes the pending requests of
// the processes to the schedulers, because the processes do not repeat them.
func (i *instance) markUnparked() {
	i.parked = parked{}
	for _, c := range i.waiting() {
		c.gpu.step(policy.Request{Client: c.id})
	}
}

// checkParked calls markUnparked if all parked processes have ended, because their memory ended with
// them.
func (i *instance) checkParked() {
	if len(i.parked.pids) > 0 && len(i.parked.alive()) == 0 {
		i.markUnparked()
	}
}
