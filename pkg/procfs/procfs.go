// Package procfs reads what Linux shows of processes under /proc (proc(5)),
// and signals and waits for a process without ever meaning a later one that got
// its number.
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

	"golang.org/x/sys/unix"
)

// Stat is a part of /proc/PID/stat. PID and Start together name a process for
// as long as the machine is up; the PID alone may be another's by now.
type Stat struct {
	PID     int
	Name    string // of the program, at most 15 bytes
	State   byte   // R, S, D, T, t, Z, X, …
	Parent  int
	Session int
	Start   uint64 // clock ticks since boot

	// Size is the size of its address space in bytes. Stack is where its stack
	// began, which execve(2) changes; 0 where this process may not trace it.
	Size, Stack uint64
}

// Ended reports whether the process only waits to be reaped.
func (s Stat) Ended() bool { return s.State == 'Z' || s.State == 'X' }

// Stopped reports whether a signal or a debugger has stopped it.
func (s Stat) Stopped() bool { return s.State == 'T' || s.State == 't' }

// Read looks at one process. Gone tells the error of one that is not there.
func Read(pid int) (Stat, error) {
	text, err := os.ReadFile(path(pid, "stat"))
	if err != nil {
		return Stat{}, err
	}
	return parse(text)
}

// Gone reports whether an error of looking at a process says that it is not
// there, or one of another user where /proc hides those. Any other error, such as
// that no descriptor is free, says nothing of it.
func Gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrPermission)
}

// Lives reports whether the process that has this number and began at start, as
// Stat says, is there and has not ended. With an error that is not known.
func Lives(pid int, start uint64) (bool, error) {
	s, err := Read(pid)
	if err != nil && !Gone(err) {
		return false, err
	}
	return err == nil && s.Start == start && !s.Ended(), nil
}

// Now is the time as Stat.Start has it.
func Now() uint64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0
	}
	const perSecond = 100 // on all machines that Go knows
	return uint64(t.Nano()) / (1e9 / perSecond)
}

// PIDs lists the numbers of all processes that this one can see.
func PIDs() ([]int, error) { return numbers("/proc") }

// All looks at every process that this one can see: at all of them, or it is an
// error.
func All() ([]Stat, error) {
	pids, err := PIDs()
	if err != nil {
		return nil, err
	}
	var all []Stat
	for _, pid := range pids {
		s, err := Read(pid)
		switch {
		case err == nil:
			all = append(all, s)
		case !Gone(err): // one that ended since is no loss
			return nil, err
		}
	}
	return all, nil
}

// Alive reports whether there is such a process that has not ended. A zombie
// whose parent never asks, as happens in containers, has.
func Alive(pid int) bool {
	if err := unix.Kill(pid, 0); err != nil && !errors.Is(err, unix.EPERM) {
		return false
	}
	s, err := Read(pid)
	return err != nil || !s.Ended() // unreadable: another user's, where /proc hides those
}

// Environ is the environment that a process was started with; empty of one that
// has ended or that this process may not look at.
func Environ(pid int) (map[string]string, error) {
	text, err := read(pid, "environ")
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for part := range strings.SplitSeq(string(text), "\x00") {
		if name, value, ok := strings.Cut(part, "="); ok {
			env[name] = value
		}
	}
	return env, nil
}

// Own reports whether a process is of this one's user, who then said what is in
// its environment: it has no other user's rights, nor did it get ours when it began,
// as setuid programs do.
func Own(pid int) (bool, error) {
	status, err := read(pid, "status")
	if err != nil {
		return false, err
	}
	auxv, err := read(pid, "auxv")
	return ownUsers(status) && asItsStarter(auxv), err
}

// read reads a file of a process, and nothing of one that is gone.
func read(pid int, file string) ([]byte, error) {
	text, err := os.ReadFile(path(pid, file))
	if Gone(err) {
		return nil, nil
	}
	return text, err
}

// ownUsers says whether a status names this process's user as the real, effective,
// saved and file system one.
func ownUsers(status []byte) bool {
	_, rest, _ := bytes.Cut(status, []byte("\nUid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	users, own := strings.Fields(string(line)), strconv.Itoa(os.Geteuid())
	return len(users) == 4 && !slices.ContainsFunc(users, func(u string) bool { return u != own })
}

// asItsStarter says whether a program got no more rights than who began it had, as
// its auxiliary vector has it (getauxval(3)). That of one that has ended is empty, and
// a 32-bit program's is not understood.
func asItsStarter(auxv []byte) bool {
	const secure, size = 23, 16 // AT_SECURE
	for ; len(auxv) >= size; auxv = auxv[size:] {
		if binary.NativeEndian.Uint64(auxv) == secure {
			return binary.NativeEndian.Uint64(auxv[size/2:]) == 0
		}
	}
	return false
}

// Deadly reports whether a signal would end a process without any of its code running: the
// process neither catches nor ignores the signal, and its first thread neither blocks it nor
// waits for it.
func Deadly(pid int, sig unix.Signal) bool {
	status, err := read(pid, "status")
	if err != nil || len(status) == 0 {
		return false
	}
	for _, name := range []string{"SigBlk", "SigIgn", "SigCgt"} {
		_, rest, _ := bytes.Cut(status, []byte("\n"+name+":"))
		line, _, _ := bytes.Cut(rest, []byte("\n"))
		mask, err := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64)
		if err != nil || mask&(1<<(sig-1)) != 0 {
			return false
		}
	}
	// One that sigwait(3) waits for is not blocked meanwhile.
	call, _ := read(pid, "syscall") // empty where the kernel does not tell
	return !bytes.HasPrefix(call, fmt.Appendf(nil, "%d ", unix.SYS_RT_SIGTIMEDWAIT))
}

// Maps is the list of what a process has mapped. It is empty for one that has
// ended.
func Maps(pid int) (string, error) {
	text, err := os.ReadFile(path(pid, "maps"))
	return string(text), err
}

// Program is the path of the program that a process runs. It is empty if this
// process may not look at it.
func Program(pid int) string {
	program, _ := os.Readlink(path(pid, "exe"))
	return program
}

// Cgroup is a control group that a process is in.
type Cgroup struct {
	Controllers string // of version 1, separated by commas; empty in version 2
	Path        string // below where the hierarchy is mounted
}

// Cgroups lists those of a process.
func Cgroups(pid int) ([]Cgroup, error) {
	text, err := os.ReadFile(path(pid, "cgroup"))
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

// Children lists the processes whose parent is this one, as far as the kernel tells.
func Children() (pids []int) {
	tasks, err := numbers("/proc/self/task")
	if err != nil {
		return nil
	}
	for _, task := range tasks {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", task))
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// OpenFiles lists the numbers of this process's own open descriptors, that of
// the list itself, which is closed again, among them.
func OpenFiles() ([]int, error) { return numbers("/proc/self/fd") }

// OpenFile is a path to what one of this process's own descriptors is of.
func OpenFile(fd uintptr) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// LocalPorts is the range, both ends included, from which the system gives a
// port to who connects or asks for any.
func LocalPorts() (low, high int, err error) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(text), &low, &high)
	}
	return low, high, err
}

func path(pid int, file string) string { return fmt.Sprintf("/proc/%d/%s", pid, file) }

// numbers are the names in a folder that are numbers.
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

// parse reads one line of proc(5). The program's name, field 2, is in
// parentheses and may itself hold blanks and parentheses.
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
