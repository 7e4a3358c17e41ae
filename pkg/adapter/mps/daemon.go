package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/procfs"
)

// askTime is how long the control daemon may take to answer.
const askTime = 10 * time.Second

// Fault is the state of a server one of whose clients met a fatal error: it
// takes no new clients until all it has are gone.
const Fault = "FAULT"

// Server is an MPS server process: one for each user, started by the control
// daemon when the first client comes.
type Server struct {
	PID   int
	State string // INITIALIZING, ACTIVE or FAULT
}

// Daemon is a control daemon of our own, apart from any that the machine's
// owner runs: nobody finds it who is not told its PipeDir.
type Daemon struct {
	Program string // nvidia-cuda-mps-control
	Dir     string // its folders pipe and log are made as needed
}

// Private is the daemon of that run directory; ok is false when MPS is not
// installed here.
func Private(runDir string) (d Daemon, ok bool) {
	program, err := exec.LookPath(control)
	return Daemon{Program: program, Dir: privateDir(runDir)}, err == nil
}

// PipeDir is what clients need in CUDA_MPS_PIPE_DIRECTORY.
func (d Daemon) PipeDir() string { return filepath.Join(d.Dir, "pipe") }

func (d Daemon) logDir() string { return filepath.Join(d.Dir, "log") }

// PID is the daemon's process, or 0 when it does not run.
func (d Daemon) PID() int { return ProbeDir(d.PipeDir()).PID }

// Start starts the daemon unless it runs. It lives on when this process ends:
// its clients would not survive it.
func (d Daemon) Start(ctx context.Context) error {
	if d.PID() != 0 {
		return nil
	}
	for _, dir := range []string{d.PipeDir(), d.logDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("MPS: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*askTime)
	defer cancel()
	env := []string{pipeVariable + "=" + d.PipeDir(), "CUDA_MPS_LOG_DIRECTORY=" + d.logDir()}
	if out, err := run(ctx, d.Program, env, "", "-d"); err != nil {
		return fmt.Errorf("MPS: %s -d: %w: %s", d.Program, err, lastLine(out))
	}
	if !until(ctx, func() bool { return d.PID() != 0 }) {
		return fmt.Errorf("MPS: %s did not start: %s", d.Program, d.Reason())
	}
	return nil
}

// Stop ends the daemon and its servers, and returns when it has ended. Clients
// that still run have so long to end by themselves.
func (d Daemon) Stop(ctx context.Context, grace time.Duration) error {
	pid := d.PID()
	if pid == 0 {
		return nil
	}
	if _, err := d.ask(ctx, fmt.Sprintf("quit -t %d", int(grace.Seconds()))); err != nil && d.PID() != 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, grace+askTime)
	defer cancel()
	if !until(ctx, func() bool { return !procfs.Alive(pid) }) {
		return fmt.Errorf("MPS: the control daemon %d was told to quit and still runs: %s", pid, d.Reason())
	}
	return nil
}

// until waits until it is so; false: the context ended first.
func until(ctx context.Context, so func() bool) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// Servers lists the servers and their states, of which FAULT is the one to act
// on.
func (d Daemon) Servers(ctx context.Context) ([]Server, error) {
	pids, err := d.numbers(ctx, "get_server_list")
	if err != nil {
		return nil, err
	}
	var out []Server
	for _, pid := range pids {
		state, err := d.ask(ctx, fmt.Sprintf("get_server_status %d", pid))
		if err != nil {
			return nil, err
		}
		out = append(out, Server{PID: pid, State: strings.ToUpper(lastLine(state))})
	}
	return out, nil
}

// Clients lists the processes connected to a server.
func (d Daemon) Clients(ctx context.Context, server int) ([]int, error) {
	return d.numbers(ctx, fmt.Sprintf("get_client_list %d", server))
}

// Reason is what the server's log, or else the daemon's, says last.
func (d Daemon) Reason() string {
	for _, name := range []string{"server.log", "control.log"} {
		if text, err := os.ReadFile(filepath.Join(d.logDir(), name)); err == nil {
			if line := lastLine(text); line != "" {
				return line
			}
		}
	}
	return "it logged nothing"
}

// numbers asks for a list of process numbers, one a line.
func (d Daemon) numbers(ctx context.Context, command string) ([]int, error) {
	text, err := d.ask(ctx, command)
	if err != nil {
		return nil, err
	}
	return parseNumbers(command, text)
}

func parseNumbers(command string, text []byte) (out []int, err error) {
	for _, word := range strings.Fields(string(text)) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("MPS: %s answers %q, expected process numbers", command, firstLine(text))
		}
		out = append(out, n)
	}
	return out, nil
}

// ask sends the daemon one command and returns its answer.
func (d Daemon) ask(ctx context.Context, command string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return ask(ctx, d.Program, d.PipeDir(), command)
}

// ask sends commands, one a line, to the control daemon of a folder.
func ask(ctx context.Context, program, pipeDir, commands string) ([]byte, error) {
	out, err := run(ctx, program, []string{pipeVariable + "=" + pipeDir}, commands+"\n")
	if err != nil {
		return nil, fmt.Errorf("MPS: %s: %w: %s", firstLine([]byte(commands)), err, lastLine(out))
	}
	return out, nil
}

// run runs the control program, with these variables besides the common environment.
func run(ctx context.Context, program string, env []string, input string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(environ(os.Environ()), env...)
	cmd.Stdin = strings.NewReader(input)
	cmd.WaitDelay = time.Second // what it starts may keep its output open
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	return out, err
}

// environ is what the daemon gets of our environment. It serves all GPUs, and
// counts them as its clients do: of those that it is told of it would make
// devices with other numbers. Shares and limits are its clients' own.
func environ(ours []string) []string {
	kept := []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID"}
	for _, kv := range ours {
		switch name, _, _ := strings.Cut(kv, "="); {
		case name == "CUDA_VISIBLE_DEVICES", name == "CUDA_DEVICE_ORDER", name == "LD_PRELOAD", strings.HasPrefix(name, "CUDA_MPS_"):
		default:
			kept = append(kept, kv)
		}
	}
	return kept
}

func lastLine(text []byte) string {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return strings.TrimSpace(string(lines[len(lines)-1]))
}

func firstLine(text []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(text), []byte("\n"))
	return string(line)
}
