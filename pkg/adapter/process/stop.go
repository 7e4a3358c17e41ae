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

	"github.com/gfaas/gfaas/pkg/adapter/job"
	"github.com/gfaas/gfaas/pkg/adapter/logs"
	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/procfs"
)

const (
	pollEvery = 10 * time.Millisecond
	// killWait is how long the kernel may take to end killed processes.
	killWait = 10 * time.Second
)

// Stop sends SIGTERM to all processes of the instance's session and, after grace, SIGKILL
// to the remaining ones. If ctx is cancelled, it kills at once. Before an MPS client dies,
// Stop ends the client's work on the GPU. It returns when all processes have ended and, if
// this Runtime started the instance, been reaped. It then forgets the exit status and
// removes the log.
func (r *Runtime) Stop(ctx context.Context, h instance.Handle, grace time.Duration) error {
	alive, err := r.members(h)
	if err != nil {
		return err
	}
	terminated := map[int]bool{}
	r.terminate(ctx, alive, terminated, func(pid int) bool { return procfs.Deadly(pid, unix.SIGTERM) })
	signal(asked(h, alive), unix.SIGTERM)
	graceTimer := time.NewTimer(grace)
	defer graceTimer.Stop()
	remaining, err := r.await(ctx.Done(), graceTimer.C, h, alive)
	if err != nil {
		return err
	}
	r.terminate(ctx, remaining, terminated, func(int) bool { return true })
	dead := time.NewTimer(killWait)
	defer dead.Stop()
	for len(remaining) > 0 {
		signal(remaining, unix.SIGKILL)
		next := time.NewTimer(pollEvery)
		if remaining, err = r.await(nil, next.C, h, remaining); err != nil {
			return err
		}
		select {
		case <-dead.C:
			if len(remaining) > 0 {
				return fmt.Errorf("process %d did not end after SIGKILL", remaining[0].PID)
			}
		default:
		}
	}
	if c := r.child(h); c != nil {
		<-c.reaped
		r.mu.Lock()
		delete(r.children, identity{h.PID, h.StartTime})
		r.mu.Unlock()
	}
	if h.LogPath == "" {
		return nil
	}
	logs.AwaitWritten(context.WithoutCancel(ctx), h.LogPath)
	return logs.Remove(h.LogPath)
}

// asked returns the processes to which Stop sends SIGTERM: all or, for a job, the supervisor, which
// passes the signal on.
func asked(h instance.Handle, alive []procfs.Stat) []procfs.Stat {
	leader := slices.IndexFunc(alive, func(s procfs.Stat) bool { return s.PID == h.PID })
	if leader < 0 || h.LogPath == "" {
		return alive
	}
	if _, err := job.Read(h.LogPath); err != nil {
		return alive
	}
	return alive[leader : leader+1]
}

// await polls until the instance has no processes or a channel delivers, and returns the
// remaining processes.
func (r *Runtime) await(cut <-chan struct{}, timeout <-chan time.Time, h instance.Handle, remaining []procfs.Stat) ([]procfs.Stat, error) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for len(remaining) > 0 {
		var last bool
		select {
		case <-cut:
			last = true
		case <-timeout:
			last = true
		case <-tick.C:
		}
		var err error
		if remaining, err = r.members(h); err != nil || last {
			return remaining, err
		}
	}
	return nil, nil
}

// members returns the living processes of the instance's session. While the leader exists,
// its start time proves that the session is the instance's. After that, the kernel may
// reuse the number for another session, so only processes that isMember recognizes count.
func (r *Runtime) members(h instance.Handle) ([]procfs.Stat, error) {
	if h.PID <= 1 {
		return nil, fmt.Errorf("%d is not the PID of an instance", h.PID)
	}
	leader, err := procfs.Read(h.PID)
	present := err == nil
	switch {
	case present && leader.Start != h.StartTime:
		return nil, nil
	case !present && !procfs.IsNotExist(err):
		return nil, fmt.Errorf("inspect process %d: %w", h.PID, err)
	}
	all, err := procfs.Stats()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []procfs.Stat
	for _, s := range all {
		if s.Session != h.PID || s.Exited() || s.Start < h.StartTime {
			continue
		}
		ours := present
		if !present {
			if ours, err = r.isMember(s.PID); err != nil {
				return nil, err
			}
		}
		if ours {
			found = append(found, s)
		}
	}
	return found, nil
}

// isMember reports whether a process has our socket in its environment. For a process without
// that variable, for example because it has overwritten its environment with a title, it
// reports whether the process has loaded the preload library.
func (r *Runtime) isMember(pid int) (bool, error) {
	env, err := procfs.Environ(pid)
	if err != nil {
		return false, fmt.Errorf("inspect process %d: %w", pid, err)
	}
	if socket, set := env["GFAAS_SOCKET"]; set {
		return socket == r.socket(), nil
	}
	hooked, _ := preload.Hooked(pid)
	return hooked, nil
}

// terminate ends the GPU work of the MPS clients that are about to die, once for each, and
// records them in terminated. It ignores errors, because the MPS daemon cannot keep the processes
// alive.
func (r *Runtime) terminate(ctx context.Context, processes []procfs.Stat, terminated map[int]bool, dies func(pid int) bool) {
	var pids []int
	for _, s := range processes {
		if !terminated[s.PID] && dies(s.PID) {
			terminated[s.PID] = true
			pids = append(pids, s.PID)
		}
	}
	_ = mps.Terminate(ctx, r.config.RunDir, pids)
}

// signal sends a signal to each process.
func signal(processes []procfs.Stat, sig unix.Signal) {
	for _, s := range processes {
		if p, err := procfs.Open(s.PID, s.Start); err == nil {
			_ = p.Signal(sig) // no signal is needed if it has ended meanwhile
			_ = p.Close()
		}
	}
}

// Find returns the sessions of the instance with an ID, or of all instances if id is empty.
// Instances of gfaas run have no function name, so only their ID finds them. Find ignores
// processes of other users.
func (r *Runtime) Find(_ context.Context, id string) ([]instance.Record, error) {
	all, err := procfs.Stats()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	found := map[int]instance.Record{} // by session
	for _, s := range all {
		if s.Session <= 1 || s.Exited() {
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
		if err != nil && !procfs.IsNotExist(err) {
			return nil, fmt.Errorf("inspect process %d: %w", s.Session, err)
		}
		if err == nil && !leader.Exited() {
			// Ignore a session whose leader is not an instance of ours.
			if record, ours, err = r.record(leader, id); ours {
				found[s.Session] = record
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		// Without a leader, use the start time of the oldest remaining process.
		record.Handle.PID = s.Session
		if first, seen := found[s.Session]; !seen || s.Start < first.Handle.StartTime {
			found[s.Session] = record
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b instance.Record) int { return cmp.Compare(a.Handle.PID, b.Handle.PID) }), nil
}

// record returns the instance that a process's environment names, and whether it is
// ours.
func (r *Runtime) record(s procfs.Stat, id string) (record instance.Record, ours bool, err error) {
	env, err := procfs.Environ(s.PID)
	if err != nil {
		return instance.Record{}, false, fmt.Errorf("inspect process %d: %w", s.PID, err)
	}
	function := env["GFAAS_FUNCTION"]
	if env["GFAAS_SOCKET"] != r.socket() || id == "" && function == "" || id != "" && env["GFAAS_INSTANCE"] != id || !instance.ValidID(env["GFAAS_INSTANCE"]) {
		return instance.Record{}, false, nil
	}
	if ours, err = procfs.Own(s.PID); err != nil {
		return instance.Record{}, false, fmt.Errorf("inspect process %d: %w", s.PID, err)
	}
	record = instance.Record{ID: env["GFAAS_INSTANCE"], Function: function, Runtime: instance.Process, Handle: instance.Handle{
		Runtime: instance.Process, PID: s.PID, StartTime: s.Start,
	}}
	if result := env[job.Variable]; result != "" {
		record.Job, record.Handle.LogPath = true, result
	} else {
		record.Handle.Address = net.JoinHostPort("127.0.0.1", env["PORT"])
	}
	return record, ours, nil
}
