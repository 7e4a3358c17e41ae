package gfaas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/adapter/bolt"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
)

// inventory is what there is of instances, whatever became of the state file.
type inventory struct {
	state  ports.Listing
	broken error             // why the state cannot be read, if so
	lost   []instance.Record // what is registered or runs, and is not in the state
}

// inventory looks at the state, the run directory and the runtimes.
func (t *tool) inventory(ctx context.Context, launcher *launch.Launcher) (v inventory, err error) {
	if v.state, err = t.store.Look(ctx); err != nil {
		if v.broken = err; !unreadable(err) {
			return v, err
		}
	}
	v.lost, err = launcher.Lost(ctx, v.state.Instances, v.hasContainers())
	if err != nil || len(v.lost) == 0 || v.broken != nil {
		return v.others(), err
	}
	// What has begun to start since the state was looked at is in it by now.
	if v.state, err = t.store.Look(ctx); err != nil {
		return v, err
	}
	v.lost = slices.DeleteFunc(v.lost, func(r instance.Record) bool { return v.has(r.ID) })
	return v.others(), nil
}

// unreadable says whether an error is about the state file, and not who has it.
func unreadable(err error) bool {
	var f *bolt.FileError
	return errors.As(err, &f)
}

// hasContainers says whether there may be containers that nobody knows: the state is
// gone, or a gfaas up was killed while the engine made one, which a gfaas down that
// came at once found no trace of.
func (v inventory) hasContainers() bool {
	return len(v.state.Instances) == 0 && len(v.state.Functions) == 0 ||
		slices.ContainsFunc(v.state.Functions, func(f function.Function) bool { return f.Image != "" })
}

func (v inventory) has(id string) bool {
	return slices.ContainsFunc(v.state.Instances, func(r instance.Record) bool { return r.ID == id })
}

// others leaves out what gfaas-profile measures, which is in no state.
func (v inventory) others() inventory {
	v.lost = slices.DeleteFunc(v.lost, func(r instance.Record) bool { return host.IsMeasured(r.ID) })
	return v
}

// records are all instances, those that are lost too.
func (v inventory) records() []instance.Record { return slices.Concat(v.state.Instances, v.lost) }

// applied says whether there is a function of that name.
func (v inventory) applied(name string) bool {
	_, err := v.state.Function(name)
	return err == nil
}

// keep removes all instances that the names do not stand for. A name that stands only for one
// of the jobs is no error.
func (v *inventory) keep(names []string, jobs []tokend.Owned) error {
	picked, err := pick(v.records(), names, func(name string) bool {
		return v.applied(name) || slices.ContainsFunc(jobs, func(j tokend.Owned) bool { return j.Instance == name || j.Function == name })
	})
	if err != nil {
		return err
	}
	other := func(r instance.Record) bool {
		return !slices.ContainsFunc(picked, func(p instance.Record) bool { return p.ID == r.ID })
	}
	v.state.Instances = slices.DeleteFunc(slices.Clone(v.state.Instances), other)
	v.lost = slices.DeleteFunc(slices.Clone(v.lost), other)
	return nil
}

// dropDead removes what is lost and does not run, such as a container that was made
// for a gfaas up that was killed and never started. No other up or down may be at
// work.
func (v *inventory) dropDead(ctx context.Context, launcher *launch.Launcher) error {
	var errs []error
	v.lost = slices.DeleteFunc(v.lost, func(r instance.Record) bool {
		if r.Handle.Runtime == "" {
			return false
		}
		state, err := launcher.State(ctx, r.Handle)
		if err == nil && !state.Running {
			err = launcher.Stop(ctx, r)
			errs = append(errs, err)
			return err == nil
		}
		return false
	})
	return errors.Join(errs...)
}

// checkLost refuses to start instances that run already, unknown to the state.
func (v inventory) checkLost(list []assignment) error {
	lost := map[string]bool{}
	for _, r := range v.lost {
		lost[r.ID] = true
	}
	var ids []string
	for _, a := range list {
		if lost[a.placement.ID] {
			ids = append(ids, a.placement.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return cli.Fail(cli.ExitFailure, "'gfaas down "+strings.Join(ids, " ")+"' stops them, 'gfaas doctor --repair' takes them back",
		fmt.Errorf("these run already, and the state file does not know them: %s", strings.Join(ids, ", ")))
}
