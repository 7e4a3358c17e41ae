package rollout

import (
	"slices"
	"testing"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

func TestMemoryNotes(t *testing.T) {
	client := func(id string, used, stored float64) wire.ClientStatus {
		return wire.ClientStatus{Instance: id, MemUsedMiB: used, MemStoredMiB: stored}
	}
	s := wire.Status{GPUs: []wire.GPUStatus{
		{GPU: "0", Clients: []wire.ClientStatus{client("carol", 400, 100), client("carol", 400, 100), client("dave", 512, 0), client("other", 999, 0)}},
		{GPU: "1", Clients: []wire.ClientStatus{client("carol", 300, 0)}},
	}}
	want := []string{"carol holds 900MiB of GPU 0, more than its new limit of 512MiB: its allocations fail until it has freed memory"}
	if got := memoryNotes(s, []string{"carol", "dave"}, 512*gpu.MiB); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := memoryNotes(s, []string{"carol", "dave"}, 0); got != nil {
		t.Errorf("without a limit: %q", got)
	}
}

func TestCountNote(t *testing.T) {
	for instances, want := range []string{"2 jobs changed: a, b", "2 instances and jobs changed: a, b", "2 instances changed: a, b"} {
		if got := countNote([]string{"a", "b"}, instances); got != want {
			t.Errorf("%d instances: %q, want %q", instances, got, want)
		}
	}
}
