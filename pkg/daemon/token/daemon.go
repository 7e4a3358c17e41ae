package token

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Settings may change while the daemon runs.
type Settings struct {
	Window  time.Duration // 0 is gpu.Window
	Round   time.Duration // in which all that wait have a turn; 0 is gpu.Round, a window or more is none
	SMLimit float64       // percent; 0 is 100
}

// Config is what a daemon goes by.
type Config struct {
	Settings
	Policy       string        // who gets the GPU when; empty is policy.MultiToken
	Socket       string        // control socket; its folder is the run directory
	Listen       string        // TCP address of /healthz, /readyz and /metrics; empty is none
	ExitWhenIdle time.Duration // leave after so long without instance and client; 0 is never
	Private      bool          // the run directory is ours alone: its mode becomes 0700
	HelloTimeout time.Duration // for the hello of a new connection; 0 is 5 s
	WebTimeout   time.Duration // for whoever asks at Listen to take the answer; 0 is 10 s
	ClientUIDs   []int         // users whose processes may connect, besides root and this process's own
	Log          *slog.Logger

	// Reload, if set, reads the settings again, at SIGHUP: every scheduler then
	// starts a new window.
	Reload func() (Settings, error)

	// Memory, if set, tells what each process occupies of a GPU, in bytes, by
	// its number as this daemon sees it. It is never called concurrently.
	// CountContext makes what that is beside a process's own allocations count
	// against its instance's limit.
	Memory       func(device string) (map[int]gpu.Bytes, error)
	CountContext bool

	// Mover, if set, can have what idle instances hold on GPUs wait on the host. It
	// may be called concurrently.
	Mover Mover

	// Prepare, if set, is told of each registration that was accepted and says
	// what else the instance's processes need. It may be called concurrently.
	Prepare func(ctx context.Context, r wire.Registration) wire.Registered

	// Doomed, if set, is called with processes of instances that the daemon is about to
	// kill, before it does. The daemon waits for it. It may be called concurrently.
	Doomed func(ctx context.Context, pids []int)

	// Uses, if set, is told of each GPU that the daemon begins to schedule. It may be
	// called concurrently.
	Uses func(gpu string)

	// Leave, if set, puts away what Prepare has made, at the end: the run
	// directory is the next daemon's only when it returns.
	Leave func()
}

// Daemon is one running token daemon. One lock guards all state: whoever learns
// of something, the poller or a timer, takes it and steps the scheduler itself, so that between a message and the gate it opens no thread waits for
// another.
type Daemon struct {
	cfg     Config
	log     *slog.Logger
	chassis *chassis.Chassis
	common  *listener // that processes of all instances may connect to
	epoch   time.Time

	regMu     sync.Mutex // one registration or removal at a time
	returning sync.Mutex // of instances whose memory is brought back, one at a time looks for room
	conns     sync.WaitGroup
	faults    *logLimit // log of what clients do wrong
	joins     *logLimit // log of their coming and going
	metrics   *metrics
	registry  *prometheus.Registry
	poller    *poller

	census census
	ending chan struct{} // closed when the daemon is about to end

	mu        sync.Mutex // guards what follows, and the devices, instances, allocations and clients
	ended     bool
	settings  Settings
	gpus      map[string]*device
	instances map[string]*instance
	clients   map[policy.ClientID]*client
	lastID    policy.ClientID
	busy      time.Time         // when there last was an instance, a client or a registration
	greeting  map[net.Conn]bool // connections whose hello has not come
	orphans   []tree            // to be killed
	leases    leases
}

// Open takes the run directory, reads the registrations left there and opens
// the sockets. Serve must follow; it closes them. An error says whether
// another daemon serves the directory already.
func Open(cfg Config) (*Daemon, error) {
	if cfg.HelloTimeout == 0 {
		cfg.HelloTimeout = 5 * time.Second
	}
	if cfg.Policy == "" {
		cfg.Policy = policy.MultiToken
	}
	if !slices.Contains(policy.Names(), cfg.Policy) {
		return nil, fmt.Errorf("policy %q: expected %s", cfg.Policy, strings.Join(policy.Names(), " or "))
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := &Daemon{
		cfg: cfg, log: cfg.Log, settings: cfg.Settings, epoch: time.Now(), busy: time.Now(),
		ending: make(chan struct{}), gpus: map[string]*device{}, instances: map[string]*instance{},
		clients: map[policy.ClientID]*client{}, greeting: map[net.Conn]bool{},
	}
	d.faults = &logLimit{log: d.log, lines: 20, period: 10 * time.Second}
	d.joins = &logLimit{log: d.log, lines: 1000, period: 10 * time.Second}
	d.registry, d.metrics = newMetrics(d)
	d.leases.timer = time.AfterFunc(time.Hour, func() { _ = d.locked(d.renewLeases) })
	d.leases.timer.Stop()
	var err error
	if d.poller, err = newPoller(); err != nil {
		return nil, err
	}
	if err = d.open(); err != nil {
		if d.chassis != nil {
			d.chassis.Close()
		}
		d.poller.close()
		return nil, err
	}
	return d, nil
}

// open takes the run directory and what is in it.
func (d *Daemon) open() (err error) {
	if err := chassis.CheckPath(d.clientSocket()); err != nil {
		return err
	}
	d.chassis, err = chassis.Open(chassis.Config{
		Program: "gfaas-tokend", Socket: d.cfg.Socket, Lock: "token.lock", Private: d.cfg.Private, Listen: d.cfg.Listen,
		WebTimeout: d.cfg.WebTimeout, ExitWhenIdle: d.cfg.ExitWhenIdle, Sockets: refuseRights, HTTP: withConn, Log: d.log,
	})
	if err != nil {
		return err
	}
	for _, dir := range []string{d.instancesDir(), d.clientDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("run directory: %w", err)
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("run directory: %w", err)
		}
	}
	if err := d.loadRegistrations(); err != nil {
		return err
	}
	clients, err := chassis.Listen("unixpacket", d.clientSocket(), 0o600, refuseRights)
	d.common = &listener{socket: clients}
	return err
}

func (d *Daemon) runDir() string       { return filepath.Dir(d.cfg.Socket) }
func (d *Daemon) instancesDir() string { return filepath.Join(d.runDir(), "instances") }
func (d *Daemon) clientDir() string    { return filepath.Join(d.runDir(), "client") }
func (d *Daemon) clientSocket() string { return filepath.Join(d.clientDir(), "token.sock") }

// WebAddr is where Listen listens, or nil.
func (d *Daemon) WebAddr() net.Addr { return d.chassis.WebAddr() }

// Serve runs until the context ends or the daemon has been idle for long
// enough, then removes its sockets, closes all gates and connections and
// returns. Registrations stay on disk for the next daemon.
func (d *Daemon) Serve(ctx context.Context) error {
	_ = d.locked(d.openListeners)
	service := chassis.Service{Run: d.run, Control: d.controlHandler(), Metrics: d.registry, Use: d.use, Drain: func() { close(d.ending) }}
	if d.cfg.Reload != nil {
		service.Reload = func() error {
			s, err := d.cfg.Reload()
			if err != nil {
				return err
			}
			return d.reload(s)
		}
	}
	return d.chassis.Serve(ctx, service)
}

// run serves the processes of instances until the context ends.
func (d *Daemon) run(ctx context.Context) error {
	if d.cfg.Leave != nil {
		defer d.cfg.Leave()
	}
	defer d.poller.close()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.accept(d.common) })
	group.Go(d.poll)
	group.Go(func() error {
		return d.watch(ctx, time.Second, func() { d.hangUpGone(); _ = d.locked(d.reap); d.endOrphans() })
	})
	group.Go(func() error { return d.watch(ctx, censusEvery, d.takeCensus) })
	if d.cfg.Memory != nil {
		group.Go(func() error { return d.watch(ctx, foreignEvery, d.measureForeign) })
	}
	group.Go(func() error {
		<-ctx.Done()
		_ = d.common.socket.Close()
		d.shutDown()
		return nil
	})
	err := group.Wait()
	d.conns.Wait()
	return err
}

// watch has something done at times, until the context ends.
func (d *Daemon) watch(ctx context.Context, every time.Duration, do func()) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			do()
		}
	}
}

// use says when the daemon was last of use, and whether processes are connected.
func (d *Daemon) use() (last time.Time, connected bool) {
	_ = d.locked(func() {
		if len(d.instances) > 0 || len(d.clients) > 0 {
			d.busy = time.Now()
		}
		last, connected = d.busy, len(d.clients) > 0
	})
	return last, connected
}

// errClosing is the answer of a daemon that is on its way out.
var errClosing = errors.New("the token daemon is shutting down")

// locked runs a function that reads or changes the daemon's state.
func (d *Daemon) locked(f func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ended {
		return errClosing
	}
	f()
	return nil
}

// reload takes new settings: every scheduler starts a new window.
func (d *Daemon) reload(s Settings) error {
	return d.locked(func() {
		d.settings = s
		for _, g := range d.devices() {
			g.step(policy.Configure{Window: s.Window, Round: s.Round, SMLimit: s.SMLimit})
		}
		d.log.Info("settings reloaded", "window", s.Window.String(), "round", s.Round.String(), "sm_limit", s.SMLimit)
	})
}

// shutDown closes every gate, connection and instance's socket: from now on
// nothing changes.
func (d *Daemon) shutDown() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	d.leases.timer.Stop()
	for _, g := range d.gpus {
		g.stopCheck.Stop()
	}
	for _, c := range d.clients {
		c.alloc.page.clear(c.slot)
	}
	for conn := range d.greeting {
		_ = conn.Close()
	}
	_, _ = unix.Write(d.poller.ended, binary.NativeEndian.AppendUint64(nil, 1))
	for _, i := range d.instances {
		i.listener.close()
		for _, a := range i.allocations {
			a.dropPage()
		}
	}
}
