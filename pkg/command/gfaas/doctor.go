package gfaas

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/doctor"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/rollout"
)

func newDoctor(t *tool) *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether functions can run on this machine",
		Long: `Check whether this machine has everything that gfaas needs. Each check has a row
with the result and, after a problem, the remedy. The last rows list the mechanisms
that can enforce each part of a slice (SM share, GPU time, GPU memory), and those that
can free the memory of idle instances, the best first. For each purpose, gfaas uses the
first mechanism that it finds; the status of this mechanism is chosen. Without --repair,
the command changes nothing.

With --repair, the command first repairs a state file that was damaged or
removed. A damaged file is renamed, and the new file starts with the content of
state.db.previous, which the state file had before its last change. If the state file
was removed, or state.db.previous is unusable, the new file starts empty. Then the
command adds the running instances that are missing. It finds them in the run
directory, among the processes and by the labels of containers. From the list of
models in the state file, it removes models whose files no longer exist, except
models that are still on a GPU.

The exit status is 0 if functions can run, and 4 if a required dependency is
missing. It is 6 if the only problem is that another process has locked the
state file.

JSON is {"ok", "simulated", "checks": [{"name", "status", "required", "detail",
"hint"}], "ladder": [{"purpose", "mechanism", "found", "chosen", "detail"}]}. The
status of a check is ok, missing, bad or unneeded.`,
		Example: `  # Check this machine
  gfaas doctor

  # Repair a damaged state file, then check
  gfaas doctor --repair`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if repair {
				if err := t.repair(cmd.Context()); err != nil {
					return err
				}
			}
			return runDoctor(cmd.Context(), t)
		},
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "before the checks, repair damaged state, and add running instances that it lacks")
	t.env.Outputs(cmd, "table", "json", "yaml")
	return cmd
}

func runDoctor(ctx context.Context, t *tool) error {
	d := t.doctorHost().Diagnose(ctx)
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := t.env.Show(d, func() [][]string { return diagnosisRows(d) }); err != nil {
		return err
	}
	if d.OK {
		return nil
	}
	missing, hints, locked := d.Missing()
	exit := cli.ExitUnavailable
	if locked {
		exit = cli.ExitLocked
	}
	return cli.Fail(exit, strings.Join(hints, "; "),
		errors.New("functions cannot run here: failed checks: "+strings.Join(missing, ", ")))
}

// doctorHost returns this host as the subject of the checks.
func (t *tool) doctorHost() doctor.Host {
	return doctor.Host{RunDir: t.runDir, StatePath: cli.StatePath(), State: t.store, Program: findPlugin,
		SimulatedNVML: devices.SimulatedNVML(), SimulatedHint: devices.SimShapeHint}
}

// repair replaces a damaged state file, adds running instances that the file lacks, and removes models
// whose files do not exist.
func (t *tool) repair(ctx context.Context) error {
	t.env.CleansUp()
	release, err := host.Exclusive(ctx, t.env, t.runDir)
	if err != nil {
		return err
	}
	defer release()
	launcher := host.Launcher(t.env, t.runDir, 0)
	defer launcher.Close()
	inventory, err := t.controller(launcher).Inventory(ctx)
	if err != nil {
		return err
	}
	removed := 0
	if inventory.Damaged == nil {
		if removed, err = t.doctorHost().RepairModels(ctx, t.env.Notef); err != nil {
			return err
		}
	}
	repaired, err := rollout.Repair(ctx, inventory, t.store, fnhttp.WaitReady)
	switch {
	case err != nil:
		return err
	case repaired:
		t.env.Notef("note: repaired the state file: it now contains %s", number.Count(len(inventory.Records()), "instance"))
		if missing := inventory.Unapplied(); len(missing) > 0 {
			t.env.Notef("note: these functions have instances but are not applied: %s; apply their files again", strings.Join(missing, ", "))
		}
	case removed == 0:
		t.env.Notef("note: nothing to repair: the state file is intact and contains all running instances")
	}
	return nil
}

// diagnosisRows returns the table of the checks and of the mechanisms that enforce a slice.
func diagnosisRows(d doctor.Diagnosis) [][]string {
	rows := [][]string{{"CHECK", "STATUS", "WHAT"}}
	for _, c := range d.Checks {
		description := c.Detail
		if c.Hint != "" {
			description += " (" + c.Hint + ")"
		}
		rows = append(rows, []string{c.Name, c.Status, description})
	}
	for _, r := range d.Ladder {
		status := "not here"
		switch {
		case r.Chosen:
			status = "chosen"
		case r.Found:
			status = "found"
		}
		rows = append(rows, []string{r.Purpose + " by " + r.Mechanism, status, r.Detail})
	}
	return rows
}
