// Package procfs reads information on processes from /proc (proc(5)) and the kernel's
// socket tables. Process signals a process and waits for it, and never confuses it with a
// later process that has the same PID. The runtimes, the daemons and their clients use the
// package.
package procfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Stat holds a part of /proc/PID/stat. PID and Start together identify a process until the
// next boot; the kernel may reuse the PID alone.
type Stat struct {
	PID     int
	Name    string // the program's name, at most 15 bytes
	State   byte   // R, S, D, T, t, Z, X, …
	Parent  int
	Session int
	Start   uint64 // clock ticks since boot

	// Size is the size of the address space in bytes. Stack is the address of the bottom of
	// the stack, which execve(2) changes; 0 if this process may not trace it.
	Size, Stack uint64
}

// Exited reports whether the process has ended and waits to be reaped.
func (s Stat) Exited() bool { return s.State == 'Z' || s.State == 'X' }

// Stopped reports whether a signal or a debugger has stopped the process.
func (s Stat) Stopped() bool { return s.State == 'T' || s.State == 't' }

// Read returns the Stat of a process. IsNotExist classifies its error.
func Read(pid int) (Stat, error) {
	text, err := readFile(path(pid, "stat"))
	if err != nil {
		return Stat{}, err
	}
	return parse(text)
}

// IsNotExist reports whether an error of reading a process means that the process does not exist,
// or belongs to another user and /proc hides it. Other errors, such as a lack of
// descriptors, prove nothing about the process.
func IsNotExist(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrPermission)
}

// Lives reports whether the process with the given PID and start time, as in Stat, exists
// and has not ended. The result is valid only if the error is nil.
func Lives(pid int, start uint64) (bool, error) {
	s, err := Read(pid)
	if err != nil && !IsNotExist(err) {
		return false, err
	}
	return err == nil && s.Start == start && !s.Exited(), nil
}

// TicksSinceBoot returns the current time in the unit of Stat.Start.
func TicksSinceBoot() uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	const perSecond = 100 // on all architectures that Go supports
	return uint64(t.Nano()) / (1e9 / perSecond)
}

// PIDs returns the PIDs of all visible processes.
func PIDs() ([]int, error) { return numbers("/proc") }

// Stats returns the Stat of every visible process. It fails if any of them cannot be read.
func Stats() ([]Stat, error) {
	pids, err := PIDs()
	if err != nil {
		return nil, err
	}
	var stats []Stat
	for _, pid := range pids {
		s, err := Read(pid)
		switch {
		case err == nil:
			stats = append(stats, s)
		case !IsNotExist(err): // a process that ended meanwhile is no error
			return nil, err
		}
	}
	return stats, nil
}

// Alive reports whether a process exists and has not ended. A zombie, which in containers
// may never be reaped, has ended.
func Alive(pid int) bool {
	if err := unix.Kill(pid, 0); err != nil && !errors.Is(err, unix.EPERM) {
		return false
	}
	s, err := Read(pid)
	return err != nil || !s.Exited() // unreadable: another user's process, hidden by /proc
}

// Environ returns the variables with the given names in the environment that a process was started with, or all
// variables if no names are given. found is nil if there are none. Environ returns an error if the process has ended or this
// process may not read its environment.
func Environ(pid int, names ...string) (found map[string]string, err error) {
	text, err := read(pid, "environ")
	if err != nil {
		return nil, err
	}
	for part := range bytes.SplitSeq(text, []byte{0}) {
		name, value, ok := bytes.Cut(part, []byte{'='})
		wanted := len(names) == 0 || slices.ContainsFunc(names, func(n string) bool { return n == string(name) })
		if !ok || !wanted {
			continue
		}
		if found == nil {
			found = map[string]string{}
		}
		found[string(name)] = string(value)
	}
	return found, nil
}

// Own reports whether a process has only the rights of this process's user, and gained none
// at its start, as setuid programs do. If so, this user controls its environment.
func Own(pid int) (bool, error) {
	status, err := read(pid, "status")
	if err != nil {
		return false, err
	}
	auxv, err := read(pid, "auxv")
	return ownUsers(status) && asItsStarter(auxv), err
}

// read returns a file of a process, or nil if the process has ended.
func read(pid int, file string) ([]byte, error) {
	text, err := readFile(path(pid, file))
	if IsNotExist(err) {
		return nil, nil
	}
	return text, err
}

// statusField returns the value of a field in /proc/PID/status, or "".
func statusField(status []byte, name string) string {
	_, value, _ := strings.Cut(string(status), "\n"+name+":")
	value, _, _ = strings.Cut(value, "\n")
	return strings.TrimSpace(value)
}

// ownUsers reports whether the real, effective, saved and file system user in a status are
// all this process's user.
func ownUsers(status []byte) bool {
	users, own := strings.Fields(statusField(status, "Uid")), strconv.Itoa(os.Geteuid())
	return len(users) == 4 && !slices.ContainsFunc(users, func(u string) bool { return u != own })
}

// asItsStarter reports whether a program gained no rights at its start, according to
// AT_SECURE in its auxiliary vector (getauxval(3)). It returns false for an ended process,
// whose vector is empty, and for a 32-bit program, which it cannot parse.
func asItsStarter(auxv []byte) bool {
	const secure, size = 23, 16 // AT_SECURE
	for ; len(auxv) >= size; auxv = auxv[size:] {
		if binary.NativeEndian.Uint64(auxv) == secure {
			return binary.NativeEndian.Uint64(auxv[size/2:]) == 0
		}
	}
	return false
}

// Deadly reports whether a signal would end a process without running any of its code: the
// process neither catches nor ignores the signal, and its first thread neither blocks nor
// waits for it.
func Deadly(pid int, sig unix.Signal) bool {
	status, err := read(pid, "status")
	if err != nil || len(status) == 0 {
		return false
	}
	for _, name := range []string{"SigBlk", "SigIgn", "SigCgt"} {
		mask, err := strconv.ParseUint(statusField(status, name), 16, 64)
		if err != nil || mask&(1<<(sig-1)) != 0 {
			return false
		}
	}
	// During sigwait(3), the kernel reports the signal as not blocked.
	call, _ := read(pid, "syscall") // empty if the kernel does not provide it
	return !bytes.HasPrefix(call, fmt.Appendf(nil, "%d ", unix.SYS_RT_SIGTIMEDWAIT))
}

// Maps returns the list of a process's mappings. It is empty if the process has ended.
func Maps(pid int) (string, error) {
	text, err := readFile(path(pid, "maps"))
	return string(text), err
}

// Program returns the path of the program that a process runs, or "" if this process may
// not read it.
func Program(pid int) string {
	program, _ := os.Readlink(path(pid, "exe"))
	return program
}

// Cgroup describes a control group that a process is in.
type Cgroup struct {
	Controllers string // version 1: names separated by commas; version 2: empty
	Path        string // relative to the mount point of the hierarchy
}

// Cgroups returns the control groups of a process.
func Cgroups(pid int) ([]Cgroup, error) {
	text, err := readFile(path(pid, "cgroup"))
	if err != nil {
		return nil, err
	}
	return parseCgroups(string(text)), nil
}

func parseCgroups(text string) (out []Cgroup) {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3) // number, controllers, path
		if len(fields) == 3 {
			out = append(out, Cgroup{fields[1], fields[2]})
		}
	}
	return out
}

// Children returns the PIDs of this process's children, if the kernel provides them.
func Children() (pids []int) {
	tasks, err := numbers("/proc/self/task")
	if err != nil {
		return nil
	}
	for _, task := range tasks {
		text, _ := readFile(fmt.Sprintf("/proc/self/task/%d/children", task))
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// MayHaveDescendants reports whether a descendant of this process may be running. It returns false
// only if this process has no children and is a subreaper (PR_SET_CHILD_SUBREAPER in prctl(2)),
// because orphaned descendants become children of a subreaper.
func MayHaveDescendants() bool {
	subreaper := int32(0)
	if err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&subreaper)), 0, 0, 0); err != nil || subreaper == 0 {
		return true
	}
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return !errors.Is(err, unix.ECHILD)
}

// OpenFiles returns the numbers of this process's open descriptors. It includes the
// descriptor that OpenFiles itself uses and closes.
func OpenFiles() ([]int, error) { return numbers("/proc/self/fd") }

// OpenFile returns a path to the file of one of this process's descriptors.
func OpenFile(fd uintptr) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// LocalPorts returns the ephemeral port range, both ends included.
func LocalPorts() (low, high int, err error) {
	text, err := readFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(text), &low, &high)
	}
	return low, high, err
}

func path(pid int, file string) string { return fmt.Sprintf("/proc/%d/%s", pid, file) }

// numbers returns the names in a folder that are numbers.
func numbers(dir string) ([]int, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var out []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			out = append(out, n)
		}
	}
	return out, nil
}

// parse parses /proc/PID/stat. The program's name, field 2, is in parentheses and may
// contain blanks and parentheses.
func parse(text []byte) (Stat, error) {
	open, shut := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 1 || shut < open {
		return Stat{}, fmt.Errorf("%q is not a process status", text)
	}
	fields := strings.Fields(string(text[shut+1:]))
	const firstField, parentField, sessionField, startField, sizeField, stackField = 3, 4, 6, 22, 23, 28
	if len(fields) <= startField-firstField || len(fields[0]) != 1 {
		return Stat{}, fmt.Errorf("%q is too short for a process status", text)
	}
	pid, err1 := strconv.Atoi(strings.TrimSpace(string(text[:open])))
	session, err2 := strconv.Atoi(fields[sessionField-firstField])
	start, err3 := strconv.ParseUint(fields[startField-firstField], 10, 64)
	parent, err4 := strconv.Atoi(fields[parentField-firstField])
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil {
		return Stat{}, fmt.Errorf("%q is not a process status", text)
	}
	out := Stat{PID: pid, Name: string(text[open+1 : shut]), State: fields[0][0], Parent: parent, Session: session, Start: start}
	if len(fields) > stackField-firstField {
		out.Size, _ = strconv.ParseUint(fields[sizeField-firstField], 10, 64)
		out.Stack, _ = strconv.ParseUint(fields[stackField-firstField], 10, 64)
	}
	return out, nil
}
