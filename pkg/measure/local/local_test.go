package local

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Other clients of the daemons are always reported, other processes only while none of
// them can be the instance's.
func TestOthers(t *testing.T) {
	status := wire.Status{GPUs: []wire.GPUStatus{
		{GPU: "sim", Clients: []wire.ClientStatus{{Instance: "profile-sim", PID: 1}, {Instance: "profile-sim.2", PID: 6}, {Instance: "b", PID: 2}, {Instance: "a", PID: 3}, {Instance: "executor", PID: 4}, {Instance: "leaving"}}},
		{GPU: "sim:1", Clients: []wire.ClientStatus{{Instance: "elsewhere", PID: 5}}},
	}}
	g := &GPUs{names: []string{"sim"}, ids: []string{"profile-sim", "profile-sim.2"}, config: Config{
		Status:    func(context.Context) (wire.Status, error) { return status, nil },
		Kernels:   func(context.Context) ([]int, []string) { return []int{4}, []string{"client c"} },
		Processes: func([]string) []int { return []int{os.Getpid(), 2, 4} },
	}}
	before := g.OtherUsers(t.Context())
	if len(before) != 4 || !slices.Equal(before[:3], []string{"a", "b", "client c"}) || !strings.HasPrefix(before[3], "process ") {
		t.Errorf("before the first instance: %q", before)
	}
	g.started.Store(true)
	if got := g.OtherUsers(t.Context()); !slices.Equal(got, []string{"a", "b", "client c"}) {
		t.Errorf("after it: %q", got)
	}
}

// The memory of an instance is the sum over its processes on the GPU where that is
// largest; without an answer of the token daemon it is unknown.
func TestMemory(t *testing.T) {
	client := func(id string, used, imported, parked float64) wire.ClientStatus {
		return wire.ClientStatus{Instance: id, MemUsedMiB: used, MemImportedMiB: imported, MemParkedMiB: parked}
	}
	status := wire.Status{GPUs: []wire.GPUStatus{
		{GPU: "0", Clients: []wire.ClientStatus{client("f", 10, 1, 4), client("f", 20, 2, 0), client("g", 500, 9, 9)}},
		{GPU: "1", Clients: []wire.ClientStatus{client("f", 25, 5, 1)}},
	}}
	var failure error
	g := &GPUs{config: Config{Status: func(context.Context) (wire.Status, error) { return status, failure }}}
	r := &running{gpus: g, record: instance.Record{ID: "f"}}
	check := func(want [4]float64) {
		t.Helper()
		used, parked := r.Parked(t.Context())
		if got := [4]float64{r.GPUMemMiB(t.Context()), r.ImportedMiB(t.Context()), used, parked}; got != want {
			t.Errorf("memory, imported, used, parked: got %v MiB, want %v", got, want)
		}
	}
	check([4]float64{30, 5, 55, 5})
	failure = errors.New("no answer")
	check([4]float64{})
}
