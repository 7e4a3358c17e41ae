package token

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// api answers requests at the control socket.
type api struct {
	*core
	registry  *registry
	sessions  *sessions
	parking   *parking
	unmanaged *unmanaged
}

const (
	// maxBody is the largest registration, in bytes.
	maxBody = 64 << 10
	// watchTime is the longest wait of a request for an unmanaged process.
	watchTime = 5 * time.Second
)

func (a *api) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /v1/status", handler(a.getStatus))
	mux.Handle("GET /v1/faults", handler(a.getFaults))
	mux.Handle("GET /v1/devices", handler(a.getDevices))
	mux.Handle("POST /v1/instances", a.refuseInsiders(a.postInstance))
	mux.Handle("PATCH /v1/instances/{id}", a.refuseInsiders(a.patchInstance))
	mux.Handle("DELETE /v1/instances/{id}", a.refuseInsiders(instanceHandler(a.registry.unregister)))
	mux.Handle("DELETE /v1/instances/{id}/owner", a.refuseInsiders(instanceHandler(a.release)))
	mux.Handle("GET /v1/instances/{id}/unmanaged", handler(a.getUnmanaged))
	mux.Handle("POST /v1/stored", a.refuseInsiders(a.postStored))
	mux.Handle("GET /v1/parking", handler(a.getParking))
	mux.Handle("PUT /v1/instances/{id}/parked", a.refuseInsiders(a.moveHandler(a.parking.park)))
	mux.Handle("DELETE /v1/instances/{id}/parked", a.refuseInsiders(a.moveHandler(a.parking.unpark)))
	mux.Handle("PUT /v1/instances/{id}/swapped", a.refuseInsiders(a.moveHandler(a.parking.swapOut)))
	mux.Handle("DELETE /v1/instances/{id}/swapped", a.refuseInsiders(a.moveHandler(a.parking.swapIn)))
	return mux
}

// handler answers a request, or returns an error before it has written anything.
type handler func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP calls the handler. It answers an error in JSON, with the status of a statusError or 500.
func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := h(w, r)
	if err == nil {
		return
	}
	status := http.StatusInternalServerError
	if s := (statusError{}); errors.As(err, &s) {
		status = s.status
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(wire.Problem{Message: err.Error()})
}

func (a *api) getStatus(w http.ResponseWriter, _ *http.Request) error {
	var s wire.Status
	err := a.locked(func() { s = statusOf(a.registry) })
	return reply(w, s, err)
}

func (a *api) postInstance(w http.ResponseWriter, r *http.Request) error {
	var reg wire.Registration
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&reg); err != nil {
		var long *http.MaxBytesError
		if errors.As(err, &long) {
			return statusError{http.StatusRequestEntityTooLarge, fmt.Errorf("the registration has more than %d bytes", long.Limit)}
		}
		return statusError{http.StatusBadRequest, fmt.Errorf("invalid registration: %w", err)}
	}
	inst, err := newInstance(reg)
	if err != nil {
		return statusError{http.StatusBadRequest, err}
	}
	answer, err := a.registry.admit(r.Context(), inst)
	if err != nil {
		return err
	}
	answer.IdleExit = a.cfg.ExitWhenIdle > 0
	return reply(w, answer, nil)
}

// patchInstance changes the slice of an instance, also while processes run in it.
func (a *api) patchInstance(w http.ResponseWriter, r *http.Request) error {
	var change wire.Change
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	in.DisallowUnknownFields()
	if err := in.Decode(&change); err != nil {
		return statusError{http.StatusBadRequest, fmt.Errorf("invalid change: %w", err)}
	}
	return replyEmpty(w, a.registry.change(r.PathValue("id"), change))
}

// instanceHandler returns a handler that calls do with the ID of an instance.
func instanceHandler(do func(id string) error) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		return replyEmpty(w, do(r.PathValue("id")))
	}
}

// getParking answers with an error if memory cannot be moved.
func (a *api) getParking(w http.ResponseWriter, r *http.Request) error {
	return replyEmpty(w, a.parking.check(r.Context(), r.URL.Query().Get("gpu") == "sim"))
}

// moveHandler returns a handler that parks or unparks an instance.
func (a *api) moveHandler(do func(context.Context, *instance) error) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		var inst *instance
		if err := a.registry.withInstance(r.PathValue("id"), func(i *instance) error { inst = i; return nil }); err != nil {
			return err
		}
		// The move is completed even if the caller hangs up.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), moveTime)
		defer cancel()
		return replyEmpty(w, do(ctx, inst))
	}
}

// release detaches an instance from its owner. It first takes a census if the instance had processes
// outside the slice at the last one, because these may have ended since.
func (a *api) release(id string) error {
	outside := 0
	if err := a.registry.withInstance(id, func(i *instance) error {
		outside = i.findings.outside
		return nil
	}); err != nil {
		return err
	}
	if outside > 0 {
		a.unmanaged.takeCensus()
	}
	return a.registry.release(id)
}

// getUnmanaged answers with the unmanaged processes of an instance, without the first ?after=N. If
// there are no others, it waits a few seconds for one. With ?wait=0 it does not wait, but takes a
// census at once, unless search=0 is added.
func (a *api) getUnmanaged(w http.ResponseWriter, r *http.Request) error {
	after, err := strconv.Atoi(cmp.Or(r.URL.Query().Get("after"), "0"))
	if err != nil || after < 0 {
		return statusError{http.StatusBadRequest, fmt.Errorf("after=%q: expected a whole number, 0 or more", r.URL.Query().Get("after"))}
	}
	ctx, cancel := context.WithTimeout(r.Context(), watchTime)
	defer cancel()
	if query := r.URL.Query(); query.Get("wait") == "0" {
		if query.Get("search") != "0" {
			a.unmanaged.takeCensus()
		}
		cancel()
	}
	list, err := a.unmanaged.await(ctx, r.PathValue("id"), after)
	return reply(w, list, err)
}

// getFaults answers with the faults of all registered instances. With ?instance=ID it answers with
// that instance's fault, after settle.
func (a *api) getFaults(w http.ResponseWriter, r *http.Request) error {
	only := r.URL.Query().Get("instance")
	if only != "" {
		a.sessions.settle(r.Context(), only)
	}
	out := wire.Faults{Faults: []wire.InstanceFault{}}
	err := a.locked(func() {
		for _, inst := range a.registry.sorted() {
			if inst.fault != nil && (only == "" || inst.reg.Instance == only) {
				f := *inst.fault
				f.Ended = !inst.isConnected(f.PID)
				out.Faults = append(out.Faults, f)
			}
		}
	})
	return reply(w, out, err)
}

// getDevices answers with the memory of all GPUs of the machine.
func (a *api) getDevices(w http.ResponseWriter, _ *http.Request) error {
	out := wire.Devices{GPUs: []wire.DeviceMemory{}}
	if a.cfg.Devices != nil {
		out.GPUs = append(out.GPUs, a.cfg.Devices()...)
	}
	return reply(w, out, nil)
}

// postStored counts the memory of a store until the connection of the request ends. It answers with
// status 200 and the instance if the memory counts; 204 if the process belongs to no instance with a
// slice of that GPU; 409 if the store exceeds the limit or the number of stores; 410 if the process
// has ended.
func (a *api) postStored(w http.ResponseWriter, r *http.Request) error {
	var req wire.Stored
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(text, &req)
	}
	var on gpu.Device
	if err == nil {
		on, err = gpu.ParseDevice(req.GPU)
	}
	if err == nil && (req.PID <= 0 || req.Bytes <= 0 || req.Bytes > maxBytes) {
		err = fmt.Errorf("pid %d, bytes %d: expected more than 0", req.PID, int64(req.Bytes))
	}
	if err != nil {
		return statusError{http.StatusBadRequest, fmt.Errorf("invalid store: %w", err)}
	}
	if err := checkPIDNamespace(r, req.Sender); err != nil {
		return statusError{http.StatusForbidden, err}
	}
	ancestors, err := a.lineage.ancestors(req.PID)
	if err != nil {
		return err
	}
	if len(ancestors) == 0 || ancestors[0].Start != req.Start {
		return statusError{http.StatusGone, fmt.Errorf("the storing process %d has ended", req.PID)}
	}
	var s *store
	if closing := a.locked(func() {
		if inst := a.registry.instances[a.registry.containing(ancestors, "")]; inst != nil {
			for _, alloc := range inst.allocations {
				if alloc.Device() == on.String() {
					s, err = alloc.addStore(req)
				}
			}
		}
	}); closing != nil {
		return closing
	}
	if err != nil {
		return statusError{http.StatusConflict, err}
	}
	if s == nil {
		return replyEmpty(w, nil)
	}
	defer func() { _ = a.locked(s.end) }()
	id := s.alloc.inst.reg.Instance
	a.log.Info("model being stored", "instance", id, "gpu", req.GPU, "pid", req.PID, "bytes", int64(req.Bytes))
	answer := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/json")
	if json.NewEncoder(w).Encode(wire.StoredIn{Instance: id}) != nil || answer.Flush() != nil || answer.SetReadDeadline(time.Time{}) != nil {
		return nil
	}
	select {
	case <-r.Context().Done():
	case <-s.ended:
	case <-a.closing:
	}
	return nil
}

// checkPIDNamespace returns an error if the sender of a request has a PID for itself that differs from
// the PID that this daemon sees, because the sender runs in another PID namespace.
func checkPIDNamespace(r *http.Request, sender int) error {
	cred, err := peerOf(r)
	if err == nil && int(cred.Pid) != sender {
		err = fmt.Errorf("the requesting process %d has the PID %d in its own namespace: it must run in the PID namespace of gfaas-tokend", cred.Pid, sender)
	}
	return err
}

type connKey struct{}

// withConn makes the connection of a request available to its handler.
func withConn(s *http.Server) {
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
}

// refuseInsiders returns a handler that refuses requests from processes inside an instance.
func (a *api) refuseInsiders(next handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := a.checkOutsider(r); err != nil {
			return statusError{http.StatusForbidden, err}
		}
		return next(w, r)
	}
}

// peerOf returns the process at the other end of a request's connection.
func peerOf(r *http.Request) (unix.Ucred, error) {
	conn, ok := r.Context().Value(connKey{}).(*net.UnixConn)
	if !ok {
		return unix.Ucred{}, errors.New("cannot determine the process at the other end of the connection")
	}
	return procfs.Peer(conn)
}

// checkOutsider returns an error if the request was sent by a process inside an instance.
func (a *api) checkOutsider(r *http.Request) error {
	cred, err := peerOf(r)
	if err != nil {
		return err
	}
	if cred.Pid == 0 { // it is in another PID namespace and not visible here
		return nil
	}
	ancestors, err := a.lineage.ancestors(int(cred.Pid))
	if err != nil {
		return err
	}
	if len(ancestors) == 0 {
		return fmt.Errorf("the requesting process %d has ended", cred.Pid)
	}
	var id string
	if err := a.locked(func() { id = a.registry.containing(ancestors, "") }); err != nil || id == "" {
		return err
	}
	a.faults.warn("refused a registration request from inside an instance", "instance", id, "pid", cred.Pid, "request", r.Method+" "+r.URL.Path)
	return fmt.Errorf("process %d runs inside instance %s: only processes outside all instances may register, change or remove instances", cred.Pid, id)
}

// reply answers with a value in JSON, or returns the error.
func reply(w http.ResponseWriter, value any, err error) error {
	if err == nil {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(value)
	}
	return err
}

// replyEmpty answers without content, or returns the error.
func replyEmpty(w http.ResponseWriter, err error) error {
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}
