package instances

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/metrics"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// running is a ports.Starter whose instances run until they are stopped.
type running struct{ ports.Starter }

func (running) Adopt(context.Context, instance.Record) error { return nil }
func (running) Stop(context.Context, instance.Record) error  { return nil }

func (running) Wait(ctx context.Context, _ instance.Record) (instance.State, error) {
	<-ctx.Done()
	return instance.State{}, ctx.Err()
}

// TestAdoptionOnMissingGPU checks that a gateway whose GPUs may change waits for the GPU of an instance that its
// predecessor started, but for no longer than gpuTime.
func TestAdoptionOnMissingGPU(t *testing.T) {
	for _, c := range []struct {
		name       string
		change     bool   // Config.GPUsChange
		function   string // of the instance; the gateway serves f
		added      bool   // the GPU is added after half of gpuTime
		soon, late int    // records left after half of gpuTime, and long after it
		adopted    int
	}{
		{name: "GPU added", change: true, function: "f", added: true, soon: 1, late: 1, adopted: 1},
		{name: "GPU never added", change: true, function: "f", soon: 1},
		{name: "removed function", change: true, function: "g", added: true},
		{name: "GPUs do not change", function: "f"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				life, end := context.WithCancel(t.Context())
				defer end()
				gpus := []dispatch.GPU{{Name: "a/0"}, {Name: "b/0"}}
				d, err := dispatch.New(life, dispatch.Config{Log: slog.New(slog.DiscardHandler), Metrics: metrics.New(),
					Policy:      queue.Config{Policy: "gfaas", Pool: residency.Unlimited, Options: queue.Defaults()},
					Concurrency: 1, GPUs: gpus[:1], QueueTimeout: time.Minute}, dispatch.Settings{})
				if err != nil {
					t.Fatal(err)
				}
				catalog := &instancetest.FakeCatalog{}
				m := New(life, d, Config{Log: slog.New(slog.DiscardHandler), Catalog: catalog, Starter: running{}, GPUsChange: c.change, Keep: true})
				d.Begin(m)
				d.Apply([]function.Function{{Name: "f", Tenant: "default", GPUs: 1, Weight: 1, Inflight: 1, Scale: function.DefaultScale, SLO: time.Second}})
				d.SetKnown()
				r := instance.Record{ID: c.function + ".1", Function: c.function, Runtime: instance.Process, GPUs: []string{"b/0"}, State: instance.Ready,
					Contract: "http", Owner: instance.Gateway, Handle: instance.Handle{Runtime: instance.Process, Address: "a:1", Started: time.Now()}}
				if err := errors.Join(catalog.Apply(life, function.Function{Name: c.function}), catalog.Reserve(life, r)); err != nil {
					t.Fatal(err)
				}
				records := func() int {
					synctest.Wait()
					l, err := catalog.List(life)
					if err != nil {
						t.Fatal(err)
					}
					return len(l.Instances)
				}

				m.follower.takeOver(life, r)
				time.Sleep(gpuTime/2 + 2*firstRetry)
				if got := records(); got != c.soon {
					t.Errorf("after half of gpuTime: %d records, want %d", got, c.soon)
				}
				if c.added {
					d.GPUs.Set(gpus)
					time.Sleep(firstRetry) // soon, because until then, calls start other instances
					synctest.Wait()
					if got := len(d.Instances.Own()); got != c.adopted {
						t.Errorf("%v after the GPU was added: %d instances adopted, want %d", firstRetry, got, c.adopted)
					}
				}
				time.Sleep(gpuTime)
				if got := records(); got != c.late {
					t.Errorf("long after gpuTime: %d records, want %d", got, c.late)
				}
				if got := len(d.Instances.Own()); got != c.adopted {
					t.Errorf("%d instances adopted, want %d", got, c.adopted)
				}
				end()
				m.tasks.Wait()
			})
		})
	}
}
