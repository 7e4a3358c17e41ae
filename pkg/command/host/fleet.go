package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/agent"
	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/adapter/logs"
	"github.com/gfaas/gfaas/pkg/adapter/swarm"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/daemon/gateway"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/grant"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Fleet starts instances on the nodes of a swarm.
type Fleet struct {
	*launch.Launcher
	stateKeeper
	swarm  *swarm.Runtime
	agents *agents
}

// FleetConfig configures a Fleet.
type FleetConfig struct {
	Network      string // overlay network of the instances
	KeyFile      string // private key that signs the grants of instances
	ReadyTimeout time.Duration
	Log          *slog.Logger
}

// NewFleet connects to the manager at $DOCKER_HOST, or at the local socket.
func NewFleet(ctx context.Context, env *cli.Env, runDir string, config FleetConfig) (*Fleet, error) {
	file, err := os.Open(config.KeyFile)
	if err != nil {
		return nil, err
	}
	key, err := grant.ReadPrivate(file, config.KeyFile)
	_ = file.Close()
	if err != nil {
		return nil, err
	}
	rt, err := swarm.New(ctx, swarm.Config{Network: config.Network})
	if err != nil {
		return nil, err
	}
	nodes := newAgents(rt.Agents, agent.NewClient(key), config.Log)
	return &Fleet{stateKeeper: stateKeeper{runtime: rt}, swarm: rt, agents: nodes, Launcher: launch.New(launch.Config{
		LogDir: logDir(runDir), RemoveLog: logs.Remove, KeepFailed: storeFailedLog(runDir), ReadyTimeout: config.ReadyTimeout, Ready: fnhttp.WaitReady,
		Tokens: noTokens{}, Device: noDevice{}, Sign: (&signer{key: key}).sign,
		KernelDaemon: func(context.Context, function.Function) error {
			return errors.New(Unsupported(function.Function{Kind: function.Kernels}))
		},
		OutOfMemory: nodes.outOfMemory,
		Note:        env.Notef, Simulated: func() { devices.NoteSimulated(env) },
		Runtime: func(_ context.Context, name string) (ports.Runtime, error) {
			if name != instance.Swarm {
				return nil, fmt.Errorf("the gateway of a swarm has no runtime %s", name)
			}
			return rt, nil
		},
	})}, nil
}

// Close closes the connection to the manager. Instances keep running.
func (f *Fleet) Close() error {
	f.agents.Close()
	return errors.Join(f.Launcher.Close(), f.swarm.Close())
}

// GPUs returns the usable GPUs of all nodes, by node and name.
func (f *Fleet) GPUs(ctx context.Context) ([]devices.GPU, error) {
	nodes, err := f.swarm.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	return gpusOf(swarm.Usable(nodes)), nil
}

// Superseded reports whether an error means that another gateway has taken over the instances.
func Superseded(err error) bool { return errors.Is(err, swarm.ErrSuperseded) }

// Watch calls changed with the usable GPUs that are not faulty whenever they change, and failed with errors, until ctx ends.
func (f *Fleet) Watch(ctx context.Context, changed func([]devices.GPU), failed func(error)) {
	f.swarm.Watch(ctx, func(nodes []swarm.Node) { f.agents.watch(gpusOf(nodes), changed) }, failed)
}

// Unsupported returns why a swarm runs no instances of a function, or "".
func Unsupported(fn function.Function) string {
	switch {
	case fn.Kind == function.Kernels:
		return "functions of the kind " + function.Kernels + " do not run on a swarm"
	case fn.Image == "":
		return "it has no image, and a swarm runs containers only"
	case fn.GPUs > 1:
		return fmt.Sprintf("it spans %d GPUs, and an instance on a swarm has one", fn.GPUs)
	case fn.Model != nil && fn.Model.File != "":
		return "a swarm does not share the weights of models (model.file)"
	}
	return ""
}

// Report lets a gateway ask the agents of the nodes (gfaas node agent).
func (f *Fleet) Report(cfg *gateway.Config) {
	cfg.Usage, cfg.Memory, cfg.Faults, cfg.FaultsEvery = f.agents.usage, f.agents.memory, f.agents.faults, faultsEvery
}

func gpusOf(nodes []swarm.Node) (out []devices.GPU) {
	for _, n := range nodes {
		for _, g := range n.GPUs {
			out = append(out, devices.GPU{Name: n.Name + "/" + g.Name, Mem: g.Mem, Model: g.Model})
		}
	}
	return out
}

// Invoker returns an Invoker that calls an instance only while its node is ready and the managers want it to run.
func (f *Fleet) Invoker(inner ports.Invoker) ports.Invoker {
	return &fleetInvoker{inner, f.swarm.Callable}
}

type fleetInvoker struct {
	ports.Invoker
	callable func(context.Context, instance.Handle) error
}

// maxDials limits how often a call tries to connect to an instance.
const maxDials = 3

// Invoke implements ports.Invoker. If an instance does not accept a connection in time, its node may have failed without
// the managers' knowledge, or they have no quorum: Invoke asks them again.
func (i *fleetInvoker) Invoke(ctx context.Context, r *instance.Record, c ports.Call) (*http.Response, error) {
	for dials := 1; ; dials++ {
		if err := i.callable(ctx, r.Handle); err != nil {
			return nil, &ports.CallError{Progress: ports.NotConnected, Err: err}
		}
		answer, err := i.Invoker.Invoke(ctx, r, c)
		failed, ok := errors.AsType[*ports.CallError](err)
		timeout, slow := errors.AsType[net.Error](err)
		if !ok || failed.Progress != ports.NotTried || !slow || !timeout.Timeout() || ctx.Err() != nil || dials == maxDials {
			return answer, err
		}
	}
}

// grantTime is how long an instance may take until it uses its grant.
const grantTime = 10 * time.Minute

// signer signs the grants of instances. Serials increase with the time, so that a successor's are higher.
type signer struct {
	key grant.PrivateKey

	mu   sync.Mutex
	last uint64
}

func (s *signer) sign(r wire.Registration) (string, error) {
	now := time.Now()
	s.mu.Lock()
	s.last = max(s.last+1, uint64(now.UnixMicro()))
	serial := s.last
	s.mu.Unlock()
	g := grant.Of(r)
	for i := range g.GPUs {
		g.Node, g.GPUs[i].GPU = gpu.SplitNode(g.GPUs[i].GPU)
	}
	g.Serial, g.NotAfter = serial, now.Add(grantTime)
	return s.key.Sign(g)
}

// noTokens is a launch.Tokens of a fleet: its instances have grants.
type noTokens struct{}

func (noTokens) Register(context.Context, wire.Registration) (wire.Registered, error) {
	return wire.Registered{}, fmt.Errorf("an instance on a swarm cannot be registered: it has a grant")
}
func (noTokens) Change(context.Context, string, wire.Change) error {
	return fmt.Errorf("the slice of an instance on a swarm cannot change")
}
func (noTokens) Unregister(context.Context, string) error                   { return nil }
func (noTokens) Registrations(context.Context) ([]wire.Registration, error) { return nil, nil }

// noDevice is a launch.SimulatedDevice of a fleet: each node has its own.
type noDevice struct{}

func (noDevice) Retain(string) error  { return nil }
func (noDevice) Release(string) error { return nil }
