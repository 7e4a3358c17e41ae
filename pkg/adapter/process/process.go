// Package process runs instances as detached processes of this machine.
//
// A process leads its own session, so that it outlives the command that
// started it and everything it starts can be found and ended with it; only
// what begins a session of its own escapes. It inherits the environment of
// its starter except what belongs to the starter alone (gfaas's own identity,
// systemd's notification and activation variables); the function's settings
// come next, and $PORT and what gfaas needs last.
package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/detach"
	"github.com/gfaas/gfaas/pkg/adapter/localport"
	"github.com/gfaas/gfaas/pkg/adapter/logs"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// Config is what a Runtime works with.
type Config struct {
	RunDir string // the daemons' run directory
	Libs   preload.Libs
	Keeper func() ([]string, error) // finds the command that keeps a log, as logs.Start has it
}

// Runtime starts and stops processes. It is safe for concurrent use.
type Runtime struct {
	config Config

	mu       sync.Mutex
	children map[identity]*child
}

// identity tells a process from a later one with the same PID.
type identity struct {
	pid   int
	start uint64
}

// child is a process that this one started and so must reap.
type child struct {
	done  chan struct{} // closed when it was reaped
	state *os.ProcessState
}

var _ ports.Runtime = (*Runtime)(nil)

// New returns a runtime. It does nothing yet.
func New(config Config) *Runtime {
	// Instances start elsewhere and must find its socket all the same.
	if dir, err := filepath.Abs(config.RunDir); err == nil {
		config.RunDir = dir
	}
	return &Runtime{config: config, children: map[identity]*child{}}
}

// Name is instance.Process.
func (r *Runtime) Name() string { return instance.Process }

// Close does nothing: children that end are still reaped.
func (r *Runtime) Close() error { return nil }

// Start starts the instance's command with a free local port of ours in
// $PORT; the instance's own port is for containers. A command that cannot run
// under a slice is refused as preload.CheckLoads says.
func (r *Runtime) Start(ctx context.Context, spec instance.Spec) (instance.Handle, error) {
	if err := ctx.Err(); err != nil {
		return instance.Handle{}, err
	}
	if len(spec.Command) == 0 {
		return instance.Handle{}, fmt.Errorf("instance %s has no command to run as a process", spec.ID)
	}
	if err := preload.CheckLoads(ctx, spec.Command[0], r.config.Libs.Hook); err != nil {
		return instance.Handle{}, err
	}
	port, err := localport.Take(r.config.RunDir)
	if err != nil {
		return instance.Handle{}, fmt.Errorf("find a free port: %w", err)
	}
	handle, err := r.launch(ctx, spec, port)
	if err != nil {
		port.Release()
	}
	return handle, err
}

// launch starts the command and sees to it that it is reaped.
func (r *Runtime) launch(ctx context.Context, spec instance.Spec, port localport.Port) (instance.Handle, error) {
	env, err := r.environ(spec, port.Number)
	if err != nil {
		return instance.Handle{}, err
	}
	logPath := spec.LogPath
	if logPath == "" {
		logPath = filepath.Join(r.config.RunDir, "logs", spec.ID)
	}
	if logPath, err = filepath.Abs(logPath); err != nil {
		return instance.Handle{}, err
	}
	program := spec.Command[0]
	if strings.Contains(program, "/") {
		// From here, not from the folder that it starts in.
		if program, err = filepath.Abs(program); err != nil {
			return instance.Handle{}, err
		}
	}
	keeper, err := r.config.Keeper()
	if err != nil {
		return instance.Handle{}, err
	}
	log, err := logs.Start(ctx, keeper, logPath)
	if err != nil {
		return instance.Handle{}, err
	}
	defer log.Close() // its end is the log's
	cmd := exec.Command(program, spec.Command[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = spec.Dir, env, log, log
	started := time.Now() // what the process does, it does later
	if err := detach.Start(cmd); err != nil {
		return instance.Handle{}, fmt.Errorf("start %s: %w", spec.Command[0], err)
	}
	handle := instance.Handle{
		Runtime: instance.Process, PID: cmd.Process.Pid, LogPath: logPath, Started: started,
		Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port.Number)),
	}
	// Nothing has reaped it yet, so its entry is there even if it has ended.
	stat, err := procfs.Read(handle.PID)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return instance.Handle{}, fmt.Errorf("look at process %d: %w", handle.PID, err)
	}
	handle.StartTime = stat.Start
	r.adopt(identity{handle.PID, handle.StartTime}, cmd, port)
	return handle, nil
}

// adopt reaps the process when it ends.
func (r *Runtime) adopt(id identity, cmd *exec.Cmd, port localport.Port) {
	c := &child{done: make(chan struct{})}
	r.mu.Lock()
	r.children[id] = c
	r.mu.Unlock()
	go func() {
		_ = cmd.Wait() // how it ended is in the state
		c.state = cmd.ProcessState
		port.Release()
		close(c.done)
	}()
}

func (r *Runtime) child(h instance.Handle) *child {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.children[identity{h.PID, h.StartTime}]
}

// PID is the process's number.
func (r *Runtime) PID(_ context.Context, h instance.Handle) (int, error) { return h.PID, nil }

// State tells whether the process still runs. How it ended is known only to
// the Runtime that started it, until it is stopped.
func (r *Runtime) State(_ context.Context, h instance.Handle) (instance.State, error) {
	if c := r.child(h); c != nil {
		select {
		case <-c.done:
			return ended(c.state), nil
		default:
			return instance.State{Running: true, ExitCode: -1, Detail: "running"}, nil
		}
	}
	lives, err := procfs.Lives(h.PID, h.StartTime)
	switch {
	case err != nil:
		return instance.State{}, fmt.Errorf("look at process %d: %w", h.PID, err)
	case lives:
		return instance.State{Running: true, ExitCode: -1, Detail: "running"}, nil
	}
	return instance.State{ExitCode: -1, Detail: "ended"}, nil
}

// Wait returns when the process has ended. As with State, how is known only to
// the Runtime that started it.
func (r *Runtime) Wait(ctx context.Context, h instance.Handle) (instance.State, error) {
	if c := r.child(h); c != nil {
		select {
		case <-c.done:
			return ended(c.state), nil
		case <-ctx.Done():
			return instance.State{}, ctx.Err()
		}
	}
	p, err := procfs.Open(h.PID, h.StartTime)
	switch {
	case errors.Is(err, os.ErrProcessDone):
		return r.State(ctx, h)
	case err != nil:
		return instance.State{}, err
	}
	defer p.Close()
	if err := p.Wait(ctx); err != nil {
		return instance.State{}, err
	}
	return r.State(ctx, h)
}

// Unlimited is nil: a program that does not take the preload library does not
// start.
func (r *Runtime) Unlimited(context.Context, instance.Handle) error { return nil }

// ended describes how a process ended, as a shell would.
func ended(state *os.ProcessState) instance.State {
	status, ok := state.Sys().(syscall.WaitStatus)
	switch {
	case ok && status.Signaled():
		return instance.State{ExitCode: 128 + int(status.Signal()), Detail: "ended by signal: " + status.Signal().String()}
	case state.ExitCode() == 0:
		return instance.State{Detail: "ended"}
	}
	return instance.State{ExitCode: state.ExitCode(), Detail: fmt.Sprintf("exited with status %d", state.ExitCode())}
}

// private is what a process does not inherit: it names its starter or is
// meant for the starter only.
var private = []string{
	"GFAAS_FUNCTION", "GFAAS_INSTANCE", "GFAAS_SECRET", "GFAAS_SOCKET",
	"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES",
}

// environ is the whole environment of an instance.
func (r *Runtime) environ(spec instance.Spec, port int) ([]string, error) {
	env := map[string]string{}
	for _, entry := range os.Environ() {
		if name, value, ok := strings.Cut(entry, "="); ok && !slices.Contains(private, name) {
			env[name] = value
		}
	}
	maps.Copy(env, spec.Env)
	if spec.Dir != "" {
		env["PWD"] = spec.Dir
	}
	env["PORT"] = strconv.Itoa(port)
	env["GFAAS_FUNCTION"] = spec.Function
	ours, err := preload.Environ(preload.Grant{
		Socket: r.socket(), Instance: spec.ID, Secret: spec.Secret,
		GPU: spec.GPUs, SMPct: spec.Slice.SMPct, Libs: r.config.Libs, Env: env,
		MPSPipeDir: spec.MPSPipeDir, Mem: spec.Slice.Mem, Oversubscribe: spec.Oversubscribe,
	})
	if err != nil {
		return nil, err
	}
	maps.Copy(env, ours)
	if spec.ModelFolder != "" {
		maps.Copy(env, preload.ModelEnviron(filepath.Join(spec.ModelFolder, "model.sock"), r.config.Libs, env))
	}
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list, nil
}

// socket is where instances of this run directory find the token daemon.
func (r *Runtime) socket() string {
	return filepath.Join(tokend.ClientSocketDir(r.config.RunDir), "token.sock")
}

// Logs reads the instance's log. Of one that has ended all is in it, if what it
// has started prints no more.
func (r *Runtime) Logs(ctx context.Context, h instance.Handle, o ports.LogOptions) ports.LogLines {
	if state, err := r.State(ctx, h); err == nil && !state.Running && !o.Follow {
		logs.Settle(ctx, h.LogPath)
	}
	return logs.Read(ctx, h.LogPath, o)
}
