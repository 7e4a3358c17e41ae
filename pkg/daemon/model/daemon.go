// Package model is the live model daemon: it holds one copy of a model's weights on
// a GPU and hands it to processes and containers, read-only (FaST-GShare, 3.5).
// What is on the GPU, for whom and for how long, the policy of pkg/policy/model
// says; here files are read, memory is taken, and sockets are answered.
//
// # Who is trusted with what
//
// model.sock is its user's and root's, by mode, and speaks for every tenant.
// model-T.sock speaks for tenant T alone, and is all that a container of T is
// given. No path crosses it: a client there passes an open file.
//
// A client is not trusted with anything of others. What it sends is bounded in
// size and in number; one that does not read its answers loses its connection; what
// it held is free with its connection. A descriptor that it passes is read only if
// it is of a regular file, and by pread, so that a file that shrinks is an error.
// One whose file system does not answer stops its own load, in time. Until then that
// has one of two turns of its tenant's, and of three there are; the piece of pinned
// memory that it was to read into it has until it answers.
//
// What the driver cannot forbid is trusted: whoever has a copy's descriptor could
// map it to write. The client library maps it read-only.
package model

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/gpu/device"
	policy "github.com/gfaas/gfaas/pkg/policy/model"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
)

// Catalogue keeps what the daemon knows of models from one of its lives to the
// next.
type Catalogue interface {
	Models(ctx context.Context) ([]wire.Record, error)
	PutModel(ctx context.Context, r wire.Record) error
	DeleteModel(ctx context.Context, tenant, name string) error
}

// Config is what a daemon goes by.
type Config struct {
	Socket     string               // model.sock; its folder is the run directory
	Tenants    []string             // who have sockets of their own, besides the default one
	Bounds     map[string]gpu.Bytes // of tenants' models, if not an equal share; see Shares
	Capacity   gpu.Bytes            // of all copies together
	Staging    gpu.Bytes            // most host memory that is pinned; 0 is 64 MiB
	Models     string               // folder of models that nobody has put; empty is none
	Stall      time.Duration        // how long a piece of a file may take to be read; 0 is 2 min
	SendTime   time.Duration        // for a client to take an answer; 0 is 10 s
	StorePause time.Duration        // longest pause of a store that is not committed; 0 is 60 s
	Listen     string               // TCP address of /healthz, /readyz and /metrics; empty is none
	Private    bool                 // the run directory is ours alone: its mode becomes 0700

	ExitWhenIdle time.Duration // leave after so long without a client, and a process that holds a model; 0 is never

	// Reload reads the settings again, at SIGHUP; nil: there is nothing to read.
	Reload func() (Settings, error)

	// Slices counts what is stored and not committed against the slices of those who
	// store; nil: it counts against none. GPUName is the GPU's name there.
	Slices  Slices
	GPUName string

	GPU       device.Device
	Catalogue Catalogue
	Log       *slog.Logger
}

// Settings are what can change while a daemon runs.
type Settings struct {
	Capacity gpu.Bytes
	Tenants  []string // who get sockets; nobody loses one
	Bounds   map[string]gpu.Bytes
}

// Shares returns the bound on the models of each tenant: its size where that is named, else
// an equal part of what those leave of the capacity. The default tenant is its user's own
// and has no bound, unless it is among the tenants. The error says that the sizes leave
// nothing for a tenant, or are more than the capacity.
func Shares(capacity gpu.Bytes, tenants []string, sizes map[string]gpu.Bytes) (map[string]gpu.Bytes, error) {
	shares, left, equal := map[string]gpu.Bytes{}, capacity, []string(nil)
	for _, tenant := range slices.Compact(slices.Sorted(slices.Values(tenants))) {
		if size, named := sizes[tenant]; named {
			shares[tenant] = size
			left -= size
		} else {
			equal = append(equal, tenant)
		}
	}
	for _, tenant := range equal {
		shares[tenant] = max(left, 0) / gpu.Bytes(len(equal))
	}
	switch {
	case left < 0:
		return shares, fmt.Errorf("the tenants' sizes sum to %v, more than the capacity of %v", capacity-left, capacity)
	case left == 0 && len(equal) > 0:
		return shares, fmt.Errorf("the tenants' sizes leave nothing of the capacity of %v for tenant %s", capacity, equal[0])
	}
	return shares, nil
}

// piece is how much of a model is read and copied at a time, in bytes.
const piece = 8 * gpu.MiB

// Daemon is one running model daemon.
type Daemon struct {
	cfg      Config
	log      *slog.Logger
	chassis  *chassis.Chassis
	epoch    time.Time
	stages   *stages
	loads    *turns
	looks    *turns        // at files: a header may be long
	outlines chan struct{} // manifests of ours that are read at once, as long
	metrics  *metrics
	registry *prometheus.Registry
	work     sync.WaitGroup // goroutines of loads and connections
	ctx      context.Context
	stop     context.CancelFunc
	saves    saves

	mu        sync.Mutex // guards what follows
	ended     bool
	policy    *policy.Policy
	timer     *time.Timer
	models    map[policy.Key]*model
	copies    map[policy.CopyID]*copied
	requests  map[policy.RequestID]*request
	processes map[policy.RequestID]*os.File // that hold a model themselves: their pidfds
	last      policy.RequestID
	capacity  gpu.Bytes
	bounds    map[string]gpu.Bytes // that were named
	tenants   []string             // that have a bound
	conns     map[*conn]bool
	listeners map[string]*chassis.Listener // by whom they speak for; "" is model.sock
	reading   map[reader]chan struct{}     // held by the one to whom a model is being written
	accepting *errgroup.Group
	busy      time.Time // when there last was a client or a copy
	counts    counts
}

// counts are what the daemon has done since it began.
type counts struct{ hits, loads, evictions, failures int64 }

// model is what the daemon knows of one.
type model struct {
	record wire.Record
	loads  int64
	used   time.Time
}

// loadsAtOnce is how many loads go on at once, of a tenant one less: the second reads
// while the first, at its end, waits for the GPU.
const loadsAtOnce = 3

// Open takes the run directory, reads the catalogue and opens the sockets. Serve
// must follow. The GPU is the daemon's from then on: Serve closes it.
func Open(cfg Config) (*Daemon, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Staging == 0 {
		cfg.Staging = 64 * gpu.MiB
	}
	if cfg.SendTime == 0 {
		cfg.SendTime = 10 * time.Second
	}
	if cfg.Stall == 0 {
		cfg.Stall = 2 * time.Minute
	}
	d := &Daemon{
		cfg: cfg, log: cfg.Log, epoch: time.Now(), busy: time.Now(), policy: policy.New(cfg.Capacity),
		loads: newTurns(loadsAtOnce), looks: newTurns(loadsAtOnce), outlines: make(chan struct{}, 2),
		reading: map[reader]chan struct{}{}, models: map[policy.Key]*model{}, copies: map[policy.CopyID]*copied{},
		processes: map[policy.RequestID]*os.File{}, requests: map[policy.RequestID]*request{}, conns: map[*conn]bool{}, listeners: map[string]*chassis.Listener{},
	}
	d.capacity, d.bounds, d.tenants = cfg.Capacity, cfg.Bounds, slices.Clone(cfg.Tenants)
	if cfg.StorePause != 0 {
		d.policy.StorePause = cfg.StorePause
	}
	d.stages = newStages(cfg.GPU, cfg.Staging)
	d.ctx, d.stop = context.WithCancel(context.Background())
	d.saves.wake = make(chan struct{}, 1)
	d.registry, d.metrics = newMetrics(d)
	d.timer = time.AfterFunc(time.Hour, d.expire)
	d.timer.Stop()
	if err := d.open(); err != nil {
		d.mu.Lock()
		d.closeSockets()
		d.mu.Unlock()
		if d.chassis != nil {
			d.chassis.Close()
		}
		d.stop()
		return nil, err
	}
	return d, nil
}

func (d *Daemon) open() (err error) {
	d.chassis, err = chassis.Open(chassis.Config{
		Program: "gfaas-modeld", Socket: filepath.Join(filepath.Dir(d.cfg.Socket), "modeld-http.sock"), Lock: "model.lock",
		Private: d.cfg.Private, Listen: d.cfg.Listen, ExitWhenIdle: d.cfg.ExitWhenIdle, Log: d.log,
	})
	if err != nil {
		return err
	}
	if err := d.recall(); err != nil {
		return err
	}
	if err := d.listen(""); err != nil {
		return err
	}
	for _, tenant := range append([]string{wire.DefaultTenant}, d.cfg.Tenants...) {
		if err := d.listen(tenant); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.share()
	return nil
}

// share tells the policy the tenants' bounds as they are now. Locked.
func (d *Daemon) share() {
	shares, err := Shares(d.capacity, d.tenants, d.bounds)
	if err != nil {
		d.log.Warn("tenants", "err", err)
	}
	d.stepLocked(policy.Resize{Capacity: d.capacity}, policy.Bound{Tenants: shares})
}

// WebAddr is where Listen listens, or nil.
func (d *Daemon) WebAddr() net.Addr { return d.chassis.WebAddr() }

// Serve runs until the context ends, then closes its sockets and gives the GPU's
// memory back. Instances that have mapped some keep it.
func (d *Daemon) Serve(ctx context.Context) error {
	return d.chassis.Serve(ctx, chassis.Service{Run: d.run, Metrics: d.registry, Reload: d.reload, Use: d.use})
}

// reload goes on with other settings.
func (d *Daemon) reload() error {
	if d.cfg.Reload == nil {
		return nil
	}
	s, err := d.cfg.Reload()
	if err != nil {
		return err
	}
	for _, tenant := range s.Tenants {
		err = errors.Join(err, d.listen(tenant))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.capacity, d.bounds = s.Capacity, s.Bounds
	d.tenants = append(d.tenants, s.Tenants...)
	d.share()
	return err
}

func (d *Daemon) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	d.mu.Lock()
	d.accepting = group
	for tenant, l := range d.listeners {
		group.Go(func() error { return d.accept(l, tenant) })
	}
	d.mu.Unlock()
	group.Go(func() error { return d.save(ctx) })
	group.Go(func() error {
		<-ctx.Done()
		d.shutDown()
		return nil
	})
	err := group.Wait()
	d.work.Wait()
	d.saveLast()
	return errors.Join(err, d.release())
}

// shutDown ends connections and loads. No socket is opened between that the others
// are closed and that the daemon has ended: nobody would close it.
func (d *Daemon) shutDown() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	d.closeSockets()
	d.timer.Stop()
	d.stop()
	for c := range d.conns {
		c.close()
	}
}

// closeSockets closes them all. Locked.
func (d *Daemon) closeSockets() {
	for tenant, l := range d.listeners {
		_ = l.Close()
		d.removeFolder(tenant)
	}
}

// release gives back what the daemon has of the GPU.
func (d *Daemon) release() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for id, c := range d.copies {
		errs = append(errs, c.free())
		delete(d.copies, id)
	}
	return errors.Join(append(errs, d.stages.close(), d.cfg.GPU.Close())...)
}

// use says when the daemon was last of use, and whether somebody is connected.
func (d *Daemon) use() (last time.Time, connected bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.conns) > 0 || d.policy.Held() {
		d.busy = time.Now()
	}
	return d.busy, len(d.conns) > 0
}

// step tells the policy what happened and does what it says.
func (d *Daemon) step(events ...policy.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stepLocked(events...)
}

// expire has the policy look at who has waited for long enough.
func (d *Daemon) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		d.stepLocked()
	}
}

func (d *Daemon) stepLocked(events ...policy.Event) {
	for _, a := range d.policy.Step(time.Since(d.epoch), events, nil) {
		d.do(a)
	}
}

// do does one thing that the policy says. Locked.
func (d *Daemon) do(a policy.Action) {
	switch a := a.(type) {
	case policy.Begin:
		d.begin(a)
	case policy.Fill:
		d.fill(d.copies[a.Copy])
	case policy.Cancel:
		d.copies[a.Copy].cancel()
	case policy.Free:
		d.give(a)
	case policy.Publish:
		d.publish(a)
	case policy.Grant:
		d.grant(a)
	case policy.Refuse:
		d.answer(a.Request, result{err: a.Err})
	case policy.WakeAt:
		d.timer.Stop()
		if a.At > 0 && !d.ended {
			d.timer.Reset(max(0, a.At-time.Since(d.epoch)))
		}
	}
}

// give gives up a copy. Locked.
func (d *Daemon) give(a policy.Free) {
	c := d.copies[a.Copy]
	delete(d.copies, a.Copy)
	if a.Evicted {
		d.counts.evictions++
		d.log.Info("model evicted", "tenant", c.key.Tenant, "model", c.key.Name, "generation", c.generation, "bytes", int64(c.size()), "why", a.Reason)
		if c.store {
			delete(d.models, c.key)
		}
	}
	if err := c.free(); err != nil {
		d.log.Error("model's memory", "tenant", c.key.Tenant, "model", c.key.Name, "err", err)
	}
}

// grant answers a request with a copy. Locked.
func (d *Daemon) grant(a policy.Grant) {
	c := d.copies[a.Copy]
	if m := d.models[c.key]; m != nil {
		m.used = time.Now()
	}
	if a.Hit {
		d.counts.hits++
	}
	d.answer(a.Request, result{copy: c, generation: a.Generation})
}

// now is the policies' clock.
func (d *Daemon) now() time.Duration { return time.Since(d.epoch) }

// codeOf is an error as clients are told it.
func codeOf(err error) *wire.Error {
	var coded *wire.Error
	var refused *policy.Refusal
	switch {
	case errors.As(err, &coded):
		return coded
	case errors.As(err, &refused):
		return wire.Errorf(refused.Code, "%s", refused.Reason)
	case errors.Is(err, context.Canceled):
		return wire.Errorf(wire.CodeInternal, "the daemon is shutting down")
	}
	return wire.Errorf(wire.CodeInternal, "%v", err)
}
