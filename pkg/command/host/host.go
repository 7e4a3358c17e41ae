// Package host connects pkg/launch to this host: the runtimes for processes and containers, the token, model
// and kernel daemons of a run directory, the simulated device, and logs. Commands that start, stop or read
// instances use it. Its main functions are Starter and Launcher, which return a launch.Launcher, and
// Exclusive, which keeps two commands from changing the instances of a run directory at the same time.
package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/detach"
	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/adapter/logs"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/process"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/adapter/swarm"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Starter returns a Launcher for a command that starts instances. It first finds the preload libraries and
// finds or starts the token daemon, and returns an error if that fails.
func Starter(ctx context.Context, env *cli.Env, runDir string, readyTimeout time.Duration) (*launch.Launcher, error) {
	if _, err := preload.FindLibs(); err != nil {
		return nil, err
	}
	if _, started, err := tokend.Ensure(ctx, runDir); err != nil {
		return nil, err
	} else if started {
		noteStarted(env, runDir)
	}
	return Launcher(env, runDir, readyTimeout), nil
}

func noteStarted(env *cli.Env, runDir string) { env.Debugf("started gfaas-tokend for %s", runDir) }

// Launcher returns a launcher for the run directory. The launcher finds libraries and daemons on first
// use, so commands that only read or stop instances do not need them. readyTimeout limits how long an instance
// may take to become ready; 0 means launch.DefaultReadyTimeout.
func Launcher(env *cli.Env, runDir string, readyTimeout time.Duration) *launch.Launcher {
	// Instances start in other working directories, so the path must be absolute.
	if dir, err := filepath.Abs(runDir); err == nil {
		runDir = dir
	}
	client, err := tokend.Starting(runDir, func() { noteStarted(env, runDir) })
	if err != nil { // the working directory is unknown
		client = tokend.Dial(runDir)
	}
	daemon := &tokens{client, runDir}
	return launch.New(launch.Config{
		LogDir: logDir(runDir), RemoveLog: logs.Remove, KeepFailed: storeFailedLog(runDir), ReadyTimeout: readyTimeout, Ready: fnhttp.WaitReady, Tokens: daemon, Device: device{},
		Models:       &models{runDir: runDir, debug: env.Debugf},
		Kernels:      func(fn function.Function) []string { return kernels(runDir, fn) },
		KernelDaemon: func(ctx context.Context, fn function.Function) error { return kernelDaemon(ctx, runDir, fn) },
		OutOfMemory:  daemon.outOfMemory,
		Note:         env.Notef, Simulated: func() { devices.NoteSimulated(env) },
		Runtime: func(ctx context.Context, name string) (ports.Runtime, error) { return open(ctx, runDir, name) },
	})
}

// kernels returns the command that serves a graph of kernels. The program is the gfaas-kerneld next to this
// one, or the one on PATH.
func kernels(runDir string, fn function.Function) []string {
	program := "gfaas-kerneld"
	if exe, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(exe), program)); err == nil {
			program = path
		}
	}
	return []string{program, "function", fn.Request, "--client", fn.Tenant, "--socket", kerneld.Socket(runDir)}
}

// kernelDaemon returns an error if no kernel daemon runs. It returns nil for a slow daemon: the function then
// waits for it.
func kernelDaemon(ctx context.Context, runDir string, fn function.Function) error {
	limited, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	client := kerneld.Dial(kerneld.Socket(runDir), fn.Tenant)
	defer client.Close()
	var stats json.RawMessage
	if err := client.Stats(limited, &stats); ports.Unavailable(err) {
		return err
	}
	return nil
}

// internal returns a function that returns the command of gfaas with an internal argument.
func internal(argument string) func() ([]string, error) {
	return func() ([]string, error) {
		program, err := detach.Find("gfaas")
		return []string{program, argument}, cli.Fail(cli.ExitUnavailable, "install all programs of gfaas", err)
	}
}

// open opens a runtime. It succeeds without the preload libraries, which stopping an instance does not need.
func open(ctx context.Context, runDir, name string) (ports.Runtime, error) {
	libs, err := preload.FindLibs()
	if err != nil && !ports.Unavailable(err) {
		return nil, err
	}
	switch name {
	case instance.Process:
		return process.New(process.Config{RunDir: runDir, Libs: libs, Keeper: internal(keepLog), Supervisor: internal(superviseJob)}), nil
	case instance.Docker:
		rt, err := docker.New(ctx, docker.Config{RunDir: runDir, Libs: libs})
		if err != nil {
			return nil, err
		}
		return rt, nil
	case instance.Swarm: // of a gateway; other commands inspect and stop its instances
		rt, err := swarm.New(ctx, swarm.Config{})
		if err != nil {
			return nil, err
		}
		return rt, nil
	}
	return nil, fmt.Errorf("unknown runtime %q", name)
}

// tokens is a client of a run directory's token daemon. It implements launch.Tokens.
type tokens struct {
	*tokend.Client // Register starts the daemon if none answers
	runDir         string
}

// answerTime limits how long the daemon may take to unregister an instance, in case it is suspended or
// hangs.
const answerTime = 10 * time.Second

// Unregister removes a registration. If the daemon does not run, it starts the daemon, which would otherwise
// restore the registration at its next start.
func (t *tokens) Unregister(ctx context.Context, id string) error {
	limited, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err := t.Client.Unregister(limited, id)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return cli.Fail(cli.ExitTimeout, "if it is suspended, resume it (kill -CONT) or kill it (kill -9), then try again",
			fmt.Errorf("the token daemon of %s does not answer within %v: %w", t.runDir, answerTime, err))
	}
	if !ports.Unavailable(err) {
		return err
	}
	client, _, err := tokend.Ensure(ctx, t.runDir)
	if err != nil {
		return err
	}
	return client.Unregister(ctx, id)
}

// outOfMemory reports whether the driver refused GPU memory to a process of an instance. It returns false if
// the daemon does not answer.
func (t *tokens) outOfMemory(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, err := t.Status(ctx)
	return err == nil && refused(s, id)
}

// refused reports whether the driver refused GPU memory to a process of an instance.
func refused(s wire.Status, id string) bool {
	for _, g := range s.GPUs {
		for _, c := range g.Clients {
			if c.Instance == id && c.MemRefused > 0 {
				return true
			}
		}
	}
	return false
}

// Registrations reads the registrations from the run directory. It does not need the daemon.
func (t *tokens) Registrations(context.Context) ([]wire.Registration, error) {
	return tokend.Registrations(t.runDir)
}

// device manages the folder of the simulated device. It implements launch.SimulatedDevice.
type device struct{}

func (device) Retain(id string) error  { return simgpu.Retain(id) }
func (device) Release(id string) error { return errors.Join(simgpu.Release(id), simgpu.Sweep()) }
