package rollout

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Tokens is the part of the token daemon's client that Change needs.
type Tokens interface {
	Status(ctx context.Context) (wire.Status, error)
	Change(ctx context.Context, id string, c wire.Change) error
}

// Change changes the slices of running instances and jobs, and the records of the instances. A name is an ID,
// or a function or program, which selects all of its instances and jobs. Change returns the affected GPUs, and
// notes: about a name that selects several, about instances that hold more memory than their new limit, and about
// overcommitted GPUs.
//
// The SM share of a running instance cannot change. If smPct is not 0, Change returns an error for an instance
// with another share.
func Change(ctx context.Context, catalog ports.Catalog, tokens Tokens, names []string, change wire.Change, smPct float64) (gpus, notes []string, err error) {
	status, err := tokens.Status(ctx)
	if err != nil {
		return nil, nil, err
	}
	ids, err := running(status, names, smPct)
	if err != nil {
		return nil, nil, err
	}
	state, err := catalog.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	records := map[string]instance.Record{}
	for _, r := range state.Instances {
		if !slices.Contains(ids, r.ID) {
			continue
		}
		if r.Owner == instance.Gateway {
			return nil, nil, failf("scale its function with 'gfaas scale', or change the profile of 'gfaas serve --profile'",
				"cannot change instance %s: the gateway started it and decides its slice", r.ID)
		}
		records[r.ID] = r
	}
	for _, id := range ids {
		if err := tokens.Change(ctx, id, change); err != nil {
			return nil, nil, err
		}
		if r, started := records[id]; started {
			if err := catalog.Update(ctx, changed(r, change)); err != nil {
				return nil, nil, fmt.Errorf("instance %s: %w", id, err)
			}
		}
	}
	if status, err = tokens.Status(ctx); err != nil {
		return nil, nil, err
	}
	for _, g := range status.GPUs {
		if slices.ContainsFunc(g.Clients, func(c wire.ClientStatus) bool { return slices.Contains(ids, c.Instance) }) {
			gpus = append(gpus, g.GPU)
		}
	}
	if len(ids) > len(slices.Compact(slices.Sorted(slices.Values(names)))) {
		notes = append(notes, countNote(ids, len(records)))
	}
	if change.MemLimit != nil {
		notes = append(notes, memoryNotes(status, ids, *change.MemLimit)...)
	}
	return gpus, append(notes, overcommitNotes(status)...), nil
}

// countNote returns a note that lists the changed instances and jobs. The first parameter holds the IDs of both.
func countNote(ids []string, instances int) string {
	kind := "instances and jobs"
	switch instances {
	case 0:
		kind = "jobs"
	case len(ids):
		kind = "instances"
	}
	return fmt.Sprintf("%d %s changed: %s", len(ids), kind, strings.Join(ids, ", "))
}

// memoryNotes returns a note for each of the instances that holds more memory of a GPU than its new limit.
func memoryNotes(s wire.Status, ids []string, limit gpu.Bytes) []string {
	if limit == 0 {
		return nil
	}
	var out []string
	for _, g := range s.GPUs {
		for _, id := range ids {
			used, stored := 0.0, 0.0
			for _, c := range g.Clients {
				if c.Instance == id {
					used, stored = used+c.MemUsedMiB, max(stored, c.MemStoredMiB)
				}
			}
			if held := used + stored; held > limit.MiB() {
				out = append(out, fmt.Sprintf("%s holds %sMiB of GPU %s, more than its new limit of %s: its allocations fail until it has freed memory", id, number.Short(held), g.GPU, limit))
			}
		}
	}
	return out
}

// running returns the IDs of the clients with the given names.
func running(s wire.Status, names []string, smPct float64) ([]string, error) {
	var ids, missing []string
	for _, name := range names {
		found := false
		for _, g := range s.GPUs {
			for _, c := range g.Clients {
				if c.Instance != name && c.Function != name {
					continue
				}
				found = true
				if smPct > 0 && c.SMPct != smPct {
					return nil, &ports.UnavailableError{Remedy: "if it is from a plan, change the plan and run 'gfaas up', which restarts it; otherwise stop it and start it again",
						Err: fmt.Errorf("cannot change the SM share of %s from %s%%: the driver fixes the share when a process starts", c.Instance, number.Plain(c.SMPct))}
				}
				if !slices.Contains(ids, c.Instance) {
					ids = append(ids, c.Instance)
				}
			}
		}
		if !found {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, &ports.NotFoundError{Kind: "instance", Names: missing}
	}
	return ids, nil
}

// changed returns an instance's record after the change.
func changed(r instance.Record, c wire.Change) instance.Record {
	if c.QuotaRequest != nil {
		r.Slice.QuotaRequest, r.Slice.QuotaLimit, r.Turns, r.RPS = *c.QuotaRequest, *c.QuotaLimit, nil, 0
	}
	if c.MemLimit != nil {
		r.Slice.Mem = *c.MemLimit
	}
	return r
}

// overcommitNotes returns notes about overcommitted GPUs. On such a GPU, the products of SM share and quota request
// sum to more than 1.
func overcommitNotes(s wire.Status) []string {
	var out []string
	for _, g := range s.GPUs {
		sum := 0.0
		var seen []string
		for _, c := range g.Clients {
			if !slices.Contains(seen, c.Instance) {
				seen = append(seen, c.Instance)
				sum += c.SMPct / 100 * c.QuotaRequest
			}
		}
		if sum > 1+1e-9 {
			out = append(out, fmt.Sprintf("%s of GPU %s is promised to %s: if they use it at once, they get less", number.Percent(sum, 1), g.GPU, strings.Join(seen, ", ")))
		}
	}
	return out
}
