// Package host wires what starts and stops instances on this machine, for the
// commands that do.
package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/adapter/logs"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/process"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Launcher returns a launcher for that run directory that looks for what it needs
// when it needs it: for commands that only look or stop. Instances have patience
// to become ready; 0 is launch.DefaultPatience.
func Launcher(env *cli.Env, runDir string, patience time.Duration) *launch.Launcher {
	l, _ := wired(env, runDir, patience)
	return l
}

// Starter is Launcher for commands that start: it has found the libraries, and
// has found or started the token daemon. Its errors say what is missing.
func Starter(ctx context.Context, env *cli.Env, runDir string, patience time.Duration) (*launch.Launcher, error) {
	if _, err := preload.FindLibs(); err != nil {
		return nil, err
	}
	l, daemon := wired(env, runDir, patience)
	if _, err := daemon.ensure(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

func wired(env *cli.Env, runDir string, patience time.Duration) (*launch.Launcher, *tokens) {
	// Instances start in folders of their own.
	if dir, err := filepath.Abs(runDir); err == nil {
		runDir = dir
	}
	daemon := &tokens{runDir: runDir, debug: env.Debugf}
	return launch.New(launch.Config{
		RunDir: runDir, LogDir: logDir(runDir), RemoveLog: logs.Remove, KeepFailed: keepFailed(runDir), Patience: patience, Ready: fnhttp.WaitReady, Tokens: daemon, Device: device{},
		Models:       &models{runDir: runDir, debug: env.Debugf},
		Kernels:      func(fn function.Function) []string { return kernels(runDir, fn) },
		KernelDaemon: func(ctx context.Context, fn function.Function) error { return kernelDaemon(ctx, runDir, fn) },
		OutOfMemory:  daemon.outOfMemory,
		Note:         env.Notef, Simulated: func() { devices.NoteSimulated(env) },
		Runtime: func(ctx context.Context, name string) (ports.Runtime, error) { return open(ctx, runDir, name) },
	}), daemon
}

// kernels is the program that serves a graph of kernels: gfaas-kerneld, from beside
// this one or from PATH.
func kernels(runDir string, fn function.Function) []string {
	program := "gfaas-kerneld"
	if exe, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(exe), program)); err == nil {
			program = path
		}
	}
	return []string{program, "function", fn.Request, "--client", fn.Tenant, "--socket", kerneld.Socket(runDir)}
}

// kernelDaemon says that there is no kernel daemon. One that is slow to answer is
// waited for with the function.
func kernelDaemon(ctx context.Context, runDir string, fn function.Function) error {
	limited, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	client := kerneld.Dial(kerneld.Socket(runDir), fn.Tenant)
	defer client.Close()
	var stats json.RawMessage
	if err := client.Stats(limited, &stats); cli.Unavailable(err) {
		return err
	}
	return nil
}

// open opens a runtime. To stop an instance no libraries are needed.
func open(ctx context.Context, runDir, name string) (ports.Runtime, error) {
	libs, err := preload.FindLibs()
	if err != nil && !cli.Unavailable(err) {
		return nil, err
	}
	switch name {
	case instance.Process:
		return process.New(process.Config{RunDir: runDir, Libs: libs, Keeper: keeper}), nil
	case instance.Docker:
		rt, err := docker.New(ctx, docker.Config{RunDir: runDir, Libs: libs})
		if err != nil {
			return nil, err
		}
		return rt, nil
	}
	return nil, fmt.Errorf("runtime %q is not known", name)
}

// tokens is the token daemon of a run directory.
type tokens struct {
	runDir string
	debug  func(format string, args ...any)

	mu     sync.Mutex
	client *tokend.Client // of a daemon that was there
}

// ensure finds the daemon, or starts it.
func (t *tokens) ensure(ctx context.Context) (*tokend.Client, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.client != nil {
		return t.client, nil
	}
	client, started, err := tokend.Ensure(ctx, t.runDir)
	if err != nil {
		return nil, err
	}
	if started {
		t.debug("started gfaas-tokend for %s", t.runDir)
	}
	t.client = client
	return client, nil
}

// Register makes the daemon know an instance.
func (t *tokens) Register(ctx context.Context, r wire.Registration) (wire.Registered, error) {
	client, err := t.ensure(ctx)
	if err != nil {
		return wire.Registered{}, err
	}
	return client.Register(ctx, r)
}

// Change changes the slice of an instance that runs.
func (t *tokens) Change(ctx context.Context, id string, c wire.Change) error {
	client, err := t.ensure(ctx)
	if err != nil {
		return err
	}
	return client.Change(ctx, id, c)
}

// answerTime is how long the daemon may take to forget an instance; one that is
// stopped, or hangs, would be waited for without end.
const answerTime = 10 * time.Second

// Unregister makes the daemon forget an id. One that is not there would know the
// id again when it comes back, so it is started to forget.
func (t *tokens) Unregister(ctx context.Context, id string) error {
	limited, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	err := tokend.Dial(t.runDir).Unregister(limited, id)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return cli.Fail(cli.ExitTimeout, "if it is stopped, have it go on (kill -CONT) or end it (kill -9), and try again",
			fmt.Errorf("the token daemon of %s does not answer within %v: %w", t.runDir, answerTime, err))
	}
	if !cli.Unavailable(err) {
		return err
	}
	t.mu.Lock()
	t.client = nil
	t.mu.Unlock()
	client, err := t.ensure(ctx)
	if err != nil {
		return err
	}
	return client.Unregister(ctx, id)
}

// outOfMemory reports whether the driver refused GPU memory to a process of an instance;
// false where the daemon does not answer.
func (t *tokens) outOfMemory(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, err := tokend.Dial(t.runDir).Status(ctx)
	if err != nil {
		return false
	}
	for _, g := range s.GPUs {
		for _, c := range g.Clients {
			if c.Instance == id && c.MemRefused > 0 {
				return true
			}
		}
	}
	return false
}

// Registrations are in the run directory, whether or not a daemon runs.
func (t *tokens) Registrations(context.Context) ([]wire.Registration, error) {
	return tokend.Registrations(t.runDir)
}

// device is the folder of the simulated device.
type device struct{}

func (device) Keep(id string) error    { return simgpu.Keep(id) }
func (device) Release(id string) error { return errors.Join(simgpu.Release(id), simgpu.Sweep()) }
