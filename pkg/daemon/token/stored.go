package token

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

// A process can get GPU memory without the preload library: it stores a model in
// gfaas-modeld, which allocates the memory. Until the model is committed, this memory counts
// against the limit of the process's slice. The model daemon keeps one request to this
// daemon open for each store, and the memory counts for as long as the request is open.
// Each store has its own slot in the page that the processes of the instance share with
// this daemon (wire.PageSlot). The preload library sums the slots, so it counts a store like
// the memory of another process.

// store is the counting of one model that a process of an instance stores.
type store struct {
	alloc *allocation
	slot  int // in the page
	bytes gpu.Bytes
	gone  chan struct{} // closed when the allocation ends
}

// stored returns the sum of the memory of all stores. The caller holds d.mu.
func (a *allocation) stored() (sum gpu.Bytes) {
	for _, s := range a.stores {
		sum += s.bytes
	}
	return sum
}

// maxStores bounds the stores of an instance on one GPU.
const maxStores = 256

// errNoRoom refuses a store that does not fit the limit.
type errNoRoom struct {
	instance           string
	bytes, limit, held gpu.Bytes
}

func (e errNoRoom) Error() string {
	return fmt.Sprintf("out of memory: the store takes %v, and of the %v that instance %s may have, %v are in use", e.bytes, e.limit, e.instance, e.held)
}

// addStore begins to count a store. It returns an error if the memory is not allocated yet
// and would exceed the limit, or if there is no slot for the store. The caller holds d.mu.
func (a *allocation) addStore(d *Daemon, r wire.Stored) (*store, error) {
	if len(a.stores) == maxStores {
		return nil, fmt.Errorf("instance %s stores %d models that are not committed, the most there can be", a.inst.reg.Instance, maxStores)
	}
	slot, err := a.freeSlot(false)
	if err == nil {
		err = a.openSlot(d, slot)
	}
	if err != nil {
		return nil, err
	}
	noRoom := errNoRoom{a.inst.reg.Instance, r.Bytes, a.MemLimit, a.page.held()}
	bound := a.MemLimit > 0 && !r.Held
	if bound && r.Bytes > a.MemLimit-noRoom.held {
		return nil, noRoom
	}
	// As the preload library does (hook/limit.c): first add the memory, then compare the
	// sum with the limit, so that two at once cannot both fit into the same room.
	atomic.StoreUint32(&a.page.slot(slot).PID, uint32(r.PID))
	atomic.StoreUint64(&a.page.slot(slot).MemUsed, uint64(r.Bytes))
	if bound && a.page.held() > a.MemLimit {
		a.page.clear(slot)
		return nil, noRoom
	}
	if a.stores == nil {
		a.stores = map[int]*store{}
	}
	s := &store{alloc: a, slot: slot, bytes: r.Bytes, gone: make(chan struct{})}
	a.stores[slot], a.next = s, slot+1
	return s, nil
}

// end stops counting the store. The caller holds d.mu.
func (s *store) end() {
	if s.alloc.stores[s.slot] == s {
		delete(s.alloc.stores, s.slot)
		s.alloc.page.clear(s.slot)
	}
}

// endStores ends all stores of an allocation that ends. The caller holds d.mu.
func (a *allocation) endStores() {
	for _, s := range a.stores {
		close(s.gone)
	}
	a.stores = nil
}

// postStored counts the memory of a store until the connection of the request ends. The
// status is 200, with the instance, if the memory counts; 204 if the process is in no
// instance that has a part of that GPU; 409 if the store does not fit the limit, or is one
// too many; 410 if the process has ended.
func (d *Daemon) postStored(w http.ResponseWriter, r *http.Request) {
	var req wire.Stored
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(text, &req)
	}
	var on gpu.Device
	if err == nil {
		on, err = gpu.ParseDevice(req.GPU)
	}
	if err == nil && (req.PID <= 0 || req.Bytes <= 0 || req.Bytes > mostBytes) {
		err = fmt.Errorf("pid %d, bytes %d: expected more than 0", req.PID, int64(req.Bytes))
	}
	if err != nil {
		problem(w, http.StatusBadRequest, fmt.Errorf("not a store: %w", err))
		return
	}
	if err := numbersAlike(r, req.Sender); err != nil {
		problem(w, http.StatusForbidden, err)
		return
	}
	above, err := d.ancestors(req.PID)
	if err != nil {
		problem(w, http.StatusInternalServerError, err)
		return
	}
	if len(above) == 0 || above[0].Start != req.Start {
		problem(w, http.StatusGone, fmt.Errorf("process %d, which stores, has ended", req.PID))
		return
	}
	var s *store
	if closing := d.locked(func() {
		if inst := d.instances[d.inside(above, "")]; inst != nil {
			for _, a := range inst.allocations {
				if a.Device() == on.String() {
					s, err = a.addStore(d, req)
				}
			}
		}
	}); closing != nil {
		problem(w, http.StatusServiceUnavailable, closing)
		return
	}
	if err != nil {
		problem(w, http.StatusConflict, err)
		return
	}
	if s == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	defer func() { _ = d.locked(s.end) }()
	id := s.alloc.inst.reg.Instance
	d.log.Info("model being stored", "instance", id, "gpu", req.GPU, "pid", req.PID, "bytes", int64(req.Bytes))
	answer := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/json")
	if json.NewEncoder(w).Encode(wire.StoredIn{Instance: id}) != nil || answer.Flush() != nil || answer.SetReadDeadline(time.Time{}) != nil {
		return
	}
	select {
	case <-r.Context().Done():
	case <-s.gone:
	case <-d.ending:
	}
}

// numbersAlike returns an error if the sender of a request has another PID for itself than
// this daemon sees, because it runs in another PID namespace.
func numbersAlike(r *http.Request, sender int) error {
	cred, err := peerOf(r)
	if err == nil && int(cred.Pid) != sender {
		err = fmt.Errorf("process %d, which asks, is %d in its own PID namespace: it has to run in that of gfaas-tokend", cred.Pid, sender)
	}
	return err
}
