package queueset

import (
	"testing"

	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// The gateway and the simulator set the papers' rules by the same keys.
func TestPapersRules(t *testing.T) {
	o := queue.Defaults()
	if o.Uncorrected || o.Patient {
		t.Fatalf("defaults: %+v, want neither rule", o)
	}
	for _, text := range []string{"correct=false", "patient=true"} {
		if err := Policy.Set(&o, text); err != nil {
			t.Fatal(err)
		}
	}
	if !o.Uncorrected || !o.Patient {
		t.Errorf("correct=false, patient=true: %+v, want both rules", o)
	}
	if got := Ignored([]string{"patient"}, "lb", "gfaas"); len(got) != 1 {
		t.Errorf("patient under lb and gfaas: ignored %v, want it ignored", got)
	}
	if got := Ignored([]string{"patient"}, "gfaas", "lalb"); len(got) != 0 {
		t.Errorf("patient under gfaas and lalb: ignored %v, want none", got)
	}
}
