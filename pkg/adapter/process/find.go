package process

import (
	"context"
	"fmt"

	"github.com/gfaas/gfaas/pkg/instance"
)

// Find returns the sessions in which an instance of that id runs, for when
// its starter was killed before it wrote a handle down. They can be stopped;
// their address is not known.
func (r *Runtime) Find(_ context.Context, id string) ([]instance.Handle, error) {
	all, err := allStats()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	ours := func(pid int) bool {
		return hasEnv(pid, "GFAAS_INSTANCE="+id) && hasEnv(pid, "GFAAS_SOCKET="+r.socket())
	}
	started := map[int]uint64{} // by session: when it or, without its leader, what is left of it began
	for _, s := range all {
		if s.session <= 1 || s.dead() || !ours(s.pid) {
			continue
		}
		if leader, err := readStat(s.session); err == nil && !leader.dead() {
			// A session that someone else leads is not ours to end.
			if ours(leader.pid) {
				started[s.session] = leader.start
			}
			continue
		}
		if first, seen := started[s.session]; !seen || s.start < first {
			started[s.session] = s.start
		}
	}
	var out []instance.Handle
	for pid, start := range started {
		out = append(out, instance.Handle{Runtime: Name, PID: pid, StartTime: start})
	}
	return out, nil
}
