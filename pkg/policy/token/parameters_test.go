package token

import (
	"testing"

	"github.com/gfaas/gfaas/pkg/policy"
)

// TestIntrospectiveSettings checks that the documented defaults are those of the policy, and that
// values out of range are refused.
func TestIntrospectiveSettings(t *testing.T) {
	settings := IntrospectiveSettings()
	var p IntrospectiveParameters
	for _, s := range settings {
		if err := s.Set(&p, s.Default); err != nil {
			t.Errorf("%s=%s: %v", s.Key, s.Default, err)
		}
	}
	if p != published || p.Check() != nil {
		t.Errorf("parameters of the documented defaults: got %+v (%v), want %+v", p, p.Check(), published)
	}
	for key, values := range map[string][]string{
		"period": {"0s", "2s", "5"}, "violation": {"1", "NaN", "5"}, "violation-llm": {"1", "NaN"}, "recovery": {"1", "1.7"}, "outlier": {"1.5"},
		"increase": {"1", "x"}, "window": {"0", "1.5", "10001"}, "floor": {"0", "1.1"},
	} {
		for _, value := range values {
			p := published
			if err := policy.Find(settings, key).Set(&p, value); err == nil && p.Check() == nil {
				t.Errorf("%s=%s: got no error, want one", key, value)
			}
		}
	}
}
