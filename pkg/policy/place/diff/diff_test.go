package diff

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gfaas/gfaas/pkg/plan"
)

func at(v float64) *float64 { return &v }

func onGPU(index int, instances ...plan.Instance) plan.GPU {
	return plan.GPU{Node: "n", Index: index, Instances: instances}
}

func instance(id string, x float64) plan.Instance {
	return plan.Instance{ID: id, Function: "f", SMPct: 50, QuotaRequest: 0.5, QuotaLimit: 0.5, Batch: 1, RPS: 10, X: at(x), Y: at(0)}
}

func TestPlans(t *testing.T) {
	larger := instance("d", 0)
	larger.SMPct = 60
	before := plan.Plan{GPUs: []plan.GPU{
		onGPU(0, instance("a", 0), instance("b", 0.5)),
		onGPU(1, instance("c", 0), instance("wide", 0.5)),
		onGPU(2, instance("d", 0), instance("wide", 0.5)),
	}}
	after := plan.Plan{GPUs: []plan.GPU{
		onGPU(2, instance("wide", 0.5), larger),
		onGPU(1, instance("wide", 0.5), instance("b", 0)),
		onGPU(0, instance("a", 0), instance("e", 0.5)),
	}}
	var got []string
	for _, c := range Plans(before, after) {
		got = append(got, fmt.Sprint(c.Kind, " ", c.ID, " ", c.GPUs))
	}
	want := []string{
		"stop b [n/0]", "stop c [n/1]", "stop d [n/2]",
		"start d [n/2]", "start b [n/1]", "start e [n/0]",
		"keep wide [n/1 n/2]", "keep a [n/0]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %v", got, want)
	}
	if n := Count(Plans(before, before), Keep); n != 5 || len(Plans(before, before)) != 5 {
		t.Errorf("a plan and itself: got %d kept of %d changes, want 5 of 5", n, len(Plans(before, before)))
	}
	limited := instance("a", 0)
	limited.SMLimitPct = 60
	with := plan.Plan{GPUs: []plan.GPU{onGPU(0, limited, instance("b", 0.5))}}
	if changes := Plans(plan.Plan{GPUs: before.GPUs[:1]}, with); Count(changes, Keep) != 1 {
		t.Errorf("a plan in which one of two instances gets an SM limit: got %+v, want one kept", changes)
	}
}
