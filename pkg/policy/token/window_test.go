package token

import (
	"fmt"
	"testing"
	"time"
)

// closing is how long it takes to close a window in which so many clients have
// waited: the best of some.
func closing(n int) time.Duration {
	s := New(Config{}, 0)
	for k := range n {
		id, name := ClientID(k+1), fmt.Sprint("i", k)
		s.Step(0, []Event{AddInstance{Instance: name, Slice: slice(100, 1/float64(n), 1)}, AddClient{id, name}, Request{id}}, nil)
	}
	best := time.Hour
	for range 10 {
		began := time.Now()
		s.closeWindow(s.start + s.window)
		best = min(best, time.Since(began))
	}
	return best
}

// TestClosingManyBacklogged: with four times as many clients that wait a window
// takes 16 times as long to close, and not 64: then with some hundreds it would
// take longer than it lasts.
func TestClosingManyBacklogged(t *testing.T) {
	few, many := closing(100), closing(400)
	t.Logf("%v with 100, %v with 400", few, many)
	if ratio := float64(many) / float64(few); ratio > 40 {
		t.Errorf("%.0f times as long", ratio)
	}
}
