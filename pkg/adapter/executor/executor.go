// Package executor starts and drives executors, the processes that run kernels for gfaas-kerneld
// (hook/kernel). It implements pkg/daemon/kernel's port Executor; Host implements its port of the same
// name. pkg/kgraph/job defines the protocol.
package executor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

// program is the executor's file name. It is installed next to the preload library.
const program = "gfaas-kernel-executor"

// Find returns the path of the executor in the folder of the preload library. It fails if the file does
// not exist.
func Find(libDir string) (string, error) {
	path := filepath.Join(libDir, program)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return "", &ports.UnavailableError{
			Err: fmt.Errorf("%s is missing", path), Remedy: "run make, or install gfaas again",
		}
	}
	return path, nil
}

// Config describes how to start an executor.
type Config struct {
	Path   string   // of the executor
	Env    []string // makes the loader find the driver, and the driver the GPU
	Host   *Host
	Stderr io.Writer // also receives the executor's standard error; nil: discarded
}

// Executor is a process that runs jobs, one at a time.
type Executor struct {
	cmd      *exec.Cmd
	jobs     *os.File      // pipe to the process
	answers  *os.File      // pipe from the process
	messages *bufio.Reader // of answers
	received int           // length of the message that receive returned last
	stderr   stderrTail

	killOnce sync.Once
	exited   chan struct{} // closed when the process has ended
	exitErr  error
}

// helloTimeout limits how long an executor may take to open its GPU.
const helloTimeout = 60 * time.Second

// stderrTail keeps the end of a process's standard error.
type stderrTail struct {
	mu   sync.Mutex
	text []byte
	tee  io.Writer
}

func (l *stderrTail) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	const capacity = 1024
	l.text = append(l.text, p...)
	if len(l.text) > capacity {
		l.text = append(l.text[:0], l.text[len(l.text)-capacity:]...)
	}
	if l.tee != nil {
		_, _ = l.tee.Write(p)
	}
	return len(p), nil
}

func (l *stderrTail) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(l.text))
}

// Start starts an executor and waits for its hello. It returns a *ports.UnavailableError if there is no
// usable GPU, and ctx's error if ctx ends first.
func Start(ctx context.Context, c Config) (*Executor, job.Hello, error) {
	// Pipes are faster than a socket pair: each read from a socket wakes its writer to report
	// free space, even if the writer waits for something else.
	theirJobs, jobs, err := os.Pipe()
	if err != nil {
		return nil, job.Hello{}, fmt.Errorf("pipe to an executor: %w", err)
	}
	defer theirJobs.Close()
	answers, theirAnswers, err := os.Pipe()
	if err != nil {
		_ = jobs.Close()
		return nil, job.Hello{}, fmt.Errorf("pipe from an executor: %w", err)
	}
	defer theirAnswers.Close()
	e := &Executor{
		jobs: jobs, answers: answers, messages: bufio.NewReaderSize(answers, job.HeaderSize+job.MaxMessage),
		exited: make(chan struct{}), stderr: stderrTail{tee: c.Stderr},
	}
	e.cmd = exec.Command(c.Path)
	e.cmd.Env = c.Env
	e.cmd.Stderr = &e.stderr
	e.cmd.ExtraFiles = []*os.File{theirJobs, c.Host.file, theirAnswers}
	e.cmd.WaitDelay = time.Second
	// A process group of its own, so that an interrupt at the terminal reaches only the
	// daemon, which ends its executors itself.
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = answers.SetReadDeadline(time.Now().Add(helloTimeout)) // before ctx's end may set another one
	if err == nil {
		err = e.cmd.Start()
	}
	if err != nil {
		e.closePipes()
		return nil, job.Hello{}, fmt.Errorf("start an executor: %w", err)
	}
	go func() {
		e.exitErr = e.cmd.Wait()
		close(e.exited)
	}()
	stop := context.AfterFunc(ctx, func() { _ = answers.SetReadDeadline(time.Unix(1, 0)) })
	hello, err := e.hello()
	if !stop() {
		err = ctx.Err()
	}
	if err != nil {
		e.Kill()
		return nil, job.Hello{}, err
	}
	return e, hello, nil
}

func (e *Executor) hello() (job.Hello, error) {
	kind, data, err := e.receive()
	if err != nil {
		return job.Hello{}, e.exitError(err)
	}
	if kind != job.KindHello {
		return job.Hello{}, fmt.Errorf("executor: unexpected kind of the first message: %d", kind)
	}
	h, err := job.ParseHello(data)
	if err == nil && !h.Ready {
		err = &ports.UnavailableError{Err: fmt.Errorf("no GPU: %s", h.Name)}
	}
	return h, err
}

// Pid returns the process ID.
func (e *Executor) Pid() int { return e.cmd.Process.Pid }

// receive returns the next message. Its data are valid until the next call.
func (e *Executor) receive() (kind uint32, data []byte, err error) {
	_, _ = e.messages.Discard(e.received) // the previous message
	e.received = 0
	head, err := e.messages.Peek(job.HeaderSize)
	if err != nil {
		return 0, nil, err
	}
	n, kind, err := job.Header(head)
	if err != nil {
		return 0, nil, err
	}
	message, err := e.messages.Peek(job.HeaderSize + n)
	if err != nil {
		return 0, nil, err
	}
	e.received = len(message)
	return kind, message[job.HeaderSize:], nil
}

// Send starts a job, which must make progress within patience. It returns no error: after a failure, Wait
// reports the expired deadline or the end of the process.
func (e *Executor) Send(text []byte, patience time.Duration) {
	until := time.Now().Add(patience)
	if e.jobs.SetWriteDeadline(until) == nil && e.answers.SetReadDeadline(until) == nil {
		_, _ = e.jobs.Write(text)
	}
}

// grace is how much longer Wait waits after the deadline without progress. The executor, which checks for
// progress every 100 ms, or the daemon may not have had a processor in the meantime.
const grace = 300 * time.Millisecond

// Wait returns the outcome of the job that was sent. The error is job.ErrTimeout if the job made no
// progress for patience, or a *ExitError if the process ended. After an error or a fatal outcome the
// executor is unusable.
func (e *Executor) Wait(id uint64, patience time.Duration) (job.Outcome, error) {
	for late := false; ; {
		kind, data, err := e.receive()
		if errors.Is(err, os.ErrDeadlineExceeded) && !late {
			late = true
			if e.answers.SetReadDeadline(time.Now().Add(min(grace, patience))) == nil {
				continue
			}
		}
		if err != nil {
			return job.Outcome{}, e.exitError(err)
		}
		switch kind {
		case job.KindProgress:
			late = false
			if err := e.answers.SetReadDeadline(time.Now().Add(patience)); err != nil {
				return job.Outcome{}, e.exitError(err)
			}
		case job.KindDone:
			o, err := job.ParseOutcome(data)
			if err == nil && o.ID != id {
				err = fmt.Errorf("executor: answer to job %d, expected %d", o.ID, id)
			}
			return o, err
		default:
			return job.Outcome{}, fmt.Errorf("executor: unexpected kind of message: %d", kind)
		}
	}
}

// ExitError reports that an executor exited unexpectedly.
type ExitError struct{ Status, LastLine string }

func (e *ExitError) Error() string {
	text := "the executor ended: " + e.Status
	if e.LastLine != "" {
		text += ": " + e.LastLine
	}
	return text
}

// exitError converts an error of a pipe to the cause: job.ErrTimeout, or a *ExitError with the exit status.
func (e *Executor) exitError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return job.ErrTimeout
	}
	const exitTimeout = 2 * time.Second
	select {
	case <-e.exited:
	case <-time.After(exitTimeout):
		return &ExitError{Status: err.Error()}
	}
	status := "status 0"
	if e.exitErr != nil {
		status = e.exitErr.Error()
	}
	text := e.stderr.String()
	return &ExitError{status, text[strings.LastIndexByte(text, '\n')+1:]}
}

// Close ends an idle process. If the process does not end within 2 s, Close kills it.
func (e *Executor) Close() {
	e.closePipes()
	const patience = 2 * time.Second
	select {
	case <-e.exited:
	case <-time.After(patience):
		e.Kill()
	}
}

// Kill kills the process and returns when it has ended.
func (e *Executor) Kill() {
	e.killOnce.Do(func() {
		select {
		case <-e.exited:
		default:
			_ = mps.Terminate(context.Background(), "", []int{e.cmd.Process.Pid}) // before the kill: an MPS client that dies with work in flight harms other clients
			_ = e.cmd.Process.Kill()
		}
	})
	<-e.exited
	e.closePipes()
}

// closePipes closes the pipes, which makes the process exit.
func (e *Executor) closePipes() {
	_ = e.jobs.Close()
	_ = e.answers.Close()
}
