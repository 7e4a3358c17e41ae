package queue_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/policy"
	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// TestPapersRules checks the keys by which the gateway and the simulator select the papers'
// rules.
func TestPapersRules(t *testing.T) {
	o := queue.Defaults()
	if o.Uncorrected || o.Patient {
		t.Fatalf("default options: got %+v, want neither rule", o)
	}
	for _, text := range []string{"correct=false", "patient=true"} {
		key, value, _ := strings.Cut(text, "=")
		if err := policy.Find(queue.Parameters(), key).Set(&o, value); err != nil {
			t.Fatal(err)
		}
	}
	if !o.Uncorrected || !o.Patient {
		t.Errorf("options with correct=false, patient=true: got %+v, want both rules", o)
	}
	if got := queue.Ignored([]string{"patient"}, "lb", "gfaas"); len(got) != 1 {
		t.Errorf("patient under lb and gfaas: ignored %v, want it ignored", got)
	}
	if got := queue.Ignored([]string{"patient"}, "gfaas", "lalb"); len(got) != 0 {
		t.Errorf("patient under gfaas and lalb: ignored %v, want none", got)
	}
}

// TestDefaultsAsListed checks that Parameter.Default is the default value.
func TestDefaultsAsListed(t *testing.T) {
	for _, p := range queue.Parameters() {
		if p.Default == "" {
			continue
		}
		got := queue.Defaults()
		if err := p.Set(&got, p.Default); err != nil || got != queue.Defaults() {
			t.Errorf("%s=%s: got %+v, %v; want the defaults %+v", p.Key, p.Default, got, err, queue.Defaults())
		}
	}
}

// TestKindsAreDescribed checks that every policy has a unique name and a line of help.
func TestKindsAreDescribed(t *testing.T) {
	var names []string
	for _, k := range queue.Kinds() {
		if k.Name == "" || k.Help == "" || slices.Contains(names, k.Name) {
			t.Errorf("policy %q with help %q: want a unique name and a line of help", k.Name, k.Help)
		}
		names = append(names, k.Name)
	}
}
