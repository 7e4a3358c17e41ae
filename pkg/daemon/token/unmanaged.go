package token

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/wire"
)

// censusInterval is the time between two censuses.
const censusInterval = time.Second

// unmanaged finds the processes of instances that use the driver without the preload library. It
// kills them if the instance's registration asks for it.
type unmanaged struct {
	*core
	registry *registry
	killer   killer
	census   census
}

// takeCensus takes a census and handles its findings.
func (w *unmanaged) takeCensus() {
	w.census.mu.Lock()
	defer w.census.mu.Unlock()
	r := w.censusInput()
	found, err := w.census.members(&r)
	if err != nil {
		w.faults.warn("cannot find processes that use the driver without the preload library", "err", err)
		return
	}
	for _, id := range slices.Sorted(maps.Keys(found)) {
		w.record(id, r.secrets[id], found[id])
	}
}

// censusInput returns the current instances, clients and owners as input for a census.
func (w *unmanaged) censusInput() censusInput {
	r := censusInput{
		secrets: map[string][sha256.Size]byte{}, clients: map[process]string{}, owners: map[process]string{}, onGPU: map[int]bool{},
	}
	_ = w.locked(func() {
		for id, i := range w.registry.instances {
			r.secrets[id] = i.secret
			for pid, start := range i.startTimes() {
				r.clients[process{pid, start}] = id
			}
			if i.reg.OwnerPID != 0 {
				assignUnlessShared(r.owners, process{i.reg.OwnerPID, i.ownerStart}, id)
			}
		}
		for _, g := range w.registry.gpus.gpus {
			for pid := range g.memoryByPID {
				r.onGPU[pid] = true
			}
		}
	})
	return r
}

// withInstance calls f with an instance while it holds the lock, if the instance still has that secret.
func (w *unmanaged) withInstance(id string, secret [sha256.Size]byte, f func(i *instance)) {
	_ = w.registry.withInstance(id, func(i *instance) error {
		if i.secret == secret {
			f(i)
		}
		return nil
	})
}

// record records an instance's members and handles the unmanaged processes among them.
func (w *unmanaged) record(id string, secret [sha256.Size]byte, m *membership) {
	var unhandled []procfs.Stat
	stop := false
	w.withInstance(id, secret, func(i *instance) {
		stop = i.reg.StopUnmanaged
		unhandled = i.findings.update(m, stop)
	})
	slices.SortFunc(unhandled, func(a, b procfs.Stat) int { return cmp.Compare(a.PID, b.PID) })
	if stop {
		w.killer.callBeforeKill(unhandled)
	}
	for _, s := range unhandled {
		w.handle(id, secret, s, stop)
	}
}

// handle kills an unmanaged process if stop is true. It records the process for the log, the status
// and waiting requests.
func (w *unmanaged) handle(id string, secret [sha256.Size]byte, s procfs.Stat, stop bool) {
	u := wire.Unmanaged{PID: s.PID, Start: s.Start, Program: printable(cmp.Or(procfs.Program(s.PID), s.Name))}
	if stop {
		err := killProcess(s)
		if errors.Is(err, os.ErrProcessDone) {
			return
		}
		if u.Stopped = err == nil; err != nil {
			w.faults.warn("cannot kill an unmanaged process", "instance", id, "pid", s.PID, "err", err)
		}
	}
	added, sessionLeader := false, 0
	w.withInstance(id, secret, func(i *instance) {
		if added = i.findings.add(u); !added {
			return
		}
		if i.unmanagedFound != nil {
			close(i.unmanagedFound)
			i.unmanagedFound = nil
		}
		if i.reg.OwnerPID == 0 { // otherwise the owner prints it
			sessionLeader = i.findings.sessionLeader
		}
	})
	if !added {
		return // recorded by an earlier census, which tried to kill it
	}
	w.faults.warn("a process of an instance uses the driver without the preload library, outside its slice",
		"instance", id, "pid", u.PID, "program", u.Program, "stopped", u.Stopped)
	if sessionLeader != 0 {
		writeToLog(sessionLeader, u.String())
	}
}

// await returns the unmanaged processes of an instance that were found after the first n. If there
// are none, it waits for one until the context ends.
func (w *unmanaged) await(ctx context.Context, id string, n int) (list *wire.UnmanagedList, err error) {
	for {
		var news chan struct{}
		if err := w.registry.withInstance(id, func(i *instance) error {
			list = i.findings.after(n)
			if len(list.Found) == 0 && i.unmanagedFound == nil {
				i.unmanagedFound = make(chan struct{})
			}
			news = i.unmanagedFound
			return nil
		}); err != nil {
			return nil, err
		}
		if len(list.Found) > 0 || ctx.Err() != nil {
			return list, nil
		}
		select {
		case <-news:
		case <-ctx.Done():
		case <-w.closing:
			return nil, errClosing
		}
	}
}

// writeToLog writes a line to the log of an instance without an owner: to the standard error of its first
// process. It does so only if that is a pipe that is also the process's standard output, as
// pkg/launch sets it up, and if the process has the daemon's own rights. If the pipe is full, the
// line is lost.
func writeToLog(pid int, line string) {
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
			return true // does not wait until the pipe has room
		})
	}
}
