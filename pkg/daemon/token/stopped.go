package token

import (
	"os"
	"path/filepath"
	"strings"
	"time"

	policy "github.com/gfaas/gfaas/pkg/policy/token"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// A process may be stopped, by a signal, a debugger or a frozen cgroup, while
// it drains, or never give its lease back for another reason. Its gate is closed,
// but others would wait for its SMs until it goes on. Whose work is just long is
// charged for all of it when it returns, whether or not others waited.
const (
	leastPatience  = 250 * time.Millisecond // and at least two windows, before a look
	unseenPatience = 10 * time.Second       // with a process that cannot be seen from here
	mostPatience   = 30 * time.Second       // with any: the preload library gives up on what hangs long before
)

// patience is how long a client may drain before it is looked at.
func (g *device) patience() time.Duration { return max(leastPatience, 2*g.d.window()) }

// checkStopped suspends the clients that were asked back long ago and are
// stopped, or whom nobody waits for any longer, and sees to it that it is called
// again while others drain. Locked.
func (g *device) checkStopped() {
	now, drains := g.d.now(), false
	for _, c := range g.d.clients {
		if c.alloc.gpu != g || c.lease == 0 || c.revoked == 0 || c.suspended {
			continue
		}
		took := now - c.revoked
		if took < g.patience() {
			drains = true
			continue
		}
		stands := c.pid != 0 && stopped(c.pid)
		if took < mostPatience && c.pid != 0 && !stands || c.pid == 0 && took < unseenPatience {
			drains = true
			continue
		}
		c.suspended = true
		g.d.faults.warn("client is stopped or does not drain: nobody waits for it any longer", "gpu", g.name,
			"instance", c.alloc.inst.reg.Instance, "pid", c.pid, "asked_back_ms", took.Milliseconds())
		g.step(policy.Suspend{Client: c.id, Stopped: stands})
	}
	if g.checking = drains; drains {
		g.stopCheck.Reset(g.patience())
	}
}

// stopped says whether a process is stopped, traced or frozen.
func stopped(pid int) bool {
	if s, err := procfs.Read(pid); err != nil || s.Stopped() {
		return err == nil
	}
	groups, err := procfs.Cgroups(pid)
	return err == nil && frozen("/sys/fs/cgroup", groups)
}

// frozen says whether one of the cgroups is frozen, by itself or with one above
// it.
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
