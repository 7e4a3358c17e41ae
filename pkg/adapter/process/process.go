// Package process runs instances as detached processes of this machine. Runtime implements
// ports.Runtime.
//
// Each process leads its own session. It outlives the program that started it, and all its
// descendants can be found and ended by the session, except those that start a session of
// their own. It inherits the environment of its starter without the variables that concern
// only the starter (see notInherited). The function's settings override these, and PORT and the
// variables of preload.Environ override both.
package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	"github.com/gfaas/gfaas/pkg/adapter/job"
	"github.com/gfaas/gfaas/pkg/adapter/localport"
	"github.com/gfaas/gfaas/pkg/adapter/logs"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// Config configures a Runtime.
type Config struct {
	RunDir string // the daemons' run directory
	Libs   preload.Libs
	Keeper func() ([]string, error) // returns the command that keeps a log; see logs.Start

	// Supervisor returns the command that supervises a job. The Runtime appends these arguments: the
	// run directory, the maximum number of restarts, the deadline in nanoseconds, and the job's
	// command. The command must pass them, and the folder in the environment variable job.Variable,
	// to job.Supervise.
	Supervisor func() ([]string, error)
}

// Runtime starts and stops processes. It is safe for concurrent use.
type Runtime struct {
	config Config

	mu       sync.Mutex
	children map[identity]*child
}

// identity distinguishes a process from a later one with the same PID.
type identity struct {
	pid   int
	start uint64
}

// child is a process that this Runtime started and must reap.
type child struct {
	reaped chan struct{} // closed after the process was reaped
	state  *os.ProcessState
}

var _ ports.Runtime = (*Runtime)(nil)

// New returns a Runtime.
func New(config Config) *Runtime {
	// Instances start in other folders and need an absolute path to the socket.
	if dir, err := filepath.Abs(config.RunDir); err == nil {
		config.RunDir = dir
	}
	return &Runtime{config: config, children: map[identity]*child{}}
}

// Name returns instance.Process.
func (r *Runtime) Name() string { return instance.Process }

// Close has no effect: the Runtime still reaps its children.
func (r *Runtime) Close() error { return nil }

// Start starts the instance's command. It ignores spec.Port, which is for containers only, and sets
// $PORT to a free local port; a job gets none. It refuses a command that cannot run in a slice (see
// preload.CheckLoads).
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
	var port localport.Port // remains empty for a job, which does not listen
	if spec.Job == nil {
		var err error
		if port, err = localport.Allocate(r.config.RunDir); err != nil {
			return instance.Handle{}, fmt.Errorf("find a free port: %w", err)
		}
	}
	handle, err := r.launch(ctx, spec, port)
	if err != nil {
		port.Release()
	}
	return handle, err
}

// launch starts the command and arranges for reaping it.
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
		// Relative to this program's working directory, not to the process's.
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
	defer log.Close() // the process has its own descriptor
	command := append([]string{program}, spec.Command[1:]...)
	if spec.Job != nil {
		if command, err = r.supervised(*spec.Job, command, logPath); err != nil {
			return instance.Handle{}, err
		}
		env = append(env, job.Variable+"="+logPath)
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = spec.Dir, env, log, log
	started := time.Now() // before any event of the process
	if err := detach.Start(cmd); err != nil {
		return instance.Handle{}, fmt.Errorf("start %s: %w", spec.Command[0], err)
	}
	handle := instance.Handle{
		Runtime: instance.Process, PID: cmd.Process.Pid, LogPath: logPath, Started: started,
	}
	if spec.Job == nil {
		handle.Address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port.Number))
	}
	// Not reaped yet, so /proc has an entry even if the process has ended.
	stat, err := procfs.Read(handle.PID)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return instance.Handle{}, fmt.Errorf("inspect process %d: %w", handle.PID, err)
	}
	handle.StartTime = stat.Start
	r.reapAtEnd(identity{handle.PID, handle.StartTime}, cmd, port)
	return handle, nil
}

// supervised returns the command that runs a job. It writes the job's first state, so that the
// process is known to be a job as soon as it exists.
func (r *Runtime) supervised(j instance.Job, command []string, dir string) ([]string, error) {
	supervisor, err := r.config.Supervisor()
	if err != nil {
		return nil, err
	}
	if err := job.Write(dir, job.Result{State: instance.Running, ExitCode: -1}); err != nil {
		return nil, err
	}
	return slices.Concat(supervisor, []string{r.config.RunDir, strconv.Itoa(j.MaxRestarts), strconv.FormatInt(int64(j.Deadline), 10)}, command), nil
}

// reapAtEnd adds a process to the children. A goroutine reaps it when it ends, and releases its port.
func (r *Runtime) reapAtEnd(id identity, cmd *exec.Cmd, port localport.Port) {
	c := &child{reaped: make(chan struct{})}
	r.mu.Lock()
	r.children[id] = c
	r.mu.Unlock()
	go func() {
		_ = cmd.Wait() // cmd.ProcessState has the result
		c.state = cmd.ProcessState
		port.Release()
		close(c.reaped)
	}()
}

// child returns the process of an instance, or nil if another Runtime started it.
func (r *Runtime) child(h instance.Handle) *child {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.children[identity{h.PID, h.StartTime}]
}

// PID returns the process's PID.
func (r *Runtime) PID(_ context.Context, h instance.Handle) (int, error) { return h.PID, nil }

// State returns whether the process is running and, for an ended process, its exit status. Only the
// Runtime that started the process knows its status, and only until Stop. The exit status of a job is
// in a file, so every Runtime knows it.
func (r *Runtime) State(ctx context.Context, h instance.Handle) (instance.State, error) {
	state, err := r.processState(h)
	if err != nil || h.LogPath == "" {
		return state, err
	}
	// Read the result after the process's state: the supervisor writes it and then ends, so an ended
	// supervisor has a result.
	switch result, err := job.Read(h.LogPath); {
	case errors.Is(err, fs.ErrNotExist): // no job
		return state, nil
	case err != nil:
		return state, err
	default:
		return result.StateOf(state.Running), nil
	}
}

// processState returns the state of an instance's first process.
func (r *Runtime) processState(h instance.Handle) (instance.State, error) {
	running := instance.State{Running: true, ExitCode: -1, Detail: "running"}
	if c := r.child(h); c != nil {
		select {
		case <-c.reaped:
			code, detail := job.EndOf(c.state.Sys().(syscall.WaitStatus))
			return instance.State{ExitCode: code, Detail: detail}, nil
		default:
			return running, nil
		}
	}
	lives, err := procfs.Lives(h.PID, h.StartTime)
	switch {
	case err != nil:
		return instance.State{}, fmt.Errorf("inspect process %d: %w", h.PID, err)
	case lives:
		return running, nil
	}
	return instance.State{ExitCode: -1, Detail: "ended"}, nil
}

// Wait waits until the process has ended and returns its state, as State does.
func (r *Runtime) Wait(ctx context.Context, h instance.Handle) (instance.State, error) {
	if c := r.child(h); c != nil {
		select {
		case <-c.reaped:
			return r.State(ctx, h)
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

// Unlimited returns nil, because Start refuses programs that do not load the preload
// library.
func (r *Runtime) Unlimited(context.Context, instance.Handle) error { return nil }

// notInherited lists the variables that a process does not inherit: they identify its starter or
// concern only the starter.
var notInherited = []string{
	"GFAAS_FUNCTION", "GFAAS_INSTANCE", "GFAAS_SECRET", "GFAAS_SOCKET", job.Variable,
	"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES",
}

// environ returns the whole environment of an instance, sorted by name. Without a port (0), PORT is not
// set.
func (r *Runtime) environ(spec instance.Spec, port int) ([]string, error) {
	env := map[string]string{}
	for _, entry := range os.Environ() {
		if name, value, ok := strings.Cut(entry, "="); ok && !slices.Contains(notInherited, name) {
			env[name] = value
		}
	}
	maps.Copy(env, spec.Env)
	if spec.Dir != "" {
		env["PWD"] = spec.Dir
	}
	delete(env, "PORT")
	if port > 0 {
		env["PORT"] = strconv.Itoa(port)
	}
	env["GFAAS_FUNCTION"] = spec.Function
	granted, err := preload.Environ(preload.Grant{
		Socket: r.socket(), Instance: spec.ID, Secret: spec.Secret,
		GPU: spec.GPUs, SMPct: spec.Slice.SMPct, Libs: r.config.Libs, Env: env,
		MPSPipeDir: spec.MPSPipeDir, Mem: spec.Slice.Mem, Oversubscribe: spec.Oversubscribe, AllSMs: spec.AllSMs,
	})
	if err != nil {
		return nil, err
	}
	maps.Copy(env, granted)
	if spec.ModelFolder != "" {
		maps.Copy(env, preload.ModelEnviron(filepath.Join(spec.ModelFolder, "model.sock"), r.config.Libs, env))
	}
	list := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list, nil
}

// socket returns the path of the token daemon's client socket in this run directory.
func (r *Runtime) socket() string {
	return filepath.Join(tokend.ClientSocketDir(r.config.RunDir), "token.sock")
}

// Logs reads the instance's log. For an ended instance, it first waits briefly until the
// log is complete.
func (r *Runtime) Logs(ctx context.Context, h instance.Handle, o ports.LogOptions) ports.LogLines {
	if state, err := r.State(ctx, h); err == nil && !state.Running && !o.Follow {
		logs.AwaitWritten(ctx, h.LogPath)
	}
	return logs.Read(ctx, h.LogPath, o)
}
