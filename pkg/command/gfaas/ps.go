package gfaas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/wire"
)

// looksAtOnce bounds how many runtimes' answers are awaited at a time.
const looksAtOnce = 16

// statusTimeout is how long the token daemon may take to list its clients.
const statusTimeout = 2 * time.Second

// States of an instance that the state file does not know of itself.
const (
	stateExited  = "exited"  // its process or container has ended
	stateUnknown = "unknown" // its runtime does not answer
	stateLost    = "lost"    // it runs, and is not in the state file
	stateFaulted = "faulted" // it runs, and cannot use CUDA any more
)

// psEntry is one instance or job as ps -o json prints it.
type psEntry struct {
	ID           string  `json:"id"`
	Function     string  `json:"function"`
	Runtime      string  `json:"runtime"`
	GPU          string  `json:"gpu"`           // several are joined by commas
	PID          int     `json:"pid,omitempty"` // of a job: its owner's
	Container    string  `json:"container,omitempty"`
	SMPct        float64 `json:"sm_pct"`
	QuotaRequest float64 `json:"quota_request"`
	QuotaLimit   float64 `json:"quota_limit"`
	MemLimitMiB  float64 `json:"mem_limit_mib"` // 0 is no limit
	Address      string  `json:"address"`
	State        string  `json:"state"`               // starting, ready, exited, unknown, lost or faulted; of a job, running or faulted
	Started      string  `json:"started"`             // RFC 3339; empty while it is only intended
	Restarts     int     `json:"restarts"`            // how often a gateway, or its engine, has started it again
	Model        string  `json:"model,omitempty"`     // whose weights it shares; they are not in its memory
	Unmanaged    []int   `json:"unmanaged,omitempty"` // its processes that use the GPU without the preload library

	// Fault is the CUDA error after which every call of the instance's process fails, and
	// the call that returned it; empty unless it is faulted.
	Fault string `json:"fault,omitempty"`

	last string // line that it printed, for -o wide, if it has exited
}

func newPs(t *tool) *cobra.Command {
	var jobs bool
	cmd := &cobra.Command{
		Use:   "ps [NAME…]",
		Short: "List instances and jobs",
		Long: `Lists the instances that gfaas up and gfaas serve started, and the jobs. With NAMEs it
lists only those: a NAME is an id, or a function and stands for all its instances.

STATE of an instance is starting until it answers for the first time, then ready. It
is exited if the process or container of the instance has ended, and unknown if its
runtime does not answer. It is faulted if a process of the instance has got a CUDA error
after which all its calls fail; FAULT then names the call and the error. gfaas serve
replaces a faulted instance, unless gfaas up started it and restart: of its function is
no. An instance that runs and that the state file does not know is lost: gfaas down stops
it, and gfaas doctor --repair takes it back. If the state file cannot be read, all
instances that run are lost, and the exit status is 1.

A job is a slice that belongs to the process that started it: a command of gfaas run, or
an executor of gfaas-kerneld. FUNCTION is the name of its program, and STATE is running,
or faulted. gfaas set changes a job; gfaas down does not stop one. The output forms table
and wide always list jobs. The other forms list them only with --jobs, so that a script
which expects instances gets nothing else.

RESTARTS, of -o wide, csv and json, is how often an instance that ended was started
again, as restart: of its function says: a container by its engine, a process by
gfaas serve while that runs.

What an instance prints is kept until gfaas down, and shown by gfaas logs; -o wide
has the last line of those that have exited.

JSON is a list of {"id", "function", "runtime", "gpu", "pid" or "container",
"sm_pct", "quota_request", "quota_limit", "mem_limit_mib", "address", "state",
"started", "restarts", "model", "unmanaged", "fault"}. The runtime is process or docker.
For a job, runtime is job, pid is the process that it belongs to, and there is no address.
The memory of an instance does not include the weights of its model, of which gfaas-modeld
has one copy (gfaas top shows them). Unmanaged, also a column if there are any, lists the
instance's processes that use the GPU without the preload library: nothing limits those.`,
		Example:           "  gfaas ps\n  gfaas ps resnet -o json\n  gfaas ps --jobs -o csv",
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: t.completeFunctions,
		RunE: func(cmd *cobra.Command, names []string) error {
			return runPs(cmd.Context(), t, names, jobs || t.env.Output == "table" || t.env.Output == "wide")
		},
	}
	cmd.Flags().BoolVar(&jobs, "jobs", false, "list jobs in every form of the output")
	t.env.Outputs(cmd, "table", "wide", "json", "jsonl", "csv", "yaml")
	return cmd
}

func runPs(ctx context.Context, t *tool, names []string, withJobs bool) error {
	launcher := host.Launcher(t.env, t.runDir, 0)
	defer launcher.Close()
	all, err := t.inventory(ctx, launcher)
	if err != nil {
		return err
	}
	var clients []wire.ClientStatus
	for _, g := range t.gpus(ctx) {
		clients = append(clients, g.Clients...)
	}
	var jobs []tokend.Owned
	if withJobs {
		if jobs, err = runningJobs(t.runDir, clients); err != nil {
			return err
		}
	}
	if len(names) > 0 {
		if err := all.keep(names, jobs); err != nil {
			return err
		}
		jobs = slices.DeleteFunc(jobs, func(j tokend.Owned) bool {
			return !slices.Contains(names, j.Instance) && !slices.Contains(names, j.Function)
		})
	}
	states, restarts, err := t.look(ctx, launcher, all.state.Instances)
	if err != nil {
		return err
	}
	entries := make([]psEntry, 0, len(states)+len(all.lost))
	faults := faultsOf(ctx, tokend.Dial(t.runDir))
	models := map[string]string{}
	for _, fn := range all.state.Functions {
		if fn.Model != nil && fn.Model.File != "" {
			models[fn.Name] = fn.Model.Name
		}
	}
	for i, r := range all.state.Instances {
		r.Restarts = max(r.Restarts, restarts[i])
		e := entry(r, states[i])
		e.Model = models[r.Function]
		if e.Fault = faultOf(faults, r); e.Fault != "" && e.State != stateExited {
			e.State = stateFaulted
		}
		entries = append(entries, e)
	}
	for _, r := range all.lost {
		if r.Handle.Runtime == "" { // registered only
			entries = append(entries, entry(r, stateExited))
			continue
		}
		entries = append(entries, entry(r, stateLost))
	}
	if t.env.Output == "wide" {
		t.addLast(ctx, all.records(), entries)
	}
	for _, j := range jobs {
		entries = append(entries, jobEntry(j, faults))
	}
	addUnmanaged(clients, entries)
	err = t.env.Show(entries, func() [][]string {
		if t.env.Output == "csv" {
			return psRecords(entries)
		}
		return psRows(entries, t.env.Output == "wide")
	})
	return errors.Join(err, all.broken)
}

// look asks the runtimes what became of the instances, and how often they started
// them again.
func (t *tool) look(ctx context.Context, launcher *launch.Launcher, records []instance.Record) ([]string, []int, error) {
	states, restarts := make([]string, len(records)), make([]int, len(records))
	slots := make(chan struct{}, looksAtOnce)
	var wg sync.WaitGroup
	var once sync.Once
	for i, r := range records {
		states[i] = r.State
		if r.Handle.Runtime == "" {
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			now, err := launcher.State(ctx, r.Handle)
			switch {
			case err != nil:
				states[i] = stateUnknown
				once.Do(func() { t.env.Notef("note: %s: %v", r.Runtime, err) })
			case !now.Running:
				states[i] = stateExited
			default:
				restarts[i] = now.Restarts
			}
		})
	}
	wg.Wait()
	return states, restarts, ctx.Err()
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

// addUnmanaged adds the unmanaged processes of instances and jobs.
func addUnmanaged(clients []wire.ClientStatus, entries []psEntry) {
	for _, c := range clients {
		if i := slices.IndexFunc(entries, func(e psEntry) bool { return e.ID == c.Instance }); i >= 0 && c.State == wire.StateUnmanaged {
			entries[i].Unmanaged = append(entries[i].Unmanaged, c.PID)
		}
	}
}

// addLast adds the last lines of those that have exited.
func (t *tool) addLast(ctx context.Context, records []instance.Record, entries []psEntry) {
	launcher := host.Launcher(t.env, t.runDir, 0)
	defer launcher.Close()
	for i, r := range records {
		if entries[i].State == stateExited {
			entries[i].last = lastLine(ctx, launcher, r)
		}
	}
}

func entry(r instance.Record, state string) psEntry {
	e := psEntry{
		ID: r.ID, Function: r.Function, Runtime: r.Runtime, GPU: strings.Join(r.GPUs, ","),
		PID: r.Handle.PID, Container: r.Handle.Container,
		SMPct: r.Slice.SMPct, QuotaRequest: r.Slice.QuotaRequest, QuotaLimit: r.Slice.QuotaLimit,
		MemLimitMiB: r.Slice.Mem.MiB(), Address: r.Handle.Address, State: state, Restarts: r.Restarts,
	}
	if !r.Handle.Started.IsZero() {
		e.Started = r.Handle.Started.Format(time.RFC3339)
	}
	return e
}

// psRecords is the CSV form; its columns keep their meaning.
func psRecords(entries []psEntry) [][]string {
	out := [][]string{{"id", "function", "runtime", "gpu", "pid", "container", "sm_pct", "quota_request", "quota_limit",
		"mem_limit_mib", "address", "state", "started", "restarts"}}
	faulted := anyFaulted(entries)
	if faulted {
		out[0] = append(out[0], "fault")
	}
	for _, e := range entries {
		row := []string{e.ID, e.Function, e.Runtime, e.GPU, pidText(e.PID), e.Container, number.Plain(e.SMPct),
			number.Plain(e.QuotaRequest), number.Plain(e.QuotaLimit), number.Plain(e.MemLimitMiB), e.Address, e.State, e.Started, strconv.Itoa(e.Restarts)}
		if faulted {
			row = append(row, e.Fault)
		}
		out = append(out, row)
	}
	return out
}

// anyFaulted reports whether one of the instances has faulted: only then is there a column
// for it.
func anyFaulted(entries []psEntry) bool {
	return slices.ContainsFunc(entries, func(e psEntry) bool { return e.Fault != "" })
}

// pidsText is a list of processes, separated by blanks.
func pidsText(pids []int) string {
	var words []string
	for _, pid := range pids {
		words = append(words, strconv.Itoa(pid))
	}
	return strings.Join(words, " ")
}

func pidText(pid int) string {
	if pid == 0 {
		return ""
	}
	return strconv.Itoa(pid)
}

// psRows is the form for people.
func psRows(entries []psEntry, wide bool) [][]string {
	shared := slices.ContainsFunc(entries, func(e psEntry) bool { return e.Model != "" })
	faulted := anyFaulted(entries)
	outside := slices.ContainsFunc(entries, func(e psEntry) bool { return len(e.Unmanaged) > 0 })
	header := []string{"ID", "FUNCTION", "GPU", "SM%", "QUOTA", "MEM", "ADDRESS", "STATE", "STARTED"}
	if outside {
		header = append(header, "UNMANAGED")
	}
	if wide {
		header = append(header, "RUNTIME", "PID/CONTAINER", "RESTARTS", "PRINTED LAST")
		if shared {
			header = append(header, "MODEL")
		}
	}
	if faulted {
		header = append(header, "FAULT")
	}
	out := [][]string{header}
	for _, e := range entries {
		row := []string{e.ID, e.Function, e.GPU, number.Short(e.SMPct), quotaText(e), orDash(e.MemLimitMiB > 0, number.Short(e.MemLimitMiB)+"MiB"),
			orDash(e.Address != "", e.Address), e.State, ago(e.Started)}
		if outside {
			row = append(row, orDash(len(e.Unmanaged) > 0, pidsText(e.Unmanaged)))
		}
		if wide {
			row = append(row, e.Runtime, orDash(e.PID != 0 || e.Container != "", pidText(e.PID)+shortID(e.Container)), strconv.Itoa(e.Restarts), orDash(e.last != "", e.last))
			if shared {
				row = append(row, orDash(e.Model != "", e.Model))
			}
		}
		if faulted {
			row = append(row, orDash(e.Fault != "", e.Fault))
		}
		out = append(out, row)
	}
	return out
}

func quotaText(e psEntry) string {
	if e.QuotaLimit == e.QuotaRequest {
		return number.Short(e.QuotaRequest)
	}
	return fmt.Sprintf("%s:%s", number.Short(e.QuotaRequest), number.Short(e.QuotaLimit))
}

func ago(started string) string {
	at, err := time.Parse(time.RFC3339, started)
	if err != nil {
		return "-"
	}
	return humanize.Time(at)
}

// shortID is as much of a container's id as Docker's own tools show.
func shortID(id string) string { return id[:min(len(id), 12)] }
