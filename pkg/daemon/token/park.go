package token

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gfaas/gfaas/pkg/gpu"
	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// What an instance that has no work holds on its GPUs can wait on the host: whoever
// looks after instances asks for it, and has it brought back before the next work. The
// driver does it from outside (its checkpoints). Its processes cannot call the driver
// meanwhile; one that asks for the GPU is brought back.

// Mover moves what processes hold on simulated or real GPUs to the host and back.
type Mover interface {
	// Check says why it cannot, if so.
	Check(ctx context.Context, simulated bool) error
	// Out has all that these processes of one instance hold go to the host, at once.
	// On an error Back says whether they go on.
	Out(ctx context.Context, simulated bool, pids []int) error
	// Back has them go on with it, each at its addresses, whatever became of Out.
	Back(ctx context.Context, simulated bool, pids []int) error
	// Free is what nobody has of a GPU's memory.
	Free(device string) (gpu.Bytes, error)
}

const (
	moveTime  = time.Minute          // for all of an instance's memory to be moved
	idleTime  = time.Second          // for an instance to become idle that is to be parked
	idleCheck = 5 * time.Millisecond // between two looks
)

// parking is how an instance stands to it. The mutex is held while it is moved.
type parking struct {
	pids    []int          // processes whose memory is away, or may be
	began   map[int]uint64 // when they did, by number; nil where a daemon before this one knew
	holds   []holding      // what they held when it went; nil likewise
	returns bool           // one of them has asked for the GPU, and it is being brought back
}

// holding is what an instance holds of a GPU.
type holding struct {
	device string
	bytes  gpu.Bytes
}

var (
	errNoMover = errors.New("this daemon moves no memory to the host")
	errWorks   = errors.New("it has work on the GPU")
)

// getParking says whether memory can be moved.
func (d *Daemon) getParking(w http.ResponseWriter, r *http.Request) {
	err := errNoMover
	if d.cfg.Mover != nil {
		err = d.cfg.Mover.Check(r.Context(), r.URL.Query().Get("gpu") == "sim")
	}
	if err != nil {
		problem(w, http.StatusNotImplemented, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// putParked has what an instance holds on its GPUs wait on the host.
func (d *Daemon) putParked(w http.ResponseWriter, r *http.Request) {
	d.move(w, r, d.park)
}

// deleteParked has it come back; one that is here is no error.
func (d *Daemon) deleteParked(w http.ResponseWriter, r *http.Request) {
	d.move(w, r, d.unpark)
}

func (d *Daemon) move(w http.ResponseWriter, r *http.Request, do func(context.Context, *instance) (int, error)) {
	id := r.PathValue("id")
	var inst *instance
	err := d.locked(func() { inst = d.instances[id] })
	switch {
	case err != nil:
		problem(w, http.StatusServiceUnavailable, err)
		return
	case inst == nil:
		problem(w, http.StatusNotFound, fmt.Errorf("no instance %q", id))
		return
	}
	// A caller who leaves does not leave it half-way.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), moveTime)
	defer cancel()
	if status, err := do(ctx, inst); err != nil {
		problem(w, status, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// park moves an instance's memory out. That it may be away is kept before it is: the
// next daemon brings it back if this one is killed.
func (d *Daemon) park(ctx context.Context, inst *instance) (status int, err error) {
	if d.cfg.Mover == nil {
		return http.StatusNotImplemented, errNoMover
	}
	inst.moves.Lock()
	defer inst.moves.Unlock()
	pids, err := d.idle(ctx, inst)
	if err != nil {
		return http.StatusConflict, err
	}
	if len(pids) == 0 {
		return 0, nil
	}
	if err := d.keepParked(inst); err != nil {
		_ = d.locked(inst.unparked)
		return http.StatusInternalServerError, err
	}
	began := time.Now()
	if err := d.cfg.Mover.Out(ctx, inst.simulated(), pids); err != nil {
		d.log.Warn("instance not parked", "instance", inst.reg.Instance, "err", err)
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveTime)
		defer cancel()
		_, undone := d.bring(back, inst, false)
		return http.StatusBadGateway, errors.Join(err, undone)
	}
	d.log.Info("instance parked", "instance", inst.reg.Instance, "processes", len(pids), "took", time.Since(began).Round(time.Millisecond).String())
	return 0, nil
}

// idle waits a moment until an instance has no work, and takes it for parked from then
// on: the next of its processes that asks for the GPU has it brought back. It tells its
// processes.
func (d *Daemon) idle(ctx context.Context, inst *instance) (pids []int, err error) {
	ctx, cancel := context.WithTimeout(ctx, idleTime)
	defer cancel()
	for {
		if closing := d.locked(func() {
			if pids, err = inst.processes(); err == nil && len(inst.parked.pids) == 0 {
				inst.parked = parking{pids: pids, began: inst.began(), holds: inst.holdings()}
			}
		}); closing != nil {
			return nil, closing
		}
		if !errors.Is(err, errWorks) {
			return pids, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(idleCheck):
		}
	}
}

// unpark brings an instance's memory back.
func (d *Daemon) unpark(ctx context.Context, inst *instance) (status int, err error) {
	inst.moves.Lock()
	defer inst.moves.Unlock()
	var away bool
	if err := d.locked(func() { away = len(inst.parked.pids) > 0 }); err != nil {
		return http.StatusServiceUnavailable, err
	}
	if !away {
		return 0, nil
	}
	if d.cfg.Mover == nil {
		return http.StatusNotImplemented, errNoMover
	}
	return d.bring(ctx, inst, true)
}

// roomFor says why what is away does not fit, if so. It is asked before the driver is:
// drivers cannot bring back later what they once had no room for.
func (d *Daemon) roomFor(holds []holding) error {
	for _, h := range holds {
		if free, err := d.cfg.Mover.Free(h.device); err == nil && free < h.bytes {
			return fmt.Errorf("its %v do not fit on GPU %s, which has %v free", h.bytes, h.device, free)
		}
	}
	return nil
}

// bring brings back what of an instance is away, if there is room for it; one that did
// not get away takes no room that it has not.
func (d *Daemon) bring(ctx context.Context, inst *instance, away bool) (status int, err error) {
	d.returning.Lock()
	defer d.returning.Unlock()
	var pids []int
	var holds []holding
	if err := d.locked(func() {
		pids = inst.parked.left()
		if holds = inst.parked.holds; holds == nil {
			holds = inst.holdings() // of those that have come back to this daemon
		}
	}); err != nil {
		return http.StatusServiceUnavailable, err
	}
	if away {
		if err := d.roomFor(holds); err != nil {
			return http.StatusConflict, err
		}
	}
	began := time.Now()
	err = d.cfg.Mover.Back(ctx, inst.simulated(), pids)
	if err != nil && ctx.Err() == nil { // who did it may have been killed
		err = d.cfg.Mover.Back(ctx, inst.simulated(), pids)
	}
	if err != nil {
		var lost tree
		if err := d.locked(func() { lost = inst.tree() }); err == nil {
			d.end(lost, "the driver does not bring it back") // it may hold memory of the GPU for ever
		}
		return http.StatusBadGateway, fmt.Errorf("it was killed, as it cannot be brought back: %w", err)
	}
	d.log.Info("instance brought back", "instance", inst.reg.Instance, "processes", len(pids), "took", time.Since(began).Round(time.Millisecond).String())
	if err := d.locked(inst.unparked); err != nil {
		return http.StatusServiceUnavailable, err
	}
	if err := d.keepParked(inst); err != nil { // it is here all the same, and the next daemon finds that it is
		d.log.Error("cannot keep that an instance was brought back", "instance", inst.reg.Instance, "err", err)
	}
	return 0, nil
}

// keepParked writes down whether an instance is parked, for the next daemon.
func (d *Daemon) keepParked(inst *instance) error {
	d.regMu.Lock()
	defer d.regMu.Unlock()
	var text []byte
	var err error
	if closing := d.locked(func() {
		if d.instances[inst.reg.Instance] == inst { // else it went meanwhile
			text, err = inst.encode()
		}
	}); closing != nil {
		return closing
	}
	if err == nil && text != nil {
		err = d.write(inst.reg.Instance, text)
	}
	if err != nil {
		return fmt.Errorf("keep registration: %w", err)
	}
	return nil
}

// unparked notes that nothing of an instance is away, and tells the schedulers of who
// has asked for the GPU meanwhile: nobody asks again. Locked.
func (i *instance) unparked() {
	i.parked = parking{}
	for _, c := range i.waiting() {
		c.alloc.gpu.step(policy.Request{Client: c.id})
	}
}

// lost looks whether processes are left whose memory is away: what it was went with
// them. Locked.
func (i *instance) lost() {
	if len(i.parked.pids) > 0 && len(i.parked.left()) == 0 {
		i.unparked()
	}
}

// left are those whose memory is away and that have not ended.
func (p *parking) left() (pids []int) {
	for _, pid := range p.pids {
		lives := procfs.Alive(pid)
		if start := p.began[pid]; lives && start != 0 {
			same, err := procfs.Lives(pid, start)
			lives = same || err != nil
		}
		if lives {
			pids = append(pids, pid)
		}
	}
	return pids
}

// waiting are the instance's clients that have asked for the GPU. Locked.
func (i *instance) waiting() (out []*client) {
	for _, a := range i.allocations {
		for _, c := range a.clients {
			if c != nil && c.waits {
				out = append(out, c)
			}
		}
	}
	return out
}

// called has an instance brought back that is parked and of which a process asks for
// the GPU. It would hold what it is granted until it is back, so its request waits.
// Locked.
func (d *Daemon) called(inst *instance) {
	if len(inst.parked.pids) == 0 || inst.parked.returns {
		return
	}
	inst.parked.returns = true
	d.conns.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), moveTime)
		defer cancel()
		if _, err := d.unpark(ctx, inst); err != nil {
			d.log.Error("instance not brought back", "instance", inst.reg.Instance, "err", err)
			_ = d.locked(func() { inst.parked.returns = false })
		}
	})
}

// processes are those of an instance, each once; errWorks while one of them has the
// GPU or waits for it. Locked.
func (i *instance) processes() (pids []int, err error) {
	seen := map[int]bool{}
	for _, a := range i.allocations {
		for _, c := range a.clients {
			switch {
			case c == nil || seen[c.pid]:
				continue
			case c.pid == 0:
				return nil, errors.New("one of its processes is of a pid namespace that this daemon does not see")
			}
			seen[c.pid] = true
			pids = append(pids, c.pid)
			if c.lease != 0 || c.waits {
				err = errWorks
			}
		}
	}
	return pids, err
}

// holdings are what an instance's processes hold, what the driver keeps for them
// included. Locked.
func (i *instance) holdings() (out []holding) {
	for _, a := range i.allocations {
		h := holding{device: a.Device()}
		for slot, c := range a.clients {
			if c != nil {
				h.bytes += gpu.Bytes(min(a.page.counters(slot).memUsed, 1<<62)) + c.foreign
			}
		}
		out = append(out, h)
	}
	return out
}

// simulated says whether the instance is on simulated GPUs.
func (i *instance) simulated() bool {
	d, err := gpu.ParseDevice(i.reg.GPU)
	return err == nil && d.Simulated
}
