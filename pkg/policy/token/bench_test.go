package token

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkStep measures the cost of one event with n clients that all want the GPU, with turns and
// without. 256 clients oversubscribe the GPU far.
func BenchmarkStep(b *testing.B) {
	for _, n := range []int{16, 256} {
		for _, turns := range []bool{false, true} {
			b.Run(fmt.Sprintf("clients=%d/turns=%v", n, turns), func(b *testing.B) {
				w := newLeasedGPU(b, Config{}, 1)
				for i := range n {
					columns := float64((n + 7) / 8)
					r := rect{x: float64(i/8) / columns, w: 1 / columns, h: 12}
					c := &simClient{id: ClientID(i + 1), instance: fmt.Sprint("i", i), slice: slice(r.h, r.w, r.w), kernel: ms / 10}
					if turns {
						c.turns = r.turns()
					}
					w.add(c)
				}
				w.run(time.Second)
				var s *multiToken
				var actions []Action
				next := len(w.log)
				for b.Loop() {
					if next == len(w.log) {
						b.StopTimer()
						s = newMultiToken(Config{}, 0)
						for next = 0; next < n; next++ { // until all clients have joined
							actions = s.Step(w.log[next].at, w.log[next].events, actions[:0])
						}
						b.StartTimer()
					}
					actions = s.Step(w.log[next].at, w.log[next].events, actions[:0])
					next++
				}
			})
		}
	}
}

// BenchmarkLost measures the fraction of GPU time that scheduling loses. Two clients each want the
// whole GPU for their half, and take a while to drain and to report it. Two hand-overs per window
// are unavoidable.
func BenchmarkLost(b *testing.B) {
	for _, window := range []time.Duration{10 * ms, 100 * ms, time.Second} {
		for _, turns := range []bool{false, true} {
			b.Run(fmt.Sprintf("window=%v/turns=%v", window, turns), func(b *testing.B) {
				lost := 0.0
				for n := range b.N {
					w := newLeasedGPU(b, Config{Settings: Settings{Window: window}}, uint64(n))
					w.lag = 100 * time.Microsecond
					var sum time.Duration
					for i, r := range []rect{{0, 0, 0.5, 100}, {0.5, 0, 0.5, 100}} {
						c := &simClient{id: ClientID(i + 1), instance: string(rune('a' + i)), slice: slice(100, 0.5, 0.5), kernel: ms / 2, loss: 200 * time.Microsecond}
						if turns {
							c.turns = r.turns()
						}
						w.add(c)
					}
					w.run(100 * window)
					for _, c := range w.clients {
						sum += w.total(c)
					}
					lost += 1 - float64(sum)/float64(100*window)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(100*lost/float64(b.N), "%lost")
			})
		}
	}
}

// BenchmarkIntrospectiveTick measures one period, including its samples. While a client is active,
// there are 200 periods per second.
func BenchmarkIntrospectiveTick(b *testing.B) {
	for _, n := range []int{1, 16, 256} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newIntrospective(Config{}, published, 0)
			now := time.Duration(0)
			counts := make([]Sample, n)
			for i := range counts {
				id := ClientID(i + 1)
				counts[i].Client = id
				name := fmt.Sprint("i", i)
				s.Step(now, []Event{AddInstance{Instance: name, Slice: slice(100, 0.9/float64(n), 1)}, AddClient{id, name}, Request{id}}, nil)
			}
			for i := range counts { // each client has its trial
				now += minTrialLength
				counts[i].Launches, counts[i].Blocks = 100, 1000
				s.Step(now, []Event{counts[i], Wake{}}, nil)
				s.Step(now, []Event{Return{Client: counts[i].Client, Lease: uint32(i + 1), Used: minTrialLength, WantsMore: true}}, nil)
			}
			var events []Event
			var actions []Action
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer() // the caller's cost of the events does not count
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
