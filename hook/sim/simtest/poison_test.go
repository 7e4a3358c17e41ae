package simtest

import "testing"

// TestPoison checks that new device memory is poisoned on request.
func TestPoison(t *testing.T) {
	h := newHost(t, small+",poison=1")
	if out, err := run(h.command("", "poison")); err != nil {
		t.Errorf("check program: got %v, want success:\n%s", err, failures(out))
	}
}
