package process

import (
	"context"
	"fmt"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// Find returns the sessions in which an instance of that id runs. Their address
// is not known.
func (r *Runtime) Find(_ context.Context, id string) ([]instance.Handle, error) {
	all, err := procfs.All()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	ours := func(pid int) bool {
		return procfs.HasEnv(pid, "GFAAS_INSTANCE="+id) && procfs.HasEnv(pid, "GFAAS_SOCKET="+r.socket())
	}
	started := map[int]uint64{} // by session: when it or, without its leader, what is left of it began
	for _, s := range all {
		if s.Session <= 1 || s.Ended() || !ours(s.PID) {
			continue
		}
		if leader, err := procfs.Read(s.Session); err == nil && !leader.Ended() {
			// A session that someone else leads is not ours to end.
			if ours(leader.PID) {
				started[s.Session] = leader.Start
			}
			continue
		}
		if first, seen := started[s.Session]; !seen || s.Start < first {
			started[s.Session] = s.Start
		}
	}
	var out []instance.Handle
	for pid, start := range started {
		out = append(out, instance.Handle{Runtime: instance.Process, PID: pid, StartTime: start})
	}
	return out, nil
}
