package gfaas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/rollout"
	"github.com/gfaas/gfaas/pkg/wire"
)

// statusTimeout limits how long the token daemon may take to answer.
const statusTimeout = 2 * time.Second

func newPs(t *tool) *cobra.Command {
	var jobs bool
	cmd := &cobra.Command{
		Use:   "ps [NAME…]",
		Short: "List instances and jobs",
		Long: `List the instances that gfaas up and gfaas serve started, and jobs. A NAME is the
id of an instance or job, or the name of a function, which stands for all its
instances. Without names, the command lists all instances and jobs.

The STATE of an instance is:

  starting  it has not answered yet
  ready     it has answered
  exited    its process or container has ended
  unknown   the state cannot be determined, for example because Docker does not answer
  faulted   one of its processes got a CUDA error after which all CUDA calls of the
            process fail; FAULT names the call and the error
  lost      it runs, but is not in the state file

The STATE of an instance of a training function, which is a job, is:

  starting    it is about to start
  running     its command is running
  restarting  its command has failed, and will be started again after a pause
  succeeded   its command has ended with exit status 0
  failed      its command has failed and was restarted max_restarts times, or was
              stopped; DETAIL is the reason, and gfaas up starts it again

gfaas serve replaces a faulted instance, unless gfaas up started the instance and
the function has restart: no. gfaas down stops a lost instance, and gfaas doctor
--repair adds it to the state file. If the state file cannot be read, all running
instances are lost, and the exit status is 1.

The list also contains the jobs of gfaas run. Such a job is a slice that ends with the
process for which it was created, which is a command of gfaas run or a process of
the daemon gfaas-kerneld. For it, FUNCTION is the name of the program, and STATE is
running or faulted. gfaas set changes it; gfaas down does not stop it. The formats
table and wide always list these jobs. Other formats list them only with --jobs, so that
a script that expects instances gets nothing else.

RESTARTS (in wide, csv and json) is the number of times that the instance was restarted
after it ended, as the key restart of its function requires. Docker restarts an instance
that is a container. gfaas serve restarts an instance that is a process, while gfaas
serve runs; a job that is a process is restarted in any case.

The output of an instance is kept until gfaas down, and gfaas logs prints it. With
-o wide, ps shows the last line of each exited instance.

JSON is a list of {"id", "function", "runtime", "gpu", "pid" or "container",
"sm_pct", "quota_request", "quota_limit", "mem_limit_mib", "address", "state",
"started", "restarts", "model", "unmanaged", "fault", "exit_code", "detail"}. The runtime is
process or docker. For a job of gfaas run, the runtime is job, pid is the process with which
it ends, and there is no address. A job of a training function has no address either; when
it has ended, "exit_code" is the exit status of its command, and "detail" the reason. The memory of an instance does not include the weights of its model, of
which gfaas-modeld has one copy for all instances (see gfaas top). "unmanaged" lists
processes of the instance that use the GPU without the preload library, so that
nothing limits them; the table has this column if there are such processes.`,
		Example: `  # List all instances and jobs
  gfaas ps

  # List the instances of one function as JSON
  gfaas ps resnet -o json

  # List instances and jobs as CSV
  gfaas ps --jobs -o csv`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: t.completeFunctions,
		RunE: func(cmd *cobra.Command, names []string) error {
			return runPs(cmd.Context(), t, names, jobs || t.env.Output == "table" || t.env.Output == "wide")
		},
	}
	cmd.Flags().BoolVar(&jobs, "jobs", false, "list jobs in every output format")
	t.env.Outputs(cmd, "table", "wide", "json", "jsonl", "csv", "yaml")
	return cmd
}

func runPs(ctx context.Context, t *tool, names []string, withJobs bool) error {
	launcher := host.Launcher(t.env, t.runDir, 0)
	defer launcher.Close()
	c := t.controller(launcher)
	inventory, err := c.Inventory(ctx)
	if err != nil {
		return err
	}
	var o rollout.Observations
	for _, g := range t.gpus(ctx) {
		o.Clients = append(o.Clients, g.Clients...)
	}
	if withJobs {
		jobs, err := tokend.Jobs(t.runDir)
		if err != nil {
			return err
		}
		o.Jobs = rollout.RunningJobs(jobs, o.Clients)
	}
	if len(names) > 0 {
		if err := inventory.Filter(names, o.Jobs); err != nil {
			return err
		}
		o.Jobs = slices.DeleteFunc(o.Jobs, func(j wire.Job) bool {
			return !slices.Contains(names, j.Instance) && !slices.Contains(names, j.Function)
		})
	}
	if o.States, err = c.States(ctx, inventory.Instances); err != nil {
		return err
	}
	o.Faults = tokend.FaultsByInstance(ctx, tokend.Dial(t.runDir))
	entries := inventory.Entries(o)
	printed := map[string]string{} // last line of output of the instances that have exited, by ID
	if t.env.Output == "wide" {
		for i, r := range inventory.Records() {
			if s := entries[i].State; s == rollout.StateExited || s == instance.Failed || s == instance.Succeeded {
				printed[r.ID] = lastLine(ctx, launcher, r)
			}
		}
	}
	err = t.env.Show(entries, func() [][]string {
		if t.env.Output == "csv" {
			return psRecords(entries)
		}
		return psRows(entries, t.env.Output == "wide", printed)
	})
	return errors.Join(err, inventory.Damaged)
}

// gpus returns the status of each GPU from the token daemon; nil if no daemon answers.
func (t *tool) gpus(ctx context.Context) []wire.GPUStatus {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s, err := tokend.Dial(t.runDir).Status(ctx)
	if err != nil {
		return nil
	}
	return s.GPUs
}

func hasFault(e rollout.Entry) bool { return e.Fault != "" }

// psRecords returns the CSV form. The meaning of its columns must not change.
func psRecords(entries []rollout.Entry) [][]string {
	faulted := slices.ContainsFunc(entries, hasFault)
	ended := slices.ContainsFunc(entries, func(e rollout.Entry) bool { return e.ExitCode != nil })
	limited := slices.ContainsFunc(entries, func(e rollout.Entry) bool { return e.SMLimitPct > 0 })
	return cli.Rows(entries, func(e rollout.Entry) []cli.Cell {
		cells := []cli.Cell{{"id", e.ID}, {"function", e.Function}, {"runtime", e.Runtime}, {"gpu", e.GPU}, {"pid", pidText(e.PID)},
			{"container", e.Container}, {"sm_pct", number.Plain(e.SMPct)}, {"quota_request", number.Plain(e.QuotaRequest)},
			{"quota_limit", number.Plain(e.QuotaLimit)}, {"mem_limit_mib", number.Plain(e.MemLimitMiB)}, {"address", e.Address},
			{"state", e.State}, {"started", e.Started}, {"restarts", strconv.Itoa(e.Restarts)}}
		if faulted {
			cells = append(cells, cli.Cell{"fault", e.Fault})
		}
		if ended {
			cells = append(cells, cli.Cell{"exit_code", exitText(e.ExitCode)})
		}
		if limited {
			cells = append(cells, cli.Cell{"sm_limit_pct", number.Plain(max(e.SMPct, e.SMLimitPct))})
		}
		return cells
	})
}

func exitText(code *int) string {
	if code == nil {
		return ""
	}
	return strconv.Itoa(*code)
}

func pidText(pid int) string {
	if pid == 0 {
		return ""
	}
	return strconv.Itoa(pid)
}

// psRows returns the table form. Columns for models, unmanaged processes and faults appear only if an
// entry has a value for them. The map printed holds the last lines of instances by ID.
func psRows(entries []rollout.Entry, wide bool, printed map[string]string) [][]string {
	shared := slices.ContainsFunc(entries, func(e rollout.Entry) bool { return e.Model != "" })
	unmanaged := slices.ContainsFunc(entries, func(e rollout.Entry) bool { return len(e.Unmanaged) > 0 })
	faulted := slices.ContainsFunc(entries, hasFault)
	explained := slices.ContainsFunc(entries, func(e rollout.Entry) bool { return e.Detail != "" })
	return cli.Rows(entries, func(e rollout.Entry) []cli.Cell {
		cells := []cli.Cell{{"ID", e.ID}, {"FUNCTION", e.Function}, {"GPU", e.GPU}, {"SM%", number.Range(e.SMPct, e.SMLimitPct)}, {"QUOTA", number.Range(e.QuotaRequest, e.QuotaLimit)},
			{"MEM", cli.OrDash(e.MemLimitMiB > 0, number.Short(e.MemLimitMiB)+"MiB")}, {"ADDRESS", cmp.Or(e.Address, "-")},
			{"STATE", e.State}, {"STARTED", age(e.Started)}}
		if unmanaged {
			cells = append(cells, cli.Cell{"UNMANAGED", cmp.Or(strings.Trim(fmt.Sprint(e.Unmanaged), "[]"), "-")})
		}
		if wide {
			cells = append(cells, cli.Cell{"RUNTIME", e.Runtime}, cli.Cell{"PID/CONTAINER", cmp.Or(pidText(e.PID)+shortID(e.Container), "-")},
				cli.Cell{"RESTARTS", strconv.Itoa(e.Restarts)}, cli.Cell{"PRINTED LAST", cmp.Or(printed[e.ID], "-")})
		}
		if wide && shared {
			cells = append(cells, cli.Cell{"MODEL", cmp.Or(e.Model, "-")})
		}
		if faulted {
			cells = append(cells, cli.Cell{"FAULT", cmp.Or(e.Fault, "-")})
		}
		if explained && !wide {
			cells = append(cells, cli.Cell{"RESTARTS", strconv.Itoa(e.Restarts)})
		}
		if explained {
			cells = append(cells, cli.Cell{"DETAIL", cmp.Or(e.Detail, "-")})
		}
		return cells
	})
}

func age(started string) string {
	at, err := time.Parse(time.RFC3339, started)
	if err != nil {
		return "-"
	}
	return humanize.Time(at)
}

// shortID shortens a container ID to the length that Docker's own tools print.
func shortID(id string) string { return id[:min(len(id), 12)] }
