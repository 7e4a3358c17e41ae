package token

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkIntrospectiveTick is one period, samples included: there are 200 a
// second while anybody is active.
func BenchmarkIntrospectiveTick(b *testing.B) {
	for _, n := range []int{1, 16, 256} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := NewIntrospective(Config{}, Published, 0)
			now := time.Duration(0)
			counts := make([]Sample, n)
			for i := range counts {
				id := ClientID(i + 1)
				counts[i].Client = id
				name := fmt.Sprint("i", i)
				s.Step(now, []Event{AddInstance{Instance: name, Slice: slice(100, 0.9/float64(n), 1)}, AddClient{id, name}, Request{id}}, nil)
			}
			for i := range counts { // each is measured in turn
				now += trialShort
				counts[i].Launches, counts[i].Blocks = 100, 1000
				s.Step(now, []Event{counts[i], Wake{}}, nil)
				s.Step(now, []Event{Return{Client: counts[i].Client, Lease: uint32(i + 1), Used: trialShort, WantsMore: true}}, nil)
			}
			var events []Event
			var actions []Action
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer() // the events are the caller's
				now += 5 * ms
				events = events[:0]
				for i := range counts {
					counts[i].Launches, counts[i].Blocks = counts[i].Launches+1, counts[i].Blocks+1
					events = append(events, counts[i])
				}
				events = append(events, Wake{})
				b.StartTimer()
				actions = s.Step(now, events, actions[:0])
			}
		})
	}
}
