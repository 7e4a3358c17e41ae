package model

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/model"
	"github.com/gfaas/gfaas/pkg/procfs"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// maxTimeout bounds what a client may wait.
const maxTimeout = 24 * time.Hour

// call is a request that is being answered.
type call struct {
	wire.Request
	conn *conn
	file *os.File // that came with it; closed at its end, unless it is taken
	as   string   // the tenant it is of
}

// request is one that the policy knows.
type request struct {
	put    bool
	store  bool
	public bool
	file   *os.File // a client's, until a copy takes it
	path   string   // where it is
	sha    string
	done   chan result
	size   gpu.Bytes // of a store
	source *source   // of a store: its manifest
	charge *charge   // of a store: against its client's slice
	record wire.Record
}

// takeFile gives the file away. Locked.
func (r *request) takeFile() *os.File {
	f := r.file
	r.file = nil
	return f
}

// result is what a request comes to.
type result struct {
	copy       *copied
	generation int64
	err        error
}

// answer tells a request what it comes to. Locked.
func (d *Daemon) answer(id policy.RequestID, r result) {
	if waits := d.requests[id]; waits != nil {
		waits.done <- r
	}
}

// operation is how requests of a kind are met.
type operation struct {
	run    func(*call) (wire.Answer, []*os.File, error)
	named  bool // it is of a model
	tenant bool // a tenant's socket may ask it, not model.sock alone
	files  int  // descriptors that may come with it
}

// operationOf is the operation of a name; its run is nil if there is none.
func operationOf(name string) operation {
	switch name {
	case wire.OpGet:
		return operation{(*call).get, true, true, 1}
	case wire.OpRead:
		return operation{(*call).read, true, true, 1}
	case wire.OpPut:
		return operation{(*call).put, true, true, 1}
	case wire.OpStore:
		return operation{(*call).storeModel, true, true, 1}
	case wire.OpCommit:
		return operation{(*call).commit, true, true, 0}
	case wire.OpRelease:
		return operation{(*call).release, true, true, 0}
	case wire.OpRemove:
		return operation{(*call).remove, true, true, 0}
	case wire.OpStat:
		return operation{(*call).stat, false, true, 0}
	case wire.OpList:
		return operation{(*call).list, false, true, 0}
	case wire.OpHold:
		return operation{(*call).hold, true, false, 1}
	case wire.OpTenant:
		return operation{(*call).addTenant, false, false, 0}
	}
	return operation{}
}

// check says what is wrong with a request, if anything.
func (c *call) check(files int) error {
	op := operationOf(c.Op)
	usage := func(format string, args ...any) error { return wire.Errorf(wire.CodeUsage, format, args...) }
	if op.run == nil {
		return usage("op %.40q is not known", c.Op)
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
	c.as = c.conn.tenant
	switch {
	case c.conn.tenant != "" && c.Tenant != "" && c.Tenant != c.conn.tenant:
		return wire.Errorf(wire.CodeDenied, "this socket speaks for tenant %s alone", c.conn.tenant)
	case c.conn.tenant != "" && (!op.tenant || c.Source != ""):
		return wire.Errorf(wire.CodeDenied, "only model.sock takes that")
	case c.as == "" && c.Tenant != "":
		c.as = c.Tenant
	case c.as == "":
		c.as = wire.DefaultTenant
	}
	switch {
	case files > op.files:
		return usage("%d descriptors with %s, expected at most %d", files, c.Op, op.files)
	case c.TimeoutMS < 0:
		return usage("timeout_ms is %d, expected 0 or more", c.TimeoutMS)
	}
	return nil
}

// until is when the request's time is up.
func (c *call) until() time.Duration {
	return c.conn.d.now() + time.Duration(min(c.TimeoutMS, int64(maxTimeout/time.Millisecond)))*time.Millisecond
}

// ask has the policy decide on a request, and waits for what it comes to, or until
// the client is gone. Of event one is made with the request's number.
func (c *call) ask(r *request, event func(id policy.RequestID) policy.Event) (policy.RequestID, result) {
	d := c.conn.d
	r.done = make(chan result, 1)
	d.mu.Lock()
	if d.ended {
		d.mu.Unlock()
		return 0, result{err: context.Canceled}
	}
	d.last++
	id := d.last
	d.requests[id] = r
	d.stepLocked(event(id))
	d.mu.Unlock()
	var out result
	select {
	case out = <-r.done:
	case <-c.conn.ctx.Done():
		out.err = c.conn.ctx.Err()
	}
	if out.err != nil {
		c.over(id, r)
	}
	return id, out
}

// over ends a request: whatever it was granted is given back.
func (c *call) over(id policy.RequestID, r *request) {
	d := c.conn.d
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.requests, id)
	if r.file != nil {
		discard([]*os.File{r.takeFile()})
	}
	d.stepLocked(policy.Leave{Request: id})
}

// keyFor is the model that a name means to a tenant: its own, else one that is
// public. Locked.
func (d *Daemon) keyFor(tenant, name string) policy.Key {
	own := policy.Key{Tenant: tenant, Name: name}
	if d.models[own] != nil || d.loading(own) {
		return own
	}
	best := own
	for key, m := range d.models {
		if key.Name == name && m.record.Public && (best == own || key.Tenant == wire.DefaultTenant || best.Tenant != wire.DefaultTenant && key.Tenant < best.Tenant) {
			best = key
		}
	}
	return best
}

// toLoad is the model that a name means to a tenant who may have a source of its
// own for it, and whether there is something to load it from. What a tenant brings
// never becomes another's model: of one that is public and has no file, the tenant
// that asks has its own. Locked.
func (d *Daemon) toLoad(tenant, name string, has bool) (key policy.Key, source bool) {
	own := policy.Key{Tenant: tenant, Name: name}
	key = d.keyFor(tenant, name)
	m := d.models[key]
	source = m != nil && len(m.record.Files) > 0
	if key != own && (source || d.onGPU(key) || d.loading(key)) {
		return key, source
	}
	return own, has || key == own && source
}

// ready says whether what a name means to a tenant is on the GPU.
func (d *Daemon) ready(tenant, name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.onGPU(d.keyFor(tenant, name))
}

// loading says whether a copy of a model is on its way. Locked.
func (d *Daemon) loading(key policy.Key) bool {
	for _, c := range d.copies {
		if c.key == key && c.generation == 0 {
			return true
		}
	}
	return false
}

func (c *call) get() (wire.Answer, []*os.File, error) {
	r := &request{}
	if c.file != nil {
		r.path = c.path()
		r.file, c.file = c.file, nil
	}
	id, out := c.acquire(r)
	if out.err != nil {
		return wire.Answer{}, nil, out.err
	}
	return c.granted(id, r, out, 0)
}

// path is where the file that came can be opened again. What a container passes has
// none: it could put other things of the host's there, which it may not read.
func (c *call) path() string {
	if c.conn.tenant != "" {
		return ""
	}
	return pathOf(c.file, c.Source)
}

// acquire has a model's copy granted to a request.
func (c *call) acquire(r *request) (policy.RequestID, result) {
	d := c.conn.d
	path, ok := wire.FileOf(d.cfg.Models, c.Name)
	inFolder := false
	if d.cfg.Models != "" && ok {
		_, err := os.Stat(path)
		inFolder = err == nil
	}
	if !d.ready(c.as, c.Name) {
		d.reap()
	}
	id, out := c.ask(r, func(id policy.RequestID) policy.Event {
		key, source := d.toLoad(c.as, c.Name, r.file != nil || inFolder)
		return policy.Get{Request: id, Key: key, Until: c.until(), Source: source}
	})
	if out.err == nil && r.file != nil {
		discard([]*os.File{r.file}) // it was there, or another's load came first
		r.file = nil
	}
	return id, out
}

// granted has the connection hold what a request was granted, and answers with it.
func (c *call) granted(id policy.RequestID, r *request, out result, store policy.CopyID) (wire.Answer, []*os.File, error) {
	d := c.conn.d
	d.mu.Lock()
	copied := out.copy
	a := wire.Answer{
		Name: copied.key.Name, Generation: out.generation, SHA256: copied.record.SHA256, GPU: d.cfg.GPU.UUID(), Size: int64(copied.size()),
	}
	// Descriptors of the answer's own: a store can end, and its memory go, before it is sent.
	// Each client reads the manifest from a place of its own.
	var memory, manifest *os.File
	var err error
	if copied.freed {
		err = c.paused()
	} else {
		memory, err = duplicate(copied.export)
	}
	if err == nil {
		manifest, err = os.Open(procfs.OpenFile(copied.manifest.Fd()))
	}
	if err == nil {
		c.conn.took(hold{request: id, as: c.as, key: copied.key, generation: out.generation, store: store})
	}
	d.mu.Unlock()
	if err != nil {
		if memory != nil {
			_ = memory.Close()
		}
		c.over(id, r)
		return a, nil, fmt.Errorf("model %s: %w", copied.key.Name, err)
	}
	return a, []*os.File{memory, manifest}, nil
}

// paused is the error of a store that has ended by itself.
func (c *call) paused() error {
	return wire.Errorf(wire.CodeAbsent, "the store of model %s has ended: nothing was heard from this connection for %v", c.Name, c.conn.d.policy.StorePause)
}

// duplicate returns another descriptor of what a file is of.
func duplicate(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func (c *call) put() (wire.Answer, []*os.File, error) {
	d := c.conn.d
	if c.file == nil {
		return wire.Answer{}, nil, wire.Errorf(wire.CodeUsage, "put without the descriptor of a file")
	}
	r := &request{put: true, public: c.Public, sha: c.SHA256, path: c.path()}
	r.file, c.file = c.file, nil
	d.reap()
	id, out := c.ask(r, func(id policy.RequestID) policy.Event {
		return policy.Put{Request: id, Key: policy.Key{Tenant: c.as, Name: c.Name}, Until: c.until()}
	})
	if out.err != nil {
		return wire.Answer{}, nil, out.err
	}
	d.mu.Lock()
	copied := out.copy
	a := wire.Answer{Name: c.Name, Generation: out.generation, SHA256: copied.record.SHA256, GPU: d.cfg.GPU.UUID(), Size: int64(copied.size())}
	if m := d.models[copied.key]; m != nil && m.record.Generation == out.generation && c.Public && !m.record.Public {
		m.record.Public = true
		d.keep(copied.key)
	}
	d.mu.Unlock()
	c.over(id, r)
	d.kept(c.conn.ctx)
	return a, nil, nil
}

func (c *call) storeModel() (wire.Answer, []*os.File, error) {
	usage := func(format string, args ...any) error { return wire.Errorf(wire.CodeUsage, format, args...) }
	switch {
	case c.file == nil:
		return wire.Answer{}, nil, usage("store without the descriptor of a manifest")
	case c.Size <= 0 || c.Size > 1<<50:
		return wire.Answer{}, nil, usage("size is %d, expected more than 0 bytes", c.Size)
	}
	file, err := regular(c.file, "")
	c.file = nil
	if err != nil {
		return wire.Answer{}, nil, wire.Errorf(wire.CodeInvalidFile, "manifest: %v", err)
	}
	d := c.conn.d
	grain := d.cfg.GPU.Granularity()
	r := &request{store: true, public: c.Public, size: (gpu.Bytes(c.Size) + grain - 1) / grain * grain}
	r.source = &source{files: []*opened{file}, image: gpu.Bytes(c.Size)}
	manifest, err := d.manifest(c.conn.ctx, c.as, r.source)
	if err != nil {
		r.source.close()
		return wire.Answer{}, nil, err
	}
	manifest.close() // it is made again when there is room
	r.source.host = manifest.size
	r.record = wire.Record{Tenant: c.as, Name: c.Name, Public: c.Public, Tensors: manifest.tensors, Bytes: manifest.bytes}
	d.reap()
	if r.charge, err = d.chargeStore(c, r.size); err != nil {
		r.source.close()
		return wire.Answer{}, nil, err
	}
	id, out := c.ask(r, func(id policy.RequestID) policy.Event {
		return policy.Store{Request: id, Key: policy.Key{Tenant: c.as, Name: c.Name}, Bytes: r.size, Host: r.source.host, Until: c.until()}
	})
	if out.err != nil {
		r.charge.end()
		return wire.Answer{}, nil, out.err
	}
	return c.granted(id, r, out, out.copy.id)
}

// manifest is a sealed file with what clients are told of a model's tensors.
type manifest struct {
	file    *os.File
	size    gpu.Bytes // of the file
	tensors int
	bytes   int64 // of all of them
}

func (m manifest) close() {
	if m.file != nil {
		_ = m.file.Close()
	}
}

// manifest reads the manifest of a store and makes it one that nobody can change.
func (d *Daemon) manifest(ctx context.Context, tenant string, s *source) (manifest, error) {
	wrong := func(err error) error { return wire.Errorf(wire.CodeInvalidFile, "manifest: %v", err) }
	f := s.files[0]
	if f.size > maxText {
		return manifest{}, wrong(fmt.Errorf("%d bytes, expected at most %d", f.size, maxText))
	}
	done, err := d.looks.take(ctx, tenant)
	if err != nil {
		return manifest{}, err
	}
	defer done()
	return within(ctx, d, func() (m manifest, err error) {
		places, metadata, err := wire.ParseManifest(io.NewSectionReader(f, 0, f.size), int64(s.image))
		if err != nil {
			return m, wrong(err)
		}
		m.tensors = len(places)
		for _, p := range places {
			m.bytes += p.Bytes
		}
		text, err := wire.AppendManifest(nil, places, metadata)
		if m.size = gpu.Bytes(len(text)); err == nil && s.host > 0 && m.size != s.host {
			err = wrong(errors.New("it changed while it was read"))
		}
		if err == nil {
			m.file, err = makeManifest(text)
		}
		return m, err
	}, manifest.close)
}

func (c *call) commit() (wire.Answer, []*os.File, error) {
	a, charge, err := c.publish()
	charge.end() // before the client hears of it and allocates what it may have again
	return a, nil, err
}

// publish commits a store, and returns its charge, which is to be ended.
func (c *call) publish() (wire.Answer, *charge, error) {
	d, conn := c.conn.d, c.conn
	key := policy.Key{Tenant: c.as, Name: c.Name}
	d.mu.Lock()
	defer d.mu.Unlock()
	conn.mu.Lock()
	defer conn.mu.Unlock()
	for i, h := range conn.holds {
		if h.key != key || h.store == 0 {
			continue
		}
		copied := d.copies[h.store]
		if copied == nil {
			conn.holds = slices.Delete(conn.holds, i, i+1)
			return wire.Answer{}, nil, c.paused()
		}
		conn.holds[i].store = 0
		d.stepLocked(policy.Loaded{Copy: h.store, Content: copied.record.Content})
		conn.holds[i].generation = copied.generation
		charge := copied.charge
		copied.charge = nil
		return wire.Answer{Name: c.Name, Generation: copied.generation, GPU: d.cfg.GPU.UUID(), Size: int64(copied.size())}, charge, nil
	}
	return wire.Answer{}, nil, wire.Errorf(wire.CodeAbsent, "this connection stores no model %s", c.Name)
}

func (c *call) release() (wire.Answer, []*os.File, error) {
	id, ok := c.conn.drop(c.as, c.Name, c.Release)
	if !ok {
		return wire.Answer{}, nil, wire.Errorf(wire.CodeAbsent, "this connection holds no model %s", c.Name)
	}
	c.over(id, &request{})
	return wire.Answer{Name: c.Name}, nil, nil
}

func (c *call) remove() (wire.Answer, []*os.File, error) {
	d := c.conn.d
	key := policy.Key{Tenant: c.as, Name: c.Name}
	d.mu.Lock()
	there := d.models[key] != nil || d.loading(key)
	if there {
		delete(d.models, key)
		d.stepLocked(policy.Remove{Key: key})
		d.keep(key)
	}
	d.mu.Unlock()
	if !there {
		return wire.Answer{}, nil, wire.Errorf(wire.CodeAbsent, "there is no model %s", c.Name)
	}
	d.kept(c.conn.ctx)
	return wire.Answer{Name: c.Name}, nil, nil
}

// hold has a process hold what the connection holds of a model, for as long as it
// lives.
func (c *call) hold() (wire.Answer, []*os.File, error) {
	if c.file == nil {
		return wire.Answer{}, nil, wire.Errorf(wire.CodeUsage, "hold without a process's descriptor")
	}
	process := c.file
	// Ready for reading is what it is when the process ends.
	if err := unix.PidfdSendSignal(int(process.Fd()), 0, nil, 0); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ESRCH) {
		return wire.Answer{}, nil, wire.Errorf(wire.CodeUsage, "that is no process's descriptor: %v", err)
	}
	watched, err := watch(process)
	if err != nil {
		return wire.Answer{}, nil, err
	}
	id, ok := c.conn.drop(c.as, c.Name, c.Release)
	if !ok {
		_ = watched.Close()
		return wire.Answer{}, nil, wire.Errorf(wire.CodeAbsent, "this connection holds no model %s", c.Name)
	}
	c.file = nil
	d := c.conn.d
	d.mu.Lock()
	d.processes[id] = process
	d.mu.Unlock()
	d.work.Go(func() {
		if err := d.awaitEnd(watched); err != nil && d.ctx.Err() == nil {
			d.log.Error("cannot watch a process", "err", err)
		}
		d.mu.Lock()
		delete(d.processes, id)
		d.mu.Unlock()
		_ = watched.Close()
		_ = process.Close()
		c.over(id, &request{})
	})
	return wire.Answer{Name: c.Name}, nil, nil
}

// watch is a file that can be read when a process has ended. The process's
// descriptor is its client's too and stays as it is; what looks at it here is waited
// for without a thread of its own.
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

// awaitEnd waits until a process that is watched has ended, or the daemon does.
func (d *Daemon) awaitEnd(watched *os.File) error {
	raw, err := watched.SyscallConn()
	if err != nil {
		return err
	}
	defer context.AfterFunc(d.ctx, func() { _ = watched.SetReadDeadline(time.Unix(1, 0)) })()
	return raw.Read(func(fd uintptr) bool {
		for {
			if n, err := unix.EpollWait(int(fd), make([]unix.EpollEvent, 1), 0); !errors.Is(err, unix.EINTR) {
				return n != 0
			}
		}
	})
}

func (c *call) addTenant() (wire.Answer, []*os.File, error) {
	d := c.conn.d
	if err := d.listen(c.as); err != nil {
		return wire.Answer{}, nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.as != wire.DefaultTenant && !slices.Contains(d.tenants, c.as) {
		d.tenants = append(d.tenants, c.as)
		d.share()
	}
	return wire.Answer{Tenant: c.as}, nil, nil
}
