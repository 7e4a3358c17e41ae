package token

import "testing"

// TestReasons checks the table of the codes that explain actions and the states of clients: each code
// and parameter is well formed, documented and listed once.
func TestReasons(t *testing.T) {
	if err := Reasons.Valid(); err != nil {
		t.Error(err)
	}
}
