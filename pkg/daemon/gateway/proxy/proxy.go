// Package proxy sends calls to instances and passes their answers to the callers. A Call
// runs from the head of a request to the end of its answer. The dispatcher
// (pkg/daemon/gateway/dispatch) decides when and on which instance a call runs; the proxy
// decides whether a call that got no answer may be sent again (launch.Repeatable).
// pkg/daemon/gateway/api creates the calls.
package proxy

import (
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/inbound"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Config configures a Proxy.
type Config struct {
	Log        *slog.Logger
	Dispatcher *dispatch.Dispatcher
	Instances  Instances
	Invoker    ports.Invoker
	Intake     *inbound.Intake
}

// Instances handles problems of instances that calls notice.
type Instances interface {
	// Suspect waits briefly for the exit of an instance whose connection closed early.
	Suspect(i *dispatch.Instance)
	// Unreachable handles an instance whose address accepts no connection.
	Unreachable(i *dispatch.Instance)
	// Failing records that an instance answered with a 5xx status.
	Failing()
}

// Proxy sends calls to instances.
type Proxy struct {
	cfg     Config
	buffers Buffers
	passing atomic.Int64 // calls whose answers are, or will be, passed on
	batches batcher
}

// New returns a Proxy.
func New(cfg Config) *Proxy {
	p := &Proxy{cfg: cfg}
	p.batches.init(p)
	return p
}

// NewCall returns a call for a request. f may be nil if the function is not known yet. An
// empty path means the path that the function's contract invokes.
func (p *Proxy) NewCall(r *http.Request, f *dispatch.Function, path string) *Call {
	c := p.newCall(f, callID(r.Header.Get("X-Call-Id")), path)
	c.form, c.cookiePath = refusal.FormOf(r.URL.Path), cookiePath(r.URL.Path)
	return c
}

func (p *Proxy) newCall(f *dispatch.Function, id, path string) *Call {
	c := &Call{p: p, function: f, id: id, path: path, arrived: time.Now()}
	c.attempt, c.limit = &c.own, inbound.StoppedTimer(c.late)
	return c
}

// Idle reports whether all callers have received their answers.
func (p *Proxy) Idle() bool { return p.passing.Load() == 0 }

// Buffers is a pool of buffers for httputil.ReverseProxy.
type Buffers struct{ pool sync.Pool }

const bufferSize = 32 << 10

// Get implements httputil.BufferPool.
func (b *Buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return p[:]
	}
	return make([]byte, bufferSize)
}

// Put implements httputil.BufferPool.
func (b *Buffers) Put(p []byte) { b.pool.Put((*[bufferSize]byte)(p)) }
