package place

import (
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
)

// The plans of every algorithm are valid, and the same input gives the same plan.
func TestPlansVerify(t *testing.T) {
	for _, k := range Kinds() {
		t.Run(k.Name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				in, o := drawJoint(t), DefaultOptions()
				o.Model = rapid.SampledFrom([]string{plan.ModelRect, plan.ModelTokens}).Draw(t, "model")
				o.ShareModels = k.SharesModels && rapid.Bool().Draw(t, "share")
				o.Seed, o.Work = rapid.Uint64().Draw(t, "seed"), 5_000
				for i := range in.Functions {
					if !k.SpansGPUs {
						in.Functions[i].GPUs = 1
					}
				}
				p, _, err := k.Plan(in, o)
				if err != nil {
					t.Fatal(err)
				}
				if found := verify.Plan(p, verify.Inputs{Profile: in.Profile, Demand: in.Demand, Inventory: in.Devices, Functions: in.Functions}); len(found) > 0 {
					t.Fatalf("violations: got %+v, want none", found)
				}
				again, _, err := k.Plan(in, o)
				if a, b := written(t, p), written(t, again); err != nil || a != b {
					t.Fatalf("plan of the same input: got %v and\n%s\nwant\n%s", err, b, a)
				}
			})
		})
	}
}

// The parameters have the same default values as the options.
func TestParameterDefaults(t *testing.T) {
	for _, k := range Kinds() {
		o := DefaultOptions()
		for _, p := range k.Parameters {
			if len(p.Values) > 0 {
				continue
			}
			if err := p.Set(&o, p.Default); err != nil {
				t.Errorf("%s: set %s to its default: %v", k.Name, p.Key, err)
			}
		}
		if !reflect.DeepEqual(o, DefaultOptions()) || o.Check() != nil {
			t.Errorf("%s: options with the default parameters: got %+v, want valid ones, %+v", k.Name, o, DefaultOptions())
		}
	}
}
