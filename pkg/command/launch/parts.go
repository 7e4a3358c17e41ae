package launch

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/process"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// runtimeNames are the runtimes there are.
var runtimeNames = []string{process.Name, docker.Name}

// State tells whether an instance still runs.
func (l *Launcher) State(ctx context.Context, h instance.Handle) (instance.State, error) {
	rt, err := l.runtime(ctx, h.Runtime)
	if err != nil {
		return instance.State{}, err
	}
	return rt.State(ctx, h)
}

// runtime returns the runtime of that name, made at its first use.
func (l *Launcher) runtime(ctx context.Context, name string) (ports.Runtime, error) {
	libs, err := l.findLibs()
	if err != nil && !cli.Unavailable(err) {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if rt := l.runtimes[name]; rt != nil {
		return rt, nil
	}
	var rt ports.Runtime
	switch name {
	case process.Name:
		rt = l.options.newProcess(process.Config{RunDir: l.options.RunDir, Libs: libs})
	case docker.Name:
		if l.silent != nil {
			return nil, l.silent
		}
		if rt, err = l.options.newDocker(ctx, docker.Config{RunDir: l.options.RunDir, Libs: libs}); err != nil {
			if cli.Unavailable(err) && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				l.silent = err
			}
			return nil, err
		}
	default:
		return nil, fmt.Errorf("runtime %q is not known: expected %s", name, strings.Join(runtimeNames, " or "))
	}
	l.runtimes[name] = rt
	return rt, nil
}

func (l *Launcher) findLibs() (preload.Libs, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.libs == nil {
		libs, err := preload.FindLibs()
		if err != nil {
			return preload.Libs{}, err
		}
		l.libs = &libs
	}
	return *l.libs, nil
}

// daemon is the token daemon, found or started.
func (l *Launcher) daemon(ctx context.Context) (tokenDaemon, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tokens != nil {
		return l.tokens, nil
	}
	client, started, err := tokend.Ensure(ctx, l.options.RunDir)
	if err != nil {
		return nil, err
	}
	if started {
		l.env.Debugf("started gfaas-tokend for %s", l.options.RunDir)
	}
	l.tokens = client
	return client, nil
}

// dial is the token daemon, there or not.
func (l *Launcher) dial() tokenDaemon {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tokens != nil {
		return l.tokens
	}
	return tokend.Dial(l.options.RunDir)
}

// DefaultGPU is the GPU that is used when none is named: "0" where there is
// an NVIDIA driver, else the simulated one.
func DefaultGPU() string {
	if preload.HasNVIDIA() {
		return "0"
	}
	return gpu.Device{Simulated: true}.String()
}

// NoteSimulated says on standard error that figures from now on are not a
// GPU's.
func NoteSimulated(env *cli.Env) {
	why := ""
	if !preload.HasNVIDIA() {
		why = "no NVIDIA driver found: "
	}
	env.Notef("note: %srunning on the simulated GPU; its figures are not a GPU's", why)
}

// simulated says whether an instance's GPUs are.
func simulated(gpus []string) bool {
	d, err := gpu.ParseDevice(gpus[0])
	return err == nil && d.Simulated
}

// noteSimulated says it once for each Launcher.
func (l *Launcher) noteSimulated(gpus []string) {
	if !simulated(gpus) {
		return
	}
	l.mu.Lock()
	first := !l.noted
	l.noted = true
	l.mu.Unlock()
	if first {
		NoteSimulated(l.env)
	}
}
