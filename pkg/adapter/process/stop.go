package process

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/logs"
	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/procfs"
)

const (
	pollEvery = 10 * time.Millisecond
	// killWait is how long the kernel may take to end what was killed.
	killWait = 10 * time.Second
)

// Stop asks every process of the instance's session to end and kills what is
// left after grace. When ctx is cancelled it kills at once. The GPU work of a client of MPS
// is ended before the client is killed. It returns when
// all are gone and, if this Runtime started the instance, reaped; how it ended
// is then forgotten, and its log removed.
func (r *Runtime) Stop(ctx context.Context, h instance.Handle, grace time.Duration) error {
	alive, err := r.members(h)
	if err != nil {
		return err
	}
	terminated := map[int]bool{}
	r.terminate(ctx, alive, terminated, func(pid int) bool { return procfs.Deadly(pid, unix.SIGTERM) })
	signal(alive, unix.SIGTERM)
	giveUp := time.NewTimer(grace)
	defer giveUp.Stop()
	left, err := r.await(ctx.Done(), giveUp.C, h, alive)
	if err != nil {
		return err
	}
	r.terminate(ctx, left, terminated, func(int) bool { return true })
	dead := time.NewTimer(killWait)
	defer dead.Stop()
	for len(left) > 0 {
		signal(left, unix.SIGKILL)
		next := time.NewTimer(pollEvery)
		if left, err = r.await(nil, next.C, h, left); err != nil {
			return err
		}
		select {
		case <-dead.C:
			if len(left) > 0 {
				return fmt.Errorf("process %d does not end after SIGKILL", left[0].PID)
			}
		default:
		}
	}
	if c := r.child(h); c != nil {
		<-c.done
		r.mu.Lock()
		delete(r.children, identity{h.PID, h.StartTime})
		r.mu.Unlock()
	}
	if h.LogPath == "" {
		return nil
	}
	logs.Settle(context.WithoutCancel(ctx), h.LogPath)
	return logs.Remove(h.LogPath)
}

// await polls until the instance has no process left or one of the channels
// speaks, and returns the processes that are left.
func (r *Runtime) await(cut <-chan struct{}, timeout <-chan time.Time, h instance.Handle, left []procfs.Stat) ([]procfs.Stat, error) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for len(left) > 0 {
		var last bool
		select {
		case <-cut:
			last = true
		case <-timeout:
			last = true
		case <-tick.C:
		}
		var err error
		if left, err = r.members(h); err != nil || last {
			return left, err
		}
	}
	return nil, nil
}

// members lists the living processes of the instance's session. While the
// leader is there, its start time says whether the session is ours. After
// that the number can be another session's by now, so only processes that
// marked says are ours count.
func (r *Runtime) members(h instance.Handle) ([]procfs.Stat, error) {
	if h.PID <= 1 {
		return nil, fmt.Errorf("%d is not the PID of an instance", h.PID)
	}
	leader, err := procfs.Read(h.PID)
	present := err == nil
	switch {
	case present && leader.Start != h.StartTime:
		return nil, nil
	case !present && !procfs.Gone(err):
		return nil, fmt.Errorf("look at process %d: %w", h.PID, err)
	}
	all, err := procfs.All()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []procfs.Stat
	for _, s := range all {
		if s.Session != h.PID || s.Ended() || s.Start < h.StartTime {
			continue
		}
		ours := present
		if !present {
			if ours, err = r.marked(s.PID); err != nil {
				return nil, err
			}
		}
		if ours {
			found = append(found, s)
		}
	}
	return found, nil
}

// marked says whether a process has our socket in its environment or, where it has
// none there, such as one that has written its title over it, the preload library in it.
func (r *Runtime) marked(pid int) (bool, error) {
	env, err := procfs.Environ(pid)
	if err != nil {
		return false, fmt.Errorf("look at process %d: %w", pid, err)
	}
	if socket, set := env["GFAAS_SOCKET"]; set {
		return socket == r.socket(), nil
	}
	hooked, _ := preload.Hooked(pid)
	return hooked, nil
}

// terminate ends the GPU work of those processes that are about to die, unless that was
// done, and notes them. A daemon that fails to do it cannot keep them alive.
func (r *Runtime) terminate(ctx context.Context, processes []procfs.Stat, done map[int]bool, dies func(pid int) bool) {
	var pids []int
	for _, s := range processes {
		if !done[s.PID] && dies(s.PID) {
			done[s.PID] = true
			pids = append(pids, s.PID)
		}
	}
	_ = mps.Terminate(ctx, r.config.RunDir, pids)
}

// signal sends a signal to each of these processes.
func signal(processes []procfs.Stat, sig unix.Signal) {
	for _, s := range processes {
		if p, err := procfs.Open(s.PID, s.Start); err == nil {
			_ = p.Signal(sig) // one that ends meanwhile needs none
			_ = p.Close()
		}
	}
}

// Find returns the sessions in which an instance of that id runs, or any. What
// gfaas run has started has no function's name, and is found by its id alone. What
// another user's processes claim to be does not count.
func (r *Runtime) Find(_ context.Context, id string) ([]instance.Record, error) {
	all, err := procfs.All()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	found := map[int]instance.Record{} // by session
	for _, s := range all {
		if s.Session <= 1 || s.Ended() {
			continue
		}
		record, ours, err := r.record(s, id)
		if err != nil {
			return nil, err
		}
		if !ours {
			continue
		}
		leader, err := procfs.Read(s.Session)
		if err != nil && !procfs.Gone(err) {
			return nil, fmt.Errorf("look at process %d: %w", s.Session, err)
		}
		if err == nil && !leader.Ended() {
			// A session that someone else leads is not ours to end.
			if record, ours, err = r.record(leader, id); ours {
				found[s.Session] = record
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		// It is as old as what is left of it.
		record.Handle.PID = s.Session
		if first, seen := found[s.Session]; !seen || s.Start < first.Handle.StartTime {
			found[s.Session] = record
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b instance.Record) int { return cmp.Compare(a.Handle.PID, b.Handle.PID) }), nil
}

// record is what a process's environment says of the instance that it belongs to.
func (r *Runtime) record(s procfs.Stat, id string) (record instance.Record, ours bool, err error) {
	env, err := procfs.Environ(s.PID)
	if err != nil {
		return instance.Record{}, false, fmt.Errorf("look at process %d: %w", s.PID, err)
	}
	function := env["GFAAS_FUNCTION"]
	if env["GFAAS_SOCKET"] != r.socket() || id == "" && function == "" || id != "" && env["GFAAS_INSTANCE"] != id || !instance.ValidID(env["GFAAS_INSTANCE"]) {
		return instance.Record{}, false, nil
	}
	if ours, err = procfs.Own(s.PID); err != nil {
		return instance.Record{}, false, fmt.Errorf("look at process %d: %w", s.PID, err)
	}
	return instance.Record{ID: env["GFAAS_INSTANCE"], Function: function, Runtime: instance.Process, Handle: instance.Handle{
		Runtime: instance.Process, PID: s.PID, StartTime: s.Start, Address: net.JoinHostPort("127.0.0.1", env["PORT"]),
	}}, ours, nil
}
