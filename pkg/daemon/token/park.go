package token

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	moveTime  = time.Minute          // limit for moving all of an instance's memory
	idleTime  = time.Second          // limit on the wait for an instance to become idle before it is parked
	idleCheck = 5 * time.Millisecond // poll interval of that wait
)

// parking moves the GPU memory of idle instances to the host and back. The driver moves it from
// outside the processes (with checkpoints); during a move they cannot call the driver. When a process
// of a parked instance wants the GPU, the memory is moved back. Or the preload library moves managed
// memory (swapOut, swapIn); it moves the memory back before the process's next work.
type parking struct {
	*core
	registry *registry
	killer   killer
	unparkMu sync.Mutex // serializes moves back to the GPUs, because they need free memory there
}

var errNoMover = statusError{http.StatusNotImplemented, errors.New("this token daemon cannot move memory to the host")}

// check returns an error if memory cannot be moved.
func (p *parking) check(ctx context.Context, simulated bool) error {
	if p.cfg.Mover == nil {
		return errNoMover
	}
	if err := p.cfg.Mover.Check(ctx, simulated); err != nil {
		return statusError{http.StatusNotImplemented, err}
	}
	return nil
}

// park moves an instance's memory to the host. Before the move, it records on disk that the memory
// may be on the host, so that the next daemon moves it back if this one is killed.
func (p *parking) park(ctx context.Context, inst *instance) error {
	if p.cfg.Mover == nil {
		return errNoMover
	}
	inst.moves.Lock()
	defer inst.moves.Unlock()
	pids, err := p.awaitIdle(ctx, inst)
	if err != nil {
		return statusError{http.StatusConflict, err}
	}
	if len(pids) == 0 {
		return nil
	}
	if err := p.registry.saveParked(inst); err != nil {
		_ = p.locked(inst.markUnparked)
		return err
	}
	start := time.Now()
	if err := p.cfg.Mover.Park(ctx, inst.simulated(), pids); err != nil {
		p.log.Warn("instance not parked", "instance", inst.reg.Instance, "err", err)
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveTime)
		defer cancel()
		undone := p.moveBack(back, inst, false)
		return statusError{http.StatusBadGateway, errors.Join(err, undone)}
	}
	p.log.Info("instance parked", "instance", inst.reg.Instance, "processes", len(pids), "took", time.Since(start).Round(time.Millisecond).String())
	return nil
}

// awaitIdle waits until an instance is idle, at most idleTime, and marks it as parked. From then on, its
// next request makes startUnpark move the memory back. It returns the instance's processes, or errBusy.
func (p *parking) awaitIdle(ctx context.Context, inst *instance) (pids []int, err error) {
	ctx, cancel := context.WithTimeout(ctx, idleTime)
	defer cancel()
	err = p.retryWhileBusy(ctx, func() (err error) {
		if pids, err = inst.idlePIDs(); err == nil && len(inst.parked.pids) == 0 {
			inst.parked = parked{pids: pids, startTimes: inst.startTimes(), memory: inst.memoryByGPU()}
		}
		return err
	})
	return pids, err
}

// unpark moves an instance's memory back. It does nothing if the instance is not parked.
func (p *parking) unpark(ctx context.Context, inst *instance) error {
	inst.moves.Lock()
	defer inst.moves.Unlock()
	var isParked bool
	if err := p.locked(func() { isParked = len(inst.parked.pids) > 0 }); err != nil {
		return err
	}
	if !isParked {
		return nil
	}
	if p.cfg.Mover == nil {
		return errNoMover
	}
	return p.moveBack(ctx, inst, true)
}

// checkFreeMemory returns an error if the memory does not fit on its GPUs. The driver must not try then: if
// it fails once for lack of memory, it cannot move the memory back later either.
func (p *parking) checkFreeMemory(memory []gpuMemory) error {
	for _, h := range memory {
		if free, err := p.cfg.Mover.Free(h.device); err == nil && free < h.bytes {
			return fmt.Errorf("the instance's memory, %v, does not fit on GPU %s, which has %v free", h.bytes, h.device, free)
		}
	}
	return nil
}

// moveBack moves an instance's memory back. If moved is true, Park has succeeded, and moveBack first
// checks that the memory fits. It tries twice and kills the instance if the driver fails.
func (p *parking) moveBack(ctx context.Context, inst *instance, moved bool) error {
	p.unparkMu.Lock()
	defer p.unparkMu.Unlock()
	var pids []int
	var memory []gpuMemory
	if err := p.locked(func() {
		pids = inst.parked.alive()
		if memory = inst.parked.memory; memory == nil {
			memory = inst.memoryByGPU() // of the processes that have connected to this daemon
		}
	}); err != nil {
		return err
	}
	if moved {
		if err := p.checkFreeMemory(memory); err != nil {
			return statusError{http.StatusConflict, err}
		}
	}
	start := time.Now()
	err := p.cfg.Mover.Unpark(ctx, inst.simulated(), pids)
	if err != nil && ctx.Err() == nil { // the checkpoint process may have been killed
		err = p.cfg.Mover.Unpark(ctx, inst.simulated(), pids)
	}
	if err != nil {
		var lost tree
		if err := p.locked(func() { lost = inst.tree() }); err == nil {
			p.killer.killAll("the driver cannot move its memory back to the GPU", lost) // the processes may hold GPU memory forever
		}
		return statusError{http.StatusBadGateway, fmt.Errorf("the instance was killed, because its memory cannot be moved back to the GPU: %w", err)}
	}
	p.log.Info("instance unparked", "instance", inst.reg.Instance, "processes", len(pids), "took", time.Since(start).Round(time.Millisecond).String())
	if err := p.locked(inst.markUnparked); err != nil {
		return err
	}
	if err := p.registry.saveParked(inst); err != nil { // the next daemon finds that the instance is not parked
		p.log.Error("cannot record that an instance was unparked", "instance", inst.reg.Instance, "err", err)
	}
	return nil
}

// startUnpark starts to move the memory of a parked instance back, because a process wants the GPU. The
// process's request is held back meanwhile: with a lease, the process would occupy the GPU during the
// move. The caller holds the lock.
func (p *parking) startUnpark(inst *instance) {
	if len(inst.parked.pids) == 0 || inst.parked.unparking {
		return
	}
	inst.parked.unparking = true
	p.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), moveTime)
		defer cancel()
		if err := p.unpark(ctx, inst); err != nil {
			p.log.Error("instance not unparked", "instance", inst.reg.Instance, "err", err)
			_ = p.locked(func() { inst.parked.unparking = false })
		}
	})
}

// retry moves back the memory of instances that want the GPU and did not fit before. It also checks
// whether parked processes have ended, because a process may outlive its connection. The caller holds
// the lock.
func (p *parking) retry() {
	for _, inst := range p.registry.instances {
		inst.checkParked()
		if len(inst.waiting()) > 0 {
			p.startUnpark(inst)
		}
	}
}
