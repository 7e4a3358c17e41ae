package instances

import (
	"context"
	"errors"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

const (
	movePollInterval = 20 * time.Millisecond // interval of checks while memory moves
	swapTimeout      = 5 * time.Second       // limit on the preload library's move of an idle instance's memory
	moveTimeout      = time.Minute           // limit on a move by the Parker
)

// Park implements dispatch.Shell.
func (m *Manager) Park(i *dispatch.Instance) {
	m.tasks.Go(func() { i.Parked(m.park(i)) })
}

// park reports whether the memory of an instance has moved to the host.
func (m *Manager) park(i *dispatch.Instance) bool {
	r := i.Record()
	if m.cfg.Park == dispatch.ParkSwap {
		return m.awaitSwap(r.ID)
	}
	i.Moving.Lock()
	defer i.Moving.Unlock()
	if !i.Parkable() {
		return false
	}
	ctx, cancel := context.WithTimeout(m.life, moveTimeout)
	defer cancel()
	if err := m.cfg.Parker.Park(ctx, r.ID); err != nil {
		m.log.Warn("cannot park the instance", "instance", r.ID, "function", r.Function, "err", err)
		return false
	}
	return true
}

// awaitSwap waits until the preload library has moved all memory of an instance to the host.
// It returns false if some remains after parkTime.
func (m *Manager) awaitSwap(id string) bool {
	ctx, cancel := context.WithTimeout(m.life, swapTimeout)
	defer cancel()
	for {
		if s, err := m.cfg.Usage(ctx); err == nil {
			if mem, known := dispatch.MemoryOf(&s, id); known && mem <= 0 {
				return true
			}
		}
		if !pause(ctx, movePollInterval) {
			return false
		}
	}
}

// Unpark implements dispatch.Shell.
func (m *Manager) Unpark(i *dispatch.Instance) {
	m.tasks.Go(func() {
		i.Moving.Lock()
		defer i.Moving.Unlock()
		i.Unparked(m.unpark(i.Record().ID))
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
