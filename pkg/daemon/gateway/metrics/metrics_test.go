package metrics

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/status"
)

// The label of a GPU of a swarm has the name of its node. Figures of nodes that do not answer are absent.
func TestGPUs(t *testing.T) {
	m := New()
	m.Observe(func() status.Status {
		return status.Status{GPUs: []status.GPU{
			{GPU: "node1/sim", Slots: new(2), Running: new(1), BusyPct: new(50.0), MemUsedMiB: new(3.0), MemMiB: new(16.0)},
			{GPU: "node2/sim", Slots: new(2), Running: new(0), MemMiB: new(16.0), Closed: true},
		}}
	})
	families, err := m.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		for _, series := range f.GetMetric() {
			if labels := series.GetLabel(); len(labels) == 1 && labels[0].GetName() == "gpu" {
				got = append(got, fmt.Sprintf("%s %s %v", f.GetName(), labels[0].GetValue(), series.GetGauge().GetValue()))
			}
		}
	}
	want := []string{
		"gfaas_gpu_busy_ratio node1/sim 0.5",
		"gfaas_gpu_closed node1/sim 0",
		"gfaas_gpu_closed node2/sim 1",
		"gfaas_gpu_memory_bytes node1/sim 1.6777216e+07",
		"gfaas_gpu_memory_bytes node2/sim 1.6777216e+07",
		"gfaas_gpu_memory_used_bytes node1/sim 3.145728e+06",
		"gfaas_gpu_running node1/sim 1",
		"gfaas_gpu_running node2/sim 0",
		"gfaas_gpu_slots node1/sim 2",
		"gfaas_gpu_slots node2/sim 2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
