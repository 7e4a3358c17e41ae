package job

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// Variable is the environment variable of a supervisor that names the folder of its result. The
// command does not inherit it.
const Variable = "GFAAS_JOB"

const (
	killGrace     = 5 * time.Second        // from SIGTERM to SIGKILL
	killRepeat    = 100 * time.Millisecond // from SIGKILL to SIGKILL, for processes that were forked meanwhile
	remainingPoll = 100 * time.Millisecond // interval of checks in AwaitRemaining
	writeRetry    = time.Second            // pause before the result is written again after an error
)

var restartPause = instance.RestartPause // a variable for tests

// supervisor runs a job.
type supervisor struct {
	instance.Job
	dir     string // folder of the result
	runDir  string // of the daemons
	command []string
	log     io.Writer

	result   Result
	children chan os.Signal // SIGCHLD
	signals  chan os.Signal // signals that end the job
	deadline <-chan time.Time
	abort    string // the reason for which the job was stopped; empty while it may be restarted
}

// Supervise runs a job's command until it succeeds, or until it has failed and may not be restarted.
// It returns the exit status of the last run. dir is the folder of the result, and runDir the run
// directory of the daemons. Messages about restarts go to log.
//
// A run ends when the command and all processes that it has started have ended. It fails if the
// command fails, or if a process that the command has left running fails later. The remaining
// processes of a failed command are ended before the next run. SIGTERM, SIGINT and SIGHUP are passed on and
// end the job.
//
// If the supervisor is killed, Linux kills the command, unless it is a client of MPS. Such a process must not
// be killed before its work on the GPU has ended.
func Supervise(j instance.Job, dir, runDir string, command []string, log io.Writer) int {
	runtime.LockOSThread() // Pdeathsig takes effect when the thread that started the command ends
	defer runtime.UnlockOSThread()
	s := &supervisor{Job: j, dir: dir, runDir: runDir, command: command, log: log,
		children: make(chan os.Signal, 1), signals: make(chan os.Signal, 8)}
	signal.Notify(s.children, unix.SIGCHLD)
	signal.Notify(s.signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	// If the keeper of the log is killed, a message must not end the supervisor. The command still gets the
	// default action, because it does not inherit handlers.
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // fails on no supported kernel
	if j.Deadline > 0 {
		s.deadline = time.After(j.Deadline)
	}
	return s.run()
}

func (s *supervisor) run() int {
	s.result = Result{State: instance.Running, ExitCode: -1}
	tries := 0
	for {
		s.save()
		began := time.Now()
		s.result.ExitCode, s.result.Detail = s.execute()
		switch {
		case s.abort != "":
			return s.end(instance.Failed, s.abort)
		case s.result.ExitCode == 0:
			return s.end(instance.Succeeded, s.result.Detail)
		case s.result.Restarts >= s.MaxRestarts:
			return s.end(instance.Failed, s.result.Detail)
		}
		if time.Since(began) >= instance.SteadyRun {
			tries = 0
		}
		tries++
		if !s.wait(restartPause(tries)) {
			return s.end(instance.Failed, s.abort)
		}
		s.result.Restarts++
		s.result.State, s.result.Detail = instance.Running, ""
	}
}

// wait waits before a restart. It returns false if the job was stopped meanwhile.
func (s *supervisor) wait(pause time.Duration) bool {
	fmt.Fprintf(s.log, "gfaas: the job %s; restart %d of %d in %v\n", s.result.Detail, s.result.Restarts+1, s.MaxRestarts, pause)
	s.result.State = instance.Restarting
	s.save()
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return true
		case sig := <-s.signals:
			s.stopped(sig)
			return false
		case <-s.deadline:
			s.expired()
			return false
		case <-s.children:
		}
	}
}

func (s *supervisor) stopped(sig os.Signal) { s.abort = "stopped by signal: " + sig.String() }
func (s *supervisor) expired() {
	s.abort = fmt.Sprintf("stopped: not complete within its deadline of %v", s.Deadline)
}

// end writes the result of the job, and returns the exit status of the supervisor. While the result
// cannot be written, for example because the disk is full, the supervisor continues, so that the
// job does not seem to have been killed.
func (s *supervisor) end(state, detail string) int {
	s.result.State, s.result.Detail, s.result.Ended = state, detail, time.Now()
	if state == instance.Failed {
		fmt.Fprintf(s.log, "gfaas: the job has failed after %d restarts: %s\n", s.result.Restarts, detail)
		if s.result.ExitCode == 0 || s.result.ExitCode == -1 { // the job was stopped
			s.result.ExitCode = 1
		}
	}
	for !s.save() {
		select {
		case <-s.signals:
			return s.result.ExitCode
		case <-time.After(writeRetry):
		}
	}
	return s.result.ExitCode
}

// save writes the state of the job and reports whether it succeeded.
func (s *supervisor) save() bool {
	err := Write(s.dir, s.result)
	if err != nil {
		fmt.Fprintf(s.log, "gfaas: cannot write the state of the job: %v\n", err)
	}
	return err == nil
}

// execution is one run of the command.
type execution struct {
	pid      int
	ended    bool // the command has ended
	code     int
	detail   string
	complete bool // the command and all processes that it has started have ended
}

// execute runs the command, and returns its exit code and a description of its end.
func (s *supervisor) execute() (code int, detail string) {
	path, err := exec.LookPath(s.command[0])
	if err != nil {
		return 127, err.Error()
	}
	env := slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, Variable+"=") })
	attr := &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}}
	if os.Getenv("CUDA_MPS_PIPE_DIRECTORY") == "" {
		attr.Sys = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	}
	a := &execution{}
	if a.pid, err = syscall.ForkExec(path, s.command, attr); err != nil {
		return 126, fmt.Sprintf("cannot start %s: %v", path, err)
	}
	var kill <-chan time.Time // delivers when the next SIGKILL is due; nil before the first SIGTERM
	for {
		if a.reap(); a.complete {
			return a.code, a.detail
		}
		if a.ended && a.code != 0 && kill == nil {
			kill = s.kill(unix.SIGTERM)
		}
		select {
		case <-s.children:
		case sig := <-s.signals:
			s.stopped(sig)
			s.kill(sig.(syscall.Signal))
		case <-s.deadline:
			s.expired()
			kill = s.kill(unix.SIGTERM)
		case <-kill:
			kill = s.kill(unix.SIGKILL)
		}
	}
}

// reap reaps the children that have ended.
func (a *execution) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
			continue
		case err != nil: // there are no children
			a.complete = true
			return
		case pid == 0:
			return
		case pid == a.pid:
			a.ended = true
			a.code, a.detail = EndOf(status)
		case a.ended && a.code == 0:
			if code, detail := EndOf(status); code != 0 {
				a.code, a.detail = code, fmt.Sprintf("has left process %d running, which %s", pid, detail)
			}
		}
	}
}

func (s *supervisor) kill(sig syscall.Signal) <-chan time.Time { return kill(s.runDir, sig) }

// kill sends a signal to all descendants of this process, which must be a subreaper. The result delivers at
// the time at which those that are still running must get SIGKILL.
func kill(runDir string, sig syscall.Signal) <-chan time.Time {
	targets := descendants()
	dying := slices.DeleteFunc(slices.Clone(targets), func(pid int) bool { return sig != unix.SIGKILL && !procfs.Deadly(pid, sig) })
	_ = mps.Terminate(context.Background(), runDir, dying) // if this fails, the signal is sent nevertheless
	for _, pid := range targets {
		_ = syscall.Kill(pid, sig) // it may have ended
	}
	if sig == unix.SIGKILL {
		return time.After(killRepeat)
	}
	return time.After(killGrace)
}

// descendants returns the processes that descend from this process and have not ended.
func descendants() (pids []int) {
	all, _ := procfs.Stats()
	children := map[int][]int{}
	for _, p := range all {
		if !p.Exited() {
			children[p.Parent] = append(children[p.Parent], p.PID)
		}
	}
	pids = slices.Clone(children[os.Getpid()])
	for i := 0; i < len(pids); i++ {
		pids = append(pids, children[pids[i]]...)
	}
	return pids
}

// AwaitRemaining waits until all processes have ended that an ended command has started. This process must be
// a subreaper, and have no other children. code and detail describe the end of the command. AwaitRemaining
// returns them if code is not 0, and otherwise those of the first process that failed, if one did. If code is
// not 0, or when ctx ends, it ends the processes.
func AwaitRemaining(ctx context.Context, runDir string, code int, detail string) (int, string) {
	a := &execution{ended: true, code: code, detail: detail}
	tick := time.NewTicker(remainingPoll)
	defer tick.Stop()
	done := ctx.Done()
	var due <-chan time.Time
	for {
		if a.reap(); a.complete {
			return a.code, a.detail
		}
		if a.code != 0 && due == nil {
			due = kill(runDir, unix.SIGTERM)
		}
		select {
		case <-tick.C:
		case <-done:
			due, done = kill(runDir, unix.SIGTERM), nil
		case <-due:
			due = kill(runDir, unix.SIGKILL)
		}
	}
}
