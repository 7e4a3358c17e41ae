package instances

import (
	"context"
	"log/slog"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// slowStarter is a Starter whose first stops exceed their time limit.
type slowStarter struct {
	ports.Starter
	failures int // number of stops that fail
	stops    int
}

func (s *slowStarter) Stop(context.Context, instance.Record) error {
	s.stops++
	if s.stops <= s.failures {
		return context.DeadlineExceeded
	}
	return nil
}

// TestDiscardAtEnd checks that a stop that fails at the end of the Manager's life is repeated, so that on
// a slow host no instance is left running, and that an instance that still cannot be stopped keeps its record.
func TestDiscardAtEnd(t *testing.T) {
	for failures, removed := range map[int]bool{0: true, 1: true, attemptsAtEnd: false} {
		catalog := &instancetest.FakeCatalog{}
		if err := catalog.Apply(t.Context(), function.Function{Name: "f"}); err != nil {
			t.Fatal(err)
		}
		r := instance.Record{ID: "f.1", Function: "f", State: instance.Ready}
		if err := catalog.Reserve(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		life, end := context.WithCancel(t.Context())
		end()
		starter := &slowStarter{failures: failures}
		m := New(life, nil, Config{Log: slog.New(slog.DiscardHandler), Catalog: catalog, Starter: starter})
		m.discard(r)
		if want := min(failures+1, attemptsAtEnd); starter.stops != want {
			t.Errorf("%d failures: got %d stops, want %d", failures, starter.stops, want)
		}
		list, err := catalog.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := len(list.Instances) == 0; got != removed {
			t.Errorf("%d failures: got record removed: %v, want %v", failures, got, removed)
		}
	}
}
