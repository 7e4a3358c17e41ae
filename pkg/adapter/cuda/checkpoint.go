package cuda

// #include <stdlib.h>
// #include "checkpoint.h"
import "C"

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MayCheckpoint says whether this process has the capability that the driver wants of
// one that moves another's memory, CAP_SYS_PTRACE.
func MayCheckpoint() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	return unix.Capget(&header, &sets[0]) == nil && sets[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0
}

// ProcessState is how a process stands to the driver's checkpoints.
type ProcessState int

// The states that a process goes through on the way out and back.
const (
	Running      ProcessState = iota // its calls go on
	Locked                           // its calls wait
	Checkpointed                     // and what it had on the GPU is on the host
	Failed                           // the driver cannot bring it back
)

// Processes are other processes' contexts and memory, as the driver's checkpoints
// (570 and later) act on them: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CHECKPOINT.html
// Who acts needs the capability CAP_SYS_PTRACE.
type Processes interface {
	State(pid int) (ProcessState, error)
	// Lock has the process's calls wait, if that can be had so soon: Running to Locked.
	Lock(pid int, patience time.Duration) error
	// Checkpoint waits for its work and moves what it has on the GPU to the host:
	// Locked to Checkpointed.
	Checkpoint(pid int) error
	// Restore brings it back to the same addresses: Checkpointed to Locked. Where
	// there is no room for it, drivers have not been able to bring it back later
	// either.
	Restore(pid int) error
	// Unlock has its calls go on: Locked to Running.
	Unlock(pid int) error
}

// checkpoints are Processes of a driver.
type checkpoints struct{ c *C.checkpoints }

// OpenProcesses opens the driver at that path, or of that name where the dynamic
// loader looks, for its checkpoints. An error is Unavailable.
func OpenProcesses(library string) (Processes, error) {
	path := C.CString(library)
	defer C.free(unsafe.Pointer(path))
	var why *C.char
	c := C.checkpoints_open(path, &why)
	if c == nil {
		defer C.free(unsafe.Pointer(why))
		return nil, &UnavailableError{errors.New(C.GoString(why))}
	}
	return checkpoints{c}, nil
}

func (p checkpoints) State(pid int) (ProcessState, error) {
	var s C.CUprocessState
	err := on(pid, "state", C.checkpoints_state(p.c, C.int(pid), &s))
	return ProcessState(s), err
}

func (p checkpoints) Lock(pid int, patience time.Duration) error {
	return on(pid, "lock", C.checkpoints_lock(p.c, C.int(pid), C.uint(patience.Milliseconds())))
}

func (p checkpoints) Checkpoint(pid int) error {
	return on(pid, "checkpoint", C.checkpoints_save(p.c, C.int(pid)))
}

func (p checkpoints) Restore(pid int) error {
	return on(pid, "restore", C.checkpoints_restore(p.c, C.int(pid)))
}

func (p checkpoints) Unlock(pid int) error {
	return on(pid, "unlock", C.checkpoints_unlock(p.c, C.int(pid)))
}

// on is the error of a call on a process.
func on(pid int, what string, r C.CUresult) error {
	return result(fmt.Sprintf("%s process %d", what, pid), r)
}

// locking is how long a process that has no work may take to be locked.
const locking = 5 * time.Second

// Park moves what processes have on the GPU to the host. They are all locked before
// the first is moved: what works together stands still together. On an error they
// may be in any state.
func Park(p Processes, pids []int) error {
	var all []int // that are not there yet
	for _, pid := range pids {
		state, err := p.State(pid)
		if err == nil && state == Running {
			err = p.Lock(pid, locking)
		}
		if err != nil {
			return err
		}
		if state != Checkpointed {
			all = append(all, pid)
		}
	}
	for _, pid := range all {
		if err := p.Checkpoint(pid); err != nil {
			return err
		}
	}
	return nil
}

// Unpark brings back what is away of processes, and has them go on, whatever state
// each is in; one that has ended is none. On an error some may not have come back.
func Unpark(p Processes, pids []int) error {
	var failed []error
	for _, pid := range pids {
		state, err := p.State(pid)
		switch {
		case err != nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH):
			err = nil
		case err == nil && state == Checkpointed:
			err = p.Restore(pid)
		case err == nil && state == Failed:
			err = fmt.Errorf("process %d: the driver cannot bring back what it had on the GPU", pid)
		}
		failed = append(failed, err)
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	for _, pid := range pids {
		if state, err := p.State(pid); err == nil && state == Locked {
			failed = append(failed, p.Unlock(pid))
		}
	}
	return errors.Join(failed...)
}
