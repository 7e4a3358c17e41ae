package gfaas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that a person or a supervisor sends to a program.
// Those that the kernel sends for a program's own deeds, and those that stop
// it unasked, are not among them.
var forwarded = append([]syscall.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2,
	unix.SIGALRM, unix.SIGVTALRM, unix.SIGIO, unix.SIGPWR,
	unix.SIGWINCH, unix.SIGCONT, unix.SIGTSTP,
}, realTime()...)

// realTime are the real-time signals that programs may use: the C library
// keeps the first ones for itself.
func realTime() (out []syscall.Signal) {
	const first, last = 35, 64
	for s := syscall.Signal(first); s <= last; s++ {
		out = append(out, s)
	}
	return out
}

// inherited are others that starters have commands ignore.
var inherited = []syscall.Signal{unix.SIGPIPE, unix.SIGTTIN, unix.SIGTTOU, unix.SIGXCPU, unix.SIGXFSZ}

// runChild runs a command with this process's own standard streams, process
// group and signals, and returns its exit status: 128+n when signal n ended
// it. It does not start once ctx has ended.
//
// The streams' descriptors are handed on as they are; other descriptors are
// the command's only if our own starter left them open.
func runChild(ctx context.Context, command, env []string) (int, error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return 0, err
	}
	signals := make(chan os.Signal, 64)
	catch(signals)
	defer signal.Stop(signals)
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	pid, err := syscall.ForkExec(path, command, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	pass(pid, drain(signals), false)
	exited := make(chan result, 1)
	go func() { exited <- wait(pid) }()
	for {
		select {
		case r := <-exited:
			return r.status, r.err
		case s := <-signals:
			pass(pid, []os.Signal{s}, inForeground())
		}
	}
}

// catch takes the signals to forward. Those that our starter had us ignore are
// ignored from here on, and by the command too.
func catch(to chan os.Signal) {
	for _, s := range forwarded {
		if !ignoredAtStart(s) {
			signal.Notify(to, s)
		}
	}
	for _, s := range slices.Concat(forwarded, inherited) {
		if ignoredAtStart(s) {
			signal.Ignore(s)
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

// pass forwards signals to the command. What a terminal sends reaches its
// whole foreground group, and so the command, without our doing.
func pass(pid int, signals []os.Signal, fromTerminal bool) {
	for _, s := range signals {
		sig := s.(syscall.Signal)
		if !fromTerminal || !ofTerminal(sig) {
			_ = syscall.Kill(pid, sig) // it may have ended just now
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

// result is how a command ended.
type result struct {
	status int
	err    error
}

func wait(pid int) result {
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return result{0, fmt.Errorf("wait for process %d: %w", pid, err)}
		case status.Signaled():
			return result{128 + int(status.Signal()), nil}
		case status.Exited():
			return result{status.ExitStatus(), nil}
		}
	}
}
