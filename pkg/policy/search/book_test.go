package search

import "testing"

// TestDistinct checks that two different numbers never print as the same text.
func TestDistinct(t *testing.T) {
	for _, c := range []struct {
		a, b float64
		x, y string
	}{
		{69, 71.5, "69", "71.5"},
		{69, 69.004, "69", "69.004"},
		{69, 69.0000001, "69", "69.0000001"},
		{11.30001, 11.30002, "11.30001", "11.30002"},
		{5, 5, "5", "5"},
	} {
		if x, y := distinct(c.a, c.b); x != c.x || y != c.y {
			t.Errorf("text of %v and %v: got %s and %s, want %s and %s", c.a, c.b, x, y, c.x, c.y)
		}
	}
}
