package launch

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Lost returns the instances of the run directory that are missing from known, sorted by ID. It serves
// to recover after the state file was damaged or deleted. It combines the registrations of the token
// daemon with the instances that the runtimes find; Stop accepts the resulting records. Lost queries
// Docker only if everywhere is set or the daemon has registered an unknown instance. If Docker is
// unavailable, Lost assumes that it runs no instances.
func (l *Launcher) Lost(ctx context.Context, known []instance.Record, everywhere bool) ([]instance.Record, error) {
	registered, err := l.config.Tokens.Registrations(ctx)
	if err != nil {
		return nil, err
	}
	lost := map[string]instance.Record{}
	isKnown := func(id string) bool {
		return slices.ContainsFunc(known, func(r instance.Record) bool { return r.ID == id })
	}
	for _, r := range registered {
		if !isKnown(r.Instance) {
			lost[r.Instance] = RegisteredRecord(r)
		}
	}
	for _, name := range runtimeNames {
		if name == instance.Docker && !everywhere && len(lost) == 0 {
			continue
		}
		rt, err := l.runtimes.get(ctx, name)
		if err == nil {
			err = findLost(ctx, rt, lost, isKnown)
		}
		if err != nil && (name != instance.Docker || !ports.Unavailable(err)) {
			return nil, err
		}
	}
	return slices.SortedFunc(maps.Values(lost), func(a, b instance.Record) int { return strings.Compare(a.ID, b.ID) }), nil
}

// findLost adds the instances that a runtime finds. If the runtime has several instances with the same
// ID, one record without a handle stands for all of them.
func findLost(ctx context.Context, rt ports.Runtime, lost map[string]instance.Record, known func(id string) bool) error {
	found, err := rt.Find(ctx, "")
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, f := range found {
		if known(f.ID) {
			continue
		}
		r, registered := lost[f.ID]
		if !registered {
			r = f
			r.Registered = []string{f.ID}
		}
		if r.Function == "" {
			r.Function = f.Function
		}
		r.Runtime, r.Handle, r.Job = f.Runtime, f.Handle, f.Job
		if seen[f.ID] {
			r.Runtime, r.Handle = "", instance.Handle{}
		}
		seen[f.ID] = true
		lost[f.ID] = r
	}
	return nil
}

// RegisteredRecord returns the record of an instance that is known only from its registration.
func RegisteredRecord(r wire.Registration) instance.Record {
	out := instance.Record{
		ID: r.Instance, Function: r.Function, State: instance.Starting, Registered: []string{r.Instance},
		Slice: r.Slice(),
	}
	for _, a := range r.Allocations() {
		if a.GPU != "" { // empty if only the ID could be read
			out.GPUs = append(out.GPUs, a.GPU)
		}
	}
	return out
}
