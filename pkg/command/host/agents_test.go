package host

import (
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/agent"
	"github.com/gfaas/gfaas/pkg/command/devices"
	server "github.com/gfaas/gfaas/pkg/daemon/agent"
	"github.com/gfaas/gfaas/pkg/daemon/gateway"
	"github.com/gfaas/gfaas/pkg/grant"
	"github.com/gfaas/gfaas/pkg/wire"
)

// nodeTokens is the token daemon of a node.
type nodeTokens struct {
	name string

	mu     sync.Mutex
	silent bool
	memory []wire.DeviceMemory
	faults []wire.InstanceFault
}

func (n *nodeTokens) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func (n *nodeTokens) err() error {
	if n.silent {
		return errors.New("no token daemon")
	}
	return nil
}

func (n *nodeTokens) Status(context.Context) (wire.Status, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	clients := []wire.ClientStatus{{Instance: n.name + "-1", PID: 7, MemRefused: 1}}
	return wire.Status{Node: n.name, GPUs: []wire.GPUStatus{{GPU: "1", Clients: clients}}}, n.err()
}

func (n *nodeTokens) Faults(context.Context) ([]wire.InstanceFault, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.faults, n.err()
}

func (n *nodeTokens) Devices(context.Context) ([]wire.DeviceMemory, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.memory, n.err()
}

// TestAgents: the answers of all agents are joined under the names of the fleet. A GPU that its driver or a CUDA error
// reports as faulty is not used until the report ends.
func TestAgents(t *testing.T) {
	key := grant.GenerateKey()
	a, b := &nodeTokens{name: "a"}, &nodeTokens{name: "b"}
	addresses := map[string]string{}
	for _, n := range []*nodeTokens{a, b} {
		n.memory = []wire.DeviceMemory{{GPU: "0", Total: 10, Free: 4, Processes: map[int]int64{7: 6}}, {GPU: "1", Total: 10, Free: 10}}
		web := httptest.NewServer(server.New(n, grant.TrustOf(key.Public())))
		t.Cleanup(web.Close)
		addresses[n.name] = strings.TrimPrefix(web.URL, "http://")
	}
	client := agent.NewClient(key)
	t.Cleanup(client.Close)
	fleet := newAgents(func(context.Context) (map[string]string, error) { return addresses, nil }, client, slog.New(slog.DiscardHandler))
	var usable []string
	fleet.watch([]devices.GPU{{Name: "a/0"}, {Name: "a/1"}, {Name: "b/0"}, {Name: "b/1"}, {Name: "c/0"}}, func(gpus []devices.GPU) {
		usable = nil
		for _, g := range gpus {
			usable = append(usable, g.Name)
		}
	})
	expect := func(when, want string) {
		t.Helper()
		if got := strings.Join(usable, " "); got != want {
			t.Errorf("%s: usable GPUs %q, want %q", when, got, want)
		}
	}
	expect("at first", "a/0 a/1 b/0 b/1 c/0")

	s, err := fleet.usage(t.Context())
	var names []string
	for _, g := range s.GPUs {
		names = append(names, g.GPU)
	}
	if got := strings.Join(names, " "); err != nil || got != "a/1 a/0 b/1 b/0" || s.GPUs[0].Clients[0].Instance != "a-1" {
		t.Errorf("usage of the GPUs %q, %v; want those of a and b", got, err)
	}
	if !fleet.outOfMemory(t.Context(), "b-1") || fleet.outOfMemory(t.Context(), "c-1") {
		t.Error("out of memory: want that b-1 was refused memory, and c-1 was not")
	}
	want := map[string]gateway.Memory{
		"a/0": {Total: 10, Free: 4, Processes: map[int]int64{7: 6}}, "a/1": {Total: 10, Free: 10},
		"b/0": {Total: 10, Free: 4, Processes: map[int]int64{7: 6}}, "b/1": {Total: 10, Free: 10},
	}
	if got := fleet.memory(t.Context()); !reflect.DeepEqual(got, want) {
		t.Errorf("memory %+v, want %+v", got, want)
	}

	b.change(func() { b.memory[1].Error = "GPU is lost" })
	a.change(func() {
		a.faults = []wire.InstanceFault{{Instance: "x", GPU: "0", Code: 700}, {Instance: "y", GPU: "1", Code: 226}}
	})
	if _, known := fleet.memory(t.Context())["b/1"]; known {
		t.Error("the memory of b/1, which is lost, is known")
	}
	expect("b/1 is lost", "a/0 a/1 b/0 c/0")
	faults, err := fleet.faults(t.Context())
	if err != nil || len(faults) != 2 || faults[0].GPU != "a/0" {
		t.Errorf("faults %+v, %v; want two, the first on a/0", faults, err)
	}
	expect("a/1 has contained an error", "a/0 b/0 c/0")

	a.change(func() { a.faults, a.silent = nil, true })
	if faults, err := fleet.faults(t.Context()); err != nil || len(faults) > 0 {
		t.Errorf("a does not answer: faults %+v, %v", faults, err)
	}
	expect("a does not answer", "a/0 b/0 c/0")
	if s, err := fleet.usage(t.Context()); err != nil || len(s.GPUs) != 2 {
		t.Errorf("a does not answer: usage %+v, %v; want the GPUs of b", s, err)
	}
	a.change(func() { a.silent = false })
	fleet.mu.Lock()
	clear(fleet.failed) // as after agentPause
	fleet.mu.Unlock()
	if _, err := fleet.faults(t.Context()); err != nil {
		t.Error(err)
	}
	expect("a answers without faults", "a/0 a/1 b/0 c/0")

	a.change(func() { a.silent = true })
	b.change(func() { b.silent = true })
	if _, err := fleet.usage(t.Context()); !errors.Is(err, errNoAgents) {
		t.Errorf("no agent answers: %v", err)
	}
	if got := fleet.memory(t.Context()); len(got) > 0 {
		t.Errorf("no agent answers: memory %+v", got)
	}
}
