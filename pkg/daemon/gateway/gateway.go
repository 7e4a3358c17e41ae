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
)

// Config configures a gateway. It contains the configurations of its subpackages: commands set the fields
// below, and those of the subpackages except Metrics, AdoptParked, Forgotten, Adapts, GPUsChange, Known, Now, Draining and
// MemoryTimeout, which the gateway sets itself.
type Config struct {
	Socket  string // control socket; its folder is the run directory
	Private bool   // no other program uses the run directory: its mode becomes 0700
	Listen  string // TCP address; empty means none
	// UIListen is a TCP address for management only. It keeps pages of functions off the
	// origin of the operator's page. Empty means none.
	UIListen string
	Log      *slog.Logger // must be set

	dispatchConfig
	instancesConfig // Usage is needed to park memory, and Swapper as well for ParkSwap
	inboundConfig
	Settings

	// Reload, if set, reads the settings again. A SIGHUP triggers it.
	Reload func() (Settings, error)

	// WatchGPUs, if set, calls set with the usable GPUs whenever they change, until ctx ends. A GPU that set
	// has not listed yet is added to GPUs.
	WatchGPUs func(ctx context.Context, set func([]GPU))

	// FailedStarts returns the logs of a function's failed starts.
	FailedStarts func(function string) []FailedStart

	Set    map[string]string // parameters of the policy, as the user gave them
	Record io.Writer         // receives a record of events and decisions, if set

	HeaderTimeout time.Duration // longest time to receive a request's head
	Drain         time.Duration // how long to let running calls finish on shutdown

	Async   api.Async
	Version string // version of the program

	peerUser func(context.Context) (uid int, err error) // returns the user at the other end of a request's connection; nil asks the kernel
}

// The parts of Config.
type (
	dispatchConfig  = dispatch.Config
	instancesConfig = instances.Config
	inboundConfig   = inbound.Config
)

// The ways of moving the memory of idle instances to the host.
const (
	ParkSwap       = dispatch.ParkSwap
	ParkCheckpoint = dispatch.ParkCheckpoint
)

// Types of the fields of Config.
type (
	GPU         = dispatch.GPU
	Memory      = dispatch.Memory
	FailedStart = api.InstanceLog
)

// ParseOrigin returns an element of api.Origins.
func ParseOrigin(text string) (string, error) { return api.ParseOrigin(text) }

// Scalers returns the names of the autoscalers.
func Scalers() []string { return dispatch.Scalers() }

// Settings are the part of the configuration that may change while the gateway runs.
type Settings struct {
	api.Access
	dispatch.Settings
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
	d := cfg.dispatchConfig
	d.Log, d.Metrics, d.AdoptParked = cfg.Log, g.metrics, cfg.Parker != nil
	d.Forgotten = func(name string) { g.api.ForgetAsync(name) }
	var err error
	if g.dispatcher, err = dispatch.New(g.life, d, cfg.Settings.Settings); err != nil {
		return nil, err
	}
	i := cfg.instancesConfig
	i.Log, i.Adapts, i.GPUsChange = cfg.Log, cfg.Policy.Utilization > 0, cfg.WatchGPUs != nil
	i.Known = func() { g.api.StartAsync() }
	g.instances = instances.New(g.life, g.dispatcher, i)
	g.metrics.Observe(g.dispatcher.Status)
	in := cfg.inboundConfig
	in.Log, in.Now, in.Draining, in.MemoryTimeout = cfg.Log, g.dispatcher.Now, g.dispatcher.Draining, cfg.QueueTimeout
	g.intake = inbound.New(in)
	g.proxy = proxy.New(proxy.Config{
		Log: cfg.Log, Dispatcher: g.dispatcher, Instances: g.instances, Invoker: cfg.Invoker, Intake: g.intake,
	})
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
		ticking.Go(func() { g.cfg.WatchGPUs(g.life, g.dispatcher.GPUs.Set) })
	}
	g.instances.Run(ctx)
	g.dispatcher.Close()
	g.endLife()
	ticking.Wait()
	g.instances.Close()
	return nil
}

// drain refuses new calls and waits for running ones. It cuts calls that exceed
// Config.Drain.
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
