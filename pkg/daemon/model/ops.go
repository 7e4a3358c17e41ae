package model

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/model"
	"github.com/gfaas/gfaas/pkg/procfs"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
	"golang.org/x/sys/unix"
)

// maxTimeout limits the timeout of a request.
const maxTimeout = 24 * time.Hour

// call is a request in progress.
type call struct {
	wire.Request
	conn      *conn
	file      *os.File // passed with the request; closed at its end; nil if an operation owns it
	forTenant string   // tenant for which the request runs
	operation operation
	rights    []*os.File // descriptors to send with the answer, closed afterwards
}

func (c *call) key() policy.Key { return policy.Key{Tenant: c.forTenant, Name: c.Name} }

func usage(format string, args ...any) error { return wire.Errorf(wire.CodeUsage, format, args...) }

// operation implements one kind of request. run may set call.rights.
type operation struct {
	run    func(*call) (wire.Answer, error)
	named  bool // the request must name a model
	tenant bool // allowed on tenants' sockets; otherwise only on model.sock
	files  int  // most descriptors that may accompany the request
}

// operationOf returns the operation with the given name. Its run is nil if there is none.
func operationOf(name string) operation {
	return map[string]operation{
		wire.OpGet:     {(*call).getModel, true, true, 1},
		wire.OpRead:    {(*call).read, true, true, 1},
		wire.OpPut:     {(*call).putModel, true, true, 1},
		wire.OpStore:   {(*call).storeModel, true, true, 1},
		wire.OpTouch:   {(*call).touch, true, true, 0},
		wire.OpCommit:  {(*call).commit, true, true, 0},
		wire.OpRelease: {(*call).release, true, true, 0},
		wire.OpRemove:  {(*call).remove, true, true, 0},
		wire.OpStat:    {(*call).stat, false, true, 0},
		wire.OpList:    {(*call).list, false, true, 0},
		wire.OpHold:    {(*call).transferHold, true, false, 1},
		wire.OpTenant:  {(*call).addTenant, false, false, 0},
	}[name]
}

// check validates a request that came with the given number of descriptors. It sets c.operation and
// c.forTenant.
func (c *call) check(files int) error {
	op := operationOf(c.Op)
	if c.operation = op; op.run == nil {
		return usage("unknown op %.40q", c.Op)
	}
	if op.named || c.Name != "" {
		if err := wire.CheckName(c.Name); err != nil {
			return usage("%v", err)
		}
	}
	if c.Tenant != "" {
		if err := wire.CheckTenant(c.Tenant); err != nil {
			return usage("%v", err)
		}
	}
	c.forTenant = c.conn.tenant
	switch {
	case c.conn.tenant != "" && c.Tenant != "" && c.Tenant != c.conn.tenant:
		return wire.Errorf(wire.CodeDenied, "this socket serves only tenant %s", c.conn.tenant)
	case c.conn.tenant != "" && (!op.tenant || c.Source != ""):
		return wire.Errorf(wire.CodeDenied, "this request is only allowed on model.sock")
	case c.forTenant == "" && c.Tenant != "":
		c.forTenant = c.Tenant
	case c.forTenant == "":
		c.forTenant = wire.DefaultTenant
	}
	switch {
	case files > op.files:
		return usage("%s with %d file descriptors, expected at most %d", c.Op, files, op.files)
	case c.TimeoutMS < 0:
		return usage("timeout_ms %d: expected 0 or more", c.TimeoutMS)
	}
	return nil
}

// until returns the time limit of the request, in the policy's time.
func (c *call) until() time.Duration {
	return c.conn.server.now() + time.Duration(min(c.TimeoutMS, int64(maxTimeout/time.Millisecond)))*time.Millisecond
}

// submit passes a request to the policy and waits for the result, or until the client disconnects.
// event returns the policy's event for the request ID. After an error the request has ended.
func (c *call) submit(r *request, event func(id policy.RequestID) policy.Event) (policy.RequestID, result) {
	srv := c.conn.server
	r.result = make(chan result, 1)
	srv.mu.Lock()
	if srv.closed {
		srv.mu.Unlock()
		return 0, result{err: context.Canceled}
	}
	srv.last++
	id := srv.last
	srv.requests[id] = r
	srv.stepLocked(event(id))
	srv.mu.Unlock()
	var res result
	select {
	case res = <-r.result:
	case <-c.conn.ctx.Done():
		res.err = c.conn.ctx.Err()
	}
	if res.err != nil {
		c.endRequest(id, r)
	}
	return id, res
}

// endRequest ends a request and releases everything that it was granted.
func (c *call) endRequest(id policy.RequestID, r *request) {
	srv := c.conn.server
	srv.mu.Lock()
	defer srv.mu.Unlock()
	delete(srv.requests, id)
	if r.file != nil {
		procfs.Discard(r.takeFile())
	}
	srv.stepLocked(policy.Release{Request: id})
}

func (c *call) getModel() (wire.Answer, error) {
	r := &request{}
	if c.file != nil {
		r.path = c.path()
		r.file, c.file = c.file, nil
	}
	id, res := c.acquire(r)
	if res.err != nil {
		return wire.Answer{}, res.err
	}
	return c.answerGrant(id, r, res, 0)
}

// path returns a path from which the daemon can open the passed file again. It returns "" for a
// tenant's socket: a container could replace the file at that path by another file of the host,
// which the container may not read.
func (c *call) path() string {
	if c.conn.tenant != "" {
		return ""
	}
	return pathOf(c.file, c.Source)
}

// acquire requests a copy of a model. The copy is loaded if necessary.
func (c *call) acquire(r *request) (policy.RequestID, result) {
	srv := c.conn.server
	path, ok := wire.FileOf(srv.cfg.Models, c.Name)
	inFolder := false
	if srv.cfg.Models != "" && ok {
		_, err := os.Stat(path)
		inFolder = err == nil
	}
	if !srv.ready(c.forTenant, c.Name) {
		srv.reap()
	}
	id, res := c.submit(r, func(id policy.RequestID) policy.Event {
		key, source := srv.toLoad(c.forTenant, c.Name, r.file != nil || inFolder)
		return policy.Get{Request: id, Key: key, Until: c.until(), Source: source}
	})
	if res.err == nil && r.file != nil {
		procfs.Discard(r.file) // not needed: the model was loaded, or another request loaded it
		r.file = nil
	}
	return id, res
}

// describe returns an answer about a copy. The caller holds the lock.
func (srv *server) describe(c *modelCopy, generation int64) wire.Answer {
	return wire.Answer{
		Name: c.key.Name, Generation: generation, SHA256: c.record.SHA256, GPU: srv.cfg.GPU.UUID(), Size: int64(c.size()),
	}
}

// answerGrant makes the connection hold a granted copy and returns the answer. store is the copy's ID
// if it is an uncommitted store, otherwise 0.
func (c *call) answerGrant(id policy.RequestID, r *request, res result, store policy.CopyID) (wire.Answer, error) {
	srv := c.conn.server
	srv.mu.Lock()
	copied := res.copy
	a := srv.describe(copied, res.generation)
	// The answer needs its own descriptors: a store may end, and its memory be freed, before
	// the answer is sent. Opening the manifest anew gives each client its own file offset.
	var memory, manifest *os.File
	var err error
	if copied.freed {
		err = c.storeEnded()
	} else {
		memory, err = duplicate(copied.export)
	}
	if err == nil {
		manifest, err = os.Open(procfs.OpenFile(copied.manifest.Fd()))
	}
	if err == nil {
		h := hold{request: id, tenant: c.forTenant, key: copied.key, generation: res.generation, store: store}
		c.conn.holds = append(c.conn.holds, h)
	}
	srv.mu.Unlock()
	if err != nil {
		if memory != nil {
			_ = memory.Close()
		}
		c.endRequest(id, r)
		return a, fmt.Errorf("model %s: %w", copied.key.Name, err)
	}
	c.rights = []*os.File{memory, manifest}
	return a, nil
}

// storeEnded returns the error for a store that the policy has ended after StorePause.
func (c *call) storeEnded() error {
	return wire.Errorf(wire.CodeAbsent, "the store of model %s has ended, because this connection sent no request for %v", c.Name, c.conn.server.policy.StorePause)
}

// duplicate returns a second descriptor of a file.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func (c *call) putModel() (wire.Answer, error) {
	srv := c.conn.server
	if c.file == nil {
		return wire.Answer{}, usage("put without a file descriptor")
	}
	r := &request{put: true, public: c.Public, sha: c.SHA256, path: c.path()}
	r.file, c.file = c.file, nil
	srv.reap()
	id, res := c.submit(r, func(id policy.RequestID) policy.Event {
		return policy.Put{Request: id, Key: c.key(), Until: c.until()}
	})
	if res.err != nil {
		return wire.Answer{}, res.err
	}
	srv.mu.Lock()
	copied := res.copy
	a := srv.describe(copied, res.generation)
	if m := srv.models[copied.key]; m != nil && m.record.Generation == res.generation && c.Public && !m.record.Public {
		m.record.Public = true
		srv.queueSave(copied.key)
	}
	srv.mu.Unlock()
	c.endRequest(id, r)
	srv.awaitSaved(c.conn.ctx)
	return a, nil
}

func (c *call) storeModel() (wire.Answer, error) {
	switch {
	case c.file == nil:
		return wire.Answer{}, usage("store without the file descriptor of a manifest")
	case c.Size <= 0 || c.Size > 1<<50:
		return wire.Answer{}, usage("size %d: expected 1 to %d bytes", c.Size, int64(1<<50))
	}
	file, err := regular(c.file, "")
	c.file = nil
	if err != nil {
		return wire.Answer{}, wire.Errorf(wire.CodeInvalidFile, "manifest: %v", err)
	}
	srv := c.conn.server
	s := &source{files: []*openedFile{file}, image: gpu.Bytes(c.Size)}
	manifest, err := srv.manifest(c.conn.ctx, c.forTenant, s)
	if err != nil {
		s.close()
		return wire.Answer{}, err
	}
	manifest.close() // only the size was needed; allocate makes it again when there is room
	s.host = manifest.size
	store := &modelCopy{store: true, public: c.Public, source: s, allocSize: srv.roundUp(s.image)}
	store.record = wire.Record{Tenant: c.forTenant, Name: c.Name, Public: c.Public, Tensors: manifest.tensors, Bytes: manifest.bytes}
	srv.reap()
	counting, err := srv.chargeStore(c.conn.ctx, c.conn.pid, c.conn.start, c.Name, store.allocSize)
	if err != nil {
		s.close()
		return wire.Answer{}, err
	}
	store.charge = counting
	r := &request{store: store}
	id, res := c.submit(r, func(id policy.RequestID) policy.Event {
		return policy.Store{Request: id, Key: c.key(), Bytes: store.allocSize, Host: s.host, Until: c.until()}
	})
	if res.err != nil {
		counting.end()
		return wire.Answer{}, res.err
	}
	return c.answerGrant(id, r, res, res.copy.id)
}

// touch reports that a store continues, as every request does. In contrast to others, it fails if the
// store has ended.
func (c *call) touch() (wire.Answer, error) {
	srv := c.conn.server
	srv.mu.Lock()
	defer srv.mu.Unlock()
	_, _, err := c.findStore()
	return wire.Answer{Name: c.Name}, err
}

// findStore returns the connection's uncommitted store of the model: its copy, and its index in
// conn.holds, which is negative if there is none. The error reports that there is none, or that it has
// ended. The caller holds the daemon's lock (server.mu).
func (c *call) findStore() (*modelCopy, int, error) {
	i := slices.IndexFunc(c.conn.holds, func(h hold) bool { return h.key == c.key() && h.store != 0 })
	if i < 0 {
		return nil, i, wire.Errorf(wire.CodeAbsent, "this connection has no store of model %s", c.Name)
	}
	copied := c.conn.server.copies[c.conn.holds[i].store]
	if copied == nil {
		return nil, i, c.storeEnded()
	}
	return copied, i, nil
}

func (c *call) commit() (wire.Answer, error) {
	srv, conn := c.conn.server, c.conn
	var counting *charge
	// Before the answer, because the client may then allocate this memory again.
	defer func() { counting.end() }()
	srv.mu.Lock()
	defer srv.mu.Unlock()
	copied, i, err := c.findStore()
	if err != nil {
		if i >= 0 {
			conn.holds = slices.Delete(conn.holds, i, i+1)
		}
		return wire.Answer{}, err
	}
	conn.holds[i].store = 0
	srv.stepLocked(policy.Loaded{Copy: copied.id, Content: copied.record.Content})
	conn.holds[i].generation = copied.generation
	counting, copied.charge = copied.charge, nil
	return srv.describe(copied, copied.generation), nil
}

func (c *call) release() (wire.Answer, error) {
	id, ok := c.conn.removeHold(c.forTenant, c.Name, c.Release)
	if !ok {
		return wire.Answer{}, wire.Errorf(wire.CodeAbsent, "this connection does not hold model %s", c.Name)
	}
	c.endRequest(id, &request{})
	return wire.Answer{Name: c.Name}, nil
}

func (c *call) remove() (wire.Answer, error) {
	srv := c.conn.server
	key := c.key()
	srv.mu.Lock()
	exists := srv.models[key] != nil || srv.loading(key)
	if exists {
		delete(srv.models, key)
		srv.stepLocked(policy.Remove{Key: key})
		srv.queueSave(key)
	}
	srv.mu.Unlock()
	if !exists {
		return wire.Answer{}, wire.Errorf(wire.CodeAbsent, "there is no model %s", c.Name)
	}
	srv.awaitSaved(c.conn.ctx)
	return wire.Answer{Name: c.Name}, nil
}

// transferHold transfers the connection's hold on a model to a process, until the process ends.
func (c *call) transferHold() (wire.Answer, error) {
	if c.file == nil {
		return wire.Answer{}, usage("hold without a pidfd")
	}
	process := c.file
	// Accept only a pidfd: watch relies on it becoming readable when the process ends.
	if err := unix.PidfdSendSignal(int(process.Fd()), 0, nil, 0); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ESRCH) {
		return wire.Answer{}, usage("the file descriptor is not a pidfd: %v", err)
	}
	watched, err := watch(process)
	if err != nil {
		return wire.Answer{}, err
	}
	id, ok := c.conn.removeHold(c.forTenant, c.Name, c.Release)
	if !ok {
		_ = watched.Close()
		return wire.Answer{}, wire.Errorf(wire.CodeAbsent, "this connection does not hold model %s", c.Name)
	}
	c.file = nil
	srv := c.conn.server
	srv.mu.Lock()
	srv.processes[id] = process
	srv.mu.Unlock()
	srv.work.Go(func() {
		if err := srv.awaitEnd(watched); err != nil && srv.ctx.Err() == nil {
			srv.log.Error("cannot watch a process", "err", err)
		}
		srv.mu.Lock()
		delete(srv.processes, id)
		srv.mu.Unlock()
		_ = watched.Close()
		_ = process.Close()
		c.endRequest(id, &request{})
	})
	return wire.Answer{Name: c.Name}, nil
}

// watch returns a file that becomes readable when a process ends. It does not change the flags of
// the pidfd, which the client shares; the runtime's poller waits for the new file instead.
func watch(process *os.File) (*os.File, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch a process: %w", err)
	}
	err = errors.Join(
		unix.SetNonblock(fd, true),
		unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, int(process.Fd()), &unix.EpollEvent{Events: unix.EPOLLIN}),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch a process: %w", err), unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), "end of a process"), nil
}

func (c *call) addTenant() (wire.Answer, error) {
	srv := c.conn.server
	if err := srv.listen(c.forTenant); err != nil {
		return wire.Answer{}, err
	}
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if c.forTenant != wire.DefaultTenant && !slices.Contains(srv.tenants, c.forTenant) {
		srv.tenants = append(srv.tenants, c.forTenant)
		srv.setBounds()
	}
	return wire.Answer{Tenant: c.forTenant}, nil
}

func (c *call) stat() (wire.Answer, error) {
	srv := c.conn.server
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if c.Name == "" {
		t := srv.totals()
		return wire.Answer{Daemon: &t}, nil
	}
	key := srv.keyFor(c.forTenant, c.Name)
	for _, s := range srv.statuses("") {
		if s.Name == key.Name && s.Tenant == key.Tenant {
			return wire.Answer{Model: &s}, nil
		}
	}
	return wire.Answer{}, wire.Errorf(wire.CodeAbsent, "there is no model %s", c.Name)
}

// list returns as many models as fit in a packet, starting after c.After.
func (c *call) list() (wire.Answer, error) {
	srv := c.conn.server
	tenant := c.conn.tenant
	if tenant == "" {
		tenant = c.Tenant
	}
	srv.mu.Lock()
	all := srv.statuses(tenant)
	srv.mu.Unlock()
	a := wire.Answer{OK: true, ID: c.ID, Models: []wire.Status{}, More: new(bool)}
	envelope, err := encode(a)
	if err != nil {
		return a, err
	}
	used := len(envelope)
	for _, s := range all {
		if c.After != "" && (s.Name < c.After || s.Name == c.After && (c.AfterOf == "" || s.Tenant <= c.AfterOf)) {
			continue
		}
		text, err := encode(s)
		if err != nil {
			return a, err
		}
		if used += len(text) + 1; used > wire.MaxAnswer && len(a.Models) > 0 {
			*a.More = true
			break
		}
		a.Models = append(a.Models, s)
	}
	return a, nil
}
