package model

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

// limiter limits how many operations run at once, in all and per tenant. A tenant's limit is one
// less, so a tenant with a hanging file system cannot block the others.
type limiter struct {
	limit int64
	total *semaphore.Weighted

	mu        sync.Mutex
	perTenant map[string]*semaphore.Weighted
}

func newLimiter(limit int64) *limiter {
	return &limiter{limit: limit, total: semaphore.NewWeighted(limit), perTenant: map[string]*semaphore.Weighted{}}
}

// acquire waits until a tenant may run an operation. The caller calls release afterwards.
func (t *limiter) acquire(ctx context.Context, tenant string) (release func(), err error) {
	t.mu.Lock()
	own := t.perTenant[tenant]
	if own == nil {
		own = semaphore.NewWeighted(t.limit - 1)
		t.perTenant[tenant] = own
	}
	t.mu.Unlock()
	if err := own.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	if err := t.total.Acquire(ctx, 1); err != nil {
		own.Release(1)
		return nil, err
	}
	return func() { t.total.Release(1); own.Release(1) }, nil
}
