package instancetest_test

import (
	"net/http"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

func TestFake(t *testing.T) {
	fake := instancetest.NewFake("process")
	instancetest.Run(t, instancetest.Suite{
		New: func(*testing.T) ports.Runtime { return fake },
		Spec: func(*testing.T) instance.Spec {
			return instance.Spec{Command: []string{"probe"}, Slice: gpu.Slice{SMPct: 24.5}}
		},
	})
	if left := fake.Running(); len(left) > 0 {
		t.Errorf("still running in the end: %v", left)
	}
}

func TestFakeCatalog(t *testing.T) {
	instancetest.RunCatalog(t, func(*testing.T) (first, second ports.Catalog) {
		c := &instancetest.FakeCatalog{}
		return c, c
	})
}

func TestFakeStarter(t *testing.T) {
	instancetest.RunStarter(t, instancetest.StarterSuite{
		New: func(*testing.T) func() ports.Starter {
			first := &instancetest.FakeStarter{}
			return func() ports.Starter { return first }
		},
		Function: func(*testing.T) function.Function { return function.Function{Name: "f"} },
		Kill: func(_ *testing.T, s ports.Starter, r instance.Record) {
			s.(*instancetest.FakeStarter).Kill(r.ID, 9)
		},
	})
}

func TestFakeInvoker(t *testing.T) {
	instancetest.RunInvoker(t, func(_ *testing.T, h http.Handler) (ports.Invoker, string) {
		f := &instancetest.FakeInvoker{}
		f.Serve("f.local:80", h)
		return f, "f.local:80"
	})
}
