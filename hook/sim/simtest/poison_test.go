package simtest

import "testing"

// Fresh device memory is poisoned when that is asked for.
func TestPoison(t *testing.T) {
	h := newHost(t, small+",poison=1")
	if out, err := run(h.command("", "poison")); err != nil {
		t.Errorf("%v\n%s", err, failures(out))
	}
}
