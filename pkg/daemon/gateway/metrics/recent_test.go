package metrics

import (
	"fmt"
	"testing"
	"time"
)

// TestRecent checks that rates and latencies cover the last minute, whatever the wall
// clock shows.
func TestRecent(t *testing.T) {
	var r recent
	for at := range 200 {
		r.add(time.Duration(at)*time.Second, 10*time.Millisecond)
	}
	for _, c := range []struct {
		at  time.Duration
		rps string
	}{{200 * time.Second, "1.0"}, {230 * time.Second, "0.4"}, {time.Hour, "0.0"}} {
		rps, ms := r.rates(c.at, 0.5)
		if got := fmt.Sprintf("%.1f", rps); got != c.rps || rps > 0 && (ms[0] < 9 || ms[0] > 11) {
			t.Errorf("at %v %s a second, in %v ms; want %s", c.at, got, ms, c.rps)
		}
	}
}
