// Package token is the live token daemon: it turns sockets, timers and
// processes into events for the schedulers of pkg/policy/token, one a GPU, and
// their actions into opened and closed gates.
package token

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	policy "github.com/gfaas/gfaas/pkg/policy/token"
)

// PolicyName is the scheduling policy that the daemon runs.
const PolicyName = "multi-token"

// Settings may change while the daemon runs.
type Settings struct {
	Window  time.Duration // 0 is gpu.Window
	SMLimit float64       // percent; 0 is 100
}

// Config is what a daemon goes by.
type Config struct {
	Settings
	Socket       string        // control socket; its folder is the run directory
	Listen       string        // TCP address of /healthz, /readyz and /metrics; empty is none
	ExitWhenIdle time.Duration // leave after so long without instance and client; 0 is never
	Private      bool          // the run directory is ours alone: set its mode to 0700
	HelloTimeout time.Duration // for the hello of a new connection; 0 is 5 s
	Log          *slog.Logger
}

// Daemon is one running token daemon. Its loop owns all state: everything else
// hands it functions to run.
type Daemon struct {
	cfg     Config
	log     *slog.Logger
	lock    *os.File
	control net.Listener
	clients *net.UnixListener
	web     net.Listener // nil without Listen
	epoch   time.Time

	calls    chan func()
	done     chan struct{} // closed when the loop has ended
	regMu    sync.Mutex    // one registration or removal at a time
	conns    sync.WaitGroup
	draining atomic.Bool
	metrics  *metrics
	registry *prometheus.Registry

	// Owned by the loop.
	settings  Settings
	gpus      map[string]*device
	instances map[string]*instance
	members   map[policy.ClientID]*member
	lastID    policy.ClientID
	busy      time.Time // when there last was an instance, a client or a registration
	open      map[net.Conn]bool
	unknown   int // connections whose hello has not come
}

// Open takes the run directory, reads the registrations left there and opens
// the sockets. Serve must follow; it closes them. An error says whether
// another daemon serves the directory already.
func Open(cfg Config) (*Daemon, error) {
	if cfg.HelloTimeout == 0 {
		cfg.HelloTimeout = 5 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	d := &Daemon{
		cfg: cfg, log: cfg.Log, settings: cfg.Settings, epoch: time.Now(), busy: time.Now(),
		calls: make(chan func(), 64), done: make(chan struct{}),
		gpus: map[string]*device{}, instances: map[string]*instance{},
		members: map[policy.ClientID]*member{}, open: map[net.Conn]bool{},
	}
	d.registry, d.metrics = newMetrics(d)
	err := d.takeDir()
	if err == nil {
		err = d.loadRegistrations()
	}
	if err == nil {
		err = d.listen()
	}
	if err != nil {
		d.closeSockets()
		d.unlock()
		return nil, err
	}
	return d, nil
}

func (d *Daemon) runDir() string       { return filepath.Dir(d.cfg.Socket) }
func (d *Daemon) instancesDir() string { return filepath.Join(d.runDir(), "instances") }
func (d *Daemon) clientSocket() string { return filepath.Join(d.runDir(), "client", "token.sock") }

// WebAddr is where Listen listens, or nil.
func (d *Daemon) WebAddr() net.Addr {
	if d.web == nil {
		return nil
	}
	return d.web.Addr()
}

// Serve runs until the context ends or the daemon has been idle for long
// enough, then removes its sockets, closes all gates and connections and
// returns. Registrations stay on disk for the next daemon.
func (d *Daemon) Serve(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer d.unlock()
	group, ctx := errgroup.WithContext(ctx)
	servers := []*http.Server{d.serveHTTP(group, d.control, d.controlHandler())}
	if d.web != nil {
		servers = append(servers, d.serveHTTP(group, d.web, d.webHandler()))
	}
	group.Go(func() error { return d.accept(ctx) })
	group.Go(func() error {
		d.loop(ctx, stop)
		d.draining.Store(true)
		d.closeSockets()
		for _, s := range servers {
			shut(s)
		}
		d.shutDown()
		return nil
	})
	err := group.Wait()
	d.conns.Wait()
	return err
}

// shut lets a server finish what it is answering.
func shut(s *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.Shutdown(ctx) != nil {
		_ = s.Close()
	}
}

func (d *Daemon) serveHTTP(group *errgroup.Group, l net.Listener, h http.Handler) *http.Server {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: 30 * time.Second,
		ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelWarn),
	}
	group.Go(func() error {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("serve %s: %w", l.Addr(), err)
		}
		return nil
	})
	return s
}

// loop runs what others hand it, and looks after owners and idleness.
func (d *Daemon) loop(ctx context.Context, stop func()) {
	defer close(d.done)
	every := time.Second
	if idle := d.cfg.ExitWhenIdle; idle > 0 {
		every = min(every, max(idle/10, time.Millisecond))
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case f := <-d.calls:
			f()
		case <-tick.C:
			d.lookAfter()
			if d.cfg.ExitWhenIdle > 0 && time.Since(d.busy) >= d.cfg.ExitWhenIdle {
				d.log.Info("idle, leaving", "after", d.cfg.ExitWhenIdle.String())
				stop()
			}
		}
	}
}

// post hands the loop a function. It says false when the loop has ended.
func (d *Daemon) post(f func()) bool {
	select {
	case d.calls <- f:
		return true
	case <-d.done:
		return false
	}
}

// errClosing is the answer of a daemon that is on its way out.
var errClosing = errors.New("the token daemon is shutting down")

// call runs a function on the loop and waits for it.
func (d *Daemon) call(f func()) error {
	ran := make(chan struct{})
	if !d.post(func() { f(); close(ran) }) {
		return errClosing
	}
	select {
	case <-ran:
		return nil
	case <-d.done:
		return errClosing
	}
}

// Reload takes new settings: every scheduler starts a new window.
func (d *Daemon) Reload(s Settings) error {
	return d.call(func() {
		d.settings = s
		for _, g := range d.devices() {
			g.step(policy.Configure{Window: s.Window, SMLimit: s.SMLimit})
		}
		d.log.Info("settings reloaded", "window", s.Window.String(), "sm_limit", s.SMLimit)
	})
}

// shutDown closes every gate and connection once the loop has ended.
func (d *Daemon) shutDown() {
	for _, g := range d.gpus {
		g.timer.Stop()
	}
	for _, m := range d.members {
		m.inst.page.clear(m.slot)
	}
	for conn := range d.open {
		_ = conn.Close()
	}
	for _, i := range d.instances {
		i.dropPage()
	}
}
