// Package gateway serves functions over HTTP. It queues calls, starts and stops instances,
// and forwards calls to them. The policy (pkg/policy/queue) makes all scheduling decisions.
// pkg/command/gfaas runs a Gateway as 'gfaas serve'.
//
// This package connects its subpackages:
//
//	api → proxy → dispatch ← instances
//
// Each has one task:
//
//   - api serves the HTTP interfaces and decides which requests are admitted.
//   - proxy sends each call to its instance and passes the answer on.
//   - dispatch drives the policy: it turns changes into events and performs the actions.
//   - instances performs operations that take time, such as starting an instance.
//   - inbound limits the connections and bodies of callers.
//   - fields finds the model in a body.
//   - refusal defines the gateway's own answers, and metrics counts all answers.
//   - ollama translates Ollama's API, without I/O.
//
// The interfaces in pkg/instance/ports separate the gateway from the programs that run
// instances and from the state file.
package gateway

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/chassis"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/api"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/inbound"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/instances"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/metrics"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/proxy"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/policy/placement"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/status"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Config configures a gateway.
type Config struct {
	Socket  string // control socket; its folder is the run directory
	Private bool   // no other program uses the run directory: its mode becomes 0700
	Listen  string // TCP address; empty means none
	// UIListen is a TCP address for management only. It keeps pages of functions off the
	// origin of the operator's page. Empty means none.
	UIListen string
	Log      *slog.Logger

	Starter ports.Starter
	Invoker ports.Invoker
	Catalog ports.Catalog

	// Alone, if set, waits until no other process starts or stops instances of plans, and
	// prevents that until release is called.
	Alone func(context.Context) (release func(), err error)

	// AtWork, if set, reports whether another process starts or stops instances of plans.
	AtWork func() bool

	// FailedStarts, if set, returns the logs of a function's failed starts.
	FailedStarts func(function string) []FailedStart

	// Usage, if set, asks the token daemon for the GPU usage of its instances.
	Usage func(context.Context) (wire.Status, error)

	// Faults, if set, asks the token daemon for instances that can no longer use CUDA
	// because of a CUDA error.
	Faults func(context.Context) ([]wire.InstanceFault, error)

	// Weights, if set, asks the model daemons for the models that they hold on GPUs.
	Weights func(context.Context) []status.Model

	// FaultsEvery is the interval of calls of Faults; 0 means 100 ms.
	FaultsEvery time.Duration

	// Memory, if set, asks the drivers for the usage of the memory of the GPUs. It omits GPUs for which they do not
	// report it.
	Memory func(context.Context) map[string]Memory

	// Busy, if set, asks the driver of a GPU for its utilization, 0 to 1, for a policy that
	// adapts to it. If it is nil, Usage is the source.
	Busy func(gpu string) (float64, error)

	// Unsupported, if set, returns why the gateway can never start an instance of a function, or "".
	Unsupported func(function.Function) string

	Policy      queue.Config
	Set         map[string]string // parameters of the policy, as the user gave them
	Record      io.Writer         // receives a record of events and decisions, if set
	Concurrency int               // calls in progress per GPU (D)
	BatchWindow time.Duration     // as in dispatch.Config
	GPUs        []GPU             // indexed by GPU number
	SideBySide  bool              // as in dispatch.Config

	// WatchGPUs, if set, calls set with the usable GPUs whenever they change, until ctx ends. A GPU that set
	// has not listed yet is added to GPUs.
	WatchGPUs func(ctx context.Context, set func([]GPU))

	Settings
	// Reload, if set, reads the settings again. A SIGHUP triggers it.
	Reload func() (Settings, error)

	Limits
	Placement string             // one of placement.Names; empty means the first
	Placing   *placement.Options // parameters of the placement; nil means the defaults
	Scaler    string             // one of Scalers; empty means none
	// Estimator is one of scale.Estimators, for a scaler that follows an estimate; empty means last.
	Estimator string
	Scaling   *scale.Options // parameters of the scaler and the estimator, without the bounds; nil means the defaults
	Park      string         // ParkSwap, ParkCheckpoint or empty: how to park the memory of idle instances; needs Usage
	Parker    Parker         // parks instances with ParkCheckpoint, and unparks those that the previous gateway left parked
	// Swapper parks instances with ParkSwap, which needs it. An instance that gets a call before
	// Unpark moves its memory back itself.
	Swapper Parker
	Keep    bool // leave instances running on exit

	Async Async

	SpillDir    string // folder for long bodies, created on first use
	LearnedFile string // file for the measured costs of functions; empty: they are lost at the end

	Version string // version of the program

	peerUser func(context.Context) (uid int, err error) // returns the user at the other end of a request's connection; nil asks the kernel
	files    int                                        // limit on file descriptors; 0 asks the kernel
	now      func() time.Duration                       // time since some fixed instant; nil uses the monotonic clock
	stall    time.Duration                              // longest pause of a body while others wait for memory; 0 means the default
}

// The ways of moving the memory of idle instances to the host.
const (
	ParkSwap       = dispatch.ParkSwap
	ParkCheckpoint = dispatch.ParkCheckpoint
)

// Types of the fields of Config.
type (
	GPU         = dispatch.GPU
	Memory      = dispatch.Memory
	Parker      = instances.Parker
	FailedStart = api.InstanceLog
	Async       = api.Async
	Credentials = api.Credentials
)

// NewCredentials returns the credentials of a user.
func NewCredentials(user, password string) *Credentials { return api.NewCredentials(user, password) }

// ParseOrigin returns an element of api.Origins.
func ParseOrigin(text string) (string, error) { return api.ParseOrigin(text) }

// Scalers returns the names of the autoscalers.
func Scalers() []string { return dispatch.Scalers() }

// Settings are the part of the configuration that may change while the gateway runs.
type Settings struct {
	api.Access
	dispatch.Settings
}

// Limits bounds the resources of callers and functions. A function may set its own Queue
// and Timeout.
type Limits struct {
	Queue         int           // queued calls per function
	QueueTimeout  time.Duration // longest wait for a slot on an instance
	Timeout       time.Duration // longest time from dispatch to the answer's head, and longest pause after it
	MaxBody       int64         // size of a request's body, in bytes
	Buffer        int64         // bytes of a body to keep, so that the call can be sent again
	BufferMemory  int64         // bytes of all calls' bodies in memory; 0 means no limit
	Spill         int64         // bytes of all calls' bodies in SpillDir; 0 means that SpillDir is not used
	HeaderTimeout time.Duration // longest time to receive a request's head
	BodyTimeout   time.Duration // longest pause within a request's body
	BodyRate      int64         // minimum bytes per second of a body, after the first BodyTimeout; 0 means no minimum
	Drain         time.Duration // how long to let running calls finish on shutdown
}

// Gateway is a running gateway, or one that is about to run (Open).
type Gateway struct {
	cfg        Config
	log        *slog.Logger
	chassis    *chassis.Chassis
	metrics    *metrics.Metrics
	dispatcher *dispatch.Dispatcher
	instances  *instances.Manager
	intake     *inbound.Intake
	proxy      *proxy.Proxy
	api        *api.API
	life       context.Context // context of starts and watches of instances
	endLife    context.CancelFunc
}

// Open locks the run directory and opens the sockets. The caller must then call Serve or
// Close.
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
			g.intake.Serve(s)
			s.DisableGeneralOptionsHandler = true // so that Guard also checks OPTIONS *
		},
		Conn: g.intake.Admit,
	})
	if err != nil {
		return nil, err
	}
	if err := g.api.OpenAsync(g.listening); err != nil {
		g.chassis.Close()
		return nil, err
	}
	return g, nil
}

// listening returns the TCP addresses that the gateway listens on.
func (g *Gateway) listening() []netip.AddrPort {
	var own []netip.AddrPort
	for _, addr := range []net.Addr{g.WebAddr(), g.UIAddr()} {
		if tcp, ok := addr.(*net.TCPAddr); ok {
			own = append(own, tcp.AddrPort())
		}
	}
	return own
}

// idleConnection is how long a caller's connection may stay without a call.
const idleConnection = 3 * time.Minute

// newGateway returns a gateway without sockets.
func newGateway(cfg Config) (*Gateway, error) {
	if cfg.Usage == nil || cfg.Park == ParkSwap && cfg.Swapper == nil {
		cfg.Park = "" // without Usage, no source shows whether memory is parked
	}
	g := &Gateway{cfg: cfg, log: cfg.Log, metrics: metrics.New()}
	g.life, g.endLife = context.WithCancel(context.Background())
	var err error
	g.dispatcher, err = dispatch.New(g.life, dispatch.Config{
		Log: cfg.Log, Metrics: g.metrics, Policy: cfg.Policy, Concurrency: cfg.Concurrency, BatchWindow: cfg.BatchWindow, GPUs: cfg.GPUs, SideBySide: cfg.SideBySide,
		Queue: cfg.Queue, QueueTimeout: cfg.QueueTimeout, Timeout: cfg.Timeout, Placement: cfg.Placement, Placing: cfg.Placing, Scaler: cfg.Scaler, Estimator: cfg.Estimator, Scaling: cfg.Scaling, Park: cfg.Park, AdoptParked: cfg.Parker != nil,
		LearnedFile: cfg.LearnedFile, Unsupported: cfg.Unsupported,
		Forgotten: func(name string) { g.api.ForgetAsync(name) }, Now: cfg.now,
	}, cfg.Settings.Settings)
	if err != nil {
		return nil, err
	}
	g.instances = instances.New(g.life, g.dispatcher, instances.Config{
		Log: cfg.Log, Starter: cfg.Starter, Invoker: cfg.Invoker, Catalog: cfg.Catalog, Alone: cfg.Alone, AtWork: cfg.AtWork, Usage: cfg.Usage, Faults: cfg.Faults, FaultsEvery: cfg.FaultsEvery, Weights: cfg.Weights, Memory: cfg.Memory,
		Park: cfg.Park, Parker: cfg.Parker, Swapper: cfg.Swapper, Keep: cfg.Keep, Adapts: cfg.Policy.Utilization > 0, Busy: cfg.Busy,
		GPUsChange: cfg.WatchGPUs != nil,
		Known:      func() { g.api.StartAsync() },
	})
	g.metrics.Observe(g.dispatcher.Status)
	g.intake = inbound.New(inbound.Config{
		Log: cfg.Log, Now: g.dispatcher.Now, Draining: g.dispatcher.Draining, Files: cfg.files, MaxBody: cfg.MaxBody, Buffer: cfg.Buffer, BufferMemory: cfg.BufferMemory,
		QueueTimeout: cfg.QueueTimeout, BodyTimeout: cfg.BodyTimeout, BodyRate: cfg.BodyRate, Spill: cfg.Spill, SpillDir: cfg.SpillDir, Stall: cfg.stall,
	})
	g.proxy = proxy.New(proxy.Config{Log: cfg.Log, Dispatcher: g.dispatcher, Instances: g.instances, Invoker: cfg.Invoker, Intake: g.intake, Now: g.dispatcher.Now})
	g.api = api.New(api.Config{
		Log: cfg.Log, Catalog: cfg.Catalog, Starter: cfg.Starter, Dispatcher: g.dispatcher, Proxy: g.proxy, Intake: g.intake, Metrics: g.metrics,
		Async: cfg.Async, Listen: cfg.Listen, UIListen: cfg.UIListen, MaxBody: cfg.MaxBody, FailedStarts: cfg.FailedStarts, PeerUser: cfg.peerUser,
		Life: g.life.Done(), Policy: cfg.Policy.Policy, Version: cfg.Version,
	}, cfg.Access)
	return g, nil
}

// WebAddr returns the address of the listener for Listen, or nil.
func (g *Gateway) WebAddr() net.Addr { return g.chassis.WebAddr() }

// UIAddr returns the address of the listener for UIListen, or nil.
func (g *Gateway) UIAddr() net.Addr { return g.chassis.UIAddr() }

// Close releases the resources of Open. It is for use instead of Serve.
func (g *Gateway) Close() { g.chassis.Close() }

// Serve serves requests until ctx ends. It then drains, and stops the instances that the
// gateway started, unless Config.Keep is set.
func (g *Gateway) Serve(ctx context.Context) error {
	return g.chassis.Serve(ctx, chassis.Service{
		Run: g.run, Metrics: g.metrics.Registry,
		Control: g.api.Guard(api.ControlSocket, g.api),
		Web:     g.api, Guard: func(next http.Handler) http.Handler { return g.api.Guard(api.CallAddress, next) },
		UI: http.HandlerFunc(g.api.ServeUI), UIGuard: func(next http.Handler) http.Handler { return g.api.Guard(api.UIAddress, next) },
		Ready: g.ready, Reload: g.reload, Drain: g.drain,
		Use: func() (time.Time, bool) { return time.Now(), false }, // the gateway ends if its socket was removed or replaced
	})
}

func (g *Gateway) ready() error {
	if !g.dispatcher.Known.IsSet() {
		return errors.New("running instances are not adopted yet")
	}
	return nil
}

// reload reads the settings again and applies them.
func (g *Gateway) reload() error {
	if g.cfg.Reload == nil {
		return nil
	}
	s, err := g.cfg.Reload()
	if err != nil {
		return err
	}
	g.api.SetAccess(s.Access)
	g.dispatcher.Reconfigure(s.Settings)
	return nil
}

// run manages instances until ctx ends, and then stops the gateway's own instances.
func (g *Gateway) run(ctx context.Context) error {
	if g.cfg.Record != nil {
		known, err := g.cfg.Catalog.List(ctx)
		if err != nil {
			g.log.Warn("cannot read the state: the record begins without functions", "err", err)
		}
		defer g.dispatcher.Record(g.cfg.Record, known.Functions, g.cfg.Set)()
	}
	g.dispatcher.Begin(g.instances)
	var ticking sync.WaitGroup
	ticking.Go(func() { g.dispatcher.Run(g.life) })
	ticking.Go(func() { g.dispatcher.KeepLearned(g.life) })
	if g.cfg.WatchGPUs != nil {
		ticking.Go(func() { g.cfg.WatchGPUs(g.life, g.dispatcher.SetGPUs) })
	}
	g.instances.Run(ctx)
	g.dispatcher.Close()
	g.endLife()
	ticking.Wait()
	g.instances.Close()
	return nil
}

// drain refuses new calls and waits for running ones. It cuts calls that exceed
// Limits.Drain.
func (g *Gateway) drain() {
	close(g.dispatcher.Draining)
	defer g.api.StopAsync(g.cfg.Drain)()
	end := time.Now().Add(g.cfg.Drain)
	if await(end, g.dispatcher.Idle) && await(end, g.proxy.Idle) {
		return
	}
	g.log.Warn("cutting off calls that did not end in time", "drain", g.cfg.Drain.String())
	g.dispatcher.CutAll()
	await(time.Now().Add(cutTime), g.dispatcher.Idle)
}

// await polls done until it reports true. It returns false if the time end passes first.
func await(end time.Time, done func() bool) bool {
	for !done() {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(drainPoll)
	}
	return true
}

const (
	cutTime   = time.Second           // how long drain waits for cut calls
	drainPoll = 10 * time.Millisecond // interval of checks in await
)
