package tokend

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gfaas/gfaas/pkg/adapter/gpuclaim"
	"github.com/gfaas/gfaas/pkg/adapter/mps/keeper"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/csvfile"
	"github.com/gfaas/gfaas/pkg/daemon/token"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/owndir"
	policies "github.com/gfaas/gfaas/pkg/policy"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/wire"
)

// serveOptions holds the daemon's flags.
type serveOptions struct {
	env          *cli.Env
	socket       string
	window       time.Duration
	round        time.Duration
	policy       string
	grantOrder   string
	set          []string
	smLimit      float64
	mps          string
	listen       string
	exitWhenIdle time.Duration
	clientUIDs   []int
	countContext bool
	trust        string
	node         string
	grantKeep    time.Duration
}

func (o *serveOptions) flags(f *pflag.FlagSet) {
	f.DurationVar(&o.window, "window", gpu.Window, "length of a scheduling window")
	f.DurationVar(&o.round, "round", gpu.Round, "limit on the length of a round, in which each waiting client gets a turn; with the value of --window or more, there are no rounds")
	f.StringVar(&o.policy, "policy", policy.MultiToken, "scheduling policy: "+strings.Join(policy.Names(), " or "))
	f.StringVar(&o.grantOrder, "grant-order", policy.OrderRounds, "order in which multi-token grants leases: rounds or, for comparisons, paper: that of the FaST-GShare paper, without rounds (docs/sharing.md)")
	f.StringArrayVar(&o.set, "set", nil, "parameter of the policy introspective, as `KEY=VALUE`, like violation=1.3 (repeatable)")
	f.Float64Var(&o.smLimit, "sm-limit", 100, "limit on the sum of the SM shares of all leases on a GPU, in percent")
	f.StringVar(&o.mps, "mps", "auto", "NVIDIA MPS for instances with less than 100% of a real GPU's SMs: auto (starts a private MPS daemon if necessary) or off")
	f.StringVar(&o.listen, "listen", "", "also serve /healthz, /readyz and /metrics on this TCP address")
	f.IntSliceVar(&o.clientUIDs, "client-uid", nil,
		"also let processes with this uid connect, such as a uid that the container engine maps users to (root and the daemon's own user always may)")
	f.BoolVar(&o.countContext, "count-context", false,
		"count memory that the driver keeps for a process, such as its context, against the memory limit of the instance")
	f.StringVar(&o.trust, "trust", "", "`file` of public keys (gfaas grant) whose grants register instances, such as those of gfaas-place export --sign")
	f.StringVar(&o.node, "node", "", "`name` of this node in grants (default: the host name)")
	f.DurationVar(&o.grantKeep, "grant-keep", 10*time.Minute, "how long a registration by a grant stays after the last process of its instance has ended")
	f.DurationVar(&o.exitWhenIdle, "exit-when-idle", 0, "exit after this time without instances and clients (0: never)")
}

// check validates the flags.
func (o *serveOptions) check() error {
	switch {
	case !slices.Contains(policy.Names(), o.policy):
		return cli.Usagef("--policy %q: expected %s", o.policy, strings.Join(policy.Names(), " or "))
	case !slices.Contains(policy.GrantOrders(), o.grantOrder):
		return cli.Usagef("--grant-order %q: expected %s", o.grantOrder, strings.Join(policy.GrantOrders(), " or "))
	case o.window < time.Millisecond || o.window > time.Minute:
		return cli.Usagef("--window %v: expected between 1ms and 1m", o.window)
	case o.round < time.Millisecond || o.round > time.Minute:
		return cli.Usagef("--round %v: expected between 1ms and 1m", o.round)
	case !(o.smLimit > 0 && o.smLimit <= 100):
		return cli.Usagef("--sm-limit %v: expected more than 0 and at most 100 percent", o.smLimit)
	case o.mps != "auto" && o.mps != "off":
		return cli.Usagef("--mps %q: expected auto or off", o.mps)
	case o.grantKeep < 0:
		return cli.Usagef("--grant-keep %v: expected 0 or more", o.grantKeep)
	case o.exitWhenIdle < 0:
		return cli.Usagef("--exit-when-idle %v: expected 0 or more", o.exitWhenIdle)
	case slices.ContainsFunc(o.clientUIDs, func(uid int) bool { return uid < 0 || uid > math.MaxUint32 }):
		return cli.Usagef("--client-uid %v: expected user IDs from 0 to 4294967295", o.clientUIDs)
	case o.socket == "":
		return cli.Usagef("--socket is empty: expected a path")
	}
	if _, err := o.introspective(); err != nil {
		return err
	}
	_, err := cli.CheckAddress("--listen", o.listen)
	return err
}

// introspective returns the parameters of --set.
func (o *serveOptions) introspective() (policy.IntrospectiveParameters, error) {
	p := policy.DefaultIntrospective()
	for _, text := range o.set {
		key, value, ok := strings.Cut(text, "=")
		parameter := policies.Find(policy.IntrospectiveSettings(), key)
		switch {
		case o.policy != policy.Introspection:
			return p, cli.Usagef("--set has no effect with --policy %s: expected --policy %s", o.policy, policy.Introspection)
		case !ok:
			return p, cli.Usagef("--set %s: expected KEY=VALUE", csvfile.Quote(text))
		case parameter == nil:
			return p, cli.Usagef("--set %s: unknown parameter of %s", csvfile.Quote(text), policy.Introspection)
		}
		if err := parameter.Set(&p, value); err != nil {
			return p, cli.Usagef("--set %s: %v", csvfile.Quote(text), err)
		}
	}
	if err := p.Check(); err != nil {
		return p, cli.Usagef("--set %w", err)
	}
	return p, nil
}

func (o *serveOptions) settings() token.Settings {
	return token.Settings{Window: o.window, Round: o.round, SMLimit: o.smLimit, GrantOrder: o.grantOrder}
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
	shared := keeper.New(filepath.Dir(socket), o.mps == "off", log)
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
		shared.Stop()
	}
	introspective, err := o.introspective()
	if err != nil {
		return err
	}
	grants, err := o.grants()
	if err != nil {
		return err
	}
	d, err := token.Open(token.Config{
		Settings: o.settings(), Policy: o.policy, Introspective: introspective, Socket: socket, Listen: o.listen, ExitWhenIdle: o.exitWhenIdle, ClientUIDs: o.clientUIDs,
		Private: cli.IsRunDir(filepath.Dir(socket)), Log: log, Cleanup: leave, Grants: grants,
		Prepare: func(ctx context.Context, r wire.Registration) wire.Registered {
			return withWarning(claims, r, shared.Prepare(ctx, r))
		},
		BeforeKill: shared.Doomed,
		OnFirstUse: func(name string) { _ = claims.Claim(name) }, // Prepare warns about a conflict
		Memory:     occupied.Processes, CountContext: o.countContext, Mover: mover{occupied},
		Devices: func() []wire.DeviceMemory { return deviceMemory(occupied) },
		Reload:  func() (token.Settings, error) { return o.reload(cmd.Flags(), log) },
	})
	if errors.Is(err, fs.ErrPermission) {
		return cli.Fail(cli.ExitUnavailable, owndir.Hint, err)
	}
	if err != nil {
		return err
	}
	if grants != nil {
		if err := provide(ctx, filepath.Dir(socket), shared, log); err != nil {
			log.Warn("containers of instances with grants may not start", "err", err)
		}
	}
	attrs := []any{"socket", socket, "window", o.window.String(), "round", o.round.String(), "policy", o.policy, "grant_order", o.grantOrder, "sm_limit", o.smLimit}
	if addr := d.WebAddr(); addr != nil {
		attrs = append(attrs, "listen", addr.String())
	}
	if grants != nil {
		attrs = append(attrs, "node", grants.Node, "trusted_keys", grants.Trust.Len())
	}
	log.Info("serving", attrs...)
	o.claim(claims, log)
	watching.Go(func() { shared.Watch(ctx) })
	err = d.Serve(ctx)
	log.Info("stopped")
	return err
}

// deviceNames returns the names of the GPUs of this host.
func deviceNames() (names []string) {
	const maxGPUs = 64
	simulated := !preload.HasNVIDIA()
	for n := range min(devices.Count(simulated), maxGPUs) {
		names = append(names, gpu.Device{Index: n, Simulated: simulated}.String())
	}
	return names
}

// deviceMemory returns the memory of the GPUs of this host.
func deviceMemory(occupied *devices.Occupancy) (out []wire.DeviceMemory) {
	for _, name := range deviceNames() {
		d := wire.DeviceMemory{GPU: name}
		if processes, err := occupied.Processes(name); err == nil {
			d.Processes = map[int]int64{}
			for pid, used := range processes {
				d.Processes[pid] = int64(used)
			}
		}
		free, total, err := occupied.Free(name)
		if d.Free, d.Total = int64(free), int64(total); err != nil {
			d.Error = err.Error()
		}
		out = append(out, d)
	}
	return out
}

// claim logs a warning for each GPU of this host that another token daemon manages. A daemon without an idle
// timeout claims all other GPUs at once. A daemon with a timeout claims a GPU when it is used.
func (o *serveOptions) claim(claims *gpuclaim.Claims, log *slog.Logger) {
	for _, name := range deviceNames() {
		claim := claims.Claim
		if o.exitWhenIdle > 0 {
			claim = gpuclaim.Holder
		}
		if other := claim(name); other != nil {
			log.Warn(other.String(), "gpu", name, "uid", other.UID, "pid", other.PID, "run_dir", other.RunDir)
		}
	}
}

// withWarning claims the GPUs of an instance. If another token daemon manages any of these GPUs, it adds a warning
// to the answer.
func withWarning(claims *gpuclaim.Claims, r wire.Registration, answer wire.Registered) wire.Registered {
	for _, a := range r.Allocations() {
		if other := claims.Claim(a.Device()); other != nil {
			answer.Warning = other.String()
		}
	}
	return answer
}

// reload reads the settings again. After an error, the settings stay unchanged.
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
	o.restoreFixed(before, log)
	return o.settings(), nil
}

// restoreFixed restores the settings that cannot change while the daemon runs, and logs those whose new value needs a
// restart.
func (o *serveOptions) restoreFixed(before serveOptions, log *slog.Logger) {
	wanted := *o
	*o = before
	o.window, o.round, o.smLimit, o.grantOrder = wanted.window, wanted.round, wanted.smLimit, wanted.grantOrder
	cli.NoteRestart(log, map[string]bool{
		"policy": wanted.policy != before.policy, "mps": wanted.mps != before.mps, "listen": wanted.listen != before.listen,
		"exit-when-idle": wanted.exitWhenIdle != before.exitWhenIdle, "count-context": wanted.countContext != before.countContext,
		"client-uid": !slices.Equal(wanted.clientUIDs, before.clientUIDs), "set": !slices.Equal(wanted.set, before.set),
		"trust": wanted.trust != before.trust, "node": wanted.node != before.node, "grant-keep": wanted.grantKeep != before.grantKeep,
	})
}
