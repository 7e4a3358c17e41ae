package launch

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"

	"context"
)

// What runs is found without its record, with what is known of it, and ended.
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
		t.Errorf("with all records: %+v, %v", lost, err)
	}
	b.Launcher = New(b.config) // another command's
	lost, err := b.Lost(t.Context(), records[:1], false)
	if err != nil || len(lost) != 1 {
		t.Fatalf("%+v, %v; want f-1", lost, err)
	}
	got, want := lost[0], records[1]
	if got.ID != want.ID || got.Function != want.Function || got.Slice != want.Slice || !slices.Equal(got.GPUs, want.GPUs) ||
		got.Runtime != want.Runtime || got.Handle.Container != want.Handle.Container || got.Handle.Address != want.Handle.Address {
		t.Errorf("found %+v, of %+v", got, want)
	}
	// Registered only, or running only.
	b.tokens.known["gone-0"] = b.tokens.known["f-0"]
	gone := b.tokens.known["gone-0"]
	gone.Instance = "gone-0"
	b.tokens.known["gone-0"] = gone
	delete(b.tokens.known, "f-0")
	lost, err = b.Lost(t.Context(), nil, false)
	if err != nil || len(lost) != 3 || lost[0].ID != "f-0" || lost[2].ID != "gone-0" || lost[2].Handle.Runtime != "" {
		t.Fatalf("%+v, %v", lost, err)
	}
	for _, r := range lost {
		if err := b.Stop(t.Context(), r); err != nil {
			t.Error(err)
		}
	}
	b.empty(t)
}

// An engine is asked where there is a reason, and one that is not there has none.
func TestLostContainers(t *testing.T) {
	b := newBench(t, time.Minute)
	asked := 0
	b.openDocker = func(context.Context) (ports.Runtime, error) {
		asked++
		return nil, &docker.Error{Err: errors.New("no engine"), Missing: true}
	}
	for i, everywhere := range []bool{false, true} {
		if lost, err := b.Lost(t.Context(), nil, everywhere); err != nil || len(lost) != 0 || asked != i {
			t.Errorf("%+v, %v; asked %d times, want %d", lost, err, asked, i)
		}
	}
}
