package gfaas

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/wire"
)

type runOptions struct {
	gpu    string
	sm     float64
	quota  string
	mem    gpu.Bytes // 0 is no limit
	name   string
	slo    time.Duration
	over   bool
	noNVML bool
	detach bool
	stop   bool // unmanaged processes
}

func newRun(t *tool) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND…",
		Short: "Run a command under a slice of a GPU",
		Long: `Runs any command that uses CUDA under a slice of a GPU, which the whole process
tree shares: a share of the streaming multiprocessors, a quota of each time
window, a limit on memory. The command need not know.

A latency objective (--slo) only counts under a token daemon whose policy is
introspective: there the quota is a fraction of what the command does alone in
its share, REQUEST is kept for it, and LIMIT is issued at once when its launches
take so long that the objective is in danger. The policy multi-token ignores it.

The exit status is the command's, or 128+n when signal n ended it. If gfaas run itself
fails, the status is that of env and docker run (see below). Signals are
passed on; the standard streams are the command's own. A program that the preload library
cannot be loaded into (static, musl, setuid) is refused with exit 126.

When gfaas run itself is killed (SIGKILL), the kernel kills the command at once. Within
about a second, the token daemon, if it runs, kills the processes that the command has
started. Under MPS the token daemon also kills the command, after it has ended the command's
work on the GPU. With --detach-on-kill, the command and its processes go on in the slice.

When one of the command's processes gets a CUDA error after which all its calls fail,
such as an illegal address, a line on standard error names the call and the error.

A new container of docker run, podman run, nerdctl run or docker compose run
is in the slice: gfaas run inserts the arguments that gfaas docker-args prints after run, and
ends when the container does. Commands that would run outside the slice are refused with exit 126:
docker exec and docker start, an engine of another machine, sudo, ssh, systemd-run.

A process that the command starts may lose the library, as when a Go program or a
static shell gives it an environment of its own. If such a process uses the GPU,
nothing limits it: the token daemon finds it within about a second, gfaas run prints
a line about it, and gfaas-tokend status shows it as unmanaged. With
--stop-unmanaged the daemon kills it.

With --oversubscribe what the command allocates (cuMemAlloc and cudaMalloc) is
managed memory, within the same limit. Slices whose limits sum to more than the
GPU then fit on it one after the other: what a slice holds is moved to the host
when it has had no work for half a second, and back before its next. It costs
time, and memory of this kind cannot be handed to other processes (cudaIpc).

Programs that read NVML (nvidia-smi, Ray, vLLM) are told of the slice: its limit as
the total memory, what it uses as used, its own processes. With --no-nvml they see
what there is. Functions have that by GFAAS_NO_NVML=1 in their env.

CUDA_VISIBLE_DEVICES chooses the GPU as --gpu does, and may name one only. Numbers count
GPUs as nvidia-smi does, and simulated ones where the GPU is simulated. If the variable
hides the GPU that --gpu names, or all GPUs (it is empty, -1 or
NoDevFiles), gfaas run fails with exit 125. The command finds its slice's GPU in the
variable, and may name it there in another way; if it names only GPUs outside the slice,
its cuInit fails with CUDA_ERROR_NO_DEVICE, with a line on standard error.

The token daemon that hands out GPU time is started when there is none, and
leaves a few seconds after its last client. Should such a one be killed, the
command stalls at its next launch, and goes on when gfaas run has started it
again after 10 s.`,
		Example: `  gfaas run --sm 24 --quota 0.3 --mem 2GiB -- python train.py
  gfaas run --quota 0.3:0.8 --slo 69ms -- ./server --port 8080
  gfaas run --gpu sim -- ./vadd
  gfaas run --quota 0.5 --mem 2GiB -- docker run --rm IMAGE`,
		ValidArgsFunction: completeCommand,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "" {
				return errors.New("COMMAND is missing")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("mem") && o.mem == 0 {
				return cli.Usagef("--mem 0: expected more than 0")
			}
			if o.slo < 0 || cmd.Flags().Changed("slo") && o.slo == 0 {
				return cli.Usagef("--slo %v: expected more than 0", o.slo)
			}
			return o.run(cmd.Context(), t, args)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVar(&o.gpu, "gpu", "", "GPU: a number, a UUID or its beginning, MIG-UUID, sim, or sim:1 for the second simulated one (default the one that CUDA_VISIBLE_DEVICES names, else 0; sim where there is no NVIDIA driver)")
	cli.Words(cmd, "gpu", "sim")
	f.Float64Var(&o.sm, "sm", 100, "share of the streaming multiprocessors, in percent")
	f.StringVar(&o.quota, "quota", "1", "REQUEST[:LIMIT]: guaranteed and largest fraction of each window")
	cli.Memory(f, &o.mem, "mem", "limit on GPU memory, like `1GiB` (default none)")
	f.DurationVar(&o.slo, "slo", 0, "latency objective, like 69ms: with the policy introspective others make room when it is in danger (default none: best effort)")
	f.BoolVar(&o.over, "oversubscribe", false, "keep its memory on the host while it has no work; needs --mem")
	f.BoolVar(&o.noNVML, "no-nvml", false, "let programs that read NVML see the whole GPU")
	f.BoolVar(&o.detach, "detach-on-kill", false, "let the command go on when gfaas run itself is killed")
	f.BoolVar(&o.stop, "stop-unmanaged", false, "kill processes of the command that use the GPU without the preload library")
	t.env.Statuses(cmd, `the command's, or 128+n when signal n ended it. When gfaas run itself fails:
125 wrong usage, or something else failed; 126 the command was found and cannot be
run in a slice; 127 the command was not found; 130, 143 ended by SIGINT, SIGTERM`, runStatus)
	f.StringVar(&o.name, "name", "", "what the slice is called in gfaas-tokend status (default from COMMAND)")
	return cmd
}

// Exit statuses of gfaas run itself, as those of env and docker run.
const (
	exitRun       = 125
	exitCannotRun = 126
	exitNotFound  = 127
)

// runStatus returns the exit status of an error of gfaas run.
func runStatus(e *cli.Error) int {
	var program *preload.ProgramError
	var leaves *leavesError
	var start *startError
	switch {
	case errors.Is(e.Err, exec.ErrNotFound), errors.As(e.Err, &start) && errors.Is(start.err, fs.ErrNotExist):
		return exitNotFound
	case start != nil, errors.As(e.Err, &program), errors.As(e.Err, &leaves):
		return exitCannotRun
	}
	return exitRun
}

// completeCommand offers programs first, and files after that.
func completeCommand(_ *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || strings.Contains(begun, "/") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var found []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		programs, _ := filepath.Glob(filepath.Join(dir, globEscape.Replace(begun)+"*")) // a folder that is not there has none
		for _, path := range programs {
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
				found = append(found, filepath.Base(path))
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found), cobra.ShellCompDirectiveDefault
}

var globEscape = strings.NewReplacer("*", `\*`, "?", `\?`, "[", `\[`, `\`, `\\`)

func (o *runOptions) run(ctx context.Context, t *tool, command []string) error {
	t.env.CleansUp()
	slice, err := o.slice()
	if err != nil {
		return err
	}
	engine, err := parseEngine(command)
	if err != nil {
		return err
	}
	d, err := devices.ChooseOne(o.gpu)
	if err != nil {
		return err
	}
	id, err := o.instance(command[0])
	if err != nil {
		return err
	}
	libs, err := preload.FindLibs()
	if err != nil {
		return err
	}
	grant := preload.Grant{
		Socket:   filepath.Join(tokend.ClientSocketDir(t.runDir), "token.sock"),
		Instance: id, Secret: preload.NewSecret(), GPU: []string{d.String()}, SMPct: slice.SMPct, Libs: libs,
		Oversubscribe: o.over, NoNVML: o.noNVML,
	}
	if _, err := preload.Environ(grant); err != nil {
		return err // before anybody hears of it
	}
	loads := func() error { return nil }
	if engine == nil { // the engine's client is not what uses the GPU
		if loads, err = preload.AskLoader(ctx, command[0], libs.Hook, t.runDir); err != nil {
			return err
		}
	}
	if d.Simulated {
		devices.NoteSimulated(t.env)
		// A program that is killed leaves its part of the device behind.
		defer func() { _ = simgpu.Sweep() }()
	}
	answer, leave, err := o.enter(ctx, t, grant, slice, command[0])
	if err == nil {
		defer leave()
	}
	if refused := loads(); refused != nil { // the loader has thought about it meanwhile
		return refused
	}
	if err != nil {
		return err
	}
	if answer.Note != "" {
		t.env.Notef("note: %s", answer.Note)
	}
	if answer.Warning != "" {
		t.env.Notef("warning: %s", answer.Warning)
	}
	noteBeyond(t.env, map[string]gpu.Bytes{d.String(): slice.Mem})
	grant.MPSPipeDir, grant.Mem = answer.MPSPipeDir, slice.Mem
	defer reportFault(ctx, t.env, tokend.Dial(t.runDir), id)()
	status := 0
	if engine != nil {
		status, err = engine.run(ctx, t, grant, !o.detach)
	} else {
		var env map[string]string
		if env, err = preload.Environ(grant); err == nil {
			status, err = runChild(ctx, command, cli.Environ(env), !o.detach && !onMPS(grant, d))
		}
	}
	if err != nil || status == 0 {
		return err
	}
	return cli.Exit(status)
}

// onMPS reports whether the command will be a client of MPS. Then the kernel must not kill
// it with gfaas run: the token daemon ends its GPU work first.
func onMPS(g preload.Grant, d gpu.Device) bool {
	return g.MPSPipeDir != "" || !d.Simulated && mps.Probe().Running()
}

// slice is what the flags ask for; anything out of range is wrong usage.
func (o *runOptions) slice() (gpu.Slice, error) {
	s := gpu.Slice{SMPct: o.sm, Mem: o.mem}
	var err error
	if s.QuotaRequest, s.QuotaLimit, err = gpu.ParseQuota(o.quota); err != nil {
		return s, cli.Usagef("--quota: %w", err)
	}
	if err := (gpu.Slice{SMPct: 100, QuotaRequest: s.QuotaRequest, QuotaLimit: s.QuotaLimit}).Validate(); err != nil {
		return s, cli.Usagef("--quota: %w", err)
	}
	if o.over && s.Mem == 0 {
		return s, cli.Usagef("--oversubscribe needs --mem: without a limit the command could take all of the host's memory")
	}
	if err := s.Validate(); err != nil {
		return s, cli.Usagef("%w", err)
	}
	return s, nil
}

var oddRunes = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// instance is the slice's name: the one that was asked for, or one that no
// other run has.
func (o *runOptions) instance(command string) (string, error) {
	if o.name != "" {
		if !instance.ValidID(o.name) {
			return "", cli.Usagef("--name %q: expected at most 63 of the characters A-Z a-z 0-9 . _ -, the first not a dot, and not token.sock", o.name)
		}
		return o.name, nil
	}
	const longest = 32
	base := strings.Trim(oddRunes.ReplaceAllString(filepath.Base(command), "-"), "-")
	if base == "" {
		base = "run"
	}
	return fmt.Sprintf("%s-%d-%s", base[:min(len(base), longest)], os.Getpid(), preload.NewSecret()[:6]), nil
}

// enter makes the slice known to a token daemon, found or started. The
// registration ends with this process even if leave is never called.
func (o *runOptions) enter(ctx context.Context, t *tool, g preload.Grant, s gpu.Slice, command string) (answer wire.Registered, leave func(), err error) {
	client, err := tokend.Starting(t.runDir, func() { t.env.Debugf("started gfaas-tokend for %s", t.runDir) })
	if err != nil {
		return answer, nil, err
	}
	leave = func() { leaveSlice(ctx, client, g.Instance, nil) }
	answer, err = client.Register(ctx, wire.Registration{
		Instance: g.Instance, Function: filepath.Base(command), Secret: g.Secret, OwnerPID: os.Getpid(), EndWithOwner: !o.detach, StopUnmanaged: o.stop,
		SLOMS:      float64(o.slo) / float64(time.Millisecond),
		Allocation: wire.Allocation{GPU: g.GPU[0], SMPct: s.SMPct, QuotaRequest: s.QuotaRequest, QuotaLimit: s.QuotaLimit, MemLimit: s.Mem},
	})
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if ctx.Err() != nil {
			leave() // the daemon may have it all the same
		}
		var refused *tokend.Error
		if errors.As(err, &refused) && refused.Status == http.StatusConflict {
			err = cli.Fail(cli.ExitFailure, "give the slice another --name", err)
		} else if refused != nil && refused.Status == http.StatusForbidden {
			err = cli.Fail(cli.ExitFailure, "what an instance starts shares its slice: run the command as it is", err)
		}
		return answer, nil, err
	}
	// Not under ctx: a command may go on after a signal.
	keep, stop := context.WithCancel(context.WithoutCancel(ctx))
	watch := tokend.NewWatch(client, g.Instance, func(u wire.Unmanaged) { t.env.Notef("warning: %v", u) })
	var watching sync.WaitGroup
	watching.Go(func() { watch.Run(keep) })
	if answer.IdleExit { // else whoever runs it looks after it
		go client.Keep(keep, g.Instance, time.Second, func(failed error) { noteAgain(t.env, failed) })
	}
	return answer, func() {
		stop()
		watching.Wait()
		leaveSlice(ctx, client, g.Instance, watch)
	}, nil
}

// noteAgain says that the daemon was started again, or could not be.
func noteAgain(env *cli.Env, failed error) {
	if failed != nil {
		env.Debugf("the token daemon is gone and cannot be started: %v", failed)
		return
	}
	env.Notef("note: the token daemon was gone: started it again")
}

// leaveSlice ends the registration unless the command left processes behind
// that still use the slice, or that the preload library is not in: then it ends with
// the last of them. Before that the daemon looks for unmanaged ones once more: what the
// command leaves behind will not descend from this process any longer.
func leaveSlice(ctx context.Context, client *tokend.Client, id string, watch *tokend.Watch) {
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	// A failure is hardly a loss: the daemon drops what has no owner. One that hangs for
	// longer takes us for killed, and ends what the command has left.
	if watch != nil {
		watch.Last(ctx)
	}
	_ = client.Leave(ctx, id)
}
