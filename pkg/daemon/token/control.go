package token

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gfaas/gfaas/pkg/wire"
)

// maxBody is the largest registration, in bytes.
const maxBody = 64 << 10

// controlHandler answers on the control socket.
func (d *Daemon) controlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", d.getStatus)
	mux.HandleFunc("GET /v1/faults", d.getFaults)
	mux.HandleFunc("POST /v1/instances", d.fromOutside(d.postInstance))
	mux.HandleFunc("PATCH /v1/instances/{id}", d.fromOutside(d.patchInstance))
	mux.HandleFunc("DELETE /v1/instances/{id}", d.fromOutside(d.deleteInstance))
	mux.HandleFunc("DELETE /v1/instances/{id}/owner", d.fromOutside(d.deleteOwner))
	mux.HandleFunc("GET /v1/instances/{id}/unmanaged", d.getUnmanaged)
	mux.HandleFunc("POST /v1/stored", d.fromOutside(d.postStored))
	mux.HandleFunc("GET /v1/parking", d.getParking)
	mux.HandleFunc("PUT /v1/instances/{id}/parked", d.fromOutside(d.putParked))
	mux.HandleFunc("DELETE /v1/instances/{id}/parked", d.fromOutside(d.deleteParked))
	return mux
}

func (d *Daemon) getStatus(w http.ResponseWriter, _ *http.Request) {
	var s wire.Status
	if err := d.locked(func() { s = d.status() }); err != nil {
		problem(w, http.StatusServiceUnavailable, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s)
}

func (d *Daemon) postInstance(w http.ResponseWriter, r *http.Request) {
	var reg wire.Registration
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&reg); err != nil {
		var long *http.MaxBytesError
		if errors.As(err, &long) {
			problem(w, http.StatusRequestEntityTooLarge, fmt.Errorf("a registration has at most %d bytes", long.Limit))
			return
		}
		problem(w, http.StatusBadRequest, fmt.Errorf("not a registration: %w", err))
		return
	}
	inst, err := newInstance(reg)
	if err != nil {
		problem(w, http.StatusBadRequest, err)
		return
	}
	if status, err := d.register(inst); err != nil {
		problem(w, status, err)
		return
	}
	var answer wire.Registered
	if d.cfg.Prepare != nil {
		answer = d.cfg.Prepare(r.Context(), inst.reg)
		d.prepared(inst, answer)
	}
	answer.IdleExit = d.cfg.ExitWhenIdle > 0
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// register writes the file before the instance counts as known; nobody
// who launches waits for the disk. Processes may join meanwhile, so whether it
// may be registered is looked at again then, and what it was is put back if not.
func (d *Daemon) register(inst *instance) (status int, err error) {
	d.regMu.Lock()
	defer d.regMu.Unlock()
	var conflict error
	var old *instance
	if err := d.locked(func() {
		conflict, d.busy = d.admits(inst), time.Now()
		if old = d.instances[inst.reg.Instance]; old != nil && old.secret == inst.secret {
			inst.parked = old.parked
		}
	}); err != nil {
		return http.StatusServiceUnavailable, err
	}
	if conflict != nil {
		return http.StatusConflict, conflict
	}
	if old == nil || old.listener == nil {
		if inst.listener, err = d.openListener(inst.reg.Instance); err != nil {
			return http.StatusInternalServerError, err
		}
	}
	if err := d.save(inst); err != nil {
		if old == nil {
			inst.listener.remove()
		}
		inst.listener.close()
		return http.StatusInternalServerError, fmt.Errorf("keep registration: %w", err)
	}
	reg := inst.reg
	var before []byte
	if err := d.locked(func() {
		if conflict = d.admits(inst); conflict != nil {
			before, _ = old.encode() // it has been before
			reg = old.reg
			return
		}
		d.add(inst)
		if inst.listener != nil {
			d.acceptAt(inst.listener)
		}
	}); err != nil {
		inst.listener.close()
		return http.StatusServiceUnavailable, err
	}
	if conflict != nil { // who joined is of the instance as it was
		inst.listener.close()
		if err := d.keep(&reg, before); err != nil {
			d.log.Error("cannot put back a registration", "instance", reg.Instance, "err", err)
		}
		return http.StatusConflict, conflict
	}
	for _, s := range reg.Allocations() {
		d.log.Info("instance registered", "instance", reg.Instance, "gpu", s.GPU, "sm_pct", s.SMPct, "quota_request", s.QuotaRequest,
			"quota_limit", s.QuotaLimit, "mem_limit", int64(s.MemLimit), "turns", len(s.Turns), "owner_pid", reg.OwnerPID)
	}
	return 0, nil
}

// patchInstance changes the slice of an instance, whatever runs in it: its clients
// learn of it with their next token.
func (d *Daemon) patchInstance(w http.ResponseWriter, r *http.Request) {
	var change wire.Change
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	in.DisallowUnknownFields()
	if err := in.Decode(&change); err != nil {
		problem(w, http.StatusBadRequest, fmt.Errorf("not a change: %w", err))
		return
	}
	if status, err := d.change(r.PathValue("id"), change); err != nil {
		problem(w, status, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// change writes the file before the change counts, as register does.
func (d *Daemon) change(id string, c wire.Change) (status int, err error) {
	d.regMu.Lock()
	defer d.regMu.Unlock()
	var fresh *instance
	if err := d.locked(func() {
		if old := d.instances[id]; old != nil {
			fresh = &instance{reg: old.reg, secret: old.secret, ownerStart: old.ownerStart, parked: old.parked}
		}
	}); err != nil {
		return http.StatusServiceUnavailable, err
	}
	if fresh == nil {
		return http.StatusNotFound, fmt.Errorf("no instance %q", id)
	}
	reg, err := c.Apply(fresh.reg)
	if err == nil {
		reg.Secret = "kept as a hash"
		err = reg.Validate()
		reg.Secret = ""
	}
	if err != nil {
		return http.StatusBadRequest, err
	}
	fresh.reg = reg
	if err := d.save(fresh); err != nil {
		return http.StatusInternalServerError, fmt.Errorf("keep registration: %w", err)
	}
	if err := d.locked(func() { d.add(fresh) }); err != nil {
		return http.StatusServiceUnavailable, err
	}
	for _, a := range reg.Allocations() {
		d.log.Info("instance changed", "instance", id, "gpu", a.GPU, "quota_request", a.QuotaRequest, "quota_limit", a.QuotaLimit,
			"mem_limit", int64(a.MemLimit), "turns", len(a.Turns))
	}
	return 0, nil
}

// deleteOwner is for an owner that ends in order: its instance goes with the last of
// its processes, of which none ends because of it.
func (d *Daemon) deleteOwner(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	d.regMu.Lock()
	defer d.regMu.Unlock()
	var inst *instance
	var kept []byte
	if err := d.locked(func() {
		if inst = d.instances[id]; inst == nil {
			return
		}
		if !inst.alive() {
			d.remove(id, "unregistered")
			d.forgetFile(id)
			return
		}
		inst.reg.EndWithOwner = false
		kept, _ = inst.encode() // it has been before
	}); err != nil {
		problem(w, http.StatusServiceUnavailable, err)
		return
	}
	if inst == nil {
		problem(w, http.StatusNotFound, fmt.Errorf("no instance %q", id))
		return
	}
	if kept != nil {
		if err := d.write(id, kept); err != nil {
			d.log.Error("cannot keep a registration", "instance", id, "err", err)
		}
	}
	w.WriteHeader(http.StatusNoContent)
}

func (d *Daemon) deleteInstance(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	d.regMu.Lock()
	defer d.regMu.Unlock()
	found := false
	if err := d.locked(func() {
		if found = d.remove(id, "unregistered"); found {
			d.forgetFile(id)
		}
	}); err != nil {
		problem(w, http.StatusServiceUnavailable, err)
		return
	}
	if !found {
		problem(w, http.StatusNotFound, fmt.Errorf("no instance %q", id))
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func problem(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(wire.Problem{Message: err.Error()})
}
