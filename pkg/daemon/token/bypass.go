package token

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// bypasses counts the started programs that left the instance's slice, or would have without the
// preload library, by wire.UnmanagedProgram.Kind.
type bypasses [wire.ProgramKinds]struct {
	count int
	last  string // path of the last program
}

// bypassKinds holds the texts for the kinds of programs.
var bypassKinds = [wire.ProgramKinds]string{
	wire.ProgramRestored:  "put back into the slice",
	wire.ProgramStatic:    "outside the slice, statically linked",
	wire.ProgramOtherLibc: "outside the slice, linked with another libc than glibc",
	wire.ProgramSetuid:    "outside the slice, setuid or setgid",
	wire.ProgramFileCaps:  "outside the slice, with file capabilities",
	wire.ProgramOtherArch: "outside the slice, for another architecture",
}

// String returns a text such as "2 put back into the slice (last: env)", or "" if all counts are 0.
func (s *bypasses) String() string {
	var texts []string
	for kind, k := range s {
		if k.count > 0 {
			texts = append(texts, fmt.Sprintf("%d %s (last: %s)", k.count, bypassKinds[kind], k.last))
		}
	}
	return strings.Join(texts, "; ")
}

// note counts a program. It reports whether the program is the first of its kind.
func (s *bypasses) note(kind uint32, program string) (first bool) {
	k := &s[kind]
	k.count++
	k.last = program
	return k.count == 1
}

// maxRecent is the number of the last unmanaged processes of an instance that remain available to
// requests.
const maxRecent = 64

// findings holds the results of the censuses for an instance.
type findings struct {
	members       map[int]uint64             // start times at the last census, by PID
	outside       int                        // members that have not mapped the library
	sessionLeader int                        // PID of membership.sessionLeader; 0: none
	unmanaged     map[process]wire.Unmanaged // unmanaged members that are alive
	recent        []wire.Unmanaged           // the last maxRecent unmanaged members, oldest first
	total         int                        // number of all unmanaged members ever found
}

// update replaces the members. It returns the unmanaged members that must be handled: those that were
// not known before, or all if stop is true, because a process may outlive an attempt to kill it.
func (f *findings) update(m *membership, stop bool) (unhandled []procfs.Stat) {
	f.members, f.outside, f.sessionLeader = m.members, m.outside, m.sessionLeader.PID
	before := f.unmanaged
	f.unmanaged = map[process]wire.Unmanaged{}
	for _, s := range m.unmanaged {
		key := process{s.PID, s.Start}
		if u, known := before[key]; known && !stop {
			f.unmanaged[key] = u
			continue
		}
		unhandled = append(unhandled, s)
	}
	return unhandled
}

// add adds an unmanaged process. It reports whether the process was not added before.
func (f *findings) add(u wire.Unmanaged) (added bool) {
	key := process{u.PID, u.Start}
	if !u.Stopped {
		f.unmanaged[key] = u
	}
	if slices.ContainsFunc(f.recent, func(r wire.Unmanaged) bool { return process{r.PID, r.Start} == key }) {
		return false
	}
	f.recent = append(f.recent, u)
	f.total++
	f.recent = f.recent[max(0, len(f.recent)-maxRecent):]
	return true
}

// after returns the unmanaged processes found after the first n, if they are among the recent ones.
func (f *findings) after(n int) *wire.UnmanagedList {
	if n > f.total { // n is a count of an earlier daemon
		n = 0
	}
	count := min(f.total-n, len(f.recent))
	return &wire.UnmanagedList{Found: append([]wire.Unmanaged{}, f.recent[len(f.recent)-count:]...), Next: f.total}
}

// String describes the unmanaged processes for people. It is empty if there are none.
func (f *findings) String() string {
	if f.total == 0 {
		return ""
	}
	return fmt.Sprintf("%d outside the slice, without the preload library (last: %s)", f.total, f.recent[len(f.recent)-1].Program)
}
