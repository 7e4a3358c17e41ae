package instances

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// unsureStarter is a Starter that cannot determine at first whether an instance is running. After some
// errors, it reports that the instance is running.
type unsureStarter struct {
	ports.Starter
	errors int // number of errors to return
}

func (u *unsureStarter) Adopt(context.Context, instance.Record) error {
	if u.errors > 0 {
		u.errors--
		return errors.New("the engine does not answer")
	}
	return nil
}

// TestRestartOfUnknownState checks that while it is unknown whether the instance has ended, the error
// of a restart is one after which it is tried again. If the instance is running, the restart is not
// needed.
func TestRestartOfUnknownState(t *testing.T) {
	catalog := &instancetest.FakeCatalog{}
	if err := catalog.Apply(t.Context(), function.Function{Name: "f", Restart: "always"}); err != nil {
		t.Fatal(err)
	}
	r := instance.Record{ID: "f-0", Function: "f", State: instance.Ready, Handle: instance.Handle{Runtime: instance.Process, Started: time.Now()}}
	if err := catalog.Reserve(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	m := New(t.Context(), nil, Config{
		Log: slog.New(slog.DiscardHandler), Catalog: catalog, Starter: &unsureStarter{errors: 1},
		Alone: func(context.Context) (func(), error) { return func() {}, nil },
	})
	if _, err := m.restarts.restart(r, false); err == nil || errors.Is(err, errUnneeded) {
		t.Errorf("unknown state: got %v, want an error other than %v", err, errUnneeded)
	}
	if _, err := m.restarts.restart(r, false); !errors.Is(err, errUnneeded) {
		t.Errorf("running instance: got %v, want %v", err, errUnneeded)
	}
}
