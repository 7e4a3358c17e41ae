package launch

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"

	"context"
)

// TestLost checks that instances without a record are found, with the known facts, and can be stopped.
func TestLost(t *testing.T) {
	b := newBench(t, time.Minute)
	var records []instance.Record
	for _, id := range []string{"f-0", "f-1"} {
		p := place
		p.ID = id
		r, err := b.Start(t.Context(), serve, p)
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
	}
	if lost, err := b.Lost(t.Context(), records, true); err != nil || len(lost) != 0 {
		t.Errorf("with all records: %+v, %v; want none", lost, err)
	}
	b.Launcher = New(b.config) // like another command
	lost, err := b.Lost(t.Context(), records[:1], false)
	if err != nil || len(lost) != 1 {
		t.Fatalf("with one record: got %+v, %v; want f-1", lost, err)
	}
	got, want := lost[0], records[1]
	if got.ID != want.ID || got.Function != want.Function || got.Slice != want.Slice || !slices.Equal(got.GPUs, want.GPUs) ||
		got.Runtime != want.Runtime || got.Handle.Container != want.Handle.Container || got.Handle.Address != want.Handle.Address {
		t.Errorf("lost instance: got %+v, want %+v", got, want)
	}
	// One instance is only registered, the other only runs.
	b.tokens.registered["gone-0"] = b.tokens.registered["f-0"]
	ended := b.tokens.registered["gone-0"]
	ended.Instance = "gone-0"
	b.tokens.registered["gone-0"] = ended
	delete(b.tokens.registered, "f-0")
	lost, err = b.Lost(t.Context(), nil, false)
	if err != nil || len(lost) != 3 || lost[0].ID != "f-0" || lost[2].ID != "gone-0" || lost[2].Handle.Runtime != "" {
		t.Fatalf("without records: got %+v, %v; want f-0, f-1, and gone-0 without a runtime", lost, err)
	}
	for _, r := range lost {
		if err := b.Stop(t.Context(), r); err != nil {
			t.Error(err)
		}
	}
	b.empty(t)
}

// TestLostContainers checks that Lost queries Docker only for a reason, and assumes no containers if it is unavailable.
func TestLostContainers(t *testing.T) {
	b := newBench(t, time.Minute)
	opened := 0
	b.openDocker = func(context.Context) (ports.Runtime, error) {
		opened++
		return nil, &ports.UnavailableError{Err: errors.New("no engine")}
	}
	for i, everywhere := range []bool{false, true} {
		if lost, err := b.Lost(t.Context(), nil, everywhere); err != nil || len(lost) != 0 || opened != i {
			t.Errorf("lost containers without an engine: got %+v, %v after %d attempts to open Docker; want none after %d", lost, err, opened, i)
		}
	}
}
