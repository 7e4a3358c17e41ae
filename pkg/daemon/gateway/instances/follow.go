package instances

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// follower tells the dispatcher about instances that other processes start or that the
// previous gateway started.
type follower struct {
	*Manager
	begun  bool                       // the instances of the previous gateway have been handled
	others map[string]instance.Handle // adopted instances of other processes, by ID

	// abandoned holds, by ID, instances whose starter ended before they were ready.
	abandoned map[string]instance.Record
}

// run applies the state's functions and adopts its instances after each change, until ctx
// ends.
func (f *follower) run(ctx context.Context) {
	var last ports.Revision
	for {
		l, err := f.cfg.Catalog.Watch(ctx, last)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			f.log.Error("cannot read the state", "err", err)
			if !pause(ctx, time.Second) {
				return
			}
			continue
		}
		last = l.Revision
		if !f.begun {
			f.dispatcher.Instances.ResumeIDs(l.Instances)
		}
		f.dispatcher.Apply(l.Functions)
		f.dispatcher.SetApplied(l.Applied)
		f.instances(ctx, slices.DeleteFunc(slices.Clone(l.Instances), func(r instance.Record) bool { return r.Job }))
		f.jobs.reconcile()
		if !f.dispatcher.Known.IsSet() {
			f.dispatcher.SetKnown()
			if f.cfg.Known != nil {
				f.cfg.Known()
			}
		}
	}
}

// instances processes a changed set of records.
func (f *follower) instances(ctx context.Context, records []instance.Record) {
	f.dispatcher.Instances.FaultsGone(records)
	f.announce(records)
	var own []instance.Record // of a gateway that was killed
	for _, r := range records {
		switch {
		case r.Owner == instance.Gateway && f.begun:
		case r.Owner == instance.Gateway:
			own = append(own, r)
		case r.State == instance.Ready && f.others[r.ID] != r.Handle:
			if f.takeOver(ctx, r) {
				f.others[r.ID] = r.Handle
			}
		case r.State == instance.Ready:
			f.dispatcher.Instances.Rebatch(r)
		case r.State == instance.Starting && r.Restarts > 0: // another gateway was restarting it and was killed, or this gateway is
			f.restarts.restartIfRequired(r, unknownEnd)
		}
	}
	f.begun = true
	for _, r := range own {
		f.takeOver(ctx, r)
	}
}

// The record of an instance that another process starts is in the state file before the
// start. From then on, the dispatcher counts the instance, and calls of its function wait
// for it. The dispatcher forgets it when its record is removed, or when no process is
// running that could make it ready.

// startingPoll is the interval of checks whether another process is still starting an
// instance.
const startingPoll = time.Second

// announce tells the dispatcher about the instances that other processes are starting, and
// retracts those without a record.
func (f *follower) announce(records []instance.Record) {
	listed := map[string]bool{}
	for _, r := range records {
		if r.Owner == instance.Gateway {
			continue
		}
		listed[r.ID] = true
		if old, known := f.abandoned[r.ID]; known && !sameStart(old, r) {
			delete(f.abandoned, r.ID)
		}
		_, abandoned := f.abandoned[r.ID]
		switch {
		case r.State != instance.Starting || abandoned:
		case f.atWork(r):
			if i, added := f.dispatcher.Instances.Announce(r); added {
				f.tasks.Go(func() { f.watchStart(i) })
			}
		case r.Restarts == 0:
			f.abandoned[r.ID] = r
		}
	}
	for id := range f.abandoned {
		if !listed[id] {
			delete(f.abandoned, id)
		}
	}
	f.dispatcher.Instances.RetractMissing(listed)
}

// sameStart reports whether two records of one ID describe the same start.
func sameStart(a, b instance.Record) bool {
	return a.State == b.State && a.Handle == b.Handle && a.Restarts == b.Restarts
}

// atWork reports whether the process that starts an instance may still be running.
func (f *follower) atWork(r instance.Record) (starts bool) {
	if r.Restarts > 0 { // a gateway restarts it: this one, or one that was killed
		f.restarts.withState(r.ID, func(state *restartState) { starts = state.starting })
		return starts
	}
	return f.cfg.AtWork()
}

// watchStart retracts an announced instance that no process is starting any longer.
func (f *follower) watchStart(i *dispatch.Instance) {
	for pause(f.life, startingPoll) && i.IsAnnounced() {
		r := i.Record()
		if f.atWork(r) {
			continue
		}
		l, err := f.cfg.Catalog.List(f.life) // its starter may have ended because it is ready
		if err != nil {
			continue
		}
		if now := recordOf(l.Instances, r.ID); now == nil || now.State == instance.Starting {
			f.log.Warn("instance no longer expected: the command that was starting it has ended", "instance", r.ID, "function", r.Function)
			f.dispatcher.Instances.Retract(r.ID)
			return
		}
	}
}

// takeOver adopts an instance that this gateway did not start. If it is unknown whether the
// instance runs, takeOver returns true and continues to try. It returns false if the
// instance has ended or cannot be used, after arranging for its restart or removal.
func (f *follower) takeOver(ctx context.Context, r instance.Record) bool {
	err := f.adopt(ctx, r)
	if errors.Is(err, errNoGPU) {
		f.log.Warn("cannot adopt the instance yet", "instance", r.ID, "gpus", r.GPUs, "err", errNoGPU)
	}
	if unknown(err) {
		f.tasks.Go(func() { f.adoptLater(r) })
		return true
	}
	if err != nil {
		f.notAdopted(r)
	}
	return err == nil
}

// adoptLater tries to adopt an instance until it is known whether the instance runs. If m's
// life ends first, it discards an own instance, unless Config.Keep is set.
func (f *follower) adoptLater(r instance.Record) {
	for retry := firstRetry; pause(f.life, retry); retry = min(2*retry, lastRetry) {
		switch err := f.adopt(f.life, r); {
		case err == nil:
			return
		case errors.Is(err, errNoGPU): // once the GPU is added, calls start other instances on it
			retry = firstRetry / 2
		case !unknown(err):
			f.notAdopted(r)
			return
		}
	}
	if r.Owner == instance.Gateway && !f.cfg.Keep {
		f.discard(r)
	}
}

// notAdopted discards an own instance, or restarts another, that has ended or cannot be
// used.
func (f *follower) notAdopted(r instance.Record) {
	if r.Owner == instance.Gateway {
		f.tasks.Go(func() { f.discard(r) })
		return
	}
	f.dispatcher.Instances.Retract(r.ID)
	f.restarts.restartIfRequired(r, unknownEnd)
}

// Reasons for which an instance cannot be used.
var (
	errNotServed = errors.New("this gateway does not serve its function or its GPU")
	errOutdated  = errors.New("its function has changed since its start")
	errNoGPU     = errors.New("its GPU is not usable") // temporary
)

// gpuTime is how long a new gateway waits for the GPUs of its predecessor's instances if Config.GPUsChange is set. Docker may
// report a node that reconnects to its swarm as not ready for a moment, even several times.
const gpuTime = time.Minute

// unknown reports whether an error of adopt leaves open whether the instance runs.
func unknown(err error) bool {
	var gone *ports.GoneError
	return err != nil && !errors.Is(err, errNotServed) && !errors.Is(err, errOutdated) && !errors.As(err, &gone)
}

// awaitsGPU reports whether an instance cannot be used only because the gateway does not know its GPU, and the GPU may
// still be added.
func (f *follower) awaitsGPU(r *instance.Record) bool {
	return f.cfg.GPUsChange && time.Since(f.created) < gpuTime && f.dispatcher.Function(r.Function) != nil && !f.dispatcher.Instances.Serves(r)
}

// adopt adopts a running instance. It returns errNotServed, errOutdated or a
// *ports.GoneError for a permanent failure. Other errors may be temporary.
func (f *follower) adopt(ctx context.Context, r instance.Record) error {
	if f.awaitsGPU(&r) {
		return errNoGPU
	}
	if !f.dispatcher.Instances.Serves(&r) {
		f.log.Warn("instance not adopted: "+errNotServed.Error(), "instance", r.ID, "function", r.Function, "gpus", r.GPUs)
		return errNotServed
	}
	if err := f.cfg.Starter.Adopt(ctx, r); err != nil {
		if unknown(err) && ctx.Err() == nil {
			f.log.Error("cannot adopt the instance yet", "instance", r.ID, "err", err)
		}
		return err
	}
	i := f.dispatcher.Instances.Adopt(r, f.memoryLocation(ctx, r.ID))
	if i == nil {
		f.log.Info("instance not adopted: "+errOutdated.Error(), "instance", r.ID, "function", r.Function)
		return errOutdated
	}
	f.log.Info("instance adopted", "instance", r.ID, "function", r.Function)
	f.tasks.Go(func() { f.watch(i) })
	f.tasks.Go(func() { f.describe(i) })
	return nil
}
