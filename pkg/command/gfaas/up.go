package gfaas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/command/host"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/plan"
	"github.com/gfaas/gfaas/pkg/policy/place/arrivals"
	"github.com/gfaas/gfaas/pkg/policy/place/verify"
	"github.com/gfaas/gfaas/pkg/wire"
)

// cleanupTime bounds the undoing of an up that failed or was interrupted.
const cleanupTime = time.Minute

type upOptions struct {
	node     string
	gpu      string
	parallel int
	timeout  time.Duration

	prune, dryRun, overcommit bool
}

func newUp(t *tool) *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up PLAN.json",
		Short: "Reconcile running instances with a plan",
		Long: `Starts every instance that a plan places on this machine and that does not run,
each under its slice of its GPU, and returns when all are ready to answer. They live
on until gfaas down. Functions with an image run as containers, the others as
processes; they must have been applied.

An instance that runs as the plan says is left alone. Its quota, memory limit, timetable
and objective (slo) are changed while it runs. If anything else differs (its GPU, its share
of the SMs, the version of its function), it is restarted, with a note. An instance that
has exited is started again. --prune stops the instances that the plan does not name,
except those of the gateway. --dry-run only prints what would be done.

A plan written by hand needs only {"version": 1, "gpus": [{"index": 0, "instances":
[{"id": "resnet-0", "function": "resnet"}]}]}: this instance has the whole GPU 0. See
docs/files.md for the other keys.

The token daemon keeps the plan's timetable: in each window an instance has the
part that the plan gives it, and time that it leaves idle is lent to waiting instances.

Memory limits of the plan that sum to more than the memory of a GPU are refused, since
instances that use their whole limit would fail; --overcommit starts them all the same.
If the sum exceeds the GPU only because of other slices on it, such as instances of
gfaas serve and jobs of gfaas run, there is only a note: the gateway stops idle instances
to make room for those of a plan.

When one instance fails to start, on ^C, or when the terminal is closed, all
that this call started are stopped again; what it stopped stays so. While another
gfaas up or a gfaas down is at work it waits, for three minutes at most (exit 6).`,
		Example: `  gfaas up plan.json
  gfaas up --dry-run --prune plan.json
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
	f.BoolVar(&o.prune, "prune", false, "stop the instances that the plan does not name")
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would be done, and do nothing")
	f.BoolVar(&o.overcommit, "overcommit", false, "start instances whose memory limits sum to more than their GPU has")
	t.env.Outputs(cmd, "table", "json")
	f.DurationVar(&o.timeout, "timeout", launch.DefaultPatience, "how long an instance may take to become ready")
	return cmd
}

func (o *upOptions) run(ctx context.Context, t *tool, path string) error {
	if err := o.check(); err != nil {
		return err
	}
	p, err := cli.Load(t.env, path, plan.Read)
	if err != nil {
		if strings.HasSuffix(path, ".csv") || strings.HasSuffix(path, ".yaml") || strings.HasSuffix(path, ".yml") {
			err = cli.Fail(cli.ExitUsage, "gfaas-place plan -o json makes one of a profile and a demand", fmt.Errorf("%s is not a plan: %w", path, err))
		}
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
	for _, name := range hasty(p, list) {
		t.env.Notef("note: %s takes one call at a time (inflight: 1), and is idle behind gfaas serve for about %v between two, "+
			"which the plan does not know of: make it with --functions, or, where it can, have the next one wait there with inflight: 2", name, arrivals.HandOver)
	}
	if len(list) == 0 {
		t.env.Notef("note: the plan places no instance")
	}
	if err := checkLimits(p, list); err != nil && !o.overcommit {
		return err
	}
	largest := map[string]gpu.Bytes{}
	for _, a := range list {
		for _, g := range a.placement.GPUs {
			largest[g] = max(largest[g], a.placement.Slice.Mem)
		}
	}
	noteBeyond(t.env, largest)
	if err := o.noteBeside(ctx, t, list); err != nil {
		return err
	}
	launcher, err := o.launcher(ctx, t, len(list) > 0)
	if err != nil {
		return err
	}
	defer launcher.Close()
	steps, err := o.steps(ctx, t, launcher, list)
	if err != nil {
		return err
	}
	if o.dryRun {
		steps = slices.DeleteFunc(steps, func(s step) bool { return s.Action == actionKeep })
		return t.env.Show(steps, func() [][]string { return difference(steps) })
	}
	up := &rollout{tool: t, launcher: launcher, steps: steps}
	return up.run(ctx, o.parallel)
}

// noteBeside prints a note for each GPU whose memory is less than the sum of the limits of the
// plan's instances and of the other slices on it, such as instances of the gateway and jobs.
// This is no error: the gateway stops idle instances to make room for those of a plan.
func (o *upOptions) noteBeside(ctx context.Context, t *tool, list []assignment) error {
	state, err := t.store.Look(ctx)
	if err != nil {
		return err
	}
	stays := func(id string) bool {
		return !slices.ContainsFunc(list, func(a assignment) bool { return a.placement.ID == id }) &&
			!(o.prune && slices.ContainsFunc(state.Instances, func(r instance.Record) bool { return r.ID == id && r.Owner != instance.Gateway }))
	}
	occupancy := devices.NewOccupancy()
	defer occupancy.Close()
	for _, g := range t.gpus(ctx) {
		var planned gpu.Bytes
		for _, a := range list {
			if slices.Contains(a.placement.GPUs, g.GPU) {
				planned += a.placement.Slice.Mem
			}
		}
		others, ids := besideOn(g, stays)
		if planned == 0 || others == 0 {
			continue
		}
		if _, total, err := occupancy.Free(g.GPU); err == nil && total > 0 && planned+others > total {
			t.env.Notef("note: on GPU %s the plan's memory limits sum to %v, and other slices (%s) have %v: the GPU has %v",
				g.GPU, planned, strings.Join(ids, ", "), others, total)
		}
	}
	return nil
}

// besideOn returns the memory and the ids of those instances on a GPU that stay and are not of
// the plan. The memory of an instance is its limit or, if it has none, what it uses.
func besideOn(g wire.GPUStatus, stays func(id string) bool) (sum gpu.Bytes, ids []string) {
	for _, c := range g.Clients { // by instance
		if !stays(c.Instance) {
			continue
		}
		first := len(ids) == 0 || ids[len(ids)-1] != c.Instance
		if first {
			ids = append(ids, c.Instance)
			sum += gpu.FromMiB(c.MemLimitMiB)
		}
		if c.MemLimitMiB == 0 {
			sum += gpu.FromMiB(c.MemUsedMiB)
		}
	}
	return sum, ids
}

// hasty are the functions of which an instance is to answer so many calls a second,
// one at a time, that a twentieth of its time and more goes to handing over.
func hasty(p plan.Plan, list []assignment) (names []string) {
	for _, a := range list {
		often := a.placement.RPS*arrivals.HandOver.Seconds() >= 0.05
		counted := p.HandOverMS(a.function.Name) > 0
		if p.Arrivals == plan.ArrivalsPoisson && often && !counted && a.function.Inflight <= 1 && !slices.Contains(names, a.function.Name) {
			names = append(names, a.function.Name)
		}
	}
	return names
}

// launcher starts instances, or only looks and stops.
func (o *upOptions) launcher(ctx context.Context, t *tool, starts bool) (*launch.Launcher, error) {
	if o.dryRun || !starts {
		return host.Launcher(t.env, t.runDir, o.timeout), nil
	}
	return host.Starter(ctx, t.env, t.runDir, o.timeout)
}

// steps compares what runs with what is wanted.
func (o *upOptions) steps(ctx context.Context, t *tool, launcher *launch.Launcher, wanted []assignment) ([]step, error) {
	all, err := t.inventory(ctx, launcher)
	if err == nil && !o.dryRun {
		err = all.dropDead(ctx, launcher)
	}
	if err == nil {
		err = errors.Join(all.broken, all.checkLost(wanted))
	}
	if err != nil {
		return nil, err
	}
	states, _, err := t.look(ctx, launcher, all.state.Instances)
	if err != nil {
		return nil, err
	}
	registered, err := launcher.Registrations(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]*wire.Registration{}
	for i, g := range registered {
		known[g.Instance] = &registered[i]
	}
	var have []running
	for n, r := range all.state.Instances {
		have = append(have, running{record: r, state: states[n], registered: known[r.ID]})
	}
	return reconcile(wanted, have, o.prune)
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
			if v.GPU != "" && p.Model != plan.ModelNone && !slices.Contains(unsound, v.GPU) {
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
	simulated := o.gpu == "sim" || devices.Default() == "sim"
	list, err := assign(p, node, state.Functions, namer(simulated), unsound)
	if err != nil {
		return nil, err
	}
	if err := checkDevices(p, node, simulated); err != nil {
		return nil, err
	}
	var gpus []string
	for _, a := range list {
		gpus = append(gpus, a.placement.GPUs...)
	}
	return list, devices.Permitted("the plan places instances on", gpus)
}

// rollout makes the steps of one call. Of what it starts it starts all or none.
type rollout struct {
	tool     *tool
	launcher *launch.Launcher
	steps    []step
	list     []assignment // to be started

	spare []*os.File // for undoing, when what failed is that no file could be opened

	mu      sync.Mutex
	started []instance.Record
	remains []instance.Record // of starts that failed and could not be undone yet
}

// spareFiles is as many as undoing opens at a time.
const spareFiles = 6

// setAside keeps descriptors for undoing, or finds before anything is done that
// there are too few.
func (u *rollout) setAside() error {
	for len(u.spare) < spareFiles {
		f, err := os.Open(os.DevNull)
		if err != nil {
			u.release()
			return err
		}
		u.spare = append(u.spare, f)
	}
	return nil
}

func (u *rollout) release() {
	for _, f := range u.spare {
		_ = f.Close()
	}
	u.spare = nil
}

func (u *rollout) run(ctx context.Context, parallel int) error {
	if err := u.clear(ctx); err != nil {
		return err
	}
	if err := u.changeAll(ctx); err != nil {
		return err
	}
	if len(u.list) == 0 {
		return ctx.Err()
	}
	var records []instance.Record
	for _, a := range u.list {
		records = append(records, a.record())
	}
	if err := u.setAside(); err != nil {
		return err
	}
	defer u.release()
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

// clear stops what is in the way of what is started, and what nobody wants any more.
// What is stopped is forgotten before anything is started: whatever kills this
// process, the next up finds that it is not there.
func (u *rollout) clear(ctx context.Context) error {
	var old []instance.Record
	for _, s := range u.steps {
		switch s.Action {
		case actionReplace, actionStop:
			u.tool.env.Notef("%s %s: %s", map[string]string{actionReplace: "replacing", actionStop: "stopping"}[s.Action], s.ID, s.Why)
		case actionStart:
		default:
			continue
		}
		if s.old.ID != "" {
			old = append(old, s.old)
		}
		if s.Action != actionStop {
			u.list = append(u.list, s.wanted)
		}
	}
	if len(old) == 0 {
		return nil
	}
	gone, err := u.tool.stopAll(ctx, u.launcher, old)
	return errors.Join(err, u.tool.forget(context.WithoutCancel(ctx), gone))
}

// changeAll changes slices while their instances run: what is less first, so that
// what is more has room.
func (u *rollout) changeAll(ctx context.Context) error {
	var changes []step
	for _, s := range u.steps {
		if s.Action == actionChange {
			changes = append(changes, s)
		}
	}
	slices.SortStableFunc(changes, func(a, b step) int {
		more := func(s step) float64 { return s.wanted.placement.Slice.QuotaRequest - s.old.Slice.QuotaRequest }
		return cmp.Compare(more(a), more(b))
	})
	for _, s := range changes {
		u.tool.env.Notef("changing %s: %s", s.ID, s.Why)
		if err := u.launcher.Change(ctx, s.ID, s.wanted.change(*s.registered)); err != nil {
			return err
		}
		p := s.wanted.placement
		s.old.Slice, s.old.Turns, s.old.RPS = p.Slice, p.Turns, p.RPS
		if err := u.tool.store.Update(ctx, s.old); err != nil {
			return fmt.Errorf("instance %s: %w", s.ID, err)
		}
	}
	return nil
}

func (u *rollout) startAll(ctx context.Context, parallel int) error {
	bar := u.tool.env.Progress(len(u.list), "starting", "instances")
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
	r, err := u.launcher.Start(ctx, a.function, a.placement)
	if err != nil {
		var start *ports.StartError
		if errors.As(err, &start) && start.Remains {
			u.mu.Lock()
			u.remains = append(u.remains, r)
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

// undo stops what was started, and once more what remains of starts that failed,
// and forgets what is gone; the rest stays in the state for down. It has its own
// time, since the caller's may be up.
func (u *rollout) undo(ctx context.Context) error {
	u.release()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	left := slices.Concat(u.started, u.remains)
	errs := make([]error, len(left))
	var wg sync.WaitGroup
	for i, r := range left {
		wg.Go(func() { errs[i] = u.launcher.Stop(ctx, r) })
	}
	wg.Wait()
	var gone []string
	for _, a := range u.list {
		i := slices.IndexFunc(left, func(r instance.Record) bool { return r.ID == a.placement.ID })
		if i < 0 || errs[i] == nil {
			gone = append(gone, a.placement.ID)
		}
	}
	return errors.Join(append(errs, u.tool.store.Forget(ctx, gone...))...)
}
