// Package gateway serves functions over HTTP: it keeps calls in a policy's queues,
// starts and stops instances as the policy says, and passes calls to them.
//
// All decisions are the policy's (pkg/policy/queue). The engine is what drives it:
// under one lock whoever learns of something (a call that came or ended, an
// instance that is ready or gone, a function that changed, a timer) has the policy
// step and does what it says, so that nothing is decided by what was true before.
// Deeds that take time (to start, to stop, to send a call) happen beside it and
// come back as events.
//
// What runs instances and keeps the state it knows through pkg/instance/ports.
package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gfaas/gfaas/pkg/daemon/async"
	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/trace"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Config is what a gateway goes by.
type Config struct {
	Socket  string // control socket; its folder is the run directory
	Private bool   // the run directory is ours alone: its mode becomes 0700
	Listen  string // TCP address; empty is none
	// UIListen is a TCP address for management alone, so that functions do not share the
	// origin of the operator's page; empty is none.
	UIListen string
	Log      *slog.Logger

	Starter ports.Starter
	Invoker ports.Invoker
	Catalog ports.Catalog

	// Alone, if set, waits until nobody else starts or stops instances of plans, and
	// keeps it so until release is called.
	Alone func(context.Context) (release func(), err error)

	// AtWork, if set, reports whether another process starts or stops instances of plans.
	AtWork func() bool

	// FailedStarts, if set, returns the logs that are kept of starts of a function that failed.
	FailedStarts func(function string) []FailedStart

	// Usage, if set, asks the token daemon what its instances use.
	Usage func(context.Context) (wire.Status, error)

	// Faults, if set, asks the token daemon which instances have got a CUDA error that
	// ended their use of CUDA.
	Faults func(context.Context) ([]wire.InstanceFault, error)

	// Memory, if set, asks the driver of a GPU how its memory is used.
	Memory func(ctx context.Context, gpu string) (Memory, error)

	Policy      queue.Config
	Set         map[string]string // its parameters, as they were given
	Record      io.Writer         // events and decisions, if set
	Concurrency int               // calls that a GPU runs at once (D)
	GPUs        []GPU             // by number

	Settings
	// Reload, if set, reads the settings again, at SIGHUP.
	Reload func() (Settings, error)

	Limits
	Scaler string // of Scalers; empty is none
	Park   string // how the memory of idle instances waits on the host, where functions bound it: ParkSwap, ParkCheckpoint or empty; needs Usage
	Parker Parker // how, with ParkCheckpoint; also brings back what a gateway before this one has left there
	Keep   bool   // leave instances running at the end

	Async Async

	SpillDir string // folder of long bodies, which is made when there is one

	Version string // of the program, for those who ask

	peerUser func(context.Context) (uid int, err error) // of a request's connection; nil asks the kernel
	files    int                                        // descriptors that there are; 0 asks the kernel
}

// FailedStart is what an instance printed whose start failed.
type FailedStart struct {
	ID   string
	Logs func(context.Context, ports.LogOptions) ports.LogLines
}

// How memory waits on the host, if it does.
const (
	ParkSwap       = "swap"       // the preload library moves it, which instances are started for
	ParkCheckpoint = "checkpoint" // the driver does, by the Parker
)

// Parker moves what an instance holds on GPUs to the host and back. After an error it
// may be good for nothing any more.
type Parker interface {
	Park(ctx context.Context, id string) error
	Unpark(ctx context.Context, id string) error // one that is not parked is no error
}

// GPU is a GPU that instances run on.
type GPU struct {
	Name string // as in gpu.ParseDevice
	Mem  int64  // bytes; 0 is no limit
	// Model is the GPU model by which rows of the profile are chosen; where it is empty,
	// all rows hold.
	Model string
}

// Settings may change while the gateway runs.
type Settings struct {
	Auth          *Credentials // without them only this user and root may manage the gateway, unless it is Open
	AuthFunctions bool         // for calls too
	Open          bool         // without Auth, lets everybody manage the gateway
	AllowedHosts  []string     // host names under which it may be managed, beside those of Listen and UIListen
	Costs         map[string]trace.Function
	FixedCosts    bool                     // what is measured does not change them
	Profile       map[string][]profile.Row // configurations of functions, for their slices and scalers
}

// Limits bound what callers and functions may take. Functions may have their own
// Queue and Timeout.
type Limits struct {
	Queue         int           // calls that wait, a function
	QueueTimeout  time.Duration // for a place on an instance
	Timeout       time.Duration // from dispatch to the answer's head, then each pause within it
	MaxBody       int64         // bytes of a request
	Buffer        int64         // bytes of it that are kept, so that it can be sent again
	BufferMemory  int64         // bytes of the bodies of all calls that are kept in memory; 0 is no bound
	Spill         int64         // bytes of the bodies of all calls that are kept in SpillDir; 0 keeps none
	HeaderTimeout time.Duration // for the head of a request
	BodyTimeout   time.Duration // pause within its body
	BodyRate      int64         // least bytes of it a second, after the first BodyTimeout; 0 is no bound
	Drain         time.Duration // for what is under way at the end
}

// Gateway is one that serves.
type Gateway struct {
	cfg      Config
	log      *slog.Logger
	chassis  *chassis.Chassis
	registry *prometheus.Registry
	metrics  *metrics
	engine   engine
	settings atomic.Pointer[Settings]
	names    atomic.Pointer[map[string]*target] // functions that are applied
	system   *http.ServeMux                     // /system/
	buffers  buffers
	heads    heads
	limits   limits
	began    time.Time
	usage    atomic.Pointer[wire.Status] // the last; nil where it is not known
	token    string                      // of the page at /ui/
	lastID   atomic.Int64                // N of the last instance NAME.N
	async    *async.Queue                // nil where no asynchronous calls are taken

	failing  chan struct{} // an instance has answered 5xx; holds one
	restarts restarts
	looks    looks
	passing  atomic.Int64 // calls whose answers, once there are any, are passed on to a connection
	callers  callers
	bodies   bodyMemory
	spills   spillSpace

	adopted  atomic.Bool   // what is applied and what ran before is known
	known    chan struct{} // closed then
	draining atomic.Bool
	leaving  chan struct{}      // closed when draining begins
	deeds    sync.WaitGroup     // starts, stops and waits that are under way
	life     context.Context    // of the instances' watchers and starts
	endLife  context.CancelFunc // ends starts that are under way
}

// Open takes the run directory and opens the sockets. Serve must follow.
func Open(cfg Config) (*Gateway, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	g, err := newGateway(cfg)
	if err != nil {
		return nil, err
	}
	g.chassis, err = chassis.Open(chassis.Config{
		Program: "gfaas serve", Socket: cfg.Socket, Lock: "gateway.lock", Private: cfg.Private, Listen: cfg.Listen, UIListen: cfg.UIListen, Log: cfg.Log,
		HTTP: func(s *http.Server) {
			s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout, s.IdleTimeout = cfg.HeaderTimeout, 0, 0, idleConnection
			s.ConnContext = withConnection
			s.ConnState = connectionState
			s.DisableGeneralOptionsHandler = true // OPTIONS * passes framed and guard as well
		},
		Conn: g.callers.admit,
	})
	if err != nil {
		return nil, err
	}
	if err := g.openAsync(); err != nil {
		g.chassis.Close()
		return nil, err
	}
	return g, nil
}

// idleConnection is for how long a caller's connection is kept without a call.
const idleConnection = 3 * time.Minute

// newGateway is one without sockets.
func newGateway(cfg Config) (*Gateway, error) {
	policy, err := queue.New(cfg.Policy)
	if err != nil {
		return nil, err
	}
	g := &Gateway{cfg: cfg, log: cfg.Log, system: http.NewServeMux(), began: time.Now(), limits: limits{begin: time.Now()}, leaving: make(chan struct{}), known: make(chan struct{}), failing: make(chan struct{}, 1)}
	g.token = rand.Text()
	files := orElse(cfg.files, descriptors())
	g.callers.init(int(float64(files)*callerShare), &g.limits, cfg.Log)
	g.bodies.most, g.bodies.callers, g.bodies.stall = cfg.BufferMemory, &g.callers, stallTime
	g.spills.dir, g.spills.most, g.spills.mostFiles = cfg.SpillDir, cfg.Spill, int64(float64(files)*spillShare)
	if g.cfg.peerUser == nil {
		g.cfg.peerUser = connectionUser
	}
	g.life, g.endLife = context.WithCancel(context.Background())
	g.names.Store(&map[string]*target{})
	settings := cfg.Settings
	g.settings.Store(&settings)
	g.registry, g.metrics = newMetrics(g)
	g.engine.init(g, policy)
	g.routes()
	return g, nil
}

// WebAddr is where Listen listens, or nil.
func (g *Gateway) WebAddr() net.Addr { return g.chassis.WebAddr() }

// UIAddr returns the address of UIListen, or nil.
func (g *Gateway) UIAddr() net.Addr { return g.chassis.UIAddr() }

// Close gives up what Open took, where Serve does not follow.
func (g *Gateway) Close() { g.chassis.Close() }

// Serve serves until its context ends, then lets what is under way end, and stops
// the instances that it started.
func (g *Gateway) Serve(ctx context.Context) error {
	return g.chassis.Serve(ctx, chassis.Service{
		Run: g.run, Metrics: g.registry,
		Control: g.framed(g.guard(controlSocket, g)),
		Web:     g, Guard: func(next http.Handler) http.Handler { return g.framed(g.guard(callAddress, next)) },
		UI: http.HandlerFunc(g.serveUI), UIGuard: func(next http.Handler) http.Handler { return g.framed(g.guard(uiAddress, next)) },
		Ready: g.ready, Reload: g.reload, Drain: g.drain,
		Use: func() (time.Time, bool) { return time.Now(), false }, // it leaves where nobody finds it any more
	})
}

func (g *Gateway) ready() error {
	if !g.adopted.Load() {
		return errors.New("instances that run are not adopted yet")
	}
	return nil
}

// reload reads the settings again.
func (g *Gateway) reload() error {
	if g.cfg.Reload == nil {
		return nil
	}
	s, err := g.cfg.Reload()
	if err != nil {
		return err
	}
	g.settings.Store(&s)
	g.engine.recost()
	return nil
}

// run follows the state until its context ends, and then puts away what is the
// gateway's own.
func (g *Gateway) run(ctx context.Context) error {
	if g.cfg.Record != nil {
		defer g.record(ctx)()
	}
	g.engine.begin()
	g.deed(func() { g.measure(g.life) })
	g.deed(func() { g.watchFaults(g.life) })
	g.deed(func() { g.scale(g.life) })
	g.deed(func() { g.yield(g.life) })
	err := g.follow(ctx)
	g.engine.close()
	g.endLife()
	g.deeds.Wait()
	if !g.cfg.Keep {
		g.stopAll()
	}
	return err
}

// drain takes no more calls, and gives those there are their time.
func (g *Gateway) drain() {
	g.draining.Store(true)
	close(g.leaving)
	defer g.stopAsync()()
	end := time.Now().Add(g.cfg.Drain)
	if g.engine.idle(g.cfg.Drain) && g.passed(end) {
		return
	}
	g.log.Warn("calls are cut: they did not end in time", "drain", g.cfg.Drain.String())
	g.engine.cutAll()
	g.engine.idle(cutTime)
}

// passed waits until callers have taken their answers; false if some have not by then.
func (g *Gateway) passed(end time.Time) bool {
	for g.passing.Load() > 0 {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(passingPause)
	}
	return true
}

// passingPause is how often it is looked whether answers have been taken.
const passingPause = 10 * time.Millisecond

// cutTime is for calls that were cut to have ended.
const cutTime = time.Second
