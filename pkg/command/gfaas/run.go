package gfaas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/launch"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

type runOptions struct {
	gpu   string
	sm    float64
	quota string
	mem   string
	name  string
}

func newRun(t *tool) *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND…",
		Short: "Run a command under a slice of a GPU",
		Long: `Runs any command that uses CUDA under a slice of a GPU, which the whole process
tree shares: a share of the streaming multiprocessors, a quota of each time
window, a limit on memory. The command need not know.

The exit status is the command's, or 128+n when signal n ended it. Signals are
passed on; the standard streams are the command's own. A program that the
preload library cannot be loaded into (static, musl, setuid) is refused with
exit 4.

The token daemon that hands out GPU time is started when there is none, and
leaves a few seconds after its last client.`,
		Example: `  gfaas run --sm 24 --quota 0.3 --mem 2GiB -- python train.py
  gfaas run --quota 0.3:0.8 -- ./server --port 8080
  gfaas run --gpu sim -- ./vadd`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || args[0] == "" {
				return errors.New("COMMAND is missing")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			// An empty variable in a script must not mean that there is no limit.
			if cmd.Flags().Changed("mem") && o.mem == "" {
				return cli.Usagef("--mem is empty: expected a size like 1GiB")
			}
			return o.run(cmd.Context(), t, args)
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVar(&o.gpu, "gpu", "", "GPU: a device number, or sim (default 0; sim where there is no NVIDIA driver)")
	f.Float64Var(&o.sm, "sm", 100, "share of the streaming multiprocessors, in percent")
	f.StringVar(&o.quota, "quota", "1", "REQUEST[:LIMIT]: guaranteed and largest fraction of each window")
	f.StringVar(&o.mem, "mem", "", "limit on GPU memory, like 1GiB (default none)")
	f.StringVar(&o.name, "name", "", "what the slice is called in gfaas-tokend status (default from COMMAND)")
	return cmd
}

func (o *runOptions) run(ctx context.Context, t *tool, command []string) error {
	slice, err := o.slice()
	if err != nil {
		return err
	}
	device, err := o.device()
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
	if err := preload.CheckLoads(ctx, command[0], libs.Hook); err != nil {
		return err
	}
	grant := preload.Grant{
		Socket:   filepath.Join(tokend.ClientSocketDir(t.launch.RunDir), "token.sock"),
		Instance: id, Secret: preload.NewSecret(), GPU: []string{device}, SMPct: slice.SMPct, Libs: libs,
	}
	env, err := preload.Environ(grant)
	if err != nil {
		return err
	}
	if _, simulated, _ := gpu.ParseName(device); simulated {
		launch.NoteSimulated(t.env)
		// A program that is killed leaves its part of the device behind.
		defer func() { _ = simgpu.Sweep() }()
	}
	leave, err := enter(ctx, t, grant, slice, command[0])
	if err != nil {
		return err
	}
	defer leave()
	status, err := runChild(ctx, command, environ(env))
	if err != nil || status == 0 {
		return err
	}
	return cli.Exit(status)
}

// slice is what the flags ask for; anything out of range is wrong usage.
func (o *runOptions) slice() (gpu.Slice, error) {
	s := gpu.Slice{SMPct: o.sm}
	var err error
	if s.QuotaRequest, s.QuotaLimit, err = gpu.ParseQuota(o.quota); err != nil {
		return s, cli.Usagef("--quota: %w", err)
	}
	if o.mem != "" {
		if s.Mem, err = gpu.ParseBytes(o.mem); err != nil {
			return s, cli.Usagef("--mem: %w", err)
		}
		if s.Mem == 0 {
			return s, cli.Usagef("--mem %s: expected more than 0", o.mem)
		}
	}
	if err := s.Validate(); err != nil {
		return s, cli.Usagef("%w", err)
	}
	return s, nil
}

// device is the GPU to use. A real one needs a driver.
func (o *runOptions) device() (string, error) {
	if o.gpu == "" {
		return launch.DefaultGPU(), nil
	}
	index, simulated, err := gpu.ParseName(o.gpu)
	if err != nil {
		return "", cli.Usagef("--gpu: %w", err)
	}
	if err := launch.CheckGPU(o.gpu); err != nil {
		return "", err
	}
	if simulated {
		return gpu.SimName(index), nil
	}
	return strconv.Itoa(index), nil
}

var oddRunes = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// instance is the slice's name: the one that was asked for, or one that no
// other run has.
func (o *runOptions) instance(command string) (string, error) {
	if o.name != "" {
		if !wire.ValidInstance(o.name) {
			return "", cli.Usagef("--name %q: expected at most 63 of the characters A-Z a-z 0-9 . _ -, the first not a dot", o.name)
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
func enter(ctx context.Context, t *tool, g preload.Grant, s gpu.Slice, command string) (leave func(), err error) {
	client, started, err := tokend.Ensure(ctx, t.launch.RunDir)
	if err != nil {
		return nil, err
	}
	if started {
		t.env.Debugf("started gfaas-tokend for %s", t.launch.RunDir)
	}
	leave = func() { unregister(ctx, client, g.Instance) }
	err = client.Register(ctx, wire.Registration{
		Instance: g.Instance, Function: filepath.Base(command), Secret: g.Secret, GPU: g.GPU[0],
		SMPct: s.SMPct, QuotaRequest: s.QuotaRequest, QuotaLimit: s.QuotaLimit, MemLimit: s.Mem,
		OwnerPID: os.Getpid(),
	})
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if ctx.Err() != nil {
			leave() // the daemon may have it all the same
		}
		return nil, err
	}
	return leave, nil
}

// unregister ends the registration unless the command left processes behind
// that still use the slice: then it ends with the last of them, as the daemon
// sees to for an owner that is gone.
func unregister(ctx context.Context, client *tokend.Client, id string) {
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	status, err := client.Status(ctx)
	if err != nil {
		return
	}
	for _, g := range status.GPUs {
		for _, c := range g.Clients {
			if c.Instance == id && c.PID != 0 && alive(c.PID) {
				return
			}
		}
	}
	// A failure is no loss: the daemon drops what has no owner.
	_ = client.Unregister(ctx, id)
}

// environ is this process's environment with the given variables set.
func environ(set map[string]string) []string {
	var out []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if _, ours := set[name]; !ours {
			out = append(out, entry)
		}
	}
	for name, value := range set {
		out = append(out, name+"="+value)
	}
	return out
}
