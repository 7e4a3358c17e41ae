package gfaas

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// answerTime is how long an instance that is taken back may take to say that it
// is ready.
const answerTime = 3 * time.Second

// repairer is a state file that can be made anew.
type repairer interface {
	Salvage(ctx context.Context) (ports.Listing, error)
	Replace(ctx context.Context, functions []function.Function, records []instance.Record) (aside string, err error)
	Restore(ctx context.Context, records ...instance.Record) error
}

var _ repairer = (*bolt.DB)(nil)

// repair has the state know again what runs. A state file that cannot be read is
// put aside, and what can be read of it all the same is in the new one.
func (t *tool) repair(ctx context.Context) error {
	t.env.CleansUp()
	release, err := host.Exclusive(ctx, t.env, t.runDir)
	if err != nil {
		return err
	}
	defer release()
	launcher := host.Launcher(t.env, t.runDir, 0)
	defer launcher.Close()
	all, err := t.inventory(ctx, launcher)
	if err != nil {
		return err
	}
	store := t.store.(repairer)
	if all.broken == nil {
		forgot, err := t.repairModels(ctx)
		if err != nil {
			return err
		}
		if len(all.lost) == 0 {
			if forgot > 0 {
				return nil
			}
			t.env.Notef("note: the state file is whole and knows all that runs: nothing to repair")
			return nil
		}
		found := identify(ctx, all.lost, all.state.Functions)
		if err := store.Restore(ctx, found...); err != nil {
			return err
		}
		t.tellRepaired(found, all.state.Functions)
		return nil
	}
	kept, err := store.Salvage(ctx)
	if err != nil {
		return err
	}
	records := identify(ctx, combine(kept.Instances, all.lost), kept.Functions)
	aside, err := store.Replace(ctx, kept.Functions, records)
	if err != nil {
		return err
	}
	t.env.Notef("note: the damaged state file is %s now", aside)
	t.env.Notef("note: of it %s could be read", counted(len(kept.Functions), "function"))
	t.tellRepaired(records, kept.Functions)
	return nil
}

// combine prefers, of what runs, the record that was kept of it, which says more.
// A kept one of a container stays: its engine may just not answer.
func combine(kept, lost []instance.Record) []instance.Record {
	var out []instance.Record
	same := func(a, b instance.Record) bool {
		return a.ID == b.ID && a.Handle.PID == b.Handle.PID && a.Handle.Container == b.Handle.Container
	}
	for _, r := range lost {
		if i := slices.IndexFunc(kept, func(k instance.Record) bool { return same(k, r) }); i >= 0 {
			r = kept[i]
		}
		out = append(out, r)
	}
	for _, k := range kept {
		if k.Runtime == instance.Docker && !slices.ContainsFunc(out, func(r instance.Record) bool { return r.ID == k.ID }) {
			out = append(out, k)
		}
	}
	return out
}

// identify asks those that were found how they are invoked. One that does not say
// counts as starting.
func identify(ctx context.Context, records []instance.Record, functions []function.Function) []instance.Record {
	for i, r := range records {
		if r.State == instance.Ready || r.Handle.Address == "" {
			continue
		}
		contract := ""
		for _, fn := range functions {
			if fn.Name == r.Function {
				contract = fn.Contract
			}
		}
		records[i].State = instance.Starting
		asked, cancel := context.WithTimeout(ctx, answerTime)
		if found, err := fnhttp.WaitReady(asked, r.Handle.Address, contract, nil); err == nil {
			records[i].State, records[i].Contract = instance.Ready, found
		}
		cancel()
	}
	return records
}

// tellRepaired says what was taken back, and which functions must be applied again.
func (t *tool) tellRepaired(records []instance.Record, functions []function.Function) {
	t.env.Notef("note: the state file knows %s now", counted(len(records), "instance"))
	var missing []string
	for _, r := range records {
		known := slices.ContainsFunc(functions, func(fn function.Function) bool { return fn.Name == r.Function })
		if !known && r.Function != "" && !slices.Contains(missing, r.Function) {
			missing = append(missing, r.Function)
		}
	}
	if len(missing) > 0 {
		t.env.Notef("note: these functions have instances and are not applied: %s; apply their files again", strings.Join(missing, ", "))
	}
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
