package model

import (
	"context"
	"sync"
)

// turns are what is done at once for all tenants, of which none has all: one whose
// files do not answer leaves a turn to the others.
type turns struct {
	all chan struct{}

	mu sync.Mutex
	of map[string]chan struct{} // a tenant's
}

func newTurns(all int) *turns {
	return &turns{all: make(chan struct{}, all), of: map[string]chan struct{}{}}
}

// take waits for a turn of a tenant's, and returns what gives it back.
func (t *turns) take(ctx context.Context, tenant string) (give func(), err error) {
	t.mu.Lock()
	own := t.of[tenant]
	if own == nil {
		own = make(chan struct{}, cap(t.all)-1)
		t.of[tenant] = own
	}
	t.mu.Unlock()
	select {
	case own <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case t.all <- struct{}{}:
		return func() { <-t.all; <-own }, nil
	case <-ctx.Done():
		<-own
		return nil, ctx.Err()
	}
}
