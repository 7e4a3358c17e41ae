// Package gpumodel determines which GPU model's rows of a profile a command uses. If the model is unknown, it returns
// an error that asks the user for it.
package gpumodel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/lists"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Flag is the name of the flag for the model.
const Flag = "gpu-model"

// Rows returns the rows of the profile that were measured on the model, or all rows if the model is empty. It returns
// an error if there are none. The path is for error messages.
func Rows(rows []profile.Row, path, model string) ([]profile.Row, error) {
	if model == "" || len(rows) == 0 {
		return rows, nil
	}
	of := slices.DeleteFunc(slices.Clone(rows), func(r profile.Row) bool { return r.GPU != model })
	if len(of) == 0 {
		known := lists.Distinct(rows, func(r profile.Row) string { return r.GPU })
		return nil, cli.Usagef("--%s %q: %s was measured on %s", Flag, model, path, profile.Quoted(known))
	}
	return of, nil
}

// Hints of Unknown, for commands with and without --inventory.
const (
	OrInventory = "select one with --gpu-model, or give each GPU's model in the column model of --inventory"
	ByFlag      = "select one with --gpu-model"
)

// Unknown returns the error about a profile with rows of several models when the model of the GPUs is unknown.
func Unknown(path string, models []string, hint string) error {
	return cli.Fail(cli.ExitUsage, hint,
		fmt.Errorf("%s has rows of several GPU models (%s), and the model of the GPUs to plan for is unknown", path, profile.Quoted(models)))
}

// AddHint adds the hint to choose a model to an error about a configuration that was measured on several models.
func AddHint(path string, err error) error {
	if _, ambiguous := errors.AsType[*profile.AmbiguousError](err); !ambiguous {
		return err
	}
	return cli.Fail(cli.ExitUsage, OrInventory, fmt.Errorf("%s: %w", path, err))
}

// Listed returns the models of the devices.
func Listed(devices []plan.Device) map[plan.GPUName]string {
	models := map[plan.GPUName]string{}
	for _, d := range devices {
		models[d.Name()] = d.Model
	}
	return models
}

// Name sets the model of GPUs that lack one in a plan, from the inventory or else from --gpu-model. It returns a usage
// error if these contradict the plan. If --gpu-model comes from a setting, the plan and the inventory take
// precedence instead.
func Name(cmd *cobra.Command, p *plan.Plan, inventory []plan.Device, model string) error {
	listed := Listed(inventory)
	for i := range p.GPUs {
		g := &p.GPUs[i]
		if at := listed[g.Name()]; at != "" && g.Model != "" && at != g.Model {
			return cli.Usagef("the model of %s is %s in the plan and %s in --inventory: expected the same", g.Name(), csvfile.Quote(g.Model), csvfile.Quote(at))
		} else if g.Model == "" {
			g.Model = at
		}
		if g.Model == "" {
			g.Model = model
		} else if model != "" && model != g.Model && cli.OnCommandLine(cmd.Flags(), Flag) {
			return cli.Usagef("--%s %s: the model of %s is %s", Flag, csvfile.Quote(model), g.Name(), csvfile.Quote(g.Model))
		}
	}
	return nil
}
