package host

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/agent"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/daemon/gateway"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	agentTime   = 600 * time.Millisecond // time limit of an agent's answer
	listTime    = 300 * time.Millisecond // time limit of a list of agents; the one before is used instead
	listEvery   = 2 * time.Second        // interval of lists
	agentPause  = 5 * time.Second        // after a failure, how long the agent is not asked
	faultsEvery = 500 * time.Millisecond // interval of requests for faults
)

// errNoAgents reports that no node answers.
var errNoAgents = errors.New("no agent of a node answers")

// agents asks the agents of the nodes about their GPUs and instances, and decides which GPUs are healthy. It is safe
// for concurrent use.
type agents struct {
	find func(context.Context) (map[string]string, error) // returns the addresses of the agents by node
	log  *slog.Logger
	*agent.Client

	mu     sync.Mutex
	known  map[string]string
	listed time.Time
	failed map[string]time.Time  // nodes whose agents have failed, and when
	usable []devices.GPU         // of nodes that can start instances
	report func([]devices.GPU)   // called with the healthy ones of them
	faulty map[string]faultyGPUs // by node
}

// faultyGPUs has the GPUs of a node on which no instance may start, and why: errors that the drivers report, and CUDA
// errors of processes.
type faultyGPUs struct{ drivers, faults map[string]string }

// list returns the addresses of the agents to ask.
func (a *agents) list(ctx context.Context) map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.listed) >= listEvery {
		limited, cancel := context.WithTimeout(ctx, listTime)
		found, err := a.find(limited)
		cancel()
		if err == nil {
			if len(found) == 0 && (a.listed.IsZero() || len(a.known) > 0) {
				a.log.Warn("no node has an agent: the memory, the utilization and the faults of GPUs are unknown")
			}
			a.known, a.listed = found, time.Now()
		}
	}
	out := maps.Clone(a.known)
	maps.DeleteFunc(out, func(node, _ string) bool {
		failed, ok := a.failed[node]
		return ok && time.Since(failed) < agentPause
	})
	return out
}

// reply is the answer of the agent of a node.
type reply[T any] struct {
	node string
	of   T
}

// gather asks all agents at the same time, and returns the answers in order of node. It fails if there are none.
func gather[T any](ctx context.Context, a *agents, ask func(ctx context.Context, node, address string) (T, error)) (out []reply[T], err error) {
	var asking sync.WaitGroup
	var mu sync.Mutex
	for node, address := range a.list(ctx) {
		asking.Go(func() {
			limited, cancel := context.WithTimeout(ctx, agentTime)
			defer cancel()
			answer, err := ask(limited, node, address)
			a.answered(node, err)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				out = append(out, reply[T]{node, answer})
			}
		})
	}
	asking.Wait()
	if len(out) == 0 {
		return nil, errNoAgents
	}
	slices.SortFunc(out, func(x, y reply[T]) int { return strings.Compare(x.node, y.node) })
	return out, nil
}

// answered records whether the agent of a node has answered.
func (a *agents) answered(node string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, before := a.failed[node]
	switch {
	case err == nil && before:
		a.log.Info("the agent of a node answers again", "node", node)
		delete(a.failed, node)
	case err != nil && !before:
		a.log.Warn("the memory, the utilization and the faults of the GPUs of a node are unknown", "node", node, "err", err)
		fallthrough
	case err != nil:
		a.failed[node] = time.Now()
	}
}

// usage returns the state of the token daemons of all nodes that answer. Each GPU of these nodes is listed.
func (a *agents) usage(ctx context.Context) (wire.Status, error) {
	reports, err := gather(ctx, a, a.Status)
	if err != nil {
		return wire.Status{}, err
	}
	out := wire.Status{WindowMS: reports[0].of.WindowMS, Policy: reports[0].of.Policy, GPUs: []wire.GPUStatus{}}
	for _, r := range reports {
		for _, g := range r.of.GPUs {
			g.GPU = r.node + "/" + g.GPU
			out.GPUs = append(out.GPUs, g)
		}
		for _, name := range a.gpusOf(r.node) {
			if !slices.ContainsFunc(out.GPUs, func(g wire.GPUStatus) bool { return g.GPU == name }) {
				out.GPUs = append(out.GPUs, wire.GPUStatus{GPU: name, Clients: []wire.ClientStatus{}})
			}
		}
	}
	return out, nil
}

// gpusOf returns the names of the usable GPUs of a node.
func (a *agents) gpusOf(node string) (names []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, g := range a.usable {
		if at, _ := gpu.SplitNode(g.Name); at == node {
			names = append(names, g.Name)
		}
	}
	return names
}

// outOfMemory reports whether the driver refused GPU memory to a process of an instance.
func (a *agents) outOfMemory(ctx context.Context, id string) bool {
	s, err := a.usage(ctx)
	return err == nil && refused(s, id)
}

// faults returns the CUDA errors of all instances after which they cannot use CUDA.
func (a *agents) faults(ctx context.Context) (out []wire.InstanceFault, err error) {
	reports, err := gather(ctx, a, a.Faults)
	for _, r := range reports {
		found := map[string]string{}
		for _, f := range r.of {
			f.GPU = r.node + "/" + f.GPU
			if f.OfGPU() {
				found[f.GPU] = f.String()
			}
			out = append(out, f)
		}
		a.update(r.node, func(s *faultyGPUs) { s.faults = found })
	}
	return out, err
}

// memory returns the memory of the GPUs of all nodes, as their drivers report it.
func (a *agents) memory(ctx context.Context) map[string]gateway.Memory {
	reports, err := gather(ctx, a, a.Devices)
	if err != nil {
		return nil
	}
	out := map[string]gateway.Memory{}
	for _, r := range reports {
		found := map[string]string{}
		for _, d := range r.of {
			name := r.node + "/" + d.GPU
			if d.Error != "" {
				found[name] = d.Error
				continue
			}
			out[name] = gateway.Memory{Total: d.Total, Free: d.Free, Processes: d.Processes}
		}
		a.update(r.node, func(s *faultyGPUs) { s.drivers = found })
	}
	return out
}

// update changes the faulty GPUs of a node, and logs and reports the difference.
func (a *agents) update(node string, change func(*faultyGPUs)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.faulty[node]
	change(&s)
	before := a.faulty[node]
	a.faulty[node] = s
	changed := false
	for _, pair := range [][2]map[string]string{{before.drivers, s.drivers}, {before.faults, s.faults}} {
		for name, reason := range pair[1] {
			if _, known := pair[0][name]; !known {
				a.log.Error("a GPU is faulty, so no instance starts on it", "gpu", name, "reason", reason)
				changed = true
			}
		}
		changed = changed || len(pair[0]) != len(pair[1])
	}
	if changed && a.report != nil {
		a.report(a.healthy())
	}
}

// watch sets the usable GPUs, and calls report with the healthy ones, now and whenever they change.
func (a *agents) watch(usable []devices.GPU, report func([]devices.GPU)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.usable, a.report = usable, report
	report(a.healthy())
}

// healthy returns the usable GPUs that are not faulty. The caller holds a.mu.
func (a *agents) healthy() []devices.GPU {
	return slices.DeleteFunc(slices.Clone(a.usable), func(g devices.GPU) bool {
		node, _ := gpu.SplitNode(g.Name)
		_, driver := a.faulty[node].drivers[g.Name]
		_, fault := a.faulty[node].faults[g.Name]
		return driver || fault
	})
}

// newAgents returns an agents that finds the addresses with find.
func newAgents(find func(context.Context) (map[string]string, error), client *agent.Client, log *slog.Logger) *agents {
	return &agents{find: find, log: log, Client: client, failed: map[string]time.Time{}, faulty: map[string]faultyGPUs{}}
}
