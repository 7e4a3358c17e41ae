package measure

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/gfaas/gfaas/pkg/load"
	"github.com/gfaas/gfaas/pkg/measure/testbed"
	"github.com/gfaas/gfaas/pkg/splitmix"
)

// Several instances of a configuration are measured at the same time with one load, which is the sum of the loads of
// single instances (FaST-GShare, section 5.3). So the throughput is the sum over the instances, and the latencies are
// measured over the requests to all of them.

// senders returns a sender for each instance.
func (t trial) senders(ctx context.Context, all []testbed.Instance, batch int) (senders []load.Sender, err error) {
	for _, s := range all {
		send, err := t.sender(ctx, s, batch)
		if err != nil {
			return nil, err
		}
		senders = append(senders, send)
	}
	return senders, nil
}

// firstAnswers returns when each instance has answered a request.
func (t trial) firstAnswers(ctx context.Context, senders []load.Sender) error {
	answers, ctx := errgroup.WithContext(ctx)
	for _, send := range senders {
		answers.Go(func() error { return t.firstAnswer(ctx, send) })
	}
	return answers.Wait()
}

// forAll returns the load on n instances together, given that on one.
func forAll(o load.Options, n int) load.Options {
	o.Spec.Workers *= n
	o.Spec.RPS *= float64(n)
	return o
}

// inTurn returns a sender that passes each request to one of the senders. In a closed loop, it chooses the sender with the
// fewest unanswered requests, so that each has its share of the workers; among equals, they take turns. The requests of
// a Poisson process are distributed at random, so that each sender gets a Poisson process.
func inTurn(senders []load.Sender, kind load.Kind, seed uint64) load.Sender {
	if len(senders) == 1 {
		return senders[0]
	}
	var mu sync.Mutex
	unanswered, last, random := make([]int, len(senders)), 0, splitmix.Source(splitmix.Mix(seed))
	choose := func() int {
		if kind == load.Poisson {
			return random.Below(len(senders))
		}
		best := (last + 1) % len(senders)
		for i := range senders {
			if at := (last + 1 + i) % len(senders); unanswered[at] < unanswered[best] {
				best = at
			}
		}
		return best
	}
	return func(ctx context.Context) error {
		mu.Lock()
		at := choose()
		last = at
		unanswered[at]++
		mu.Unlock()
		defer func() {
			mu.Lock()
			defer mu.Unlock()
			unanswered[at]--
		}()
		return senders[at](ctx)
	}
}
