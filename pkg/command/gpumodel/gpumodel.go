// Package gpumodel finds the GPU model whose rows of a profile a command must use, and
// asks for it where it is not known.
package gpumodel

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/profile"
)

// Flag is the flag that names the model.
const Flag = "gpu-model"

// Rows returns the rows of the profile in the file path that were measured on the model
// of --gpu-model, all if it is empty. It fails if there are none.
func Rows(rows []profile.Row, path, model string) ([]profile.Row, error) {
	if model == "" || len(rows) == 0 {
		return rows, nil
	}
	var known []string
	for _, r := range rows {
		known = append(known, r.GPU)
	}
	slices.Sort(known)
	of := slices.DeleteFunc(slices.Clone(rows), func(r profile.Row) bool { return r.GPU != model })
	if len(of) == 0 {
		return nil, cli.Usagef("--%s %q: %s was measured on %s", Flag, model, path, profile.Quoted(slices.Compact(known)))
	}
	return of, nil
}

// Hints of Unknown, for commands with and without --inventory.
const (
	OrInventory = "--gpu-model chooses one; --inventory names the model of each GPU (column model)"
	ByFlag      = "--gpu-model chooses one"
)

// Unknown returns the error that rows of several models would hold and that the model
// of the GPUs is not known.
func Unknown(path string, models []string, hint string) error {
	return cli.Fail(cli.ExitUsage, hint,
		fmt.Errorf("%s has rows of several GPU models (%s), and the model of the GPUs is not known", path, profile.Quoted(models)))
}

// Ask turns an error about a configuration that was measured on several models into one
// that asks for the model.
func Ask(path string, err error) error {
	var of *profile.AmbiguousError
	if !errors.As(err, &of) {
		return err
	}
	return cli.Fail(cli.ExitUsage, OrInventory, fmt.Errorf("%s: %w", path, err))
}

// Place identifies a GPU: its node, and its index on the node.
type Place struct {
	Node  string
	Index int
}

// Listed returns the models of the devices.
func Listed(devices []plan.Device) map[Place]string {
	models := map[Place]string{}
	for _, d := range devices {
		models[Place{d.Node, d.Index}] = d.Model
	}
	return models
}

// Name gives those GPUs of a plan that name no model the model of the inventory or of
// --gpu-model. It fails if these contradict the plan. A setting for --gpu-model gives
// way to the plan and to the inventory.
func Name(cmd *cobra.Command, p *plan.Plan, inventory []plan.Device, model string) error {
	listed := Listed(inventory)
	for i := range p.GPUs {
		g := &p.GPUs[i]
		if at := listed[Place{g.Node, g.Index}]; at != "" && g.Model != "" && at != g.Model {
			return cli.Usagef("%s/%d is of the model %s by the plan and %s by --inventory: expected the same", g.Node, g.Index, csvfile.Quote(g.Model), csvfile.Quote(at))
		} else if g.Model == "" {
			g.Model = at
		}
		if g.Model == "" {
			g.Model = model
		} else if model != "" && model != g.Model && cli.Given(cmd.Flags(), Flag) {
			return cli.Usagef("--%s %s: the model of %s/%d is %s", Flag, csvfile.Quote(model), g.Node, g.Index, csvfile.Quote(g.Model))
		}
	}
	return nil
}
