package profile

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

const (
	lookPeriod = time.Second // between two looks at the GPU
	leakLooks  = 6           // looks at the memory that tell a leak
	leakGrowth = 1.05        // and what it must have grown by
)

// sight is a look at the GPU during a trial.
type sight struct {
	mem    float64 // of the instance, in MiB
	others []string
}

// split returns the memory seen, look by look, and all others that were seen,
// sorted.
func split(seen []sight) (mem []float64, others []string) {
	for _, s := range seen {
		mem = append(mem, s.mem)
		others = append(others, s.others...)
	}
	slices.Sort(others)
	return mem, slices.Compact(others)
}

// watch looks at something now and then until the returned function is called,
// which looks once more and returns all that was seen.
func watch[T any](ctx context.Context, every time.Duration, look func(context.Context) T) (seen func() []T) {
	watching, cancel := context.WithCancel(ctx)
	var all []T
	var looking sync.WaitGroup
	looking.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for watching.Err() == nil {
			all = append(all, look(watching))
			select {
			case <-tick.C:
			case <-watching.Done():
			}
		}
	})
	return func() []T {
		cancel()
		looking.Wait()
		return append(all, look(ctx))
	}
}

// leak says when memory, seen at regular times, only grows, after what the
// first requests needed.
func leak(used []float64) []string {
	if len(used) < leakLooks {
		return nil
	}
	third := len(used) / 3
	early, middle, last := used[third], used[2*third], used[len(used)-1]
	if middle <= early || last <= middle || last < leakGrowth*early || !slices.IsSorted(used) {
		return nil
	}
	return []string{fmt.Sprintf("its GPU memory grew from %.0f to %.0f MiB under load and went on growing: it may leak", early, last)}
}
