package instancetest_test

import (
	"testing"

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
