package gfaas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/detach"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// forwarded are the signals that a person or a supervisor sends to a program.
// Those that the kernel sends for a program's own deeds, and those that stop
// it unasked, are not among them.
var forwarded = []syscall.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
	unix.SIGALRM, unix.SIGVTALRM, unix.SIGIO, unix.SIGPWR,
	unix.SIGWINCH, unix.SIGCONT, unix.SIGTSTP,
}

// realTime are the real-time signals that programs may use: the C library
// keeps the first ones for itself. They are forwarded too, and caught once the
// command is there: each takes the runtime some 20 us, and there are 30.
func realTime() (out []syscall.Signal) {
	const first, last = 35, 64
	for s := syscall.Signal(first); s <= last; s++ {
		out = append(out, s)
	}
	return out
}

// inherited are others that starters have commands ignore.
var inherited = []syscall.Signal{unix.SIGPIPE, unix.SIGTTIN, unix.SIGTTOU, unix.SIGXCPU, unix.SIGXFSZ}

// startError says that a command could not be started.
type startError struct{ err error }

func (e *startError) Error() string { return e.err.Error() }
func (e *startError) Unwrap() error { return e.err }

// runChild runs a command with this process's own standard streams, process
// group and signals, and returns its exit status: 128+n when signal n ended
// it. It does not start once ctx has ended. Ends says that it is to be killed when
// this process is. Signals stay caught: none that comes late ends this process before
// it has put away what it must.
//
// The streams' descriptors are handed on as they are; other descriptors are
// the command's only if our own starter left them open.
func runChild(ctx context.Context, command, env []string, ends bool) (int, error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return 0, &startError{err}
	}
	signals := make(chan os.Signal, 64)
	ignore(slices.Concat(forwarded, realTime(), inherited))
	catch(forwarded, signals)
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	attr := &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}}
	if ends {
		// The kernel kills it when the thread that started it ends: this one, which
		// so must not end before the process does.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		attr.Sys = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	}
	// What the command's processes leave behind comes to this one, where the token
	// daemon finds it.
	subreaper := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == nil
	early := drain(signals) // what comes from now on the command may get by itself
	var pid int
	if err := detach.Inheriting(func() (err error) {
		pid, err = syscall.ForkExec(path, command, attr)
		return err
	}); err != nil {
		return 0, &startError{fmt.Errorf("%s: %w", path, err)}
	}
	if subreaper {
		stop := make(chan struct{})
		defer close(stop)
		go reapOrphans(stop, time.Second, pid)
	}
	catch(realTime(), signals)
	pass(pid, early, false)
	// It is reaped when no signal will be sent any more: until then nobody else
	// gets its number.
	ended := make(chan error, 1)
	go func() { ended <- await(pid) }()
	for {
		select {
		case err := <-ended:
			if err != nil {
				return 0, err
			}
			return reap(pid)
		case s := <-signals:
			pass(pid, []os.Signal{s}, inForeground())
		}
	}
}

// ignore has what our starter had us ignore of these signals ignored from here on,
// and by the command too.
func ignore(these []syscall.Signal) {
	for _, s := range these {
		if ignoredAtStart(s) {
			signal.Ignore(s)
		}
	}
}

// catch takes these signals, to be forwarded, unless they are ignored.
func catch(these []syscall.Signal, to chan os.Signal) {
	for _, s := range these {
		if !ignoredAtStart(s) {
			signal.Notify(to, s)
		}
	}
}

// drain takes what has come before the command was there to get it.
func drain(from chan os.Signal) (out []os.Signal) {
	for {
		select {
		case s := <-from:
			out = append(out, s)
		default:
			return out
		}
	}
}

var kill = syscall.Kill // for tests to see

// pass forwards signals to the command. What a terminal sends reaches its
// whole foreground group, and so the command, without our doing.
func pass(pid int, signals []os.Signal, fromTerminal bool) {
	for _, s := range signals {
		sig := s.(syscall.Signal)
		if !fromTerminal || !ofTerminal(sig) {
			_ = kill(pid, sig) // it may have ended just now
		}
		if sig == syscall.SIGTSTP {
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		}
	}
}

// ofTerminal says whether terminals send that signal to their foreground group.
func ofTerminal(s syscall.Signal) bool {
	switch s {
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGWINCH:
		return true
	}
	return false
}

// inForeground says whether our process group is the foreground group of its
// terminal, if it has one.
func inForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// reapOrphans reaps the processes that the command's have left to this one and that have
// ended, until stop is closed. It leaves the command itself alone. Other programs that this
// process has started are waited for elsewhere at once, so that a process that has ended
// and is still there after another period is an orphan.
func reapOrphans(stop <-chan struct{}, every time.Duration, command int) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var before []int
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		var ended []int
		for _, pid := range procfs.Children() {
			if s, err := procfs.Read(pid); pid == command || err != nil || !s.Ended() {
				continue
			}
			if slices.Contains(before, pid) {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
				continue
			}
			ended = append(ended, pid)
		}
		before = ended
	}
}

// await returns when a child has ended, and leaves it to be reaped.
func await(pid int) error {
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		err = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	}
	if err != nil {
		return fmt.Errorf("wait for process %d: %w", pid, err)
	}
	return nil
}

// reap returns the exit status of a child that has ended.
func reap(pid int) (int, error) {
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, 0, nil); err != nil {
		return 0, fmt.Errorf("wait for process %d: %w", pid, err)
	}
	if status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return status.ExitStatus(), nil
}
