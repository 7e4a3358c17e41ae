package tokend

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/modeld"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/number"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/status"
	"github.com/gfaas/gfaas/pkg/wire"
)

// statusTimeout limits how long the daemon may take to answer.
const statusTimeout = 5 * time.Second

func newStatus(env *cli.Env, socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the GPUs, and the state and usage of their processes",
		Long: `Show every GPU that the daemon shares, with the state and usage of each process on it.

The state of a process is one of these:

    absent     the instance is registered, but has no process on the GPU
    idle       the process has no work for the GPU
    waiting    it waits for a lease
    running    it holds a lease
    draining   its lease was revoked, and its work in flight has not finished
    suspended  it is stopped by a signal or a debugger, or has not returned a revoked
               lease for 30 s; other clients no longer wait for it
    unmanaged  it uses the driver without the preload library, so nothing limits it

The table shows a process with a fault (see below) as faulted.

A lease is the right to launch work on the GPU; gfaas-tokend grants and revokes leases.
USED is the fraction of the last full window for which the process used the GPU. With the
policy introspective, it is the number of kernel blocks that the process launched in the
window, as a fraction of the number when it runs alone.

JSON: {"node","window_ms","policy","gpus":[{"gpu","sm_running_pct","round_ms","hand_over_ms",
"clients":[{"instance","function","pid","sm_pct","quota_request","quota_limit","used",
"debt_ms","owed_ms","state","mem_used_mib","mem_limit_mib","launches","blocked_ms","context_mib",
"mem_parked_mib","mem_imported_mib","mem_stored_mib","mem_refused","why","reason","strays",
"fault"}]}],
"models":[{"gpu","name","tenant","state","mem_mib","refs"}]}. CSV has the keys of clients
as columns, and one row per process.

    round_ms          current length of a round, in which each process that waits has a
                      turn; 0 without rounds
    hand_over_ms      usual time for which the GPU is idle when it passes from one process
                      to the next; the longer it is, the longer are the rounds
    debt_ms           time that the instance used beyond its limit; it is deducted from
                      its next windows
    owed_ms           time that the instance used beyond its request, while other
                      instances got less than their requests; those have priority until
                      they have got this time
    blocked_ms        time for which the process has waited for the right to launch work
    mem_parked_mib    the part of mem_used_mib that is on the host until the next work
                      (gfaas run --oversubscribe, gfaas serve --park)
    mem_imported_mib  memory of other processes that the process has mapped, such as a
                      model's weights; not part of mem_used_mib, and not limited
    mem_stored_mib    memory that all processes of the instance store in gfaas-modeld and
                      have not committed; it counts against the limit
    mem_refused       number of allocations within the instance's limit that the driver
                      refused because the GPU was full
    context_mib       memory that the driver keeps for the process in addition to its
                      allocations; 0 if the driver does not report it
    why               reason of the last decision about the process; for a waiting
                      process, the reason why it waits: a code with parameters
                      (docs/reasons.md)
    reason            the same reason as a JSON object; not in CSV
    strays            text about programs that the instance started without the preload
                      library, and about its unmanaged processes; omitted if there are
                      none
    fault             the CUDA error after which every call of the process fails until it
                      ends, with the function of the driver API that returned it; omitted
                      if there is none

With the policy introspective, clients have two more keys:

    phase             EMERGENCY (the launches of an instance with a latency objective
                      slow down: it gets its limit, and others less), CONTENTION (all
                      run and none slows down: they get their requests), RECOVERY (an
                      instance with an objective is idle or alone: others get more) or
                      NONE; of the instance if it has an objective, otherwise of the GPU
    budget_blocks     total number of kernel blocks that the process may launch, counted
                      since it connected; omitted while there is no limit

The list models contains the models that gfaas-modeld has on the GPUs. There is one copy of
each, and its memory is not part of any process's memory.`,
		Example: `  # show all processes, with debt, launches and reasons
  gfaas-tokend status -o wide
  # print everything as JSON
  gfaas-tokend status -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return showStatus(cmd.Context(), env, *socket) },
	}
	env.Outputs(cmd, "table", "wide", "json", "yaml", "csv")
	return cmd
}

func showStatus(ctx context.Context, env *cli.Env, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	client := tokend.DialSocket(socket)
	if socket == tokend.Socket(cli.RunDir()) {
		client = tokend.Dial(cli.RunDir())
	}
	s, err := client.Status(ctx)
	if err != nil {
		return err
	}
	all := shown{Status: s}
	var gpus []string
	for _, g := range s.GPUs {
		gpus = append(gpus, g.GPU)
	}
	all.Models = modeld.OnGPUs(ctx, filepath.Dir(socket), gpus)
	return env.Show(all, func() [][]string {
		if env.Output == "csv" {
			return csvRows(s)
		}
		return addModels(tableRows(s, env.Output == "wide"), all.Models)
	})
}

// shown is the daemon's status with the models of the model daemons, whose memory several clients may share.
type shown struct {
	wire.Status
	Models []status.Model `json:"models"`
}

// addModels appends a row for each model to the table.
func addModels(rows [][]string, models []status.Model) [][]string {
	for _, m := range models {
		row := []string{m.GPU, "model " + m.Name, "-", "-", "-", "-", fmt.Sprintf("held by %d", m.Refs), fmt.Sprintf("%.0fMiB", m.MemMiB)}
		for len(row) < len(rows[0]) {
			row = append(row, "-")
		}
		rows = append(rows, row)
	}
	return rows
}

// process is a process in the status, or an instance without a process.
type process struct {
	wire.ClientStatus
	gpu string
}

func processes(s wire.Status) (out []process) {
	for _, g := range s.GPUs {
		for _, c := range g.Clients {
			out = append(out, process{c, g.GPU})
		}
	}
	return out
}

// tableRows returns the table form.
func tableRows(s wire.Status, wide bool) [][]string {
	all := processes(s)
	phases, faults := hasPhases(s), slices.ContainsFunc(all, process.hasFault)
	bypasses := slices.ContainsFunc(all, func(p process) bool { return p.UnmanagedPrograms != "" })
	return cli.Rows(all, func(p process) []cli.Cell {
		c := p.ClientStatus
		cells := []cli.Cell{{"GPU", p.gpu}, {"INSTANCE", c.Instance}, {"PID", pid(c.PID)}, {"SM%", number.Range(c.SMPct, c.SMLimitPct)}, {"QUOTA", number.Range(c.QuotaRequest, c.QuotaLimit)},
			{"USED", fmt.Sprintf("%.3f", c.Used)}, {"STATE", state(c)}, {"MEM", memory(c)}}
		if !wide {
			return cells
		}
		cells = append(cells, cli.Cell{"CONTEXT", fmt.Sprintf("%.0fMiB", c.ContextMiB)}, cli.Cell{"FUNCTION", c.Function}, cli.Cell{"DEBT", fmt.Sprintf("%.1fms", c.DebtMS)},
			cli.Cell{"LAUNCHES", strconv.FormatUint(c.Launches, 10)}, cli.Cell{"BLOCKED", fmt.Sprintf("%.0fms", c.BlockedMS)})
		if phases {
			cells = append(cells, cli.Cell{"PHASE", cmp.Or(c.Phase, "-")})
		}
		cells = append(cells, cli.Cell{"WHY", c.Why})
		if bypasses {
			cells = append(cells, cli.Cell{"STRAYS", cmp.Or(c.UnmanagedPrograms, "-")})
		}
		if faults {
			cells = append(cells, cli.Cell{"FAULT", cmp.Or(c.Fault, "-")})
		}
		return cells
	})
}

// csvRows returns the CSV form. Its columns are the keys of the JSON form.
func csvRows(s wire.Status) [][]string {
	all := processes(s)
	phases, faults := hasPhases(s), slices.ContainsFunc(all, process.hasFault)
	return cli.Rows(all, func(p process) []cli.Cell {
		c, n := p.ClientStatus, number.Plain
		cells := []cli.Cell{{"gpu", p.gpu}, {"instance", c.Instance}, {"function", c.Function}, {"pid", strconv.Itoa(c.PID)}, {"sm_pct", n(c.SMPct)},
			{"quota_request", n(c.QuotaRequest)}, {"quota_limit", n(c.QuotaLimit)}, {"used", n(c.Used)}, {"debt_ms", n(c.DebtMS)}, {"state", c.State},
			{"mem_used_mib", n(c.MemUsedMiB)}, {"mem_limit_mib", n(c.MemLimitMiB)}, {"launches", strconv.FormatUint(c.Launches, 10)}, {"blocked_ms", n(c.BlockedMS)},
			{"context_mib", n(c.ContextMiB)}, {"mem_parked_mib", n(c.MemParkedMiB)}, {"mem_imported_mib", n(c.MemImportedMiB)}, {"why", c.Why}, {"strays", c.UnmanagedPrograms}}
		if phases {
			cells = append(cells, cli.Cell{"phase", c.Phase}, cli.Cell{"budget_blocks", blocks(c)})
		}
		cells = append(cells, cli.Cell{"mem_refused", strconv.FormatUint(c.MemRefused, 10)}, cli.Cell{"owed_ms", n(c.OwedMS)})
		if faults {
			cells = append(cells, cli.Cell{"fault", c.Fault})
		}
		cells = append(cells, cli.Cell{"mem_stored_mib", n(c.MemStoredMiB)})
		if phases {
			cells = append(cells, cli.Cell{"sm_limit_pct", n(max(c.SMPct, c.SMLimitPct))})
		}
		return cells
	})
}

// hasFault reports whether an error has ended the process's use of CUDA.
func (p process) hasFault() bool { return p.Fault != "" }

// state returns the state of a process for the table.
func state(c wire.ClientStatus) string {
	if c.Fault != "" && c.PID != 0 {
		return "faulted"
	}
	return c.State
}

// hasPhases reports whether the policy has phases and budgets.
func hasPhases(s wire.Status) bool { return s.Policy == policy.Introspection }

func pid(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func blocks(c wire.ClientStatus) string {
	if c.BudgetBlocks == 0 {
		return ""
	}
	return strconv.FormatUint(c.BudgetBlocks, 10)
}

func memory(c wire.ClientStatus) string {
	if c.MemLimitMiB == 0 {
		return fmt.Sprintf("%.0fMiB", c.MemUsedMiB)
	}
	return fmt.Sprintf("%.0f/%.0fMiB", c.MemUsedMiB, c.MemLimitMiB)
}
