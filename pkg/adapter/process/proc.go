package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// stat is what /proc/PID/stat says of a process.
type stat struct {
	pid     int
	state   byte
	session int
	start   uint64 // clock ticks since boot
}

// dead reports whether it has ended and only waits to be reaped.
func (s stat) dead() bool { return s.state == 'Z' || s.state == 'X' }

func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(text)
}

// parseStat reads one line of proc(5). The program's name, field 2, is in
// parentheses and may itself hold blanks and parentheses.
func parseStat(text []byte) (stat, error) {
	open, shut := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 1 || shut < open {
		return stat{}, fmt.Errorf("%q is not a process status", text)
	}
	fields := strings.Fields(string(text[shut+1:]))
	const firstField, sessionField, startField = 3, 6, 22
	if len(fields) <= startField-firstField || len(fields[0]) != 1 {
		return stat{}, fmt.Errorf("%q is too short for a process status", text)
	}
	pid, err1 := strconv.Atoi(strings.TrimSpace(string(text[:open])))
	session, err2 := strconv.Atoi(fields[sessionField-firstField])
	start, err3 := strconv.ParseUint(fields[startField-firstField], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil {
		return stat{}, fmt.Errorf("%q is not a process status", text)
	}
	return stat{pid: pid, state: fields[0][0], session: session, start: start}, nil
}

// allStats looks at every process that this one can see.
func allStats() ([]stat, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []stat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		// One that ended since the listing is no loss.
		if s, err := readStat(pid); err == nil {
			all = append(all, s)
		}
	}
	return all, nil
}

// hasEnv reports whether a process was started with that entry in its
// environment.
func hasEnv(pid int, entry string) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	for part := range bytes.SplitSeq(text, []byte{0}) {
		if string(part) == entry {
			return true
		}
	}
	return false
}
