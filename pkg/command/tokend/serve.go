package tokend

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/adapter/gpuclaim"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/daemon/token"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/owndir"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// serveOptions are the daemon's flags.
type serveOptions struct {
	env          *cli.Env
	socket       string
	window       time.Duration
	round        time.Duration
	policy       string
	smLimit      float64
	mps          string
	listen       string
	exitWhenIdle time.Duration
	clientUIDs   []int
	countContext bool
}

func (o *serveOptions) flags(f *pflag.FlagSet) {
	f.DurationVar(&o.window, "window", gpu.Window, "length of a scheduling window")
	f.DurationVar(&o.round, "round", gpu.Round, "in which all that wait for the GPU have had a turn; a window or more: turns end where budgets do")
	f.StringVar(&o.policy, "policy", policy.MultiToken, "who gets the GPU when: "+strings.Join(policy.Names(), " or "))
	f.Float64Var(&o.smLimit, "sm-limit", 100, "most percent of a GPU's SMs that leases hold together")
	f.StringVar(&o.mps, "mps", "auto", "auto starts a private NVIDIA MPS daemon for instances below 100% of a real GPU's SMs; off never does")
	f.StringVar(&o.listen, "listen", "", "also serve /healthz, /readyz and /metrics on this TCP address")
	f.IntSliceVar(&o.clientUIDs, "client-uid", nil,
		"also let processes of this user connect: the container engine's users, where it maps them (root and the daemon's own always may)")
	f.BoolVar(&o.countContext, "count-context", false,
		"count what the driver holds for a process, such as its context, against its memory limit")
	f.DurationVar(&o.exitWhenIdle, "exit-when-idle", 0, "leave after so long without instances and clients (0: never)")
}

// check says what is wrong with the flags, if anything.
func (o *serveOptions) check() error {
	switch {
	case !slices.Contains(policy.Names(), o.policy):
		return cli.Usagef("--policy %q is not available: expected %s", o.policy, strings.Join(policy.Names(), " or "))
	case o.window < time.Millisecond || o.window > time.Minute:
		return cli.Usagef("--window %v: expected between 1ms and 1m", o.window)
	case o.round < time.Millisecond || o.round > time.Minute:
		return cli.Usagef("--round %v: expected between 1ms and 1m", o.round)
	case !(o.smLimit > 0 && o.smLimit <= 100):
		return cli.Usagef("--sm-limit %v: expected more than 0 and at most 100 percent", o.smLimit)
	case o.mps != "auto" && o.mps != "off":
		return cli.Usagef("--mps %q: expected auto or off", o.mps)
	case o.exitWhenIdle < 0:
		return cli.Usagef("--exit-when-idle %v: expected 0 or more", o.exitWhenIdle)
	case slices.ContainsFunc(o.clientUIDs, func(uid int) bool { return uid < 0 || uid > math.MaxUint32 }):
		return cli.Usagef("--client-uid %v: expected numbers of users", o.clientUIDs)
	case o.socket == "":
		return cli.Usagef("--socket is empty: expected a path")
	}
	return checkAddress(o.listen)
}

// checkAddress wants HOST:PORT or nothing; whether it can be had shows later.
func checkAddress(listen string) error {
	if listen == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(listen)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return cli.Usagef("--listen %q: expected HOST:PORT: %w", listen, err)
	}
	return nil
}

func (o *serveOptions) settings() token.Settings {
	return token.Settings{Window: o.window, Round: o.round, SMLimit: o.smLimit}
}

func (o *serveOptions) run(cmd *cobra.Command) error {
	o.env.CleansUp()
	o.env.Reloads()
	if err := o.check(); err != nil {
		return err
	}
	socket, err := filepath.Abs(o.socket)
	if err != nil {
		return err
	}
	log := logger(o.env, filepath.Dir(socket))
	keeper := newKeeper(filepath.Dir(socket), o.mps == "off", log)
	claims := gpuclaim.New(filepath.Dir(socket))
	defer claims.Close()
	occupied := devices.NewOccupancy()
	defer occupied.Close()
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	var watching sync.WaitGroup
	leave := func() {
		stop()
		watching.Wait()
		keeper.stop()
	}
	d, err := token.Open(token.Config{
		Settings: o.settings(), Policy: o.policy, Socket: socket, Listen: o.listen, ExitWhenIdle: o.exitWhenIdle, ClientUIDs: o.clientUIDs,
		Private: isRunDir(filepath.Dir(socket)), Log: log, Leave: leave,
		Prepare: func(ctx context.Context, r wire.Registration) wire.Registered {
			return warned(claims, r, keeper.prepare(ctx, r))
		},
		Doomed: keeper.doomed,
		Uses:   func(name string) { _ = claims.Take(name) }, // who registers is told
		Memory: occupied.Processes, CountContext: o.countContext, Mover: mover{occupied},
		Reload: func() (token.Settings, error) { return o.reload(cmd.Flags(), log) },
	})
	if errors.Is(err, fs.ErrPermission) {
		return cli.Fail(cli.ExitUnavailable, owndir.Hint, err)
	}
	if err != nil {
		return err
	}
	attrs := []any{"socket", socket, "window", o.window.String(), "round", o.round.String(), "policy", o.policy, "sm_limit", o.smLimit}
	if addr := d.WebAddr(); addr != nil {
		attrs = append(attrs, "listen", addr.String())
	}
	log.Info("serving", attrs...)
	o.claim(claims, log)
	watching.Go(func() { keeper.watch(ctx) })
	err = d.Serve(ctx)
	log.Info("stopped")
	return err
}

// claim logs which GPUs of the machine another token daemon shares out. A daemon that
// does not leave when it is idle claims the others: they are its own from now on. One
// that does claims those that it is used for.
func (o *serveOptions) claim(claims *gpuclaim.Claims, log *slog.Logger) {
	const most = 64
	for n := range min(devices.Count(!preload.HasNVIDIA()), most) {
		name := gpu.Device{Index: n, Simulated: !preload.HasNVIDIA()}.String()
		look := claims.Take
		if o.exitWhenIdle > 0 {
			look = gpuclaim.Holder
		}
		if other := look(name); other != nil {
			log.Warn(other.String(), "gpu", name, "uid", other.UID, "pid", other.PID, "run_dir", other.RunDir)
		}
	}
}

// warned claims the GPUs of an instance, and adds a warning to its answer if another
// token daemon has one of them.
func warned(claims *gpuclaim.Claims, r wire.Registration, answer wire.Registered) wire.Registered {
	for _, a := range r.Allocations() {
		if other := claims.Take(a.Device()); other != nil {
			answer.Warning = other.String()
		}
	}
	return answer
}

// reload reads the settings again.
func (o *serveOptions) reload(flags *pflag.FlagSet, log *slog.Logger) (token.Settings, error) {
	before := *o
	err := o.env.Reread(flags)
	if err == nil {
		err = o.check()
	}
	if err != nil {
		*o = before
		return token.Settings{}, err
	}
	o.keep(before, log)
	return o.settings(), nil
}

// keep goes on with the settings that the daemon cannot change while it runs,
// and says which of them somebody wanted otherwise.
func (o *serveOptions) keep(before serveOptions, log *slog.Logger) {
	wanted := *o
	*o = before
	o.window, o.round, o.smLimit = wanted.window, wanted.round, wanted.smLimit
	cli.NoteRestart(log, map[string]bool{
		"policy": wanted.policy != before.policy, "mps": wanted.mps != before.mps, "listen": wanted.listen != before.listen,
		"exit-when-idle": wanted.exitWhenIdle != before.exitWhenIdle, "count-context": wanted.countContext != before.countContext,
		"client-uid": !slices.Equal(wanted.clientUIDs, before.clientUIDs),
	})
}

// isRunDir says whether the folder is the run directory, which is ours to make
// private, and not one that was merely named.
func isRunDir(dir string) bool {
	run, err := filepath.Abs(cli.RunDir())
	return err == nil && run == dir
}
