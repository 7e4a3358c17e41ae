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

// statusTimeout is how long the daemon may take to answer.
const statusTimeout = 5 * time.Second

func newStatus(env *cli.Env, socket *string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show every GPU, the processes on it and what they use",
		Long: `Show every GPU that the daemon shares, with the processes on it. A state is
absent (the instance is registered and has no process), idle (wants nothing),
waiting, running (holds a lease), draining (was asked back and still runs) or
suspended (is stopped, by a signal or a debugger, or has not given its lease
back for 30 s, and nobody waits for it). A process of an instance that uses the
driver without the preload library is unmanaged: nothing limits it.
USED is the share of the last full window; debt is what the instance used beyond
its limit and has to make up for, and owed (in the JSON and CSV forms) is what it
used beyond its request while other instances missed theirs: these have priority until
it is made up for; context is what the driver holds for a process
beside its own allocations, 0 where the driver does not tell; parked is what of
the memory used waits on the host for the next work (gfaas run --oversubscribe,
gfaas serve --park); imported is what the process has mapped of other processes'
memory, such as a model's weights, which is not in the memory used and has no
limit; why is the reason of the last decision about a process: of one that
waits, what it waits for; strays says how many programs the instance's processes
have started without the preload library, which was put back, or that it cannot
be loaded into, and how many unmanaged processes there were, and is left out while
there are none; fault is the CUDA error
after which every call of the process fails until it ends, with the function of
the driver API that returned it, and is left out while there is none. The table
shows such a process as faulted.

With --policy introspective USED is a share of what the process does alone, by
the kernel blocks it launched, and there are two keys more: phase is NONE,
EMERGENCY, RECOVERY or CONTENTION (of the instance if it has a latency objective,
else of the GPU), and budget_blocks how many blocks the process may have launched
since it connected, left out while it is not metered.

JSON: {"window_ms","policy","gpus":[{"gpu","sm_running_pct","clients":[{"instance",
"function","pid","sm_pct","quota_request","quota_limit","used","debt_ms","owed_ms",
"state","mem_used_mib","mem_limit_mib","launches","blocked_ms","context_mib",
"mem_parked_mib","mem_imported_mib","mem_stored_mib","mem_refused","why","strays","fault"}]}],
"models":[{"gpu","name","tenant","state","mem_mib","refs"}]}. The field mem_refused
counts allocations within the instance's limit that the driver refused because the GPU
was full. The field mem_stored_mib is the memory that all processes of the instance store
in gfaas-modeld and have not committed; it counts against the limit. The list models has
the models that gfaas-modeld has on the GPUs: one copy each, whose memory is not in the
memory of any process. CSV has the keys of processes as columns, and one row per process.`,
		Example: `  gfaas-tokend status
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
		switch env.Output {
		case "csv":
			return csvRows(s)
		case "wide":
			return addModels(tableRows(s, true), all.Models)
		}
		return addModels(tableRows(s, false), all.Models)
	})
}

// shown is what the daemon says, and the models that its clients may have mapped,
// whose memory is nobody's alone.
type shown struct {
	wire.Status
	Models []status.Model `json:"models"`
}

// addModels adds a row a model to those for people.
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

// tableRows are for people.
func tableRows(s wire.Status, wide bool) [][]string {
	header := []string{"GPU", "INSTANCE", "PID", "SM%", "QUOTA", "USED", "STATE", "MEM"}
	if wide {
		header = append(header, "CONTEXT", "FUNCTION", "DEBT", "LAUNCHES", "BLOCKED")
		if scales(s) {
			header = append(header, "PHASE")
		}
		header = append(header, "WHY")
		if strayed(s) {
			header = append(header, "STRAYS")
		}
		if faulted(s) {
			header = append(header, "FAULT")
		}
	}
	rows := [][]string{header}
	for _, g := range s.GPUs {
		for _, c := range g.Clients {
			row := []string{
				g.GPU, c.Instance, pid(c.PID), number.Short(c.SMPct), quota(c), fmt.Sprintf("%.3f", c.Used), state(c), memory(c),
			}
			if wide {
				row = append(row, fmt.Sprintf("%.0fMiB", c.ContextMiB), c.Function, fmt.Sprintf("%.1fms", c.DebtMS), strconv.FormatUint(c.Launches, 10), fmt.Sprintf("%.0fms", c.BlockedMS))
				if scales(s) {
					row = append(row, cmp.Or(c.Phase, "-"))
				}
				row = append(row, c.Why)
				if strayed(s) {
					row = append(row, cmp.Or(c.Strays, "-"))
				}
				if faulted(s) {
					row = append(row, cmp.Or(c.Fault, "-"))
				}
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// csvRows are for programs: the keys of the JSON form.
func csvRows(s wire.Status) [][]string {
	rows := [][]string{{
		"gpu", "instance", "function", "pid", "sm_pct", "quota_request", "quota_limit", "used", "debt_ms", "state",
		"mem_used_mib", "mem_limit_mib", "launches", "blocked_ms", "context_mib", "mem_parked_mib", "mem_imported_mib", "why", "strays",
	}}
	if scales(s) {
		rows[0] = append(rows[0], "phase", "budget_blocks")
	}
	rows[0] = append(rows[0], "mem_refused", "owed_ms")
	if faulted(s) {
		rows[0] = append(rows[0], "fault")
	}
	rows[0] = append(rows[0], "mem_stored_mib")
	for _, g := range s.GPUs {
		for _, c := range g.Clients {
			row := []string{
				g.GPU, c.Instance, c.Function, strconv.Itoa(c.PID), number.Plain(c.SMPct), number.Plain(c.QuotaRequest), number.Plain(c.QuotaLimit),
				number.Plain(c.Used), number.Plain(c.DebtMS), c.State, number.Plain(c.MemUsedMiB), number.Plain(c.MemLimitMiB),
				strconv.FormatUint(c.Launches, 10), number.Plain(c.BlockedMS), number.Plain(c.ContextMiB), number.Plain(c.MemParkedMiB), number.Plain(c.MemImportedMiB), c.Why, c.Strays,
			}
			if scales(s) {
				row = append(row, c.Phase, blocks(c))
			}
			row = append(row, strconv.FormatUint(c.MemRefused, 10), number.Plain(c.OwedMS))
			if faulted(s) {
				row = append(row, c.Fault)
			}
			row = append(row, number.Plain(c.MemStoredMiB))
			rows = append(rows, row)
		}
	}
	return rows
}

// strayed says whether any instance has strays.
func strayed(s wire.Status) bool {
	return slices.ContainsFunc(s.GPUs, func(g wire.GPUStatus) bool {
		return slices.ContainsFunc(g.Clients, func(c wire.ClientStatus) bool { return c.Strays != "" })
	})
}

// faulted reports whether an error has ended a process's use of CUDA.
func faulted(s wire.Status) bool {
	return slices.ContainsFunc(s.GPUs, func(g wire.GPUStatus) bool {
		return slices.ContainsFunc(g.Clients, func(c wire.ClientStatus) bool { return c.Fault != "" })
	})
}

// state returns the state of a process for people.
func state(c wire.ClientStatus) string {
	if c.Fault != "" && c.PID != 0 {
		return "faulted"
	}
	return c.State
}

// scales says whether the policy is one with phases and budgets.
func scales(s wire.Status) bool { return s.Policy == policy.Introspection }

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

func quota(c wire.ClientStatus) string {
	if c.QuotaRequest == c.QuotaLimit {
		return number.Short(c.QuotaRequest)
	}
	return number.Short(c.QuotaRequest) + ":" + number.Short(c.QuotaLimit)
}

func memory(c wire.ClientStatus) string {
	if c.MemLimitMiB == 0 {
		return fmt.Sprintf("%.0fMiB", c.MemUsedMiB)
	}
	return fmt.Sprintf("%.0f/%.0fMiB", c.MemUsedMiB, c.MemLimitMiB)
}
