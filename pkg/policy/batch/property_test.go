package batch_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/batch"
)

// TestEveryCallIsSentOnce checks, for random events, that each call that is not cancelled is sent exactly once, that the
// calls of a batch have one key and are in order of arrival, that their sizes fit the limits unless there is only one
// call, and that no batch is queued later than its latency.
func TestEveryCallIsSentOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit, latency = 6, 5 * time.Millisecond
		f := batch.New()
		waiting := map[int64]batch.Arrived{}
		queued, wake, last := []int64{}, batch.Never, int64(0)
		var now time.Duration
		step := func(most int, events ...batch.Event) {
			for _, a := range f.Step(now, events, nil) {
				switch a := a.(type) {
				case batch.Queue:
					if _, again := events[0].(batch.Assigned); now > a.Since+latency && !again {
						t.Fatalf("batch %d, waiting since %v, is queued at %v", a.Batch, a.Since, now)
					}
					queued = append(queued, a.Batch)
				case batch.Withdraw:
					queued = slices.DeleteFunc(queued, func(id int64) bool { return id == a.Batch })
				case batch.Wake:
					wake = a.At
				case batch.Send:
					size := 0
					for _, id := range a.Calls {
						c, known := waiting[id]
						if !known || c.Key != waiting[a.Calls[0]].Key {
							t.Fatalf("sends %v: call %d is unknown or has another key", a.Calls, id)
						}
						size += c.Size
					}
					if !slices.IsSorted(a.Calls) {
						t.Fatalf("sends %v, not in order of arrival", a.Calls)
					}
					if size > most && len(a.Calls) > 1 {
						t.Fatalf("sends %v of size %d to an instance with the limit %d", a.Calls, size, most)
					}
					for _, id := range a.Calls {
						delete(waiting, id)
					}
				}
			}
			if got := f.Snapshot().Calls; got != len(waiting) {
				t.Fatalf("%d calls are waiting, want %d", got, len(waiting))
			}
		}
		assign := func() {
			id := queued[0] // an instance goes to the oldest batch, as in a queue of one function
			queued = queued[1:]
			most := rapid.IntRange(1, limit).Draw(t, "limit of the instance")
			step(most, batch.Assigned{Batch: id, Max: most})
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now = min(now+time.Duration(rapid.IntRange(0, 3000).Draw(t, "µs"))*time.Microsecond, wake)
			if now == wake {
				wake = batch.Never
				step(0, batch.Woke{})
			}
			switch ids := slices.Sorted(maps.Keys(waiting)); {
			case rapid.IntRange(0, 3).Draw(t, "leaves") == 0 && len(ids) > 0:
				id := rapid.SampledFrom(ids).Draw(t, "call")
				delete(waiting, id)
				step(0, batch.Cancelled{Call: id})
			case rapid.Bool().Draw(t, "instance") && len(queued) > 0:
				assign()
			default:
				last++
				c := batch.Arrived{Call: last, Key: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key"), Size: rapid.IntRange(1, limit+1).Draw(t, "size"),
					Since: now, Max: limit, Latency: latency}
				waiting[last] = c
				step(0, c)
			}
		}
		for len(waiting) > 0 {
			if len(queued) > 0 {
				assign()
				continue
			}
			now, wake = wake, batch.Never
			step(0, batch.Woke{})
		}
	})
}
