package online

import "testing"

func TestReasons(t *testing.T) {
	if err := Reasons.Valid(); err != nil {
		t.Errorf("the table of reasons: %v", err)
	}
}
