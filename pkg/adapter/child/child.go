// Package child runs a command in place of this process: with its standard streams, process
// group and signals. gfaas run uses it.
package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/detach"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// forwarded lists the signals that Run forwards to the command: those that a user or a
// supervisor sends to a program. It excludes SIGSTOP, SIGTTIN, SIGTTOU and the signals that the
// kernel sends because of an error in the program, such as SIGSEGV.
var forwarded = []syscall.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
	unix.SIGALRM, unix.SIGVTALRM, unix.SIGIO, unix.SIGPWR,
	unix.SIGWINCH, unix.SIGCONT, unix.SIGTSTP,
}

// inherited lists the signals that Run does not forward, but leaves ignored in the command if
// this process ignored them from its start.
var inherited = []syscall.Signal{unix.SIGPIPE, unix.SIGTTIN, unix.SIGTTOU, unix.SIGXCPU, unix.SIGXFSZ}

// StartError reports a command that could not be started.
type StartError struct{ Err error }

func (e *StartError) Error() string { return e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

// Run runs a command with this process's standard streams, process group and signals, and
// returns its exit status: 128+n if signal n ended it. The variables in set are added to
// the environment. If ctx has ended, Run does not start the command. If endWithCaller is true, the
// kernel kills the command when this process is killed. Signals stay caught after Run, so
// that a late one does not end this process before its cleanup.
//
// The command inherits the standard streams' descriptors unchanged, and other descriptors
// only if this process inherited them.
func Run(ctx context.Context, command []string, set map[string]string, endWithCaller bool) (int, error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return 0, &StartError{err}
	}
	signals := make(chan os.Signal, 64)
	ignore(slices.Concat(forwarded, realTime(), inherited))
	catch(forwarded, signals)
	queued, err := catchRealTime()
	if err != nil {
		return 0, fmt.Errorf("catch real-time signals: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	attr := &syscall.ProcAttr{Env: Environ(set), Files: []uintptr{0, 1, 2}}
	if endWithCaller {
		// Pdeathsig takes effect when the thread that started the command ends, so this
		// thread must last as long as the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		attr.Sys = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	}
	// Orphaned descendants of the command become children of this process instead of init. The
	// token daemon searches this process's descendants for processes of the instance.
	subreaper := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == nil
	early := slices.Concat(pendingSignals(signals), pendingSignals(queued)) // a terminal sends later signals to the command as well
	var pid int
	if err := detach.Inheriting(func() (err error) {
		pid, err = syscall.ForkExec(path, command, attr)
		return err
	}); err != nil {
		return 0, &StartError{fmt.Errorf("%s: %w", path, err)}
	}
	if subreaper {
		stop := make(chan struct{})
		defer close(stop)
		go reapOrphans(stop, time.Second, pid)
	}
	forwardSignals(pid, early, false)
	// Reap the command only after the last signal was sent: until it is reaped, the kernel
	// cannot reuse its PID.
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
			forwardSignals(pid, []os.Signal{s}, inForeground())
		case s := <-queued:
			forwardSignals(pid, []os.Signal{s}, false)
		}
	}
}

// ignore ignores those of the given signals that this process ignored from its start, so that
// the command inherits them as ignored.
func ignore(signals []syscall.Signal) {
	for _, s := range signals {
		if ignoredAtStart(s) {
			signal.Ignore(s)
		}
	}
}

// catch delivers the given signals to a channel, except those that this process ignored from
// its start.
func catch(signals []syscall.Signal, to chan os.Signal) {
	for _, s := range signals {
		if !ignoredAtStart(s) {
			signal.Notify(to, s)
		}
	}
}

// pendingSignals removes and returns the signals in the channel. It does not wait for more.
func pendingSignals(from <-chan os.Signal) (out []os.Signal) {
	for {
		select {
		case s := <-from:
			out = append(out, s)
		default:
			return out
		}
	}
}

var kill = syscall.Kill // a variable for tests

// forwardSignals forwards signals to the command. If fromTerminal is true, it omits the signals
// of isTerminalSignal: the terminal sends them to its whole foreground group, so the command
// receives them directly. After SIGTSTP, forwardSignals also stops this process.
func forwardSignals(pid int, signals []os.Signal, fromTerminal bool) {
	for _, s := range signals {
		sig := s.(syscall.Signal)
		if !fromTerminal || !isTerminalSignal(sig) {
			_ = kill(pid, sig) // the command may have ended
		}
		if sig == syscall.SIGTSTP {
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		}
	}
}

// isTerminalSignal reports whether terminals send a signal to their foreground process group.
func isTerminalSignal(s syscall.Signal) bool {
	switch s {
	case syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTSTP, syscall.SIGWINCH:
		return true
	}
	return false
}

// inForeground reports whether this process is in the foreground group of its terminal.
func inForeground() bool {
	tty, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// reapOrphans checks at the given interval for ended orphans of the command and reaps them,
// until stop is closed. It does not reap the command. Other parts of this program reap their own
// children as soon as these end. So a child that has ended but is not reaped at two consecutive
// checks is an orphan.
func reapOrphans(stop <-chan struct{}, every time.Duration, command int) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var previous []int
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		var ended []int
		for _, pid := range procfs.Children() {
			if s, err := procfs.Read(pid); pid == command || err != nil || !s.Exited() {
				continue
			}
			if slices.Contains(previous, pid) {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
				continue
			}
			ended = append(ended, pid)
		}
		previous = ended
	}
}

// await waits until a child has ended, without reaping it.
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

// reap reaps an ended child and returns its exit status.
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

// Environ returns this process's environment with variables set.
func Environ(set map[string]string) []string {
	out := os.Environ()
	for name, value := range set {
		out = append(slices.DeleteFunc(out, func(entry string) bool { return strings.HasPrefix(entry, name+"=") }), name+"="+value)
	}
	return out
}
