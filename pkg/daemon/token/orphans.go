package token

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
)

// An owner that is killed cannot end what it has started, so the daemon does where
// the registration asks for it: it kills whoever began with the instance's
// environment or is connected as its process, and whoever descends from those. It
// does so for owners that it has seen alive itself: of one that ended while there
// was no daemon nobody knows how.

// endWithin is how long the kernel may take to end what was killed.
const endWithin = 5 * time.Second

// tree is an instance whose processes are to be killed.
type tree struct {
	instance string
	secret   [sha256.Size]byte // its hash, by which a later instance of that name is another …
	noted    uint64            // … and when that may come, in clock ticks since boot
	clients  map[int]uint64    // when its processes that are connected or were found before began, by number
}

// orphaned says whether the instance's processes are to be killed.
func (i *instance) orphaned() bool { return i.reg.EndWithOwner && i.watched && i.ownerDead() }

// tree is what there is of an instance now. Locked.
func (i *instance) tree() tree {
	clients := i.began()
	maps.Copy(clients, i.members)
	return tree{instance: i.reg.Instance, secret: i.secret, noted: procfs.Now(), clients: clients}
}

// orphan takes note of an instance whose processes are to be killed, once. Locked.
func (d *Daemon) orphan(i *instance) {
	i.watched = false
	d.orphans = append(d.orphans, i.tree())
}

// endOrphans kills what is noted, outside of the lock.
func (d *Daemon) endOrphans() {
	var trees []tree
	_ = d.locked(func() { trees, d.orphans = d.orphans, nil })
	if len(trees) == 0 {
		return
	}
	var all []procfs.Stat
	for _, t := range trees {
		alive, _ := d.members(t) // kill logs the error
		all = append(all, alive...)
	}
	d.doom(all) // at once for all
	for _, t := range trees {
		d.kill(t, "its owner was killed")
	}
}

// doom prepares processes for being killed.
func (d *Daemon) doom(processes []procfs.Stat) {
	if d.cfg.Doomed == nil || len(processes) == 0 {
		return
	}
	var pids []int
	for _, s := range processes {
		pids = append(pids, s.PID)
	}
	d.cfg.Doomed(context.Background(), pids)
}

// end prepares the processes of a tree for being killed, and kills them.
func (d *Daemon) end(t tree, why string) {
	alive, _ := d.members(t) // kill logs the error
	d.doom(alive)
	d.kill(t, why)
}

// kill kills the processes of a tree, again and again, since they may start others
// meanwhile, until there is none.
func (d *Daemon) kill(t tree, why string) {
	killed, until := map[int]bool{}, time.Now().Add(endWithin)
	for time.Now().Before(until) {
		alive, err := d.members(t)
		if err != nil {
			d.faults.warn("cannot look for an instance's processes", "why", why, "instance", t.instance, "err", err)
		} else if len(alive) == 0 {
			break
		}
		for _, s := range alive {
			p, err := procfs.Open(s.PID, s.Start)
			if err != nil {
				continue // it has ended, or is tried again
			}
			err = p.Signal(unix.SIGKILL)
			_ = p.Close()
			switch {
			case err == nil:
				killed[s.PID] = true
			case !errors.Is(err, os.ErrProcessDone):
				d.faults.warn("a process of an instance cannot be ended", "why", why, "instance", t.instance, "pid", s.PID, "err", err)
			}
		}
		time.Sleep(5 * time.Millisecond) // the kernel ends them meanwhile
	}
	d.log.Info("ended an instance's processes", "why", why, "instance", t.instance, "processes", len(killed))
}

// members are the living processes of a tree, but for this one and what it has
// started.
func (d *Daemon) members(t tree) (found []procfs.Stat, err error) {
	all, err := procfs.All()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	below := map[int][]procfs.Stat{}
	var open []procfs.Stat
	for _, s := range all {
		below[s.Parent] = append(below[s.Parent], s)
		began, err := d.beganAs(s, t)
		if err != nil {
			return nil, fmt.Errorf("look at process %d: %w", s.PID, err)
		}
		if start, connected := t.clients[s.PID]; began || connected && start == s.Start {
			open = append(open, s)
		}
	}
	seen := map[int]bool{os.Getpid(): true}
	for len(open) > 0 {
		s := open[len(open)-1]
		open = open[:len(open)-1]
		if seen[s.PID] {
			continue
		}
		seen[s.PID] = true
		open = append(open, below[s.PID]...)
		if !s.Ended() {
			found = append(found, s)
		}
	}
	return found, nil
}

// beganAs says whether a process was started with the environment of that tree. The
// preload library masks the secret in it: of those the time tells.
func (d *Daemon) beganAs(s procfs.Stat, t tree) (bool, error) {
	env, err := procfs.Environ(s.PID)
	if err != nil || d.beganIn(env) != t.instance {
		return false, err
	}
	secret := env["GFAAS_SECRET"]
	masked := strings.Trim(secret, "*") == ""
	return masked && s.Start < t.noted || sha256.Sum256([]byte(secret)) == t.secret, nil
}
