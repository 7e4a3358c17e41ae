package token

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/gfaas/gfaas/pkg/wire"
)

// afterwards is how long after a fault the daemon attributes faults of other instances
// under the same MPS server to it.
const afterwards = 10 * time.Second

// handleFault keeps the first CUDA error that ended a process's use of CUDA with its
// instance. Locked.
func (d *Daemon) handleFault(c *client, frame []byte, now time.Time) error {
	msg, err := wire.Parse(frame)
	if err != nil {
		return err
	}
	if c.faulted {
		return c.needless()
	}
	c.faulted = true
	inst := c.alloc.inst
	if inst.fault != nil && inst.using(inst.fault.PID) {
		return nil
	}
	f := msg.(wire.Fault)
	inst.fault = &wire.InstanceFault{
		Instance: inst.reg.Instance, Function: inst.reg.Function, GPU: c.alloc.GPU, PID: c.pid, Call: printable(f.Call.String()),
		Code: f.Code, Name: wire.FaultName(f.Code), Time: now, After: d.firstFault(inst, now),
	}
	args := []any{"instance", inst.reg.Instance, "function", inst.reg.Function, "gpu", c.alloc.GPU, "pid", c.pid,
		"call", inst.fault.Call, "code", f.Code, "error", inst.fault.Name}
	if inst.fault.After != "" {
		args = append(args, "after", inst.fault.After)
	}
	d.log.Error("process cannot use CUDA any more", args...)
	return nil
}

// firstFault returns the instance whose fault ended this one too, or "": another client
// of the same MPS server that faulted shortly before, itself not because of a third.
// Locked.
func (d *Daemon) firstFault(inst *instance, now time.Time) string {
	for _, other := range d.sortedInstances() {
		f := other.fault
		if other != inst && inst.mps != "" && other.mps == inst.mps && f != nil && f.After == "" && now.Sub(f.Time) < afterwards {
			return other.reg.Instance
		}
	}
	return ""
}

// using reports whether the process is connected and runs. Locked.
func (i *instance) using(pid int) bool {
	for _, a := range i.allocations {
		for _, c := range a.clients {
			if c != nil && c.pid == pid && !c.gone() {
				return true
			}
		}
	}
	return false
}

// renewed is called when a process of the instance connects. It forgets the fault of
// another process that has ended. Locked.
func (i *instance) renewed(pid int) {
	if i.fault != nil && i.fault.PID != pid && !i.using(i.fault.PID) {
		i.fault = nil
	}
}

// faultOf returns what the status says of the fault of a process; 0 stands for all that
// have ended. Locked.
func (i *instance) faultOf(pid int) string {
	if i.fault == nil || pid != 0 && i.fault.PID != pid {
		return ""
	}
	return i.fault.String()
}

// printable replaces characters that cannot be printed.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, text)
}

const (
	settleTime = time.Second          // longest wait of settle
	settleLook = 2 * time.Millisecond // its poll interval
)

// settle waits until the daemon has read everything that ended processes of the instance
// have sent. It waits for settleTime at most: another process may hold their connections
// open.
func (d *Daemon) settle(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	tick := time.NewTicker(settleLook)
	defer tick.Stop()
	for {
		var all []*client
		_ = d.locked(func() {
			for _, c := range d.clients {
				if c.alloc.inst.reg.Instance == id {
					all = append(all, c)
				}
			}
		})
		if !slices.ContainsFunc(all, (*client).gone) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// getFaults answers with the faults of all registered instances or, with ?instance=ID, of
// that one, after settle.
func (d *Daemon) getFaults(w http.ResponseWriter, r *http.Request) {
	only := r.URL.Query().Get("instance")
	if only != "" {
		d.settle(r.Context(), only)
	}
	out := wire.Faults{Faults: []wire.InstanceFault{}}
	if err := d.locked(func() {
		for _, inst := range d.sortedInstances() {
			if inst.fault != nil && (only == "" || inst.reg.Instance == only) {
				f := *inst.fault
				f.Ended = !inst.using(f.PID)
				out.Faults = append(out.Faults, f)
			}
		}
	}); err != nil {
		problem(w, http.StatusServiceUnavailable, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out)
}
