package gfaas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
)

// cleanupTime bounds the undoing of an up that failed or was interrupted.
const cleanupTime = time.Minute

type upOptions struct {
	node     string
	gpu      string
	parallel int
	timeout  time.Duration
}

func newUp(t *tool) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up PLAN.json",
		Short: "Start the instances of a plan",
		Long: `Starts every instance that a plan places on this machine, each under its slice
of its GPU, and returns when all are ready to answer. They live on until gfaas
down. Functions with an image run as containers, the others as processes.

The token daemon keeps the plan's timetable: in each window an instance has the
part that the plan gives it, and what it leaves idle is lent to who waits.

When one instance fails to start, on ^C, or when the terminal is closed, all
that this call started are stopped again. The functions must have been applied. While
another gfaas up or a gfaas down is at work it waits, for three minutes at most
(exit 6).`,
		Example: `  gfaas up plan.json
  gfaas-place plan --profile profile.csv --demand resnet=100 -o json | gfaas up -`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cli.FileArgs("json"),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), t, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.node, "node", "", "the node of the plan that is this machine (default the only one)")
	f.StringVar(&o.gpu, "gpu", "", "sim starts everything on simulated GPUs (default where there is no NVIDIA driver)")
	cli.Words(cmd, "gpu", "sim")
	f.IntVar(&o.parallel, "parallel", 8, "how many instances to start at a time")
	f.DurationVar(&o.timeout, "timeout", launch.DefaultPatience, "how long an instance may take to become ready")
	return cmd
}

func (o *upOptions) run(ctx context.Context, t *tool, path string) error {
	if err := o.check(); err != nil {
		return err
	}
	p, err := cli.Load(t.env, path, plan.Read)
	if err != nil {
		return err
	}
	t.env.CleansUp()
	release, err := host.Exclusive(ctx, t.env, t.runDir)
	if err != nil {
		return err
	}
	defer release()
	list, err := o.assignments(ctx, t, p, warn(t.env, p))
	if err != nil {
		return err
	}
	for _, u := range p.Unplaced {
		t.env.Notef("note: the plan leaves %v requests a second of %s unplaced: %s", u.RPS, u.Function, u.Reason)
	}
	if len(list) == 0 {
		t.env.Notef("note: the plan places no instance")
		return nil
	}
	launcher, err := host.Starter(ctx, t.env, t.runDir, o.timeout)
	if err != nil {
		return err
	}
	defer launcher.Close()
	all, err := t.inventory(ctx, launcher)
	if err == nil {
		err = all.dropDead(ctx, launcher)
	}
	if err == nil {
		err = errors.Join(all.broken, all.checkLost(list))
	}
	if err != nil {
		return err
	}
	up := &rollout{tool: t, starter: launcher, list: list}
	return up.run(ctx, o.parallel)
}

// warn tells what verify would find wrong, and returns the GPUs whose timetable
// nobody could keep. It does not stop the plan: the token daemon holds every
// instance to its slice, promised twice or not.
func warn(env *cli.Env, p plan.Plan) (unsound []string) {
	wrong := verify.Plan(p, verify.Inputs{})
	if len(wrong) == 0 {
		return nil
	}
	for _, v := range wrong {
		switch v.Rule {
		case verify.RuleInside, verify.RuleOverlap, verify.RuleSchedule, verify.RuleID, verify.RuleGPU:
			if v.GPU != "" && !slices.Contains(unsound, v.GPU) {
				unsound = append(unsound, v.GPU)
			}
		}
	}
	where := ""
	if len(unsound) > 0 {
		where = ", so quotas alone decide on " + strings.Join(unsound, ", ")
	}
	env.Notef("note: the plan promises what it cannot give%s: %s", where, wrong[0].Message)
	if len(wrong) > 1 {
		env.Notef("note: gfaas-place verify lists %d more faults", len(wrong)-1)
	}
	return unsound
}

func (o *upOptions) check() error {
	switch {
	case o.gpu != "" && o.gpu != "sim":
		return cli.Usagef("--gpu %q: expected sim; which real GPU an instance is on is for the plan to say", o.gpu)
	case o.parallel < 1:
		return cli.Usagef("--parallel %d: expected 1 or more", o.parallel)
	case o.timeout <= 0:
		return cli.Usagef("--timeout %v: expected more than 0", o.timeout)
	}
	return nil
}

func (o *upOptions) assignments(ctx context.Context, t *tool, p plan.Plan, unsound []string) ([]assignment, error) {
	node, err := chooseNode(p, o.node)
	if err != nil {
		return nil, err
	}
	state, err := t.store.Look(ctx)
	if err != nil {
		return nil, err
	}
	simulated := o.gpu == "sim" || host.DefaultGPU() == "sim"
	list, err := assign(p, node, state.Functions, namer(simulated), unsound)
	if err != nil {
		return nil, err
	}
	return list, checkDevices(p, node, simulated)
}

// rollout starts the instances of one call, all or none.
type rollout struct {
	tool    *tool
	starter ports.Starter
	list    []assignment

	mu      sync.Mutex
	started []instance.Record
	failed  []string // could not be undone: they stay in the state for down
}

func (u *rollout) run(ctx context.Context, parallel int) error {
	var records []instance.Record
	for _, a := range u.list {
		records = append(records, a.record())
	}
	// The intent is written first: whatever kills this process, down knows
	// what there is to stop.
	if err := u.tool.store.Reserve(ctx, records...); err != nil {
		return err
	}
	err := u.startAll(ctx, parallel)
	if err == nil {
		return nil
	}
	if left := u.undo(ctx); left != nil {
		err = errors.Join(err, left)
	}
	return err
}

func (u *rollout) startAll(ctx context.Context, parallel int) error {
	bar := u.tool.env.Progress(len(u.list), "starting")
	defer func() { _ = bar.Finish() }()
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, a := range u.list {
		group.Go(func() error {
			if err := inner.Err(); err != nil {
				return err
			}
			err := u.start(inner, a)
			if err == nil {
				_ = bar.Add(1)
			}
			return err
		})
	}
	err := group.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (u *rollout) start(ctx context.Context, a assignment) error {
	a.placement.Note = func(r instance.Record) error { return u.tool.store.Update(ctx, r) }
	r, err := u.starter.Start(ctx, a.function, a.placement)
	if err != nil {
		var start *ports.StartError
		if errors.As(err, &start) && start.Remains {
			u.mu.Lock()
			u.failed = append(u.failed, r.ID)
			u.mu.Unlock()
		}
		return err
	}
	u.mu.Lock()
	u.started = append(u.started, r)
	u.mu.Unlock()
	if err := u.tool.store.Update(ctx, r); err != nil {
		return fmt.Errorf("instance %s: %w", r.ID, err)
	}
	u.tool.env.Debugf("instance %s is ready at %s", r.ID, r.Handle.Address)
	return nil
}

// undo stops what was started and forgets what is gone. It has its own time,
// since the caller's may be up.
func (u *rollout) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	errs := make([]error, len(u.started))
	var wg sync.WaitGroup
	for i, s := range u.started {
		wg.Go(func() {
			if errs[i] = u.starter.Stop(ctx, s); errs[i] != nil {
				u.mu.Lock()
				u.failed = append(u.failed, s.ID)
				u.mu.Unlock()
			}
		})
	}
	wg.Wait()
	var gone []string
	for _, a := range u.list {
		gone = append(gone, a.placement.ID)
	}
	return errors.Join(append(errs, u.tool.store.Forget(ctx, without(gone, u.failed)...))...)
}
