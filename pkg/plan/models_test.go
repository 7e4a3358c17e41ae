package plan

import (
	"bytes"
	"slices"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
)

func TestModelBytes(t *testing.T) {
	for mib, want := range map[float64]gpu.Bytes{0: 0, 0.001: 2 * gpu.MiB, 1: 2 * gpu.MiB, 2: 2 * gpu.MiB, 2.000001: 4 * gpu.MiB, 97.8: 98 * gpu.MiB, 98: 98 * gpu.MiB} {
		if got := (Model{MemMiB: mib}).Bytes(); got != want {
			t.Errorf("%v MiB take %v, want %v", mib, got, want)
		}
	}
}

// TestCopies: a model without a tenant counts once for each tenant whose functions use it
// and that has no such model itself.
func TestCopies(t *testing.T) {
	weights := map[string]Model{}
	for name, tenant := range map[string]string{"a": "red", "b": "blue", "c": "default", "d": ""} {
		weights[name] = WeightsOf(function.Function{Name: name, Tenant: tenant, Model: &function.Model{Name: "m"}})
	}
	weights["own"] = WeightsOf(function.Function{Name: "own", Tenant: "red"})
	of := func(name string) Model { return weights[name] }
	for _, c := range []struct {
		functions    []string
		models, want []Model
	}{
		{[]string{"a", "b"}, []Model{{"m", "", 10}}, []Model{{"m", "blue", 10}, {"m", "red", 10}}},
		{[]string{"a", "a"}, []Model{{"m", "", 10}}, []Model{{"m", "red", 10}}},
		{[]string{"c", "d"}, []Model{{"m", "", 10}}, []Model{{"m", "", 10}}},
		{[]string{"a", "c"}, []Model{{"m", "", 10}, {"m", "red", 20}}, []Model{{"m", "", 10}, {"m", "red", 20}}},
		{[]string{"b"}, []Model{{"m", "red", 20}}, []Model{{"m", "red", 20}}},
		{[]string{"own", "a"}, []Model{{"own", "red", 4}, {"m", "red", 2}}, []Model{{"m", "red", 2}, {"own", "red", 4}}},
		{[]string{"unknown"}, []Model{{"m", "", 2}}, []Model{{"m", "", 2}}},
	} {
		g := GPU{Models: c.models}
		for _, f := range c.functions {
			g.Instances = append(g.Instances, Instance{Function: f})
		}
		if got := g.Copies(of); !slices.Equal(got, c.want) {
			t.Errorf("%v of %v: %v, want %v", c.functions, c.models, got, c.want)
		}
	}
}

// TestTenantOfModel: the tenants of models are equal after writing and reading a plan,
// the empty tenant included.
func TestTenantOfModel(t *testing.T) {
	p := Plan{Version: Version, Model: ModelRect, GPUs: []GPU{{Node: "n", Models: []Model{{"m", "red", 2}, {"m", "", 4}}}}}
	var b bytes.Buffer
	if err := p.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	got, err := Read(&b, "p.json")
	if err != nil || !slices.Equal(got.GPUs[0].Models, p.GPUs[0].Models) {
		t.Errorf("%+v, %v", got, err)
	}
}
