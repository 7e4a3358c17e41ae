package gfaas

import (
	"cmp"
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
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/child"
	"github.com/gfaas/gfaas/pkg/adapter/containercli"
	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/number"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

type runOptions struct {
	gpu    string
	sm     smShare
	quota  string
	mem    gpu.Bytes // 0: no limit
	name   string
	slo    time.Duration
	llm    bool
	noNVML bool
	detach bool // let the command continue if gfaas run is killed

	oversubscribe bool
	stopUnmanaged bool

	kind     string
	restarts int // with kind training: limit on restarts
}

func newRun(t *tool) *cobra.Command {
	o := runOptions{sm: smShare{100, 100}}
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND…",
		Short: "Run a command under a slice of a GPU",
		Long: `Run a command under a slice of a GPU. A slice limits three things for the command
and all processes that it starts: the share of the SMs (--sm), the fraction of
each time window (--quota) and the GPU memory (--mem). A window is 100 ms by default.
The command needs no changes: gfaas run makes it load the preload library, libgfaas.so.
The library limits the memory, and lets the command launch kernels only while the token
daemon, gfaas-tokend, permits it.

--quota is REQUEST:LIMIT. The command is guaranteed the fraction REQUEST of the time,
and may use up to the fraction LIMIT while other programs in slices leave the GPU
idle. Without a colon, both are equal: --quota 0.3 is also an upper bound. Both may
be percentages: 30%:80% is 0.3:0.8.

--sm, too, is REQUEST:LIMIT, in percent of the SMs. With the default policy of the token
daemon, multi-token, the command gets REQUEST percent of the SMs, and LIMIT has no effect.

If the token daemon runs with --policy introspective, the requests and limits of --sm and
--quota are combined. The daemon reserves a part of the GPU for the command: the product of
both REQUESTs. The command may get more, up to the product of both LIMITs, for example
while no command with a latency objective has work. With --sm 30:60 --quota 0.5:1, these
parts are 15% and 60%. The command starts with the LIMIT of --sm as its SM share, and the
daemon limits its kernel launches.

A latency objective (--slo) has an effect only with the policy introspective. As soon as
the kernel launches of the command become so slow that it may miss its objective, the
daemon raises its part of the GPU to the product of both LIMITs. Meanwhile, commands
without an objective may get less than their reserved parts.

An allocation beyond --mem fails like an allocation on a full GPU, with
CUDA_ERROR_OUT_OF_MEMORY. gfaas does not stop the command, which can allocate again
once it has freed memory.

The exit status is the status of the command, or 128+n if signal n ended it. If
gfaas run itself fails, the status is 125, 126 or 127; if SIGINT or SIGTERM ends it
before the command starts, the status is 130 or 143 (see EXIT STATUS). The command
uses the standard streams of gfaas run, so --out-file has no effect on its output.
gfaas run passes signals on to the command. A program that cannot load the preload
library (static, musl, setuid) is refused with exit status 126.

If gfaas run itself is killed (SIGKILL), the command and the processes that it has
started are killed, too. Without MPS, Linux kills the command at once, and the
token daemon, if it is running, kills the other processes within about a second.
Under MPS, Linux does not kill the command: the token daemon first ends the
work of the command and its processes on the GPU, and then kills them. With
--detach-on-kill, the command and its processes continue in the slice.

With --kind training, the command is restarted after a failure, up to --max-restarts
times, after a pause of 1 s that doubles with each restart up to a minute. It is complete
when it and all processes that it has started have ended. gfaas wait waits for such a
command, and for any other command with --name, and prints its result.

If a process gets a CUDA error after which all its calls fail, such as an illegal
address, a line on standard error names the call and the error.

If COMMAND is docker run, podman run, nerdctl run or docker compose run, its new
container is in the slice: gfaas run inserts arguments like those of gfaas
docker-args directly after the word run, and ends when the container ends. docker
compose run cannot take the arguments for a real GPU, so it works only with the
simulated GPU (--gpu sim). Some commands do not start
their program themselves, but ask another process to do so. These are docker exec,
start, restart, create and compose up, commands for an engine on another machine, and
programs such as sudo, ssh and systemd-run. They are refused with exit status 126,
because the program would be outside the slice.

A process may lose the preload library, for example if a Go program or a static
shell starts it with another environment. If such a process uses the GPU, nothing
limits it. The token daemon finds it within about a second, gfaas run prints a line
about it, and gfaas-tokend status shows it as unmanaged. With --stop-unmanaged, the
daemon kills it.

With --oversubscribe, slices whose memory limits sum to more than the GPU's memory can
use this memory in turn: the memory of a slice is moved to the host after half a second
without work, and back before its next work. For this, memory that the command
allocates (cuMemAlloc, cudaMalloc) becomes managed memory of CUDA, which counts against
the same limit. The moves take time, and managed memory cannot be shared with other
processes (cudaIpc).

Programs that read NVML (nvidia-smi, Ray, vLLM) see the slice: its limit as the
total memory, its use as the used memory, and only its own processes. With
--no-nvml, they see the whole GPU. (For the instances of a function, which gfaas serve
or gfaas up starts, set GFAAS_NO_NVML to "1" in the key env of function.yaml instead.)

CUDA_VISIBLE_DEVICES in the environment of gfaas run chooses the GPU like --gpu, and
may name only one GPU. A number is the number of a GPU in nvidia-smi or, if the GPU is
simulated, the number of a simulated GPU. If the variable hides the GPU of --gpu, or all
GPUs (it is empty, -1 or NoDevFiles), gfaas run fails with exit status 125. For the
command, gfaas run sets the variable to the slice's GPU. The command may replace this
value by another name of the same GPU. If the command sets the variable to a value that
does not contain the slice's GPU, its call of cuInit fails with CUDA_ERROR_NO_DEVICE, and
the preload library prints a line on standard error.

If no token daemon runs, gfaas run starts one, which ends a few seconds after its
last client. If that daemon is killed, the command pauses at its next kernel
launch. After 10 s, gfaas run starts the daemon again, and the command continues.`,
		Example: `  # Run a program on 24% of the SMs, for 30% of the time, with 2 GiB of memory
  gfaas run --sm 24 --quota 0.3 --mem 2GiB -- python train.py

  # Guarantee 30% of the time, allow up to 80%, and give a latency objective
  gfaas run --quota 0.3:0.8 --slo 69ms -- ./server --port 8080

  # Run a program on the simulated GPU
  gfaas run --gpu sim -- ./vadd

  # Run a training job, and restart it up to three times
  gfaas run --kind training --max-restarts 3 --quota 0.3:1 -- python train.py

  # Run a container in a slice
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
			if err := o.checkKind(cmd.Flags().Changed("max-restarts")); err != nil {
				return err
			}
			return o.run(cmd.Context(), t, args)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVar(&o.gpu, "gpu", "", "GPU: a number, a UUID or its beginning, MIG-UUID, sim, or sim:1 for the second simulated GPU (default: the GPU in CUDA_VISIBLE_DEVICES or 0; sim if there is no NVIDIA driver)")
	cli.CompleteWords(cmd, "gpu", "sim")
	f.Var(&o.sm, "sm", "guaranteed and maximum share of the streaming multiprocessors (SMs), in percent, as `REQUEST[:LIMIT]`, like 24:48")
	f.StringVar(&o.quota, "quota", "1", "guaranteed and maximum fraction of each time window, as `REQUEST[:LIMIT]`, like 0.3:0.8 or 30%:80%")
	cli.Memory(f, &o.mem, "mem", "limit on GPU memory, as a `size` like 1GiB; allocations beyond it fail (default no limit)")
	f.DurationVar(&o.slo, "slo", 0, "latency objective, like 69ms, for the policy introspective of gfaas-tokend (default no objective)")
	f.StringVar(&o.kind, "kind", function.DefaultKind, "kind of the command: inference, or training, which is restarted after failures")
	cli.CompleteWords(cmd, "kind", function.DefaultKind, function.Training)
	f.IntVar(&o.restarts, "max-restarts", function.DefaultMaxRestarts, "with --kind training: number of restarts after failures")
	f.BoolVar(&o.llm, "llm", false, "the command serves a language model, for which the policy introspective of gfaas-tokend has its own factor (violation-llm)")
	f.BoolVar(&o.oversubscribe, "oversubscribe", false, "move the command's GPU memory to the host while the command has no work (needs --mem)")
	f.BoolVar(&o.noNVML, "no-nvml", false, "let programs that read NVML see the whole GPU")
	f.BoolVar(&o.detach, "detach-on-kill", false, "let the command continue if gfaas run itself is killed")
	f.BoolVar(&o.stopUnmanaged, "stop-unmanaged", false, "kill processes of the command that use the GPU without the preload library")
	t.env.Statuses(cmd, `the command's, or 128+n if signal n ended it. If gfaas run itself fails:
125 wrong usage or any other failure; 126 the command was found but cannot run in a
slice; 127 the command was not found; 130, 143 ended by SIGINT, SIGTERM`, runStatus)
	f.StringVar(&o.name, "name", "", "name of the slice, which gfaas-tokend status shows (default: derived from COMMAND)")
	return cmd
}

// Exit statuses of gfaas run for its own errors, like those of env and docker run.
const (
	exitRun       = 125
	exitCannotRun = 126
	exitNotFound  = 127
)

// runStatus maps an error of gfaas run to its exit status.
func runStatus(e *cli.Error) int {
	start, unstarted := errors.AsType[*child.StartError](e.Err)
	_, unloadable := errors.AsType[*preload.ProgramError](e.Err)
	_, refused := errors.AsType[*containercli.RefusedError](e.Err)
	switch {
	case errors.Is(e.Err, exec.ErrNotFound), unstarted && errors.Is(start.Err, fs.ErrNotExist):
		return exitNotFound
	case unstarted, unloadable, refused:
		return exitCannotRun
	}
	return exitRun
}

// completeCommand completes the first argument with the programs on PATH and the others with files.
func completeCommand(_ *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || strings.Contains(prefix, "/") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var found []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		programs, _ := filepath.Glob(filepath.Join(dir, globEscape.Replace(prefix)+"*")) // empty for a missing folder
		for _, path := range programs {
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
				found = append(found, filepath.Base(path))
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found), cobra.ShellCompDirectiveDefault
}

// globEscape escapes the characters that have a meaning in filepath.Glob.
var globEscape = strings.NewReplacer("*", `\*`, "?", `\?`, "[", `\[`, `\`, `\\`)

// run registers a slice, runs the command in it, and returns when the command and its restarts have ended.
func (o *runOptions) run(ctx context.Context, t *tool, command []string) error {
	t.env.CleansUp()
	slice, err := o.slice()
	if err != nil {
		return err
	}
	container, err := containercli.Parse(command)
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
		NoNVML: o.noNVML,
	}
	if o.oversubscribe {
		grant.Oversubscribe = gpu.SwapIdle
	}
	if _, err := preload.Environ(grant); err != nil {
		return err // check the grant here, because enter may start a token daemon
	}
	checkLoad := func() error { return nil }
	if container == nil { // otherwise, command is the client of a container engine, which does not use the GPU itself
		// The loader of the program runs while enter registers the slice.
		if checkLoad, err = preload.AskLoader(ctx, command[0], libs.Hook, t.runDir); err != nil {
			return err
		}
	}
	if d.Simulated {
		devices.NoteSimulated(t.env)
		// If the program is killed, its files that represent the simulated GPU remain.
		defer func() { _ = simgpu.Sweep() }()
	}
	answer, unregister, err := o.enter(ctx, t, grant, slice, command[0])
	if err == nil {
		// MayHaveDescendants does not find the processes of a container: the engine is their parent.
		defer func() { unregister(container != nil || procfs.MayHaveDescendants()) }()
	}
	if refused := checkLoad(); refused != nil { // takes precedence over the error of enter
		return refused
	}
	if err != nil {
		return err
	}
	if o.name != "" {
		if err := host.ResultsOf(t.runDir).Remove(id); err != nil { // an earlier command may have had this name
			return err
		}
	}
	if answer.Note != "" {
		t.env.Notef("note: %s", answer.Note)
	}
	if answer.Warning != "" {
		t.env.Notef("warning: %s", answer.Warning)
	}
	noteBeyond(t.env, map[string]gpu.Bytes{d.String(): slice.Mem})
	grant.MPSPipeDir, grant.Mem, grant.SMPct = answer.MPSPipeDir, slice.Mem, cmp.Or(answer.SMPct, slice.SMPct)
	result, err := o.toCompletion(ctx, t, func() (int, error) {
		if container != nil {
			guest, err := docker.NewGuest(docker.Config{RunDir: t.runDir, Libs: grant.Libs}, grant)
			if err != nil {
				return 0, err
			}
			return container.Run(ctx, guest, !o.detach, func() { t.env.Notef("note: the container runs in the background; gfaas run waits until it has ended") })
		}
		env, err := preload.Environ(grant)
		if err != nil {
			return 0, err
		}
		return child.Run(ctx, command, env, !o.detach && !onMPS(grant, d))
	})
	o.store(t, id, filepath.Base(command[0]), result, err)
	if err != nil || result.ExitCode == 0 {
		return err
	}
	return cli.Exit(result.ExitCode)
}

// onMPS reports whether the command will be a client of MPS. In that case, the kernel must not kill the
// command together with gfaas run: the token daemon ends its GPU work first.
func onMPS(g preload.Grant, d gpu.Device) bool {
	return g.MPSPipeDir != "" || !d.Simulated && mps.Probe().Running()
}

// slice returns the slice that the flags describe, or a usage error for a value out of range.
func (o *runOptions) slice() (gpu.Slice, error) {
	s := gpu.Slice{SMPct: o.sm.request, Mem: o.mem}
	if o.sm.limit != o.sm.request {
		s.SMLimitPct = o.sm.limit
	}
	var err error
	if s.QuotaRequest, s.QuotaLimit, err = parseQuota(o.quota); err != nil {
		return s, err
	}
	if o.oversubscribe && s.Mem == 0 {
		return s, cli.Usagef("--oversubscribe needs --mem: without a limit, the command could use all of the host's memory")
	}
	if err := s.Validate(); err != nil {
		return s, cli.Usagef("%w", err)
	}
	return s, nil
}

// smShare is the value of --sm, in percent.
type smShare struct{ request, limit float64 }

// Set parses REQUEST[:LIMIT]. LIMIT defaults to REQUEST. Set returns an error for a LIMIT of 0, which
// gpu.Slice would read as "equal to the request". gpu.Slice.Validate checks the range of all other values.
func (s *smShare) Set(text string) error {
	request, limit, both := strings.Cut(text, ":")
	var failed [2]error
	s.request, failed[0] = strconv.ParseFloat(request, 64)
	s.limit = s.request
	if both {
		s.limit, failed[1] = strconv.ParseFloat(limit, 64)
	}
	if failed != [2]error{} || both && s.limit == 0 {
		return errors.New("expected REQUEST or REQUEST:LIMIT, percentages like 24:48")
	}
	return nil
}

// String returns the value in the form that Set parses.
func (s *smShare) String() string { return number.Range(s.request, s.limit) }

// Type returns the name of the value for usage messages.
func (s *smShare) Type() string { return "REQUEST[:LIMIT]" }

// parseQuota parses --quota. It returns a usage error for a quota out of range.
func parseQuota(text string) (request, limit float64, err error) {
	request, limit, err = gpu.ParseQuota(text)
	if err == nil {
		err = gpu.Slice{SMPct: 100, QuotaRequest: request, QuotaLimit: limit}.Validate()
	}
	if err != nil {
		err = cli.Fail(cli.ExitUsage, percentHint(text), fmt.Errorf("--quota: %w", err))
	}
	return request, limit, err
}

// percentHint returns a hint for a quota with a number above 1, such as 30, which was probably meant as a
// percentage. It returns an empty string for any other quota.
func percentHint(quota string) string {
	percentages := strings.Split(quota, ":")
	fractions := slices.Clone(percentages)
	for i, part := range percentages {
		if v, err := strconv.ParseFloat(part, 64); err == nil && v > 1 && v <= 100 {
			percentages[i], fractions[i] = part+"%", number.Plain(v/100)
		}
	}
	meant := strings.Join(percentages, ":")
	if meant == quota {
		return ""
	}
	return fmt.Sprintf("for a percentage, write %s or %s", meant, strings.Join(fractions, ":"))
}

// oddRunes matches the characters of a command that its slice's name does not contain.
var oddRunes = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// instance returns the name of the slice: --name, or a unique name derived from the command.
func (o *runOptions) instance(command string) (string, error) {
	if o.name != "" {
		if !instance.ValidID(o.name) {
			return "", cli.Usagef("--name %q: expected at most 63 letters, digits, '.', '_' or '-', not starting with a dot, and not token.sock", o.name)
		}
		return o.name, nil
	}
	const longest = 32
	base := cmp.Or(strings.Trim(oddRunes.ReplaceAllString(filepath.Base(command), "-"), "-"), "run")
	return fmt.Sprintf("%s-%d-%s", base[:min(len(base), longest)], os.Getpid(), preload.NewSecret()[:6]), nil
}

// enter registers the slice with the token daemon, and starts the daemon if necessary. The caller calls
// unregister with mayRun set if processes of the slice may still run. The registration also ends with this
// process.
func (o *runOptions) enter(ctx context.Context, t *tool, g preload.Grant, s gpu.Slice, command string) (answer wire.Registered, unregister func(mayRun bool), err error) {
	client, err := tokend.Starting(t.runDir, func() { t.env.Debugf("started gfaas-tokend for %s", t.runDir) })
	if err != nil {
		return answer, nil, err
	}
	kind := ""
	if o.training() {
		kind = o.kind
	}
	answer, unregister, err = tokend.Enter(ctx, client, wire.Registration{
		Kind:     kind,
		Instance: g.Instance, Function: filepath.Base(command), Secret: g.Secret, OwnerPID: os.Getpid(), EndWithOwner: !o.detach, StopUnmanaged: o.stopUnmanaged,
		LLM:        o.llm,
		SLOMS:      float64(o.slo) / float64(time.Millisecond),
		Allocation: wire.AllocationOf(g.GPU[0], s),
	}, tokend.Events{
		Unmanaged: func(u wire.Unmanaged) { t.env.Notef("warning: %v", u) },
		Faulted: func(f wire.InstanceFault) {
			fmt.Fprintf(t.env.Err, "%s: error: process %d cannot use CUDA any more: %v\n", t.env.Prog, f.PID, f)
		},
		Restarted: func(failed error) {
			if failed != nil {
				t.env.Debugf("cannot restart the token daemon, which has ended: %v", failed)
				return
			}
			t.env.Notef("note: the token daemon had ended: started it again")
		},
	})
	if refused, ok := errors.AsType[*tokend.Error](err); ok && refused.Status == http.StatusConflict {
		err = cli.Fail(cli.ExitFailure, "choose another name with --name", err)
	} else if ok && refused.Status == http.StatusForbidden {
		err = cli.Fail(cli.ExitFailure, "gfaas run cannot be used inside an instance: commands that an instance starts are already in its slice, so start the command directly", err)
	}
	return answer, unregister, err
}
