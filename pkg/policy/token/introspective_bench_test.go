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
				s.Step(now, AddInstance{Instance: name, Slice: slice(100, 0.9/float64(n), 1)})
				s.Step(now, AddClient{id, name})
				s.Step(now, Request{id})
			}
			for i := range counts { // each is measured in turn
				now += trialShort
				counts[i].Launches, counts[i].Blocks = 100, 1000
				s.Step(now, counts[i])
				s.Step(now, Wake{})
				s.Step(now, Return{Client: counts[i].Client, Lease: uint32(i + 1), Used: trialShort, WantsMore: true})
			}
			b.ReportAllocs()
			for b.Loop() {
				now += 5 * ms
				for i := range counts {
					counts[i].Launches, counts[i].Blocks = counts[i].Launches+1, counts[i].Blocks+1
					s.Step(now, counts[i])
				}
				s.Step(now, Wake{})
			}
		})
	}
}
