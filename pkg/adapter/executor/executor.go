// Package executor starts and drives the processes that run kernels for
// gfaas-kerneld (hook/kernel), one on each GPU or more.
package executor

import (
	"bytes"
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
	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

// program is the executor, which lies beside the preload library.
const program = "gfaas-kernel-executor"

// Find is where the program is, given the folder of the preload library.
func Find(libDir string) (string, error) {
	path := filepath.Join(libDir, program)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return "", &missingError{path}
	}
	return path, nil
}

type missingError struct{ path string }

func (e *missingError) Error() string     { return e.path + " is missing" }
func (e *missingError) Hint() string      { return "run make, or install gfaas again" }
func (e *missingError) Unavailable() bool { return true }

// Config says how to start an executor.
type Config struct {
	Path   string   // of its program
	Env    []string // which makes the loader find its driver, and the driver its GPU
	Host   *Host
	Stderr io.Writer // what its libraries print; nil is nowhere
}

// Executor is a process that carries out jobs. One job at a time.
type Executor struct {
	cmd     *exec.Cmd
	jobs    *os.File // to it
	answers *os.File // from it
	buf     []byte
	in      []byte
	last    lastWords

	once sync.Once
	died chan struct{} // closed when the process has ended
	how  error
}

// greeting is how long an executor may take to open its GPU.
const greeting = 60 * time.Second

// UnavailableError says why there is no GPU to use.
type UnavailableError struct{ Why string }

func (e *UnavailableError) Error() string     { return "no GPU: " + e.Why }
func (e *UnavailableError) Unavailable() bool { return true }

// lastWords keeps the end of what a process prints.
type lastWords struct {
	mu   sync.Mutex
	text []byte
	tee  io.Writer
}

func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	const most = 1024
	l.text = append(l.text, p...)
	if len(l.text) > most {
		l.text = append(l.text[:0], l.text[len(l.text)-most:]...)
	}
	if l.tee != nil {
		_, _ = l.tee.Write(p)
	}
	return len(p), nil
}

func (l *lastWords) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(l.text))
}

// Start starts an executor and waits for its hello. The error is an
// *UnavailableError where there is no GPU, and the context's where that ends first.
func Start(ctx context.Context, c Config) (*Executor, job.Hello, error) {
	// Pipes, and not a pair of sockets: whoever reads from a socket wakes its writer,
	// to say that there is room, also where that waits for something else.
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
	e := &Executor{jobs: jobs, answers: answers, died: make(chan struct{}), last: lastWords{tee: c.Stderr}}
	e.cmd = exec.Command(c.Path)
	e.cmd.Env = c.Env
	e.cmd.Stderr = &e.last
	e.cmd.ExtraFiles = []*os.File{theirJobs, c.Host.file, theirAnswers}
	e.cmd.WaitDelay = time.Second
	// Not of our process group: an interrupt at the terminal is the daemon's, which
	// ends what it has started.
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = answers.SetReadDeadline(time.Now().Add(greeting)) // before the context may set another
	if err == nil {
		err = e.cmd.Start()
	}
	if err != nil {
		e.leave()
		return nil, job.Hello{}, fmt.Errorf("start an executor: %w", err)
	}
	go func() {
		e.how = e.cmd.Wait()
		close(e.died)
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
		return job.Hello{}, e.gone(err)
	}
	if kind != job.KindHello {
		return job.Hello{}, fmt.Errorf("an executor begins with a message of the kind %d", kind)
	}
	h, err := job.ParseHello(data)
	if err == nil && !h.Ready {
		err = &UnavailableError{h.Name}
	}
	return h, err
}

// Pid is the process.
func (e *Executor) Pid() int { return e.cmd.Process.Pid }

// receive reads the next message. Its data holds until the next.
func (e *Executor) receive() (kind uint32, data []byte, err error) {
	for {
		if len(e.in) >= job.HeaderSize {
			n, kind, err := job.Header(e.in)
			if err != nil {
				return 0, nil, err
			}
			if whole := job.HeaderSize + n; len(e.in) >= whole {
				data, e.in = e.in[job.HeaderSize:whole], e.in[whole:]
				return kind, data, nil
			}
		}
		const room = 2 * job.MaxMessage
		if e.buf == nil {
			e.buf = make([]byte, room)
		}
		have := copy(e.buf, e.in)
		n, err := e.answers.Read(e.buf[have:])
		e.in = e.buf[:have+n]
		if err != nil {
			return 0, nil, err
		}
	}
}

// Send begins a job, whose outcome Wait returns. What goes wrong Wait says too: it
// finds the deadline over, or the process ended.
func (e *Executor) Send(text []byte, patience time.Duration) {
	until := time.Now().Add(patience)
	if e.jobs.SetWriteDeadline(until) == nil && e.answers.SetReadDeadline(until) == nil {
		_, _ = e.jobs.Write(text)
	}
}

// grace is for how long a job may yet tell of its progress when it has told of none for
// as long as it may: who had no processor meanwhile, here or there, has not looked.
// An executor looks every 100 ms.
const grace = 300 * time.Millisecond

// Wait returns the outcome of the job that was sent. The error is job.ErrTimeout when
// the job made no progress for so long, or a *GoneError when the process ended; in
// both cases, and where the outcome is fatal, the executor is of no use any more.
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
			return job.Outcome{}, e.gone(err)
		}
		switch kind {
		case job.KindProgress:
			late = false
			if err := e.answers.SetReadDeadline(time.Now().Add(patience)); err != nil {
				return job.Outcome{}, e.gone(err)
			}
		case job.KindDone:
			o, err := job.ParseOutcome(data)
			if err == nil && o.ID != id {
				err = fmt.Errorf("an executor answers job %d, expected %d", o.ID, id)
			}
			return o, err
		default:
			return job.Outcome{}, fmt.Errorf("an executor sends a message of the kind %d", kind)
		}
	}
}

// GoneError says how a process ended that should not have.
type GoneError struct{ How, LastWords string }

func (e *GoneError) Error() string {
	text := "the executor ended: " + e.How
	if e.LastWords != "" {
		text += ": " + e.LastWords
	}
	return text
}

// gone turns what a pipe says into why.
func (e *Executor) gone(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return job.ErrTimeout
	}
	const soon = 2 * time.Second
	select {
	case <-e.died:
	case <-time.After(soon):
		return &GoneError{How: err.Error()}
	}
	how := "status 0"
	if e.how != nil {
		how = e.how.Error()
	}
	return &GoneError{how, lastLine(e.last.String())}
}

func lastLine(text string) string {
	lines := bytes.Split([]byte(text), []byte("\n"))
	return string(lines[len(lines)-1])
}

// Close ends the process, which has nothing to do.
func (e *Executor) Close() {
	e.leave()
	const patience = 2 * time.Second
	select {
	case <-e.died:
	case <-time.After(patience):
		e.Kill()
	}
}

// Kill ends the process whatever it does, and returns when it has ended.
func (e *Executor) Kill() {
	e.once.Do(func() {
		select {
		case <-e.died:
		default:
			_ = mps.Terminate(context.Background(), "", []int{e.cmd.Process.Pid}) // what does not answer cannot keep it alive
			_ = e.cmd.Process.Kill()
		}
	})
	<-e.died
	e.leave()
}

// leave closes the pipes, at which the process ends.
func (e *Executor) leave() {
	_ = e.jobs.Close()
	_ = e.answers.Close()
}
