package model

import (
	"context"
	"os"
	"sync/atomic"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device"
	policy "github.com/gfaas/gfaas/pkg/policy/model"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// model is the daemon's record of one model.
type model struct {
	record wire.Record
	loads  int64     // copies loaded since the daemon started
	used   time.Time // when a copy was last published or granted; zero: not since the daemon started
}

// modelCopy is a copy of a model, on the GPU or in preparation.
type modelCopy struct {
	id     policy.CopyID
	key    policy.Key
	ctx    context.Context
	cancel context.CancelFunc
	store  bool // a client writes its content; false: the daemon loads it
	public bool // may be used by all tenants

	// Used during preparation, only by the goroutine that inspects or fills the copy.
	origin origin
	source *source

	// Guarded by the daemon's lock.
	record     wire.Record // becomes the model's record when the copy is published
	generation int64       // 0: not published
	freed      bool
	memory     device.Memory
	export     *os.File // descriptor with which clients map the memory
	manifest   *os.File
	header     []byte  // of the model's only file; empty for several files and for a store
	charge     *charge // of an uncommitted store, to the slice of its client; nil: counts against no slice

	allocSize gpu.Bytes    // size on the GPU, a multiple of the granularity
	bytes     atomic.Int64 // size of the files; 0 until inspect has opened them
	loaded    atomic.Int64 // bytes copied to the GPU so far
}

// size returns the size of the copy's memory.
func (c *modelCopy) size() gpu.Bytes {
	if c.memory == nil {
		return 0
	}
	return c.memory.Size()
}

// free releases all resources of the copy. The caller holds the lock.
func (c *modelCopy) free() error {
	defer c.charge.stop() // after the memory is freed
	c.cancel()
	c.freed = true
	if c.source != nil {
		c.source.close()
	}
	for _, f := range []*os.File{c.export, c.manifest} {
		if f != nil {
			_ = f.Close()
		}
	}
	if c.memory == nil {
		return nil
	}
	m := c.memory
	c.memory = nil
	return m.Free()
}

// request is a client's request for a copy. The policy knows it by its ID.
type request struct {
	put    bool // replaces the model by the client's file
	public bool
	file   *os.File // passed by the client; nil once a copy owns it
	path   string   // path of file on this host; empty if unknown
	sha    string   // required SHA-256; empty: any
	result chan result
	store  *modelCopy // the copy that the client will write; nil unless it stores a model
}

// takeFile returns the file and transfers its ownership to the caller. The caller holds the lock.
func (r *request) takeFile() *os.File {
	f := r.file
	r.file = nil
	return f
}

// result is the outcome of a request: a copy or an error.
type result struct {
	copy       *modelCopy
	generation int64
	err        error
}

// counts are the counters since the daemon started.
type counts struct{ hits, loads, evictions, failures int64 }

// library holds the known models and their copies. One goroutine saves their changes in the
// catalogue, in order. It retries after errors, because another process may have locked the state
// file.
type library struct {
	*core
	models  map[policy.Key]*model
	copies  map[policy.CopyID]*modelCopy
	unsaved []policy.Key  // models whose changes are to be saved
	saved   chan struct{} // closed when all changes are saved; nil if the catalogue has them
	wake    chan struct{} // wakes save
}

// Times for saving changes in the catalogue.
const (
	saveTime    = 5 * time.Second // limit on one attempt
	retryAfter  = time.Second     // pause after a failed attempt
	maxSaveWait = 3 * time.Second // how long an answer waits for the catalogue
)

// addCopy adds a copy with the ID and key that the policy chose. The caller holds the lock.
func (lib *library) addCopy(c *modelCopy, id policy.CopyID, key policy.Key) {
	c.id, c.key = id, key
	c.ctx, c.cancel = context.WithCancel(lib.ctx)
	lib.copies[id] = c
}

// keyFor resolves a model's name for a tenant: to the tenant's own model, otherwise to a public
// one. Among public models, one of the default tenant takes precedence, then the first tenant by
// name. If there is none, keyFor returns the tenant's own key. The caller holds the lock.
func (lib *library) keyFor(tenant, name string) policy.Key {
	own := policy.Key{Tenant: tenant, Name: name}
	if lib.models[own] != nil || lib.loading(own) {
		return own
	}
	best := own
	for key, m := range lib.models {
		if key.Name != name || !m.record.Public {
			continue
		}
		precedes := key.Tenant == wire.DefaultTenant || best.Tenant != wire.DefaultTenant && key.Tenant < best.Tenant
		if best == own || precedes {
			best = key
		}
	}
	return best
}

// toLoad resolves a name for a tenant that requests the model, and reports whether a copy can be
// loaded. hasFile is true if the tenant can supply the file itself. A file of one tenant never
// becomes the model of another: if a public model is not on the GPU and has no file, the tenant
// gets a model of its own. The caller holds the lock.
func (lib *library) toLoad(tenant, name string, hasFile bool) (key policy.Key, loadable bool) {
	own := policy.Key{Tenant: tenant, Name: name}
	key = lib.keyFor(tenant, name)
	m := lib.models[key]
	recorded := m != nil && len(m.record.Files) > 0
	if key != own && (recorded || lib.onGPU(key) || lib.loading(key)) {
		return key, recorded
	}
	return own, hasFile || key == own && recorded
}

// ready reports whether the model that a name denotes for a tenant is on the GPU.
func (lib *library) ready(tenant, name string) bool {
	lib.mu.Lock()
	defer lib.mu.Unlock()
	return lib.onGPU(lib.keyFor(tenant, name))
}

// loading reports whether a copy of a model is being loaded. The caller holds the lock.
func (lib *library) loading(key policy.Key) bool {
	for _, c := range lib.copies {
		if c.key == key && c.generation == 0 {
			return true
		}
	}
	return false
}

// onGPU reports whether the newest copy of a model is on the GPU. The caller holds the lock.
func (lib *library) onGPU(key policy.Key) bool {
	m := lib.models[key]
	for _, c := range lib.copies {
		if m != nil && c.key == key && c.generation > 0 && c.generation == m.record.Generation {
			return true
		}
	}
	return false
}

// originOf returns where to load a model from: for a put, the client's file; otherwise the
// files of the model's record, the client's file or the folder of models, in this order. The
// caller holds the lock.
func (lib *library) originOf(key policy.Key, r *request) origin {
	m := lib.models[key]
	switch {
	case r.put:
		return origin{file: r.takeFile(), path: r.path, sha: r.sha}
	case m != nil && len(m.record.Files) > 0:
		record := m.record
		return origin{path: record.Files[0].Path, record: &record}
	case r.file != nil:
		return origin{file: r.takeFile(), path: r.path}
	}
	path, _ := wire.FileOf(lib.cfg.Models, key.Name)
	return origin{path: path}
}

// refresh updates the record of a model after a put with the same content, so that later loads
// use the files of the new put: the old ones may have been removed or changed.
func (lib *library) refresh(c *modelCopy, current *wire.Record) {
	lib.mu.Lock()
	defer lib.mu.Unlock()
	m := lib.models[c.key]
	files := c.source.recordFiles()
	if m != nil && m.record.Content == current.Content && len(files) > 0 {
		m.record.Files = files
		lib.queueSave(c.key)
	}
}

// queueSave queues a model's record to be saved in the catalogue. The caller holds the lock.
func (lib *library) queueSave(key policy.Key) {
	lib.unsaved = append(lib.unsaved, key)
	if lib.saved == nil {
		lib.saved = make(chan struct{})
	}
	select {
	case lib.wake <- struct{}{}:
	default:
	}
}

// awaitSaved waits until the catalogue has all changes, but at most maxSaveWait.
func (lib *library) awaitSaved(ctx context.Context) {
	lib.mu.Lock()
	saved := lib.saved
	lib.mu.Unlock()
	if saved == nil {
		return
	}
	select {
	case <-saved:
	case <-ctx.Done():
	case <-time.After(maxSaveWait):
	}
}

// save saves changes in the catalogue until ctx ends.
func (lib *library) save(ctx context.Context) error {
	var retry <-chan time.Time // nil unless the last attempt failed
	for {
		select {
		case <-lib.wake:
		case <-retry:
		case <-ctx.Done():
			return nil
		}
		retry = nil
		if !lib.saveAll(ctx) {
			retry = time.After(retryAfter)
		}
	}
}

// saveAll saves all changes in the catalogue. It returns false after an error. It takes the lock, and
// releases it while it writes a record.
func (lib *library) saveAll(ctx context.Context) bool {
	lib.mu.Lock()
	defer lib.mu.Unlock()
	for len(lib.unsaved) > 0 {
		key := lib.unsaved[0]
		lib.unsaved = lib.unsaved[1:]
		var record wire.Record
		if m := lib.models[key]; m != nil {
			record = m.record
		}
		lib.mu.Unlock()
		err := lib.saveRecord(ctx, key, record)
		lib.mu.Lock()
		if err != nil {
			lib.log.Error("cannot write the catalogue of models", "tenant", key.Tenant, "model", key.Name, "err", err)
			lib.unsaved = append(lib.unsaved, key)
			return false
		}
	}
	if lib.saved != nil {
		close(lib.saved)
		lib.saved = nil
	}
	return true
}

// saveRecord makes the catalogue's record of a model equal to record.
func (lib *library) saveRecord(ctx context.Context, key policy.Key, record wire.Record) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTime)
	defer cancel()
	if len(record.Files) == 0 { // the model was removed, or cannot be loaded again
		return lib.cfg.Catalogue.DeleteModel(ctx, key.Tenant, key.Name)
	}
	return lib.cfg.Catalogue.PutModel(ctx, record)
}
