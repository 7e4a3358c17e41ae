// Package launch is the one way in which commands start and stop instances of
// functions: known to the token daemon, under a slice, ready to answer.
package launch

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/docker"
	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/process"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	// DefaultReady is how long an instance may take to become ready when
	// Options say nothing.
	DefaultReady = 2 * time.Minute
	stopGrace    = 5 * time.Second  // from SIGTERM to SIGKILL
	failGrace    = 1 * time.Second  // the same, for an instance that failed to start
	cleanupTime  = 30 * time.Second // for undoing, once the caller's own time is up
	logLines     = 10               // of an instance's output, in the error about it
)

// tokenDaemon is the part of the token daemon's control interface that launching
// needs.
type tokenDaemon interface {
	Register(ctx context.Context, r wire.Registration) (wire.Registered, error)
	Unregister(ctx context.Context, id string) error
}

// Options of a Launcher. Everything but RunDir is for tests and may be left
// out.
type Options struct {
	RunDir     string        // empty is cli.RunDir()
	Ready      time.Duration // longest wait until an instance is ready; 0 is DefaultReady
	newProcess func(process.Config) ports.Runtime
	newDocker  func(context.Context, docker.Config) (ports.Runtime, error)
	tokens     tokenDaemon // in place of a token daemon that is found or started
	libs       *preload.Libs
}

// Launcher starts and stops instances. It is safe for concurrent use.
type Launcher struct {
	env     *cli.Env
	options Options

	mu       sync.Mutex
	libs     *preload.Libs
	tokens   tokenDaemon
	runtimes map[string]ports.Runtime
	silent   error // of a Docker engine that did not answer in time: it is waited for once
	noted    bool
}

// Placement is what a plan says of one instance.
type Placement struct {
	ID    string
	GPUs  []string // names as in gpu.ParseDevice
	Slice gpu.Slice
	Turns [][]gpu.Turn // on each of the GPUs, parts of the window that are its own; nil is none

	// Oversubscribe has its memory wait on the host while it has no work.
	Oversubscribe bool

	// Note, if set, is told of the instance as soon as there is something to
	// stop: when its runtime has started it, before it is ready. Its error
	// ends the start.
	Note func(Started) error
}

// Started is an instance that runs.
type Started struct {
	ID         string
	Function   string
	Runtime    string // asked to run it; empty is not known
	Handle     instance.Handle
	Contract   string   // resolved, never auto; empty until the instance is ready
	Registered []string // ids the token daemon knows it by
}

// New returns a Launcher that can start: it has found the libraries, and has
// found or started the token daemon. Its errors say what is missing.
func New(ctx context.Context, env *cli.Env, o Options) (*Launcher, error) {
	l := Open(env, o)
	if _, err := l.findLibs(); err != nil {
		return nil, err
	}
	if _, err := l.daemon(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// Open returns a Launcher that looks for what it needs when it needs it: for
// commands that only look or stop.
func Open(env *cli.Env, o Options) *Launcher {
	if o.RunDir == "" {
		o.RunDir = cli.RunDir()
	}
	// Instances start in folders of their own.
	if dir, err := filepath.Abs(o.RunDir); err == nil {
		o.RunDir = dir
	}
	if o.Ready == 0 {
		o.Ready = DefaultReady
	}
	if o.newProcess == nil {
		o.newProcess = func(c process.Config) ports.Runtime { return process.New(c) }
	}
	if o.newDocker == nil {
		o.newDocker = func(ctx context.Context, c docker.Config) (ports.Runtime, error) { return docker.New(ctx, c) }
	}
	return &Launcher{env: env, options: o, libs: o.libs, tokens: o.tokens, runtimes: map[string]ports.Runtime{}}
}

// RuntimeOf names the runtime that runs a function: docker when it has an
// image, else process.
func RuntimeOf(fn function.Function) string {
	if fn.Image != "" {
		return docker.Name
	}
	return process.Name
}

// Start registers an instance with the token daemon, starts it on the runtime
// that RuntimeOf names, and waits until it is ready. An instance that spans
// several GPUs has its slice on each of them. After an error, or when ctx is
// cancelled, nothing of the instance is left; the error is a *StartError with
// the last lines it printed.
func (l *Launcher) Start(ctx context.Context, fn function.Function, p Placement) (s Started, err error) {
	s = Started{ID: p.ID, Function: fn.Name}
	if err := check(p); err != nil {
		return s, &StartError{ID: p.ID, Err: err}
	}
	rt, err := l.runtime(ctx, RuntimeOf(fn))
	if err != nil {
		return s, err
	}
	tokens, err := l.daemon(ctx)
	if err != nil {
		return s, err
	}
	l.noteSimulated(p.GPUs)
	secret := preload.NewSecret()
	// Not under ctx: one that is cut short may still take place, and after it
	// was taken back.
	registering, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	answer, err := tokens.Register(registering, registration(fn, p, secret))
	late := registering.Err() != nil
	cancel()
	if err != nil {
		// Refused, the id is someone else's, and so is what there is of it. Late,
		// the daemon may have it all the same.
		failed := &StartError{ID: p.ID, Err: err}
		if late {
			s.Registered = []string{p.ID}
			l.undoRegistration(ctx, s, failed)
		}
		return s, failed
	}
	s.Registered = []string{p.ID}
	if answer.Note != "" {
		l.env.Notef("note: %s: %s", p.ID, answer.Note)
	}
	if simulated(p.GPUs) && rt.Name() == docker.Name {
		if err := simgpu.Keep(p.ID); err != nil {
			return s, l.undo(ctx, rt, s, fmt.Errorf("the simulated device's folder: %w", err))
		}
	}
	s.Runtime = rt.Name()
	s.Handle, err = rt.Start(ctx, l.spec(fn, p, secret, answer.MPSPipeDir))
	if err != nil {
		s.Handle = instance.Handle{}
		return s, l.undo(ctx, rt, s, err)
	}
	if p.Note != nil {
		if err := p.Note(s); err != nil {
			return s, l.undo(ctx, rt, s, err)
		}
	}
	if s.Contract, err = l.waitReady(ctx, rt, fn, s.Handle); err != nil {
		return s, l.undo(ctx, rt, s, err)
	}
	if err := rt.Unlimited(ctx, s.Handle); err != nil {
		return s, l.undo(ctx, rt, s, err)
	}
	return s, nil
}

func check(p Placement) error {
	if len(p.GPUs) == 0 {
		return errors.New("no GPU is named for it")
	}
	for _, name := range p.GPUs {
		if _, err := gpu.ParseDevice(name); err != nil {
			return err
		}
	}
	if p.Turns != nil && len(p.Turns) != len(p.GPUs) {
		return fmt.Errorf("turns on %d GPUs, of %d", len(p.Turns), len(p.GPUs))
	}
	return p.Slice.Validate()
}

func registration(fn function.Function, p Placement, secret string) wire.Registration {
	r := wire.Registration{Instance: p.ID, Function: fn.Name, Secret: secret}
	if fn.Kind == function.DefaultKind { // a training has no latency
		r.SLOMS = float64(fn.SLO) / float64(time.Millisecond)
	}
	for n, name := range p.GPUs {
		seat := wire.Seat{
			GPU: name, SMPct: p.Slice.SMPct, QuotaRequest: p.Slice.QuotaRequest, QuotaLimit: p.Slice.QuotaLimit, MemLimit: p.Slice.Mem,
		}
		if p.Turns != nil {
			seat.Turns = p.Turns[n]
		}
		if n == 0 {
			r.Seat = seat
		} else {
			r.More = append(r.More, seat)
		}
	}
	return r
}

// spec is what the runtime is asked for. A process starts in the folder of
// its function file, and a command with a relative path is found there.
func (l *Launcher) spec(fn function.Function, p Placement, secret, mpsPipes string) instance.Spec {
	spec := instance.Spec{
		ID: p.ID, Function: fn.Name, Image: fn.Image, Command: append([]string(nil), fn.Command...),
		Env: fn.Env, Port: fn.Port, GPUs: p.GPUs, Slice: p.Slice, Secret: secret, MPSPipeDir: mpsPipes,
		Oversubscribe: p.Oversubscribe,
		LogPath:       filepath.Join(l.options.RunDir, "logs", p.ID+".log"),
	}
	if fn.Image != "" {
		return spec
	}
	spec.Dir = fn.Dir
	if len(spec.Command) > 0 && filepath.Base(spec.Command[0]) != spec.Command[0] && !filepath.IsAbs(spec.Command[0]) {
		spec.Command[0] = filepath.Join(fn.Dir, spec.Command[0])
	}
	return spec
}

// waitReady waits until the instance answers, has ended, or had its time.
func (l *Launcher) waitReady(ctx context.Context, rt ports.Runtime, fn function.Function, h instance.Handle) (string, error) {
	ready, cancel := context.WithTimeout(ctx, l.options.Ready)
	defer cancel()
	alive := func(ctx context.Context) error {
		state, err := rt.State(ctx, h)
		if err == nil && !state.Running {
			err = fmt.Errorf("ended before it was ready: %s", state.Detail)
		}
		return err
	}
	contract, err := fnhttp.WaitReady(ready, h.Address, fn.Contract, alive)
	if err != nil && ctx.Err() == nil && errors.Is(ready.Err(), context.DeadlineExceeded) {
		return "", &notReadyError{after: l.options.Ready, last: err}
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return contract, err
}
