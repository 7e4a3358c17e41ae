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

// commandTimeout is the time limit for an answer of the control daemon.
const commandTimeout = 10 * time.Second

// Fault is the state of a server after a fatal error of a client: it accepts no
// new clients until all its clients have ended.
const Fault = "FAULT"

// Server is an MPS server process. The control daemon starts one per user, when the user's
// first client connects.
type Server struct {
	PID   int
	State string // INITIALIZING, ACTIVE or FAULT
}

// Daemon is a private control daemon, separate from that of the machine's
// administrator. Only clients that know its PipeDir can use it.
type Daemon struct {
	Program string // path of nvidia-cuda-mps-control
	Dir     string // contains the folders pipe and log, created as needed
}

// Private returns the daemon of a run directory, running or not; ok is false if MPS is not
// installed.
func Private(runDir string) (d Daemon, ok bool) {
	program, err := exec.LookPath(control)
	return Daemon{Program: program, Dir: privateDir(runDir)}, err == nil
}

// PipeDir returns the value of CUDA_MPS_PIPE_DIRECTORY for clients.
func (d Daemon) PipeDir() string { return filepath.Join(d.Dir, "pipe") }

func (d Daemon) logDir() string { return filepath.Join(d.Dir, "log") }

// PID returns the daemon's PID, or 0 if it is not running.
func (d Daemon) PID() int { return ProbeDir(d.PipeDir()).PID }

// Start starts the daemon unless it is running. The daemon outlives this process, because
// its clients could not continue without it.
func (d Daemon) Start(ctx context.Context) error {
	if d.PID() != 0 {
		return nil
	}
	for _, dir := range []string{d.PipeDir(), d.logDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("MPS: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*commandTimeout)
	defer cancel()
	env := []string{pipeVariable + "=" + d.PipeDir(), "CUDA_MPS_LOG_DIRECTORY=" + d.logDir()}
	if out, err := run(ctx, d.Program, env, "", "-d"); err != nil {
		return fmt.Errorf("MPS: %s -d: %w: %s", d.Program, err, lastLine(out))
	}
	if !pollUntil(ctx, func() bool { return d.PID() != 0 }) {
		return fmt.Errorf("MPS: %s did not start: %s", d.Program, d.Reason())
	}
	return nil
}

// Stop ends the daemon and its servers and returns when the daemon has ended. Clients that
// are still running have the time grace to end by themselves.
func (d Daemon) Stop(ctx context.Context, grace time.Duration) error {
	pid := d.PID()
	if pid == 0 {
		return nil
	}
	if _, err := d.send(ctx, fmt.Sprintf("quit -t %d", int(grace.Seconds()))); err != nil && d.PID() != 0 {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, grace+commandTimeout)
	defer cancel()
	if !pollUntil(ctx, func() bool { return !procfs.Alive(pid) }) {
		return fmt.Errorf("MPS: control daemon %d still runs after the command to quit: %s", pid, d.Reason())
	}
	return nil
}

// pollUntil polls ok until it returns true, and returns false if ctx ends first.
func pollUntil(ctx context.Context, ok func() bool) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// Servers returns the servers and their states.
func (d Daemon) Servers(ctx context.Context) ([]Server, error) {
	pids, err := d.numbers(ctx, "get_server_list")
	if err != nil {
		return nil, err
	}
	var out []Server
	for _, pid := range pids {
		state, err := d.send(ctx, fmt.Sprintf("get_server_status %d", pid))
		if err != nil {
			return nil, err
		}
		out = append(out, Server{PID: pid, State: strings.ToUpper(lastLine(state))})
	}
	return out, nil
}

// Clients returns the PIDs of the clients connected to a server.
func (d Daemon) Clients(ctx context.Context, server int) ([]int, error) {
	return d.numbers(ctx, fmt.Sprintf("get_client_list %d", server))
}

// Reason returns the last line of the server's log or, if that is empty, of the daemon's
// log.
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

// numbers sends a command whose answer is a list of PIDs.
func (d Daemon) numbers(ctx context.Context, command string) ([]int, error) {
	text, err := d.send(ctx, command)
	if err != nil {
		return nil, err
	}
	return parseNumbers(command, text)
}

func parseNumbers(command string, text []byte) (out []int, err error) {
	for _, word := range strings.Fields(string(text)) {
		n, err := strconv.Atoi(word)
		if err != nil {
			return nil, fmt.Errorf("MPS: unexpected answer %[2]q to %[1]s, expected process IDs", command, firstLine(text))
		}
		out = append(out, n)
	}
	return out, nil
}

// send sends one command to the daemon and returns its answer.
func (d Daemon) send(ctx context.Context, command string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return sendCommands(ctx, d.Program, d.PipeDir(), command)
}

// sendCommands sends commands, one per line, to the control daemon of a folder.
func sendCommands(ctx context.Context, program, pipeDir, commands string) ([]byte, error) {
	out, err := run(ctx, program, []string{pipeVariable + "=" + pipeDir}, commands+"\n")
	if err != nil {
		return nil, fmt.Errorf("MPS: %s: %w: %s", firstLine([]byte(commands)), err, lastLine(out))
	}
	return out, nil
}

// run runs the control program with env added to the daemon's environment.
func run(ctx context.Context, program string, env []string, input string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(environ(os.Environ()), env...)
	cmd.Stdin = strings.NewReader(input)
	cmd.WaitDelay = time.Second // its children may keep the output open
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	return out, err
}

// environ returns the daemon's environment, given this process's. It removes
// CUDA_VISIBLE_DEVICES, because the daemon serves all GPUs and must number them as its
// clients do, and the variables with shares and limits, which apply to clients.
func environ(ours []string) []string {
	env := []string{"CUDA_DEVICE_ORDER=PCI_BUS_ID"}
	for _, kv := range ours {
		switch name, _, _ := strings.Cut(kv, "="); {
		case name == "CUDA_VISIBLE_DEVICES", name == "CUDA_DEVICE_ORDER", name == "LD_PRELOAD", strings.HasPrefix(name, "CUDA_MPS_"):
		default:
			env = append(env, kv)
		}
	}
	return env
}

func lastLine(text []byte) string {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return strings.TrimSpace(string(lines[len(lines)-1]))
}

func firstLine(text []byte) string {
	line, _, _ := bytes.Cut(bytes.TrimSpace(text), []byte("\n"))
	return string(line)
}
