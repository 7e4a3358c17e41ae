package token

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/gfaas/gfaas/pkg/procfs"
)

// The census finds processes of instances that run without the preload library. A process loads the
// library because of its environment. A program that starts another program with the execve system
// call and an environment of its own, as Go's exec.Command with Env and static shells do, loses the
// library unintentionally. So the daemon examines all processes once a second. A member of an
// instance is a process
//
//   - whose environment names the instance,
//   - that is connected as its client,
//   - that is in the same container as a client, or
//   - that descends from a member or from the instance's owner.
//
// A process remains a member when its parents end. A member is unmanaged if it has mapped the driver
// but not the library.

// fullCensusEvery is the interval, in censuses, at which a census examines all processes. Other censuses
// examine only new processes and members.
const fullCensusEvery = 5

// process identifies a process uniquely until the node restarts.
type process struct {
	pid   int
	start uint64
}

// census holds the daemon's knowledge of all processes.
type census struct {
	lineage   lineage
	mu        sync.Mutex // guards the fields below; taken before the core's lock
	sightings map[process]*sighting
	count     int
}

// sighting holds the census's knowledge of one process.
type sighting struct {
	stat    procfs.Stat
	program program // program that the process executes
	size    uint64  // size of its address space when its maps were last read

	envInstance string // instance that its environment names; empty: none
	masked      bool   // the secret in that environment is masked
	secret      [sha256.Size]byte
	container   string // container ID; empty: none

	member       string            // instance that it is a member of; empty: none
	memberSecret [sha256.Size]byte // hash of that instance's secret, which distinguishes it from a later instance with the same name
	usage        usage
}

// program distinguishes a program from the next program that the same process executes.
type program struct {
	stack uint64
	name  string
}

// usage describes whether a process has mapped the library and the driver.
type usage int

const (
	unknown    usage = iota // its maps cannot be read
	unused                  // neither the library nor the driver
	managed                 // the library, which stays mapped until the process executes another program
	driverOnly              // the driver, but not the library
)

// usageOf returns the usage of a process with the given memory maps.
func usageOf(mapped string) usage {
	switch {
	case strings.Contains(mapped, "/libgfaas.so"):
		return managed
	case strings.Contains(mapped, "/libcuda.so"):
		return driverOnly
	case mapped == "":
		return unknown
	}
	return unused
}

// censusInput holds the input of a census: the instances, their clients and owners, and the processes on
// GPUs.
type censusInput struct {
	secrets map[string][sha256.Size]byte // of all instances
	clients map[process]string
	owners  map[process]string // of exactly one instance
	onGPU   map[int]bool       // processes that the driver reports

	// Set by members.
	sightings  map[process]*sighting
	stats      map[int]procfs.Stat
	containers map[string]string // of clients of exactly one instance
	memo       map[int]string    // results of instanceOf
}

// assignUnlessShared assigns a key (an owner or a container) to an instance. If the key is already
// assigned to another instance, its membership is ambiguous: it is then assigned to no instance, the
// empty ID.
func assignUnlessShared[K comparable](instances map[K]string, key K, id string) {
	if other, assigned := instances[key]; assigned && other != id {
		id = ""
	}
	instances[key] = id
}

// membership holds the result of a census for one instance.
type membership struct {
	members       map[int]uint64 // start times by PID
	outside       int            // members that have not mapped the library
	unmanaged     []procfs.Stat  // members that are unmanaged
	sessionLeader procfs.Stat    // the earliest member that leads a session and was started with the instance's environment
}

// members examines the processes of the node and returns the members of each instance in r. The
// caller holds c.mu.
func (c *census) members(r *censusInput) (map[string]*membership, error) {
	if len(r.secrets) == 0 {
		c.sightings = nil
		return nil, nil
	}
	stats, err := c.examine()
	if err != nil {
		return nil, err
	}
	self := ""
	for key, s := range c.sightings {
		if key.pid == os.Getpid() {
			self = s.container
		}
	}
	r.sightings, r.stats, r.containers, r.memo = c.sightings, stats, map[string]string{}, map[int]string{}
	for key, id := range r.clients {
		if s := c.sightings[key]; s != nil && s.container != "" && s.container != self {
			assignUnlessShared(r.containers, s.container, id)
		}
	}
	return r.memberships(), nil
}

// examine updates the sightings of all processes. It returns their stats by PID.
func (c *census) examine() (map[int]procfs.Stat, error) {
	pids, err := procfs.PIDs()
	if err != nil {
		return nil, err
	}
	others := map[int]*sighting{} // not examined in this census
	if c.count++; c.count%fullCensusEvery != 0 {
		for key, s := range c.sightings {
			if s.member == "" {
				others[key.pid] = s
			}
		}
	}
	current, stats := make(map[process]*sighting, len(pids)), make(map[int]procfs.Stat, len(pids))
	for _, pid := range pids {
		if s := others[pid]; s != nil {
			current[process{pid, s.stat.Start}], stats[pid] = s, s.stat
			continue
		}
		s, err := procfs.Read(pid)
		if procfs.IsNotExist(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		key := process{pid, s.Start}
		current[key], stats[pid] = c.sight(c.sightings[key], s), s
	}
	c.sightings = current
	return stats, nil
}

// sight examines a process, unless it still executes the same program as at its last sighting.
func (c *census) sight(before *sighting, s procfs.Stat) *sighting {
	current := program{s.Stack, s.Name}
	if before != nil && before.program == current {
		before.stat = s
		return before
	}
	out := &sighting{stat: s, program: current}
	if before != nil {
		out.member, out.memberSecret, out.container = before.member, before.memberSecret, before.container
	} else {
		out.container = containerOf(s.PID)
	}
	if env, err := instanceVariables(s.PID); err == nil {
		if out.envInstance = c.lineage.startedIn(env); out.envInstance != "" {
			out.masked = strings.Trim(env["GFAAS_SECRET"], "*") == ""
			out.secret = sha256.Sum256([]byte(env["GFAAS_SECRET"]))
		}
	}
	return out
}

var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// containerOf returns the ID of the container of a process according to its control groups, or "" if
// the process is not in a container.
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

// instanceOf returns the instance of which a process is a member, or "". The daemon and processes
// that it has started belong to no instance.
func (r *censusInput) instanceOf(pid int) string {
	if id, done := r.memo[pid]; done {
		return id
	}
	r.memo[pid] = "" // ends cycles of parents, which reused PIDs may cause
	s, there := r.stats[pid]
	if !there || pid == os.Getpid() {
		return ""
	}
	key := process{pid, s.Start}
	seen := r.sightings[key]
	id := r.clients[key]
	if secret, known := r.secrets[seen.envInstance]; id == "" && known && (seen.masked || seen.secret == secret) {
		id = seen.envInstance
	}
	if id == "" && seen.container != "" {
		id = r.containers[seen.container]
	}
	if secret, known := r.secrets[seen.member]; id == "" && known && seen.memberSecret == secret {
		id = seen.member
	}
	if parent, there := r.stats[s.Parent]; id == "" && there && s.Parent != os.Getpid() {
		if id = r.owners[process{parent.PID, parent.Start}]; id == "" {
			id = r.instanceOf(s.Parent)
		}
	}
	r.memo[pid] = id
	return id
}

// memberships returns the members of each instance. It also updates the membership in the sightings.
func (r *censusInput) memberships() map[string]*membership {
	found := map[string]*membership{}
	for id := range r.secrets {
		found[id] = &membership{members: map[int]uint64{}}
	}
	for pid, s := range r.stats {
		id := r.instanceOf(pid)
		key := process{pid, s.Start}
		seen := r.sightings[key]
		if seen.member, seen.memberSecret = id, r.secrets[id]; id == "" || s.Exited() {
			continue
		}
		m := found[id]
		m.members[pid] = s.Start
		if s.PID == s.Session && seen.envInstance == id && (m.sessionLeader.PID == 0 || s.Start < m.sessionLeader.Start) {
			m.sessionLeader = s
		}
		if r.clients[key] != "" {
			continue
		}
		switch seen.updateUsage(s, r.onGPU[pid]) {
		case unused:
			m.outside++
		case driverOnly:
			m.outside++
			m.unmanaged = append(m.unmanaged, s)
		}
	}
	return found
}

// updateUsage returns a member's usage of the driver. It reads the maps again only if the size of the
// address space has changed. If the maps cannot be read, a process that the driver reports counts as
// driverOnly.
func (seen *sighting) updateUsage(s procfs.Stat, onGPU bool) usage {
	if seen.usage == managed || seen.usage != unknown && seen.size == s.Size {
		return seen.usage
	}
	mapped, err := procfs.Maps(s.PID)
	seen.usage, seen.size = usageOf(mapped), s.Size
	switch {
	case seen.usage == driverOnly && ofMPS(s.PID):
		seen.usage = managed
	case err != nil && onGPU:
		return driverOnly
	}
	return seen.usage
}

// ofMPS reports whether a process belongs to the MPS daemon. Such processes use the driver on behalf
// of the instances.
func ofMPS(pid int) bool {
	return strings.HasPrefix(filepath.Base(procfs.Program(pid)), "nvidia-cuda-mps-")
}
