package procfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pollInterval is the interval at which Wait polls before Linux 5.3.
const pollInterval = 50 * time.Millisecond

// Process identifies one process, if possible by a descriptor (pidfd_open(2)), so that
// operations never affect a later process with the same PID. The process need not be a
// child.
type Process struct {
	pid   int
	start uint64
	file  *os.File // nil before Linux 5.3
}

// Open returns the Process with the given PID and start time, as in Stat. It returns
// os.ErrProcessDone if that process has ended.
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
		// Nonblocking, so that the runtime's poller waits for the descriptor.
		if err := unix.SetNonblock(fd, true); err != nil {
			_ = unix.Close(fd)
			return nil, fmt.Errorf("open process %d: %w", pid, err)
		}
		p.file = os.NewFile(uintptr(fd), fmt.Sprintf("process %d", pid))
	}
	// The descriptor refers to the current owner of the PID. If its start time matches, it
	// refers to the requested process from now on.
	lives, err := Lives(pid, start)
	if err == nil && !lives {
		err = os.ErrProcessDone
	}
	if err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

// Signal sends a signal. It returns os.ErrProcessDone if the process has ended.
func (p *Process) Signal(sig unix.Signal) error {
	err := unix.ESRCH
	if p.file == nil {
		lives, failed := Lives(p.pid, p.start)
		if failed != nil {
			return failed
		}
		if lives {
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

// Wait returns nil when the process has ended, reaped or not, or ctx's error. It does not
// reap a child. At most one call may be in progress.
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
		// A pidfd is readable when its process has ended.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (p *Process) poll(ctx context.Context) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if lives, err := Lives(p.pid, p.start); err == nil && !lives {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Close closes the descriptor.
func (p *Process) Close() error {
	if p.file == nil {
		return nil
	}
	return p.file.Close()
}
