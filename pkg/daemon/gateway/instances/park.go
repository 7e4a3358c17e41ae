package instances

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

const (
	movePollInterval = 20 * time.Millisecond // interval of attempts while the token daemon is unavailable
	moveTimeout      = time.Minute           // limit on a move
)

// Park implements dispatch.Shell.
func (m *Manager) Park(i *dispatch.Instance) {
	m.tasks.Go(func() {
		i.Moving.Lock()
		defer i.Moving.Unlock()
		mover := m.cfg.Swapper
		if m.dispatcher.Parks() == dispatch.ParkCheckpoint {
			if mover = m.cfg.Parker; !i.BeginPark() {
				return
			}
		}
		i.Parked(m.park(mover, i.Record()))
	})
}

// park reports whether mover has moved the memory of an instance to the host.
func (m *Manager) park(mover Parker, r instance.Record) bool {
	ctx, cancel := context.WithTimeout(m.life, moveTimeout)
	defer cancel()
	if err := mover.Park(ctx, r.ID); err != nil {
		m.log.Log(ctx, m.moveFailedLevel(), "cannot park the instance", "instance", r.ID, "function", r.Function, "err", err)
		return false
	}
	return true
}

// moveFailedLevel returns the level of messages about failed moves. That the preload library does not
// move memory is usual: the instance got a call meanwhile.
func (m *Manager) moveFailedLevel() slog.Level {
	if m.dispatcher.Parks() == dispatch.ParkSwap {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// Unpark implements dispatch.Shell.
func (m *Manager) Unpark(i *dispatch.Instance) {
	m.tasks.Go(func() {
		i.Moving.Lock()
		defer i.Moving.Unlock()
		i.Unparked(m.unpark(i.Record().ID))
	})
}

// Prefetch implements dispatch.Shell.
func (m *Manager) Prefetch(i *dispatch.Instance) {
	m.tasks.Go(func() {
		i.Moving.Lock()
		defer i.Moving.Unlock()
		ctx, cancel := context.WithTimeout(m.life, moveTimeout)
		defer cancel()
		r := i.Record()
		err := m.cfg.Swapper.Unpark(ctx, r.ID)
		if err != nil {
			m.log.Info("cannot prefetch the memory of an instance", "instance", r.ID, "function", r.Function, "err", err)
		}
		i.Prefetched(err == nil)
	})
}

// unpark moves the memory of an instance to the GPU. While the token daemon is unavailable,
// it waits, because instances wait for the daemon as well.
func (m *Manager) unpark(id string) error {
	ctx, cancel := context.WithTimeout(m.life, moveTimeout)
	defer cancel()
	for {
		err := m.cfg.Parker.Unpark(ctx, id)
		var missing interface{ Unavailable() bool }
		if err == nil || !errors.As(err, &missing) || !missing.Unavailable() || !pause(ctx, movePollInterval) {
			return err
		}
	}
}

// memoryLocation returns where the memory of an adopted instance is.
func (f *follower) memoryLocation(ctx context.Context, id string) residency.Start {
	if f.cfg.Usage == nil {
		return residency.GPUWarm
	}
	ctx, cancel := context.WithTimeout(ctx, usageTimeout)
	defer cancel()
	s, err := f.cfg.Usage(ctx)
	if err != nil {
		return residency.GPUWarm
	}
	for _, on := range s.GPUs {
		for _, c := range on.Clients {
			if c.Instance == id && c.MemParkedMiB > 0 && c.MemParkedMiB == c.MemUsedMiB {
				return residency.HostWarm
			}
		}
	}
	return residency.GPUWarm
}
