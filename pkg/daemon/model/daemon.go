// Package model implements gfaas-modeld, the model daemon. It keeps one copy of a model's
// weights on a GPU and shares the copy, read-only, with processes and containers (FaST-GShare,
// section 3.5). pkg/policy/model decides which models are on the GPU, for which clients and
// how long. This package performs the decisions: it reads files, allocates memory and serves
// sockets. pkg/command/modeld starts the daemon.
//
// Files form layers, and a file refers only to names of its own layer and of lower ones. From
// the bottom: shared parts (core.go, source.go, stages.go, limiter.go, charge.go); the models and
// the catalogue (library.go); the loader (load.go); the controller, which carries out the
// policy's actions (controller.go); the server (server.go, conn.go, ops.go, read.go, reap.go);
// daemon.go.
//
// # Trust
//
//  1. model.sock accepts only the daemon's user and root: by its file mode, and by a check of
//     the peer's user. Requests on it may name any tenant.
//  2. model-T.sock serves tenant T only. It is the only socket that T's containers receive.
//     Requests on it contain no paths: a client passes an open file instead.
//  3. A client cannot harm other clients. The size and number of its requests are bounded. A
//     client that does not read its answers loses its connection. The end of a connection
//     releases everything that it held.
//  4. The daemon reads a passed descriptor only if it refers to a regular file, and only with
//     pread, so that a file that shrinks causes an error.
//  5. A file system that does not respond makes only its own load fail, after Config.Stall.
//     Until then the load occupies one of the two turns of its tenant, out of three in all.
//     The hanging read keeps its stage of pinned memory until it returns.
//  6. The driver cannot enforce read-only access: a holder of a copy's descriptor could map
//     the copy for writing. The daemon trusts clients not to do so; the client library maps
//     copies read-only.
package model

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/model"
	wire "github.com/gfaas/gfaas/pkg/wire/model"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"
)

// Daemon is a running model daemon.
type Daemon struct {
	*server
	chassis *chassis.Chassis
}

// Open claims the run directory, reads the catalogue and opens the sockets. The caller must
// call Serve afterwards. If Open succeeds, Serve closes cfg.GPU.
func Open(cfg Config) (*Daemon, error) {
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Staging = cmp.Or(cfg.Staging, 64*gpu.MiB)
	cfg.SendTime = cmp.Or(cfg.SendTime, 10*time.Second)
	cfg.Stall = cmp.Or(cfg.Stall, 2*time.Minute)
	c := &core{cfg: cfg, log: cfg.Log}
	c.ctx, c.stop = context.WithCancel(context.Background())
	lib := &library{core: c, models: map[policy.Key]*model{}, copies: map[policy.CopyID]*modelCopy{}, wake: make(chan struct{}, 1)}
	l := &loader{
		library: lib, stages: newStages(cfg.GPU, cfg.Staging), loadLimiter: newLimiter(loadsAtOnce), headerLimiter: newLimiter(loadsAtOnce),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "gfaas_model_load_seconds", Help: "Time to load a model into GPU memory.", Buckets: prometheus.ExponentialBuckets(0.01, 3, 10),
		}),
	}
	ctl := &controller{
		loader: l, epoch: time.Now(), policy: policy.New(cfg.Capacity), requests: map[policy.RequestID]*request{},
		capacity: cfg.Capacity, bounds: cfg.Bounds, tenants: slices.Clone(cfg.Tenants),
	}
	ctl.policy.StorePause = cmp.Or(cfg.StorePause, policy.StorePause)
	ctl.timer = time.AfterFunc(time.Hour, ctl.expire)
	ctl.timer.Stop()
	d := &Daemon{server: &server{
		controller: ctl, outlines: semaphore.NewWeighted(2), lastUsed: time.Now(),
		processes: map[policy.RequestID]*os.File{}, conns: map[*conn]bool{}, listeners: map[string]*chassis.Listener{},
		readerSlots: map[reader]*semaphore.Weighted{},
	}}
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
	if err := d.loadRecords(); err != nil {
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
	d.setBounds()
	return nil
}

// WebAddr returns the address of the TCP listener, or nil if there is none.
func (d *Daemon) WebAddr() net.Addr { return d.chassis.WebAddr() }

// Serve serves clients until ctx ends. It then closes the sockets and frees the GPU's memory.
// Instances keep the memory that they have mapped.
func (d *Daemon) Serve(ctx context.Context) error {
	return d.chassis.Serve(ctx, chassis.Service{Run: d.run, Metrics: newMetrics(d.server), Reload: d.reload, Use: d.lastUse})
}

// reload applies the settings that Config.Reload returns.
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
	d.setBounds()
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
	d.saveAll(context.Background())
	return errors.Join(err, d.controller.release())
}

// shutDown closes connections and stops loads. It holds the lock while it closes the sockets and
// sets closed, so that listen cannot open another socket afterwards.
func (d *Daemon) shutDown() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	d.closeSockets()
	d.timer.Stop()
	d.stop()
	for c := range d.conns {
		c.close()
	}
}
