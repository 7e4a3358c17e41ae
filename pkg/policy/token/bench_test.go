package token

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkStep is what one event costs with so many clients that all want the
// GPU, 256 of them far more than there is, with turns and without.
func BenchmarkStep(b *testing.B) {
	for _, n := range []int{16, 256} {
		for _, turns := range []bool{false, true} {
			b.Run(fmt.Sprintf("clients=%d/turns=%v", n, turns), func(b *testing.B) {
				w := newWorld(b, Config{}, 1)
				for i := range n {
					columns := float64((n + 7) / 8)
					r := rect{x: float64(i/8) / columns, w: 1 / columns, h: 12}
					c := &worker{id: ClientID(i + 1), instance: fmt.Sprint("i", i), slice: slice(r.h, r.w, r.w), kernel: ms / 10}
					if turns {
						c.turns = r.turns()
					}
					w.join(c)
				}
				w.run(time.Second)
				var s *Scheduler
				var actions []Action
				next := len(w.log)
				for b.Loop() {
					if next == len(w.log) {
						b.StopTimer()
						s = New(Config{}, 0)
						for next = 0; next < n; next++ { // until all have joined
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

// BenchmarkLost is how much of the window's device time scheduling loses: two
// clients that each want the whole GPU for their half, and take a while to
// drain and to say so. The switches themselves take two of that while a window.
func BenchmarkLost(b *testing.B) {
	for _, window := range []time.Duration{10 * ms, 100 * ms, time.Second} {
		for _, turns := range []bool{false, true} {
			b.Run(fmt.Sprintf("window=%v/turns=%v", window, turns), func(b *testing.B) {
				lost := 0.0
				for n := range b.N {
					w := newWorld(b, Config{Window: window}, uint64(n))
					w.lag = 100 * time.Microsecond
					var sum time.Duration
					for i, r := range []rect{{0, 0, 0.5, 100}, {0.5, 0, 0.5, 100}} {
						c := &worker{id: ClientID(i + 1), instance: string(rune('a' + i)), slice: slice(100, 0.5, 0.5), kernel: ms / 2, loss: 200 * time.Microsecond}
						if turns {
							c.turns = r.turns()
						}
						w.join(c)
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
