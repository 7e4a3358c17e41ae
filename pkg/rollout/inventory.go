package rollout

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Inventory lists the instances of a host, including instances that are missing from the catalog.
type Inventory struct {
	ports.Listing
	Damaged error             // error of an unreadable catalog; the listing is then empty
	Lost    []instance.Record // registered or running instances that are missing from the catalog
}

// Inventory queries the catalog, the registrations and the runtimes. It omits the instances of gfaas-profile,
// which are in no catalog.
func (c *Controller) Inventory(ctx context.Context) (v Inventory, err error) {
	if v.Listing, err = c.Catalog.List(ctx); err != nil {
		if v.Damaged = err; !ports.Unreadable(err) {
			return v, err
		}
	}
	v.Lost, err = c.Launcher.Lost(ctx, v.Instances, v.mayLoseContainers())
	if err == nil && len(v.Lost) > 0 && v.Damaged == nil {
		// Another process may have added instances since the first query.
		if v.Listing, err = c.Catalog.List(ctx); err != nil {
			return v, err
		}
	}
	v.Lost = slices.DeleteFunc(v.Lost, func(r instance.Record) bool {
		return IsMeasured(r.ID) || v.Damaged == nil && contains(v.Instances, r.ID)
	})
	return v, err
}

// mayLoseContainers reports whether containers may be missing from the catalog. Either the catalog was lost, or
// a gfaas up was killed while the engine created a container, and gfaas down ran before the container existed.
func (v Inventory) mayLoseContainers() bool {
	return len(v.Instances) == 0 && len(v.Functions) == 0 ||
		slices.ContainsFunc(v.Functions, func(f function.Function) bool { return f.Image != "" })
}

// Records returns the records of all instances, including lost ones.
func (v Inventory) Records() []instance.Record { return slices.Concat(v.Instances, v.Lost) }

// Applied reports whether a function is applied.
func (v Inventory) Applied(name string) bool {
	_, err := v.Function(name)
	return err == nil
}

// Filter removes all instances except those that Select selects by the names. The name of an applied function, of a
// job or of a job's function may select none; for any other such name, Filter returns an error.
func (v *Inventory) Filter(names []string, jobs []wire.Job) error {
	selected, err := Select(v.Records(), names, func(name string) bool {
		return v.Applied(name) || slices.ContainsFunc(jobs, func(j wire.Job) bool { return j.Instance == name || j.Function == name })
	})
	if err != nil {
		return err
	}
	other := func(r instance.Record) bool { return !contains(selected, r.ID) }
	v.Instances = slices.DeleteFunc(slices.Clone(v.Instances), other)
	v.Lost = slices.DeleteFunc(slices.Clone(v.Lost), other)
	return nil
}

// removeEnded removes lost instances that do not run, such as a container that a gfaas up created but did not
// start before it was killed.
func (c *Controller) removeEnded(ctx context.Context, v *Inventory) error {
	var errs []error
	v.Lost = slices.DeleteFunc(v.Lost, func(r instance.Record) bool {
		if r.Handle.Runtime == "" { // its process or container is unknown
			return false
		}
		state, err := c.Launcher.State(ctx, r.Handle)
		if err != nil || state.Running {
			return false
		}
		err = c.Launcher.Stop(ctx, r)
		errs = append(errs, err)
		return err == nil
	})
	return errors.Join(errs...)
}

// checkLost returns an error if a wanted instance is already running but missing from the catalog.
func (v Inventory) checkLost(assignments []Assignment) error {
	var ids []string
	for _, a := range assignments {
		if contains(v.Lost, a.ID) {
			ids = append(ids, a.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return failf("'gfaas down "+strings.Join(ids, " ")+"' stops them, and 'gfaas doctor --repair' adds them to the state file",
		"these instances already run, but are not in the state file: %s", strings.Join(ids, ", "))
}

// readyTimeout limits how long Repair waits for an instance to answer.
const readyTimeout = 3 * time.Second

// Repairer is a catalog that can be repaired.
type Repairer interface {
	// Repair adds records. It replaces a damaged file and returns the path to which it renamed that file.
	Repair(ctx context.Context, records ...instance.Record) (aside string, err error)
}

// Ready waits until the instance of fn at address passes its health check and returns the contract, with "auto"
// resolved. It gives up if alive returns an error; alive may be nil.
type Ready func(ctx context.Context, address string, fn function.Function, alive func(context.Context) error) (string, error)

// Repair adds the inventory's lost instances to the catalog and replaces a damaged catalog. It reports whether
// there was anything to repair.
func Repair(ctx context.Context, v Inventory, catalog Repairer, ready Ready) (bool, error) {
	v.complete(ctx, ready)
	aside, err := catalog.Repair(ctx, v.Lost...)
	return aside != "" || len(v.Lost) > 0, err
}

// complete sets the contract and the state of the lost instances. An instance that does not answer counts as
// starting. Jobs, which have no contract, count as running. An instance of a training function that a runtime has
// found is a job.
func (v Inventory) complete(ctx context.Context, ready Ready) {
	for i, r := range v.Lost {
		fn, _ := v.Function(r.Function)
		if r.Job || fn.Kind == function.Training && r.Handle.Runtime != "" {
			v.Lost[i].Job, v.Lost[i].State = true, instance.Running
			continue
		}
		if r.State == instance.Ready || r.Handle.Address == "" {
			continue
		}
		v.Lost[i].State = instance.Starting
		limited, cancel := context.WithTimeout(ctx, readyTimeout)
		if contract, err := ready(limited, r.Handle.Address, fn, nil); err == nil {
			v.Lost[i].State, v.Lost[i].Contract = instance.Ready, contract
		}
		cancel()
	}
}

// Unapplied returns the functions that have instances but are not applied.
func (v Inventory) Unapplied() (names []string) {
	for _, r := range v.Records() {
		if r.Function != "" && !v.Applied(r.Function) && !slices.Contains(names, r.Function) {
			names = append(names, r.Function)
		}
	}
	return names
}
