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

// MayCheckpoint reports whether this process has CAP_SYS_PTRACE, which the driver requires to move the
// memory of other processes.
func MayCheckpoint() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	return unix.Capget(&header, &sets[0]) == nil && sets[0].Effective&(1<<unix.CAP_SYS_PTRACE) != 0
}

// ProcessState is the checkpoint state of a process in the driver.
type ProcessState int

// The states, in the order in which a process is parked.
const (
	Running      ProcessState = iota // calls proceed
	Locked                           // calls block
	Checkpointed                     // calls block; GPU memory is on the host
	Failed                           // the driver cannot restore the GPU memory
)

// Processes checkpoints other processes with the driver (version 570 and later):
// https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CHECKPOINT.html
// The caller needs CAP_SYS_PTRACE.
type Processes interface {
	State(pid int) (ProcessState, error)
	// Lock blocks the process's calls (Running to Locked). It fails if that takes longer than patience.
	Lock(pid int, patience time.Duration) error
	// Checkpoint waits for the process's work and moves its GPU memory to the host (Locked to
	// Checkpointed).
	Checkpoint(pid int) error
	// Restore moves the memory back to the same addresses (Checkpointed to Locked). If there is
	// no room on the GPU, known drivers cannot restore the process later either.
	Restore(pid int) error
	// Unlock lets the process's calls proceed (Locked to Running).
	Unlock(pid int) error
}

// checkpoints implements Processes.
type checkpoints struct{ c *C.checkpoints }

// OpenProcesses opens the driver at a path, or searches for a file name as the dynamic loader does. Its
// error is a *ports.UnavailableError.
func OpenProcesses(library string) (Processes, error) {
	path := C.CString(library)
	defer C.free(unsafe.Pointer(path))
	var message *C.char
	c := C.checkpoints_open(path, &message)
	if c == nil {
		defer C.free(unsafe.Pointer(message))
		return nil, unavailable(errors.New(C.GoString(message)))
	}
	return checkpoints{c}, nil
}

func (p checkpoints) State(pid int) (ProcessState, error) {
	var s C.CUprocessState
	err := processResult(pid, "state", C.checkpoints_state(p.c, C.int(pid), &s))
	return ProcessState(s), err
}

func (p checkpoints) Lock(pid int, patience time.Duration) error {
	return processResult(pid, "lock", C.checkpoints_lock(p.c, C.int(pid), C.uint(patience.Milliseconds())))
}

func (p checkpoints) Checkpoint(pid int) error {
	return processResult(pid, "checkpoint", C.checkpoints_save(p.c, C.int(pid)))
}

func (p checkpoints) Restore(pid int) error {
	return processResult(pid, "restore", C.checkpoints_restore(p.c, C.int(pid)))
}

func (p checkpoints) Unlock(pid int) error {
	return processResult(pid, "unlock", C.checkpoints_unlock(p.c, C.int(pid)))
}

// processResult returns the error of an operation on a process.
func processResult(pid int, operation string, r C.CUresult) error {
	return result(fmt.Sprintf("%s process %d", operation, pid), r)
}

// lockTimeout limits how long it takes to lock an idle process.
const lockTimeout = 5 * time.Second

// Park moves the GPU memory of processes to the host. It locks all processes before it moves the first,
// because processes that work together must stop together. After an error they may be in any state.
func Park(p Processes, pids []int) error {
	var pending []int // not yet checkpointed
	for _, pid := range pids {
		state, err := p.State(pid)
		if err == nil && state == Running {
			err = p.Lock(pid, lockTimeout)
		}
		if err != nil {
			return err
		}
		if state != Checkpointed {
			pending = append(pending, pid)
		}
	}
	for _, pid := range pending {
		if err := p.Checkpoint(pid); err != nil {
			return err
		}
	}
	return nil
}

// Unpark restores the GPU memory of processes and lets them continue, whatever state each one is in. It
// ignores processes that have ended. After an error, some processes may not be restored.
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
			err = fmt.Errorf("cannot restore the GPU memory of process %d: the driver reports the state \"failed\"", pid)
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
