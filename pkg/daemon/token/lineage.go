package token

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
)

// lineage finds the instance in which a process was started, from the environments and parents of
// processes.
//
// A process inside an instance must not decide about the use of the GPU, although it may run as the
// same user and reach the control socket. Nor may it pass for a process of another instance whose
// secret it has read somewhere. A process is inside an instance if it or an ancestor was started with
// the instance's environment or is connected as its process, or if an ancestor is its owner. This is
// not a proof: a process can shed its ancestors and its environment on purpose.
type lineage struct {
	socket        string // common socket for the processes of all instances
	clientDir     string // directory with the folders of the instances' own sockets
	grantedSocket string // socket for the processes of instances with grants; empty: none
	outsiders     *outsiders
}

// outsiders remembers processes whose environment names no instance, such as shells and service
// managers, so that their environment is not read for each process that they start. The environment
// of a process changes when it executes another program.
type outsiders struct {
	mu       sync.Mutex
	programs map[process]program
}

// maxOutsiders bounds the number of remembered processes.
const maxOutsiders = 4096

func (o *outsiders) contains(s procfs.Stat) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	known, ok := o.programs[process{s.PID, s.Start}]
	return ok && known == program{s.Stack, s.Name}
}

// add adds a process, unless it cannot be seen when it executes another program.
func (o *outsiders) add(s procfs.Stat) {
	if s.Stack == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.programs == nil || len(o.programs) >= maxOutsiders {
		o.programs = map[process]program{}
	}
	o.programs[process{s.PID, s.Start}] = program{s.Stack, s.Name}
}

// maxAncestors bounds the number of ancestors that are examined.
const maxAncestors = 64

// ancestor is an entry of a lineage: the process itself or an ancestor.
type ancestor struct {
	procfs.Stat
	instance string // instance of this daemon in which it was started; empty: none
}

// ancestors returns a process and its ancestors, from the process up to process 1 or to the process
// that entered this PID namespace from outside. The result is empty if there is no such process.
func (l lineage) ancestors(pid int) (out []ancestor, err error) {
	for range maxAncestors {
		if pid == 0 {
			break
		}
		s, err := procfs.Read(pid)
		if procfs.IsNotExist(err) {
			break
		}
		a := ancestor{Stat: s}
		if err == nil && !l.outsiders.contains(s) {
			a.instance, err = l.instanceOf(s)
		}
		if err != nil {
			return nil, fmt.Errorf("read the state of process %d: %w", pid, err)
		}
		out = append(out, a)
		pid = s.Parent
	}
	return out, nil
}

// instanceOf returns the instance of this daemon in which a process was started, or "". It adds a
// process whose environment names no instance to the outsiders.
func (l lineage) instanceOf(s procfs.Stat) (string, error) {
	env, err := instanceVariables(s.PID)
	if err != nil {
		return "", err
	}
	if env["GFAAS_INSTANCE"] == "" {
		l.outsiders.add(s)
		return "", nil
	}
	if id := l.startedIn(env); id != "" {
		return id, nil
	}
	return l.startedInContainer(s.PID, env), nil
}

// instanceVariables returns the variables in the environment of a process that name its instance.
func instanceVariables(pid int) (map[string]string, error) {
	return procfs.Environ(pid, "GFAAS_INSTANCE", "GFAAS_SOCKET", "GFAAS_SECRET")
}

// startedIn returns the instance of this daemon in which a process with the environment env was
// started, or "".
func (l lineage) startedIn(env map[string]string) string {
	id, socket := env["GFAAS_INSTANCE"], env["GFAAS_SOCKET"]
	if id == "" || !slices.ContainsFunc(l.sockets(id), func(own string) bool { return sameFile(socket, own) }) && !sameFile(socket, l.socket) {
		return ""
	}
	return id
}

// sockets returns the sockets that are in the folders which containers of an instance may mount.
func (l lineage) sockets(id string) []string {
	return []string{filepath.Join(l.clientDir, id, "token.sock"), l.grantedSocket}
}

// startedInContainer does the same as startedIn for a process in a container, where the socket has
// another path.
func (l lineage) startedInContainer(pid int, env map[string]string) string {
	id := env["GFAAS_INSTANCE"]
	if id == "" || !slices.ContainsFunc(l.sockets(id), func(own string) bool { return sameFileOf(pid, env["GFAAS_SOCKET"], own) }) {
		return ""
	}
	return id
}

// sameFile reports whether both paths refer to the same file.
func sameFile(a, b string) bool {
	one, err1 := os.Stat(a)
	two, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(one, two)
}

// sameFileOf reports whether path, as the process pid sees it, refers to the same file as own. Links
// in path cannot lead out of the process's root directory.
func sameFileOf(pid int, path, own string) bool {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return false
	}
	defer root.Close()
	one, err1 := root.Stat(strings.TrimPrefix(path, "/"))
	two, err2 := os.Stat(own)
	return err1 == nil && err2 == nil && os.SameFile(one, two)
}

// killTimeout bounds the time for which kill waits until the kernel has ended killed processes.
const killTimeout = 5 * time.Second

// tree describes the processes of an instance to kill: processes that were started with the
// instance's environment or are connected, and their descendants.
type tree struct {
	instance   string
	secret     [sha256.Size]byte // hash of the instance's secret; a later instance with the same name has another secret
	recordedAt uint64            // when the tree was recorded, in clock ticks since boot; a later instance starts after it
	clients    map[int]uint64    // start times of connected processes and members, by PID
}

// killer kills the processes of instances.
type killer struct{ *core }

// callBeforeKill calls Config.BeforeKill with processes that are about to be killed.
func (k killer) callBeforeKill(processes []procfs.Stat) {
	if k.cfg.BeforeKill == nil || len(processes) == 0 {
		return
	}
	var pids []int
	for _, s := range processes {
		pids = append(pids, s.PID)
	}
	k.cfg.BeforeKill(context.Background(), pids)
}

// killAll kills the processes of the trees, after one call of callBeforeKill for all of them.
func (k killer) killAll(reason string, trees ...tree) {
	var all []procfs.Stat
	for _, t := range trees {
		alive, _ := k.members(t) // kill logs the error
		all = append(all, alive...)
	}
	k.callBeforeKill(all)
	for _, t := range trees {
		k.kill(t, reason)
	}
}

// kill kills the processes of a tree until none remains, because they may start others meanwhile. It
// gives up after killTimeout.
func (k killer) kill(t tree, reason string) {
	killed, until := map[int]bool{}, time.Now().Add(killTimeout)
	for time.Now().Before(until) {
		alive, err := k.members(t)
		if err != nil {
			k.faults.warn("cannot find the processes of an instance", "why", reason, "instance", t.instance, "err", err)
		} else if len(alive) == 0 {
			break
		}
		for _, s := range alive {
			switch err := killProcess(s); {
			case err == nil:
				killed[s.PID] = true
			case !errors.Is(err, os.ErrProcessDone):
				k.faults.warn("cannot kill a process of an instance", "why", reason, "instance", t.instance, "pid", s.PID, "err", err)
			}
		}
		time.Sleep(5 * time.Millisecond) // wait until the kernel has ended them
	}
	k.log.Info("killed the processes of an instance", "why", reason, "instance", t.instance, "processes", len(killed))
}

// members returns the living processes of a tree. It excludes the daemon and the processes that the
// daemon has started.
func (k killer) members(t tree) (found []procfs.Stat, err error) {
	all, err := procfs.Stats()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	children := map[int][]procfs.Stat{}
	var unvisited []procfs.Stat
	for _, s := range all {
		children[s.Parent] = append(children[s.Parent], s)
		matches, err := k.startedWith(s, t)
		if err != nil {
			return nil, fmt.Errorf("read the state of process %d: %w", s.PID, err)
		}
		if start, connected := t.clients[s.PID]; matches || connected && start == s.Start {
			unvisited = append(unvisited, s)
		}
	}
	visited := map[int]bool{os.Getpid(): true}
	for len(unvisited) > 0 {
		s := unvisited[len(unvisited)-1]
		unvisited = unvisited[:len(unvisited)-1]
		if visited[s.PID] {
			continue
		}
		visited[s.PID] = true
		unvisited = append(unvisited, children[s.PID]...)
		if !s.Exited() {
			found = append(found, s)
		}
	}
	return found, nil
}

// startedWith reports whether a process was started with the environment of the tree. If the preload
// library has masked the secret in that environment, the start time decides.
func (k killer) startedWith(s procfs.Stat, t tree) (bool, error) {
	env, err := instanceVariables(s.PID)
	if err != nil || k.lineage.startedIn(env) != t.instance {
		return false, err
	}
	secret := env["GFAAS_SECRET"]
	masked := strings.Trim(secret, "*") == ""
	return masked && s.Start < t.recordedAt || sha256.Sum256([]byte(secret)) == t.secret, nil
}

// killProcess kills a process. It returns os.ErrProcessDone if the process has ended.
func killProcess(s procfs.Stat) error {
	p, err := procfs.Open(s.PID, s.Start)
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Signal(unix.SIGKILL)
}
