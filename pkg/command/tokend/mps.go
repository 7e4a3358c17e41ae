package tokend

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	mpsLook  = 2 * time.Second  // between looks at the MPS servers
	mpsDrain = 10 * time.Second // for the clients of a faulted server to notice and end
	mpsGrace = 5 * time.Second  // for those that did not, once they are told to
)

// keeper keeps a private MPS daemon for instances that run beside others: it
// starts one when the first comes, watches it, and stops it at the end. An
// instance on all of a GPU's multiprocessors never runs beside another, so it
// stays outside, where a fault of another cannot reach it.
type keeper struct {
	off    bool // --mps off
	daemon mps.Daemon
	found  bool // MPS is installed
	log    *slog.Logger

	mu      sync.Mutex
	wanted  bool
	faulted map[int]time.Time // servers in the state FAULT, since when
}

func newKeeper(runDir string, off bool, log *slog.Logger) *keeper {
	k := &keeper{off: off, log: log, faulted: map[int]time.Time{}}
	k.daemon, k.found = mps.Private(runDir)
	return k
}

// takeOver keeps the MPS daemon that the token daemon before us has left, if it
// has. To be called once that one is gone.
func (k *keeper) takeOver() {
	k.mu.Lock()
	defer k.mu.Unlock()
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
	k.mu.Lock()
	defer k.mu.Unlock()
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
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.wanted {
		return
	}
	if k.daemon.PID() == 0 {
		k.log.Error("the MPS daemon is gone, starting it again: processes that used it cannot go on", "reason", k.daemon.Reason())
		k.start(ctx)
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
			if err := k.daemon.Stop(ctx, mpsGrace); err != nil {
				k.log.Error("cannot stop MPS", "err", err)
			}
			k.start(ctx)
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

func (k *keeper) start(ctx context.Context) {
	clear(k.faulted)
	if err := k.daemon.Start(ctx); err != nil {
		k.log.Error("cannot start MPS", "err", err)
	}
}

// stop ends the MPS daemon unless processes still use it: the next token
// daemon takes it over then.
func (k *keeper) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.wanted {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), mpsDrain)
	defer cancel()
	servers, _ := k.daemon.Servers(ctx)
	for _, s := range servers {
		if clients, err := k.daemon.Clients(ctx, s.PID); err == nil && len(clients) > 0 {
			k.log.Info("leaving MPS to the processes that use it", "server", s.PID, "clients", clients)
			return
		}
	}
	if err := k.daemon.Stop(ctx, 0); err != nil {
		k.log.Error("cannot stop MPS", "err", err)
	}
}
