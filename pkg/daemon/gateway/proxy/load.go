package proxy

import (
	"context"
	"crypto/rand"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
)

// Load waits until an instance of f is ready, with its memory on the GPU. If there is none, it waits
// for a start like a call, but sends nothing. If ctx ends, a start that has begun continues.
func (p *Proxy) Load(ctx context.Context, f *dispatch.Function) *refusal.Error {
	if e := f.Uncallable(); e != nil {
		return e
	}
	if f.Info().Loaded > 0 {
		return nil
	}
	c := p.newCall(f, rand.Text(), "")
	ctx, c.cancel = context.WithCancelCause(ctx)
	defer c.cancel(nil)
	p.cfg.Dispatcher.Submit(c.attempt, f, c)
	if err := c.wait(ctx); err != nil {
		return c.cause(err)
	}
	c.attempt.Release()
	return nil
}
