package tokend

import (
	"context"
	"log/slog"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	mpsLook  = 2 * time.Second  // between looks at the MPS servers
	mpsDrain = 10 * time.Second // for the clients of a faulted server to notice and end
	mpsGrace = 5 * time.Second  // for those that did not, once they are told to
	mpsStall = time.Second      // longest that an instance waits while the daemon runs, and for its answer at the end
)

// keeper keeps a private MPS daemon for instances that run beside others: it
// starts one when the first comes, watches it, and stops it at the end. An
// instance on all of a GPU's multiprocessors never runs beside another, so it
// stays outside, where a fault of another cannot reach it.
type keeper struct {
	off    bool // --mps off
	runDir string
	daemon mps.Daemon
	found  bool // MPS is installed
	log    *slog.Logger

	faulted map[int]time.Time // servers in the state FAULT, since when; of look alone

	// turn guards what follows, and starts and stops of the daemon. It holds one token. A
	// question to the daemon, which may take long to answer, is asked without it.
	turn   chan struct{}
	wanted bool
}

// takeTurn takes the turn. It returns false if the context ends first.
func (k *keeper) takeTurn(ctx context.Context) bool {
	select {
	case k.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (k *keeper) takeTurnWithin(ctx context.Context, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return k.takeTurn(ctx)
}

func (k *keeper) giveTurn() { <-k.turn }

func newKeeper(runDir string, off bool, log *slog.Logger) *keeper {
	k := &keeper{off: off, runDir: runDir, log: log, faulted: map[int]time.Time{}, turn: make(chan struct{}, 1)}
	k.daemon, k.found = mps.Private(runDir)
	return k
}

// takeOver keeps the MPS daemon that the token daemon before us has left, if it
// has. To be called once that one is gone.
func (k *keeper) takeOver() {
	k.turn <- struct{}{}
	defer k.giveTurn()
	k.wanted = k.wanted || k.found && !k.off && k.daemon.PID() != 0
}

// shares says whether the instance wants part of a real GPU's multiprocessors.
func shares(r wire.Registration) bool {
	for _, s := range r.Allocations() {
		if d, err := gpu.ParseDevice(s.GPU); err == nil && !d.Simulated && s.SMPct < 100 {
			return true
		}
	}
	return false
}

// prepare tells an instance where its MPS daemon is, started if need be.
func (k *keeper) prepare(ctx context.Context, r wire.Registration) wire.Registered {
	const unenforced = "its SM share is counted, not enforced: "
	switch {
	case !shares(r):
		return wire.Registered{}
	case k.off:
		return wire.Registered{Note: unenforced + "the token daemon runs with --mps off"}
	case mps.Probe().Running():
		return wire.Registered{} // its owner's, which processes find by themselves
	case !k.found:
		return wire.Registered{Note: unenforced + "nvidia-cuda-mps-control is not installed"}
	}
	for !k.takeTurnWithin(ctx, mpsStall) {
		if err := ctx.Err(); err != nil {
			return wire.Registered{Note: unenforced + err.Error()}
		}
		if k.daemon.PID() != 0 {
			return wire.Registered{MPSPipeDir: k.daemon.PipeDir(), Note: unenforced + "the MPS daemon is just being started or stopped"}
		}
	}
	defer k.giveTurn()
	if err := k.daemon.Start(ctx); err != nil {
		k.log.Error("cannot start MPS", "err", err)
		return wire.Registered{Note: unenforced + err.Error()}
	}
	if !k.wanted {
		k.log.Info("MPS serves", "pipe_dir", k.daemon.PipeDir(), "pid", k.daemon.PID())
	}
	k.wanted = true
	return wire.Registered{MPSPipeDir: k.daemon.PipeDir()}
}

// watch looks after the MPS daemon until the context ends.
func (k *keeper) watch(ctx context.Context) {
	k.takeOver()
	tick := time.NewTicker(mpsLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			k.look(ctx, now)
		}
	}
}

// look starts the MPS daemon again when it is gone, and deals with faults. A
// fatal error of one client ends the contexts of all clients of its server.
// They see errors, and end; until the last has, the server takes no new one.
func (k *keeper) look(ctx context.Context, now time.Time) {
	if !k.running(ctx) {
		return
	}
	servers, err := k.daemon.Servers(ctx)
	if err != nil {
		k.log.Warn("cannot ask the MPS daemon", "err", err)
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
			k.log.Error("a process met a fatal fault under MPS: all that share its server must end and start again",
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

// running reports whether the daemon is wanted and runs. It starts one that is gone.
func (k *keeper) running(ctx context.Context) bool {
	if !k.takeTurn(ctx) {
		return false
	}
	defer k.giveTurn()
	if !k.wanted {
		return false
	}
	if k.daemon.PID() == 0 {
		k.log.Error("the MPS daemon is gone, starting it again: processes that used it cannot go on", "reason", k.daemon.Reason())
		k.start(ctx)
		return false
	}
	return true
}

func (k *keeper) restart(ctx context.Context) {
	if !k.takeTurn(ctx) {
		return
	}
	defer k.giveTurn()
	if err := k.daemon.Stop(ctx, mpsGrace); err != nil {
		k.log.Error("cannot stop MPS", "err", err)
	}
	k.start(ctx)
}

// start starts the daemon. The caller has the turn.
func (k *keeper) start(ctx context.Context) {
	clear(k.faulted)
	if err := k.daemon.Start(ctx); err != nil {
		k.log.Error("cannot start MPS", "err", err)
	}
}

// doomed ends the GPU work of processes that are about to be killed.
func (k *keeper) doomed(ctx context.Context, pids []int) {
	if err := mps.Terminate(ctx, k.runDir, pids); err != nil {
		k.log.Warn("cannot end the GPU work of processes before they are killed: others on the GPU may get errors", "pids", pids, "err", err)
	}
}

// stop ends the MPS daemon unless processes still use it, or it does not say whether they
// do: the next token daemon, which waits for this one, takes it over then.
func (k *keeper) stop() {
	k.turn <- struct{}{}
	defer k.giveTurn()
	if !k.wanted || k.daemon.PID() == 0 {
		return
	}
	asked, cancel := context.WithTimeout(context.Background(), mpsStall)
	defer cancel()
	servers, err := k.daemon.Servers(asked)
	for _, s := range servers {
		clients, failed := k.daemon.Clients(asked, s.PID)
		if err = failed; err != nil {
			break
		}
		if len(clients) > 0 {
			k.log.Info("leaving MPS to the processes that use it", "server", s.PID, "clients", clients)
			return
		}
	}
	if err != nil {
		k.log.Warn("leaving MPS as it is: it does not say which processes use it", "err", err)
		return
	}
	if err := k.daemon.Stop(context.Background(), 0); err != nil {
		k.log.Error("cannot stop MPS", "err", err)
	}
}
