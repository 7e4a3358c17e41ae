package prepare

import (
	"slices"
	"testing"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place"
	"github.com/gfaas/gfaas/pkg/profile"
)

// TestModelsFillsMissingGPUModels checks where the model of a GPU comes from if the inventory gives
// none: from the running plan, the caller's model or the only model of the profile.
func TestModelsFillsMissingGPUModels(t *testing.T) {
	row := func(gpu string, rps float64) profile.Row {
		return profile.Row{Function: "f", GPU: gpu, Config: profile.Config{SMPct: 50, Quota: 1, Batch: 1}, ThroughputRPS: rps}
	}
	one, two := []profile.Row{row("A100", 10)}, []profile.Row{row("A100", 10), row("V100", 5)}
	node := []plan.Device{{Node: "n", Model: "V100"}, {Node: "n", Index: 1}}
	for name, c := range map[string]struct {
		rows      []profile.Row
		devices   []plan.Device
		running   []plan.GPU
		model     string
		ambiguous []string
		models    []string // models of the devices, followed by Input.Model
	}{
		"only model of the profile":    {rows: one, devices: node, models: []string{"V100", "A100", "A100"}},
		"model of the caller":          {rows: two, devices: node, model: "A100", models: []string{"V100", "A100", "A100"}},
		"model of the running GPU":     {rows: two, devices: node, running: []plan.GPU{{Node: "n", Index: 1, Model: "V100"}}, models: []string{"V100", "V100", ""}},
		"more GPUs like those running": {rows: two, running: []plan.GPU{{Node: "n", Model: "V100"}}, models: []string{"V100"}},
		"several models apply":         {rows: two, devices: node, ambiguous: []string{"A100", "V100"}, models: []string{"V100", "", ""}},
	} {
		in := place.Input{Profile: c.rows, Demand: []plan.Demand{{Function: "f", RPS: 1}}, Devices: slices.Clone(c.devices)}
		ambiguous := Models(&in, c.running, c.model)
		var models []string
		for _, d := range in.Devices {
			models = append(models, d.Model)
		}
		if models = append(models, in.Model); !slices.Equal(ambiguous, c.ambiguous) || !slices.Equal(models, c.models) {
			t.Errorf("%s: got ambiguous models %q and models %q, want %q and %q", name, ambiguous, models, c.ambiguous, c.models)
		}
	}
}

// TestMemoryLimitAppliesToFreeMemory limits two GPUs of 100 MiB to 50 MiB: one has less free memory
// and is unchanged.
func TestMemoryLimitAppliesToFreeMemory(t *testing.T) {
	devices := []plan.Device{{MemMiB: 100, UsedMemMiB: 60}, {MemMiB: 100, UsedMemMiB: 10}}
	want := []plan.Device{{MemMiB: 100, UsedMemMiB: 60}, {MemMiB: 50}}
	if limits := MemoryLimit(devices, 50); !limits || !slices.Equal(devices, want) {
		t.Errorf("limit of 50 MiB: got %v and devices %+v, want true and %+v", limits, devices, want)
	}
	if MemoryLimit(devices, 200) {
		t.Errorf("limit of 200 MiB, which no GPU has: got true, want false; devices %+v", devices)
	}
}
