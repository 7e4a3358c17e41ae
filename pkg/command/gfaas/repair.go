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
)

// answerTime is how long an instance that is added to the state may take to report that it is
// ready.
const answerTime = 3 * time.Second

// repairer is a state file that can be repaired.
type repairer interface {
	Repair(ctx context.Context, records ...instance.Record) (aside string, err error)
}

var _ repairer = (*bolt.DB)(nil)

// repair adds to the state the running instances that it lacks. It replaces a damaged state
// file.
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
	forgot := 0
	if all.broken == nil {
		if forgot, err = t.repairModels(ctx); err != nil {
			return err
		}
	}
	identify(ctx, all.lost, all.state.Functions)
	aside, err := t.store.(repairer).Repair(ctx, all.lost...)
	switch {
	case err != nil:
		return err
	case aside != "" || len(all.lost) > 0:
		t.tellRepaired(all.records(), all.state.Functions)
	case forgot == 0:
		t.env.Notef("note: the state file is whole and knows all that runs: nothing to repair")
	}
	return nil
}

// identify asks the instances for their contract and completes the records. An
// instance that does not answer counts as starting.
func identify(ctx context.Context, records []instance.Record, functions []function.Function) {
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
}

// tellRepaired prints how many instances the state file knows now, and which
// functions must be applied again.
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
