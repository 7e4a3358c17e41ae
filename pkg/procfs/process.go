package procfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lookEvery is how often a kernel before Linux 5.3 is asked whether a process
// has ended.
const lookEvery = 50 * time.Millisecond

// Process is one process, by a descriptor (pidfd_open(2)) where the kernel has
// those: who gets its number later is never meant. It need not be a child.
type Process struct {
	pid   int
	start uint64
	file  *os.File // nil before Linux 5.3
}

// Open takes hold of the process that has this number and began at start, as
// Stat says. The error is os.ErrProcessDone when it has ended.
func Open(pid int, start uint64) (*Process, error) {
	p := &Process{pid: pid, start: start}
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ENOSYS):
	case errors.Is(err, unix.ESRCH):
		return nil, os.ErrProcessDone
	case err != nil:
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	default:
		// Not to block, so that the runtime's poller waits on it.
		if err := unix.SetNonblock(fd, true); err != nil {
			_ = unix.Close(fd)
			return nil, fmt.Errorf("open process %d: %w", pid, err)
		}
		p.file = os.NewFile(uintptr(fd), fmt.Sprintf("process %d", pid))
	}
	// The descriptor is of whoever has the number now: if that began when ours
	// did, it stays ours.
	there, err := Lives(pid, start)
	if err == nil && !there {
		err = os.ErrProcessDone
	}
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

// Signal sends it a signal; os.ErrProcessDone when it has ended.
func (p *Process) Signal(sig unix.Signal) error {
	err := unix.ESRCH
	if p.file == nil {
		there, failed := Lives(p.pid, p.start)
		if failed != nil {
			return failed
		}
		if there {
			err = errno(unix.Kill(p.pid, sig))
		}
	} else if conn, failed := p.file.SyscallConn(); failed != nil {
		return failed
	} else if failed := conn.Control(func(fd uintptr) { err = errno(unix.PidfdSendSignal(int(fd), sig, nil, 0)) }); failed != nil {
		return failed
	}
	switch err {
	case 0:
		return nil
	case unix.ESRCH:
		return os.ErrProcessDone
	}
	return fmt.Errorf("signal process %d: %w", p.pid, err)
}

func errno(err error) unix.Errno {
	var n unix.Errno
	errors.As(err, &n)
	return n
}

// Wait returns when the process has ended, reaped or not, or with ctx's error.
// It does not reap a child. One call at a time.
func (p *Process) Wait(ctx context.Context) error {
	if p.file == nil {
		return p.poll(ctx)
	}
	conn, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	if err := p.file.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = conn.Read(func(fd uintptr) bool {
		// Readable is ended.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (p *Process) poll(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if there, err := Lives(p.pid, p.start); err == nil && !there {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Close lets go of it.
func (p *Process) Close() error {
	if p.file == nil {
		return nil
	}
	return p.file.Close()
}
