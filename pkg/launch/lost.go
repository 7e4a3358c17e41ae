package launch

import (
	"context"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Lost lists, by id, the instances of the run directory that none of the records
// is of, for when the state they were in is damaged or gone: what the token daemon
// has registered, and what the runtimes find. What is known of them is in their
// records, and Stop ends them. The Docker engine is asked where everywhere says so
// or somebody is registered who has no record; one that does not answer is taken
// to have none.
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
		rt, err := l.runtime(ctx, name)
		if err == nil {
			err = findLost(ctx, rt, lost, isKnown)
		}
		if err != nil && (name != instance.Docker || !ports.Unavailable(err)) {
			return nil, err
		}
	}
	var out []instance.Record
	for _, r := range lost {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b instance.Record) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// findLost adds what a runtime knows of instances. Of one id it may have several:
// a record without a handle stands for all of them.
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
		r.Runtime, r.Handle = f.Runtime, f.Handle
		if seen[f.ID] {
			r.Runtime, r.Handle = "", instance.Handle{}
		}
		seen[f.ID] = true
		lost[f.ID] = r
	}
	return nil
}

// RegisteredRecord returns what a registration says of an instance.
func RegisteredRecord(r wire.Registration) instance.Record {
	out := instance.Record{
		ID: r.Instance, Function: r.Function, State: instance.Starting, Registered: []string{r.Instance},
		Slice: gpu.Slice{SMPct: r.SMPct, QuotaRequest: r.QuotaRequest, QuotaLimit: r.QuotaLimit, Mem: r.MemLimit},
	}
	for _, a := range r.Allocations() {
		if a.GPU != "" { // as it is where only the id was to be read
			out.GPUs = append(out.GPUs, a.GPU)
		}
	}
	return out
}
