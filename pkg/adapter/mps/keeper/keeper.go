// Package keeper manages the private MPS daemon for the instances of a token daemon.
// gfaas-tokend (pkg/command/tokend) runs it.
package keeper

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	mpsLook  = 2 * time.Second  // interval between checks of the MPS servers
	mpsDrain = 10 * time.Second // how long clients of a faulted server have to end
	mpsGrace = 5 * time.Second  // how long the remaining ones have after the order to quit
	mpsStall = time.Second      // longest wait of an instance while the daemon is busy, and of Stop for the daemon's answer
)

// Keeper manages a private MPS daemon for instances with a share of a GPU's SMs: it starts
// the daemon for the first such instance, watches it, and stops it on shutdown. An instance
// with all SMs never shares the GPU with another instance, so it does not use MPS and is
// safe from faults of others.
type Keeper struct {
	off    bool // --mps off
	runDir string
	daemon mps.Daemon
	found  bool // MPS is installed
	log    *slog.Logger

	faulted map[int]time.Time // servers in the state FAULT, and since when; used only by check

	// turn guards wanted, and starts and stops of the daemon. Queries, which may take long,
	// do not hold it.
	turn   *semaphore.Weighted
	wanted bool
}

// New returns a Keeper for a run directory. If off is true, it never starts a daemon.
func New(runDir string, off bool, log *slog.Logger) *Keeper {
	k := &Keeper{off: off, runDir: runDir, log: log, faulted: map[int]time.Time{}, turn: semaphore.NewWeighted(1)}
	k.daemon, k.found = mps.Private(runDir)
	return k
}

// adopt adopts the MPS daemon that the previous token daemon of the run directory left
// running, if any. That token daemon has ended.
func (k *Keeper) adopt() {
	_ = k.turn.Acquire(context.Background(), 1)
	defer k.turn.Release(1)
	k.wanted = k.wanted || k.found && !k.off && k.daemon.PID() != 0
}

// hasPartialShare reports whether an instance has a share of a real GPU's SMs, below 100%.
func hasPartialShare(r wire.Registration) bool {
	for _, s := range r.Allocations() {
		if d, err := gpu.ParseDevice(s.GPU); err == nil && !d.Simulated && s.SMPct < 100 {
			return true
		}
	}
	return false
}

// Prepare returns the pipe directory for an instance, or a note if its SM share will not be
// enforced. It starts the daemon if necessary.
func (k *Keeper) Prepare(ctx context.Context, r wire.Registration) wire.Registered {
	if !hasPartialShare(r) {
		return wire.Registered{}
	}
	return k.Provide(ctx)
}

// Provide does the same as Prepare, for instances with a partial share that are not known yet.
func (k *Keeper) Provide(ctx context.Context) wire.Registered {
	const unenforced = "its SM share is counted but not enforced: "
	switch {
	case k.off:
		return wire.Registered{Note: unenforced + "the token daemon runs with --mps off"}
	case mps.Probe().Running():
		return wire.Registered{} // the administrator's, which processes find by themselves
	case !k.found:
		return wire.Registered{Note: unenforced + "nvidia-cuda-mps-control is not installed"}
	}
	for !k.acquire(ctx, mpsStall) {
		if err := ctx.Err(); err != nil {
			return wire.Registered{Note: unenforced + err.Error()}
		}
		if k.daemon.PID() != 0 {
			return wire.Registered{MPSPipeDir: k.daemon.PipeDir(), Note: unenforced + "the MPS daemon is being started or stopped"}
		}
	}
	defer k.turn.Release(1)
	if err := k.daemon.Start(ctx); err != nil {
		k.log.Error("cannot start MPS", "err", err)
		return wire.Registered{Note: unenforced + err.Error()}
	}
	if !k.wanted {
		k.log.Info("MPS started", "pipe_dir", k.daemon.PipeDir(), "pid", k.daemon.PID())
	}
	k.wanted = true
	return wire.Registered{MPSPipeDir: k.daemon.PipeDir()}
}

// acquire acquires the turn. It returns false after the time d or when ctx ends.
func (k *Keeper) acquire(ctx context.Context, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return k.turn.Acquire(ctx, 1) == nil
}

// Watch restarts the MPS daemon if it ends or faults, until ctx ends.
func (k *Keeper) Watch(ctx context.Context) {
	k.adopt()
	tick := time.NewTicker(mpsLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			k.check(ctx, now)
		}
	}
}

// check restarts the MPS daemon if it has ended, and handles faults. A fatal error of one
// client ends the contexts of all clients of its server. They get errors and end; until the
// last one has ended, the server accepts no new client. check restarts the daemon if that
// takes longer than mpsDrain.
func (k *Keeper) check(ctx context.Context, now time.Time) {
	if !k.running(ctx) {
		return
	}
	servers, err := k.daemon.Servers(ctx)
	if err != nil {
		k.log.Warn("cannot query the MPS daemon", "err", err)
		return
	}
	still := map[int]time.Time{}
	for _, s := range servers {
		if s.State != mps.Fault {
			continue
		}
		since, known := k.faulted[s.PID]
		if !known {
			since = now
			clients, _ := k.daemon.Clients(ctx, s.PID)
			k.log.Error("fatal fault of a process under MPS: all processes of its server must end and start again",
				"server", s.PID, "clients", clients, "reason", k.daemon.Reason())
		}
		still[s.PID] = since
		if now.Sub(since) >= mpsDrain {
			k.log.Error("restarting MPS: clients of the faulted server did not end", "server", s.PID, "after", now.Sub(since).String())
			k.restart(ctx)
			return
		}
	}
	for pid := range k.faulted {
		if _, there := still[pid]; !there {
			k.log.Info("MPS has recovered from the fault", "server", pid)
		}
	}
	k.faulted = still
}

// running reports whether the daemon is wanted and running. It restarts a daemon that has
// ended.
func (k *Keeper) running(ctx context.Context) bool {
	if k.turn.Acquire(ctx, 1) != nil {
		return false
	}
	defer k.turn.Release(1)
	if !k.wanted {
		return false
	}
	if k.daemon.PID() == 0 {
		k.log.Error("the MPS daemon has ended; starting it again: processes that used it cannot continue", "reason", k.daemon.Reason())
		k.start(ctx)
		return false
	}
	return true
}

func (k *Keeper) restart(ctx context.Context) {
	if k.turn.Acquire(ctx, 1) != nil {
		return
	}
	defer k.turn.Release(1)
	if err := k.daemon.Stop(ctx, mpsGrace); err != nil {
		k.log.Error("cannot stop MPS", "err", err)
	}
	k.start(ctx)
}

// start starts the daemon. The caller holds the turn.
func (k *Keeper) start(ctx context.Context) {
	clear(k.faulted)
	if err := k.daemon.Start(ctx); err != nil {
		k.log.Error("cannot start MPS", "err", err)
	}
}

// Doomed ends the GPU work of processes that are about to be killed.
func (k *Keeper) Doomed(ctx context.Context, pids []int) {
	if err := mps.Terminate(ctx, k.runDir, pids); err != nil {
		k.log.Warn("cannot end the GPU work of processes before they are killed: other processes on the GPU may get errors", "pids", pids, "err", err)
	}
}

// Stop stops the MPS daemon, unless processes use it or it does not answer. In that case,
// the next token daemon, which waits for this one to end, adopts it.
func (k *Keeper) Stop() {
	_ = k.turn.Acquire(context.Background(), 1)
	defer k.turn.Release(1)
	if !k.wanted || k.daemon.PID() == 0 {
		return
	}
	queryCtx, cancel := context.WithTimeout(context.Background(), mpsStall)
	defer cancel()
	servers, err := k.daemon.Servers(queryCtx)
	for _, s := range servers {
		clients, failed := k.daemon.Clients(queryCtx, s.PID)
		if err = failed; err != nil {
			break
		}
		if len(clients) > 0 {
			k.log.Info("MPS continues: processes use it", "server", s.PID, "clients", clients)
			return
		}
	}
	if err != nil {
		k.log.Warn("MPS continues: cannot determine the processes that use it", "err", err)
		return
	}
	if err := k.daemon.Stop(context.Background(), 0); err != nil {
		k.log.Error("cannot stop MPS", "err", err)
	}
}
