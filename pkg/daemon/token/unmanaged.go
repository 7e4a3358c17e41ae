package token

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// The preload library comes into a process by its environment. A program that starts
// another one by the system call itself, with an environment of its own, loses it
// without meaning to: Go's exec.Command with Env does, as do static shells. So the
// daemon looks through the processes once a second. A member of an instance is a
// process whose environment names the instance, that is connected as its client, that
// is in the same container as a client, or that descends from a member or from the
// instance's owner. A member stays one when its parents end. A member that has mapped
// the driver and not the library is unmanaged.

const (
	// censusEvery is the time between two looks at all processes.
	censusEvery = time.Second
	// wholeEvery is how many censuses there are to one that looks at all processes anew.
	// The others look at new ones and at members.
	wholeEvery = 5
	// foundKept is the number of unmanaged processes of an instance, from the last one
	// found backwards, that a watcher may still ask for.
	foundKept = 64
	// watchTime is how long a request waits for an unmanaged process.
	watchTime = 5 * time.Second
)

// process identifies a process for as long as the machine is up.
type process struct {
	pid   int
	start uint64
}

// census is what the daemon knows of all processes. Its lock is taken before the
// daemon's.
type census struct {
	mu    sync.Mutex
	seen  map[process]*sighting
	taken int
}

// sighting is what the census knows of one process.
type sighting struct {
	stat    procfs.Stat
	program program // that it runs
	size    uint64  // of its address space when its maps were last read

	names     string // instance that its environment names; empty is none
	masked    bool   // that environment has the secret masked …
	secret    [sha256.Size]byte
	container string // container that it is in; empty is none

	member string            // instance that it belongs to; empty is none
	of     [sha256.Size]byte // hash of that instance's secret: a later one of that name is another
	usage  usage
}

// program tells a program from the one that the process executes next.
type program struct {
	stack uint64
	name  string
}

// usage is what a process has mapped.
type usage int

const (
	unknown usage = iota // its maps cannot be read
	unused               // neither the library nor the driver
	managed              // the library, which stays until the process executes a program
	loose                // the driver, and not the library
)

// usageOf tells from what a process has mapped how it uses the driver.
func usageOf(mapped string) usage {
	switch {
	case strings.Contains(mapped, "/libgfaas.so"):
		return managed
	case strings.Contains(mapped, "/libcuda.so"):
		return loose
	case mapped == "":
		return unknown
	}
	return unused
}

// roll is what one census knows about the instances before it looks at processes.
type roll struct {
	secrets    map[string][sha256.Size]byte // of all instances
	clients    map[process]string
	owners     map[process]string // of exactly one instance
	containers map[string]string  // of clients of exactly one instance
	onGPU      map[int]bool       // processes that the driver names

	stats map[int]procfs.Stat
	memo  map[int]string
}

// callRoll returns a roll of the instances as they are now. It takes the daemon's lock.
func (d *Daemon) callRoll() roll {
	r := roll{
		secrets: map[string][sha256.Size]byte{}, clients: map[process]string{}, owners: map[process]string{},
		containers: map[string]string{}, onGPU: map[int]bool{}, stats: map[int]procfs.Stat{}, memo: map[int]string{},
	}
	_ = d.locked(func() {
		for id, i := range d.instances {
			r.secrets[id] = i.secret
			for pid, start := range i.began() {
				r.clients[process{pid, start}] = id
			}
			if i.reg.OwnerPID != 0 {
				claim(r.owners, process{i.reg.OwnerPID, i.ownerStart}, id)
			}
		}
		for _, g := range d.gpus {
			for pid := range g.occupied {
				r.onGPU[pid] = true
			}
		}
	})
	return r
}

// claim notes the instance that a key stands for: none if it would be two.
func claim[K comparable](of map[K]string, key K, id string) {
	if other, taken := of[key]; taken && other != id {
		id = ""
	}
	of[key] = id
}

// takeCensus finds the members of all instances and which of them are unmanaged, and
// kills those that are to be stopped.
func (d *Daemon) takeCensus() {
	c := &d.census
	c.mu.Lock()
	defer c.mu.Unlock()
	r := d.callRoll()
	if len(r.secrets) == 0 {
		c.seen = nil
		return
	}
	if err := d.lookAtAll(&r, c); err != nil {
		d.faults.warn("cannot look for processes that use the driver without the preload library", "err", err)
		return
	}
	self := ""
	for key, s := range c.seen {
		if key.pid == os.Getpid() {
			self = s.container
		}
	}
	for key, id := range r.clients {
		if s := c.seen[key]; s != nil && s.container != "" && s.container != self {
			claim(r.containers, s.container, id)
		}
	}
	d.apply(&r, c)
}

// lookAtAll looks at the processes of the machine.
func (d *Daemon) lookAtAll(r *roll, c *census) error {
	pids, err := procfs.PIDs()
	if err != nil {
		return err
	}
	others := map[int]*sighting{} // which need no look
	if c.taken++; c.taken%wholeEvery != 0 {
		for key, s := range c.seen {
			if s.member == "" {
				others[key.pid] = s
			}
		}
	}
	now := make(map[process]*sighting, len(pids))
	for _, pid := range pids {
		if s := others[pid]; s != nil {
			now[process{pid, s.stat.Start}], r.stats[pid] = s, s.stat
			continue
		}
		s, err := procfs.Read(pid)
		if procfs.Gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		key := process{pid, s.Start}
		now[key], r.stats[pid] = d.sight(c.seen[key], s), s
	}
	c.seen = now
	return nil
}

// sight looks at a process, unless it still runs the program that it ran the last time.
func (d *Daemon) sight(before *sighting, s procfs.Stat) *sighting {
	now := program{s.Stack, s.Name}
	if before != nil && before.program == now {
		before.stat = s
		return before
	}
	out := &sighting{stat: s, program: now}
	if before != nil {
		out.member, out.of, out.container = before.member, before.of, before.container
	} else {
		out.container = containerOf(s.PID)
	}
	if env, err := procfs.Environ(s.PID); err == nil {
		if out.names = d.beganIn(env); out.names != "" {
			out.masked = strings.Trim(env["GFAAS_SECRET"], "*") == ""
			out.secret = sha256.Sum256([]byte(env["GFAAS_SECRET"]))
		}
	}
	return out
}

var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// containerOf returns the id of the container that a process is in, as its control groups
// name it; empty if it is in none.
func containerOf(pid int) string {
	groups, err := procfs.Cgroups(pid)
	if err != nil {
		return ""
	}
	for _, g := range groups {
		if id := containerID.FindString(g.Path); id != "" {
			return id
		}
	}
	return ""
}

// instanceOf returns the instance that a process belongs to; empty is none. The daemon
// and what it starts belong to none.
func (r *roll) instanceOf(c *census, pid int) string {
	if id, done := r.memo[pid]; done {
		return id
	}
	r.memo[pid] = "" // ends a chain of parents that leads back here, as numbers that were used again may
	s, there := r.stats[pid]
	if !there || pid == os.Getpid() {
		return ""
	}
	key := process{pid, s.Start}
	seen := c.seen[key]
	id := r.clients[key]
	if secret, known := r.secrets[seen.names]; id == "" && known && (seen.masked || seen.secret == secret) {
		id = seen.names
	}
	if id == "" && seen.container != "" {
		id = r.containers[seen.container]
	}
	if secret, known := r.secrets[seen.member]; id == "" && known && seen.of == secret {
		id = seen.member
	}
	if parent, there := r.stats[s.Parent]; id == "" && there && s.Parent != os.Getpid() {
		if id = r.owners[process{parent.PID, parent.Start}]; id == "" {
			id = r.instanceOf(c, s.Parent)
		}
	}
	r.memo[pid] = id
	return id
}

// muster is what a census found of one instance.
type muster struct {
	members map[int]uint64 // when they began
	outside int            // members that the library is not in
	loose   []procfs.Stat  // those that are unmanaged
	leader  procfs.Stat    // the first that leads a session and began with the instance's environment
}

// apply finds the members of the instances, and notes those that are unmanaged.
func (d *Daemon) apply(r *roll, c *census) {
	found := map[string]*muster{}
	for id := range r.secrets {
		found[id] = &muster{members: map[int]uint64{}}
	}
	for pid, s := range r.stats {
		id := r.instanceOf(c, pid)
		key := process{pid, s.Start}
		seen := c.seen[key]
		if seen.member, seen.of = id, r.secrets[id]; id == "" || s.Ended() {
			continue
		}
		m := found[id]
		m.members[pid] = s.Start
		if s.PID == s.Session && seen.names == id && (m.leader.PID == 0 || s.Start < m.leader.Start) {
			m.leader = s
		}
		if r.clients[key] != "" {
			continue
		}
		switch seen.look(s, r.onGPU[pid]) {
		case unused:
			m.outside++
		case loose:
			m.outside++
			m.loose = append(m.loose, s)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		d.note(id, r.secrets[id], found[id])
	}
}

// look returns how a member uses the driver. Its maps are read again only when its
// address space has another size. Where they cannot be read, the driver may tell.
func (seen *sighting) look(s procfs.Stat, onGPU bool) usage {
	if seen.usage == managed || seen.usage != unknown && seen.size == s.Size {
		return seen.usage
	}
	mapped, err := procfs.Maps(s.PID)
	seen.usage, seen.size = usageOf(mapped), s.Size
	switch {
	case seen.usage == loose && ofMPS(s.PID):
		seen.usage = managed
	case err != nil && onGPU:
		return loose
	}
	return seen.usage
}

// ofMPS reports whether a process is one of the MPS daemon's, which use the driver for
// the instances.
func ofMPS(pid int) bool {
	return strings.HasPrefix(filepath.Base(procfs.Program(pid)), "nvidia-cuda-mps-")
}

// note takes note of an instance's members, and of those of them that are unmanaged.
func (d *Daemon) note(id string, secret [sha256.Size]byte, m *muster) {
	var fresh []procfs.Stat
	stop := false
	_ = d.locked(func() {
		i := d.instances[id]
		if i == nil || i.secret != secret {
			return
		}
		i.members, i.outside, i.leader, stop = m.members, m.outside, m.leader.PID, i.reg.StopUnmanaged
		before := i.unmanaged
		i.unmanaged = map[process]wire.Unmanaged{}
		for _, s := range m.loose {
			key := process{s.PID, s.Start}
			if was, known := before[key]; known && !stop {
				i.unmanaged[key] = was
				continue
			}
			fresh = append(fresh, s)
		}
	})
	slices.SortFunc(fresh, func(a, b procfs.Stat) int { return cmp.Compare(a.PID, b.PID) })
	if stop {
		d.doom(fresh)
	}
	for _, s := range fresh {
		d.found(id, secret, s, stop)
	}
}

// found handles an unmanaged process: it is killed if the instance asks for that, and
// noted for the log, the status and those who watch the instance.
func (d *Daemon) found(id string, secret [sha256.Size]byte, s procfs.Stat, stop bool) {
	u := wire.Unmanaged{PID: s.PID, Start: s.Start, Program: printable(cmp.Or(procfs.Program(s.PID), s.Name))}
	if stop {
		err := kill(s)
		if errors.Is(err, os.ErrProcessDone) {
			return
		}
		if u.Stopped = err == nil; err != nil {
			d.faults.warn("an unmanaged process cannot be stopped", "instance", id, "pid", s.PID, "err", err)
		}
	}
	first, say := false, 0
	_ = d.locked(func() {
		i := d.instances[id]
		if i == nil || i.secret != secret {
			return
		}
		key := process{s.PID, s.Start}
		if !u.Stopped {
			i.unmanaged[key] = u
		}
		if first = !slices.ContainsFunc(i.found, func(f wire.Unmanaged) bool { return process{f.PID, f.Start} == key }); !first {
			return
		}
		i.found = append(i.found, u)
		i.foundInAll++
		i.found = i.found[max(0, len(i.found)-foundKept):]
		if i.news != nil {
			close(i.news)
			i.news = nil
		}
		if i.reg.OwnerPID == 0 { // else the owner prints it
			say = i.leader
		}
	})
	if !first {
		return // it was to be stopped before, and has not ended yet
	}
	d.faults.warn("a process of an instance uses the driver without the preload library, outside its slice",
		"instance", id, "pid", u.PID, "program", u.Program, "stopped", u.Stopped)
	if say != 0 {
		tell(say, u.String())
	}
}

// tell writes a line to the log of an instance that has no owner: to the standard error
// of its first process, if that is a pipe which is its standard output too, as launch
// makes it, and if the process has the daemon's own rights. Without room in the pipe the
// line is lost.
func tell(pid int, line string) {
	logOf := func(fd int) (os.FileInfo, error) { return os.Stat(fmt.Sprintf("/proc/%d/fd/%d", pid, fd)) }
	out, err1 := logOf(unix.Stdout)
	log, err2 := logOf(unix.Stderr)
	own, err3 := procfs.Own(pid)
	if errors.Join(err1, err2, err3) != nil || !own || log.Mode()&os.ModeNamedPipe == 0 || !os.SameFile(out, log) {
		return
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/fd/%d", pid, unix.Stderr), os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if now, err := f.Stat(); err != nil || !os.SameFile(now, log) {
		return
	}
	if pipe, err := f.SyscallConn(); err == nil {
		_ = pipe.Write(func(fd uintptr) bool {
			_, _ = unix.Write(int(fd), []byte("gfaas: "+line+"\n"))
			return true // without waiting for room
		})
	}
}

// getUnmanaged answers with the unmanaged processes of an instance that were found after
// the first ?after=N of them. While there are none it waits for a few seconds; with
// ?wait=0 it looks for them at once instead.
func (d *Daemon) getUnmanaged(w http.ResponseWriter, r *http.Request) {
	after, err := strconv.Atoi(cmp.Or(r.URL.Query().Get("after"), "0"))
	if err != nil || after < 0 {
		problem(w, http.StatusBadRequest, fmt.Errorf("after %q: expected a number from 0", r.URL.Query().Get("after")))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), watchTime)
	defer cancel()
	if r.URL.Query().Get("wait") == "0" {
		d.takeCensus()
		cancel()
	}
	for {
		var list *wire.UnmanagedList
		var news chan struct{}
		if err := d.locked(func() {
			if i := d.instances[r.PathValue("id")]; i != nil {
				list = i.foundAfter(after)
				if len(list.Found) == 0 && i.news == nil {
					i.news = make(chan struct{})
				}
				news = i.news
			}
		}); err != nil {
			problem(w, http.StatusServiceUnavailable, err)
			return
		}
		if list == nil {
			problem(w, http.StatusNotFound, fmt.Errorf("no instance %q", r.PathValue("id")))
			return
		}
		if len(list.Found) == 0 && ctx.Err() == nil {
			select {
			case <-news:
			case <-ctx.Done():
			case <-d.ending:
				problem(w, http.StatusServiceUnavailable, errClosing)
				return
			}
			continue
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
		return
	}
}

// foundAfter returns the unmanaged processes found after the first n, as far as they are
// still kept. Locked.
func (i *instance) foundAfter(n int) *wire.UnmanagedList {
	if n > i.foundInAll { // of a daemon before this one
		n = 0
	}
	fresh := min(i.foundInAll-n, len(i.found))
	return &wire.UnmanagedList{Found: append([]wire.Unmanaged{}, i.found[len(i.found)-fresh:]...), Next: i.foundInAll}
}

// forget drops what is known of the processes of the instance that had this name before.
// Locked.
func (i *instance) forget() {
	i.strays, i.members, i.unmanaged, i.found, i.foundInAll, i.outside, i.leader = strays{}, nil, nil, nil, 0, 0, 0
}

// outsiders returns the rows of a status for the unmanaged processes of an instance, on
// its first GPU. Locked.
func (a *allocation) outsiders(like wire.ClientStatus) (rows []wire.ClientStatus) {
	if a.inst.allocations[0] != a {
		return nil
	}
	for _, u := range a.inst.unmanaged {
		row := like
		row.PID, row.State, row.Used, row.DebtMS = u.PID, wire.StateUnmanaged, 0, 0
		row.Why = u.Program + " uses the driver without the preload library: nothing limits it"
		row.ContextMiB = a.gpu.occupied[u.PID].MiB()
		rows = append(rows, row)
	}
	return rows
}

// straysText describes the programs that left the slice or would have, for people; it is
// empty if there were none. Locked.
func (i *instance) straysText() string {
	text := i.strays.String()
	if i.foundInAll > 0 {
		if text != "" {
			text += "; "
		}
		text += fmt.Sprintf("%d outside of it, without the preload library (last: %s)", i.foundInAll, i.found[len(i.found)-1].Program)
	}
	return text
}

// kill ends a process.
func kill(s procfs.Stat) error {
	p, err := procfs.Open(s.PID, s.Start)
	if err != nil {
		return err
	}
	defer p.Close()
	return p.Signal(unix.SIGKILL)
}
