package token

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// A process may be stopped by a signal, a debugger or a frozen cgroup while it drains, or fail to
// return its lease for another reason. Its gate is closed, but other clients would wait for its SMs
// until it continues. A process whose work only takes long is charged for all of it when it returns
// the lease, whether or not other clients waited.
const (
	minPatience    = 250 * time.Millisecond // time before a draining client is examined, if two windows are shorter
	unseenPatience = 10 * time.Second       // longest wait for a process that is not visible here
	maxPatience    = 30 * time.Second       // longest wait for any process; the preload library gives up on a hanging drain much earlier
)

// patience returns how long a client may drain before checkStopped examines it.
func (g *device) patience() time.Duration { return max(minPatience, 2*g.schedulers.window()) }

// checkStopped suspends clients that have been draining for long, if they are stopped or other
// clients have waited long enough. It sets the timer for its next call while other clients drain.
func (g *device) checkStopped() {
	now, draining := g.schedulers.now(), false
	for _, c := range g.clients {
		if c.lease == 0 || c.revokedAt == 0 || c.suspended {
			continue
		}
		elapsed := now - c.revokedAt
		if elapsed < g.patience() {
			draining = true
			continue
		}
		isStopped := c.pid != 0 && stopped(c.pid)
		if elapsed < maxPatience && c.pid != 0 && !isStopped || c.pid == 0 && elapsed < unseenPatience {
			draining = true
			continue
		}
		c.suspended = true
		g.schedulers.faults.warn("client is stopped or does not drain: other clients no longer wait for it", "gpu", g.name,
			"instance", c.instance, "pid", c.pid, "asked_back_ms", elapsed.Milliseconds())
		g.step(policy.Suspend{Client: c.id, Stopped: isStopped})
	}
	if g.checking = draining; draining {
		g.stopCheck.Reset(g.patience())
	}
}

// stopped reports whether a process is stopped, traced or frozen.
func stopped(pid int) bool {
	if s, err := procfs.Read(pid); err != nil || s.Stopped() {
		return err == nil
	}
	groups, err := procfs.Cgroups(pid)
	return err == nil && frozen("/sys/fs/cgroup", groups)
}

// frozen reports whether a cgroup of the process is frozen, by itself or through a parent.
func frozen(root string, groups []procfs.Cgroup) bool {
	for _, g := range groups {
		switch g.Controllers {
		case "": // version 2
			text, err := os.ReadFile(filepath.Join(root, g.Path, "cgroup.events"))
			if err == nil && strings.Contains("\n"+string(text), "\nfrozen 1") {
				return true
			}
		case "freezer":
			text, err := os.ReadFile(filepath.Join(root, "freezer", g.Path, "freezer.state"))
			if err == nil && strings.TrimSpace(string(text)) == "FROZEN" {
				return true
			}
		}
	}
	return false
}
