// Package kernel implements gfaas-kerneld, which runs graphs of GPU kernels as functions
// (kernels as a service, KaaS). Clients send requests over HTTP; a policy of
// pkg/policy/queue decides which request runs next and on which GPU; executors run them. An
// executor is a process that owns the memory of a GPU and runs no user code on the host.
// pkg/command/kerneld starts the daemon.
//
// Rules:
//
//  1. Objects live in two tiers. The host tier is memory that the daemon shares with its
//     executors. The GPU tier holds copies while no other buffer needs the room. Hence an
//     executor may die at any time: its request fails or is retried, and only volatile
//     objects, which have no host copy, are lost.
//  2. One lock (core.mu) guards all state. The daemon releases it while it waits for an
//     executor or for a client's socket.
//  3. A GPU runs one job at a time. A device's lane serializes its jobs.
//  4. Files form layers, and a file refers only to names of its own layer and of lower ones.
//     From the bottom: shared parts (core.go, host.go, request_memory.go, linger.go, parse.go,
//     phases.go, metrics.go); objects, clients, GPUs and plans (object.go, client.go, request.go,
//     device.go, plan.go); the runner of requests (run.go); the scheduler (scheduler.go, async.go, module.go);
//     the interface (http.go, http_runs.go, stats.go, daemon.go).
package kernel

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Policies returns the names of the supported policies. The first one is the default.
func Policies() []string { return []string{"cfs-affinity", "exclusive", "fcfs"} }

// Daemon is a running kernel daemon.
type Daemon struct {
	*scheduler
	chassis *chassis.Chassis
	sockets []*socket // one for each configured client
}

// connections returns the default limit on the connections of each socket. It derives the
// limit from RLIMIT_NOFILE and leaves 256 descriptors for other uses.
func connections(sockets int) int {
	const highest, lowest, reserved = 8192, 64, 256
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return highest
	}
	files := int(min(limit.Cur, 1<<30))
	return min(max((files-reserved)/sockets, lowest), highest)
}

// Open claims the run directory, opens the sockets and starts an executor on each GPU. The
// caller must call Serve afterwards.
func Open(ctx context.Context, cfg Config) (*Daemon, error) {
	cfg.KernelTimeout = cmp.Or(cfg.KernelTimeout, 10*time.Second)
	cfg.Stall = cmp.Or(cfg.Stall, 10*time.Second)
	cfg.RunTTL = cmp.Or(cfg.RunTTL, 10*time.Minute)
	cfg.RequestMem = cmp.Or(cfg.RequestMem, DefaultRequestMem)
	cfg.MaxRuns = cmp.Or(cfg.MaxRuns, maxRuns)
	cfg.MaxObjects = cmp.Or(cfg.MaxObjects, maxObjects)
	cfg.Conns = cmp.Or(cfg.Conns, connections(len(cfg.Clients)+2))
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	d := &Daemon{scheduler: &scheduler{
		runner: &runner{&gpus{store: &store{core: &core{cfg: cfg, log: cfg.Log}}}},
		epoch:  time.Now(), runSuffix: rand.Text()[:8], metrics: newMetrics(), requestMemory: newRequestBudget(cfg.RequestMem),
		clients: map[string]*client{}, requests: map[int64]*request{},
	}}
	var err error
	d.policy, err = queue.New(queue.Config{Policy: cfg.Policy, Pool: residency.Unlimited, Options: queue.Defaults()})
	if err != nil {
		return nil, err
	}
	d.timer = time.AfterFunc(time.Hour, d.timerExpired)
	d.timer.Stop()
	if err := d.open(ctx); err != nil {
		d.close()
		if d.chassis != nil {
			d.chassis.Close()
		}
		return nil, err
	}
	return d, nil
}

func (d *Daemon) open(ctx context.Context) (err error) {
	d.chassis, err = chassis.Open(chassis.Config{
		Program: "gfaas-kerneld", Socket: d.cfg.Socket, Lock: "kernel.lock", Private: d.cfg.Private, Listen: d.cfg.Listen,
		WebTimeout: time.Hour, HTTP: patient, Conns: d.cfg.Conns, Log: d.log,
	})
	if err != nil {
		return err
	}
	if !d.cfg.Isolate {
		if d.shared, err = d.newDomain(); err != nil {
			return err
		}
	}
	for i, name := range d.cfg.GPUs {
		dev, err := d.newDevice(ctx, int32(i), name)
		if err != nil {
			return fmt.Errorf("GPU %s: %w", name, err)
		}
		d.devices = append(d.devices, dev)
	}
	d.sweep()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dev := range d.devices {
		d.step(&queue.GPUSet{GPU: dev.number, Slots: 1})
	}
	for _, c := range d.cfg.Clients {
		if p := d.setWeight(c.Name, c.Weight); p != nil {
			return p
		}
		s, err := d.openSocket(c.Name)
		if err != nil {
			return err
		}
		d.sockets = append(d.sockets, s)
	}
	return nil
}

// socket is the listener and server of one client.
type socket struct {
	listener *chassis.Listener
	server   *http.Server
}

// socketPath returns the path of a client's socket.
func (d *Daemon) socketPath(client string) string {
	return filepath.Join(d.chassis.RunDir(), "kernel-"+client+".sock")
}

// sweep removes client sockets that a killed daemon left behind. This daemon holds the lock
// of the run directory, so a socket that does not answer has no live owner.
func (d *Daemon) sweep() {
	stale, _ := filepath.Glob(d.socketPath("*"))
	for _, path := range stale {
		info, err := os.Lstat(path)
		if err == nil && info.Mode()&fs.ModeSocket != 0 && !chassis.Answers("unix", path) {
			_ = os.Remove(path)
		}
	}
}

func (d *Daemon) openSocket(client string) (*socket, error) {
	l, err := chassis.Listen("unix", d.socketPath(client), 0o600)
	if err != nil {
		return nil, err
	}
	s := &http.Server{Handler: d.handler(client), ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelWarn)}
	patient(s)
	return &socket{l, s}, nil
}

// patient sets a server's timeouts. Reads and writes have none, because bodies and answers
// may be long; the handlers set deadlines of their own.
func patient(s *http.Server) {
	s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = 10*time.Second, 0, 0, 5*time.Minute
	s.MaxHeaderBytes = 64 << 10
}

// WebAddr returns the address of the TCP listener, or nil if there is none.
func (d *Daemon) WebAddr() net.Addr { return d.chassis.WebAddr() }

// Serve serves requests until ctx ends. It then waits for requests in progress, removes the
// sockets and shuts the executors down.
func (d *Daemon) Serve(ctx context.Context) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(d.metrics.requests, d.metrics.queue, d.metrics.total, d.metrics.phases, d.metrics.bytesUp, collector{d.scheduler})
	return d.chassis.Serve(ctx, chassis.Service{
		Run: d.run, Control: d.handler(""), Web: d.handler(""), Metrics: registry, Drain: d.drain,
	})
}

// run serves the sockets of the configured clients until ctx ends.
func (d *Daemon) run(ctx context.Context) error {
	defer d.close()
	group, ctx := errgroup.WithContext(ctx)
	for _, s := range d.sockets {
		group.Go(func() error {
			l := chassis.Bounded(s.server, chassis.Patient(d.log, s.listener), d.cfg.Conns)
			if err := s.server.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
				return err
			}
			return nil
		})
	}
	group.Go(func() error {
		<-ctx.Done()
		for _, s := range d.sockets {
			_ = s.listener.Close()
			_ = s.server.Close()
		}
		return nil
	})
	return group.Wait()
}

// close shuts the executors down and closes the sockets.
func (d *Daemon) close() {
	d.mu.Lock()
	d.draining = true
	d.timer.Stop()
	for _, c := range d.clients {
		for _, x := range c.finishedRuns {
			x.expiry.Stop()
		}
	}
	for _, dev := range d.devices {
		for _, w := range dev.workers {
			if w.exec != nil {
				d.shutdowns.Go(w.exec.Close)
			}
		}
	}
	d.mu.Unlock()
	d.shutdowns.Wait()
	for _, s := range d.sockets {
		_ = s.listener.Close()
	}
	// The memory of objects is not unmapped: running handlers may still use it. The
	// kernel frees it when the process exits.
}
