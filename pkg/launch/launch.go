// Package launch starts, finds, stops and adopts instances of functions: known to
// the token daemon, under a slice, ready to answer. Commands and the gateway use
// it; what it works with, they wire in.
package launch

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	// DefaultPatience is how long an instance may take to become ready when
	// Config says nothing.
	DefaultPatience = 2 * time.Minute
	stopGrace       = 5 * time.Second  // from SIGTERM to SIGKILL
	failGrace       = 1 * time.Second  // the same, for an instance that failed to start
	cleanupTime     = 30 * time.Second // for undoing, once the caller's own time is up
	silence         = time.Minute      // for how long a runtime that did not answer in time is not asked again
	logLines        = 10               // of an instance's output, in the error about it
	failedLines     = 10_000           // of its output that are kept if its start failed
)

// Config is what a Launcher works with.
type Config struct {
	RunDir   string        // the daemons' run directory, absolute
	LogDir   string        // of the logs of processes, absolute; empty is logs in RunDir
	Patience time.Duration // longest wait until an instance is ready; 0 is DefaultPatience

	// Runtime opens the runtime of that name, at its first use.
	Runtime func(ctx context.Context, name string) (ports.Runtime, error)
	// Ready waits until the instance at address answers by the contract, which
	// it returns resolved; alive's error says that it is gone.
	Ready  func(ctx context.Context, address, contract string, alive func(context.Context) error) (string, error)
	Tokens Tokens
	Device SimulatedDevice
	Models Models // nil where functions with a model of their own file are refused
	// Kernels is the program that serves a function of the kind kernels: it hands
	// calls to gfaas-kerneld.
	Kernels func(fn function.Function) []string
	// KernelDaemon, if set, says whether gfaas-kerneld is there for such a function;
	// its error is that it is not.
	KernelDaemon func(ctx context.Context, fn function.Function) error
	// RemoveLog, if set, removes the log of a process; one that is gone is no error.
	RemoveLog func(dir string) error

	// KeepFailed, if set, keeps what an instance printed whose start failed.
	KeepFailed func(function, id string, lines ports.LogLines) error

	// OutOfMemory, if set, reports whether the driver refused GPU memory to a process of
	// an instance that is registered.
	OutOfMemory func(ctx context.Context, id string) bool

	// Note, if set, is told what a person should know; Simulated, that the first
	// instance starts whose figures are not a GPU's.
	Note      func(format string, args ...any)
	Simulated func()
}

// Tokens is the token daemon, which is found or started.
type Tokens interface {
	Register(ctx context.Context, r wire.Registration) (wire.Registered, error)
	// Change changes the slice of an instance that is registered and runs.
	Change(ctx context.Context, id string, c wire.Change) error
	Unregister(ctx context.Context, id string) error
	// Registrations are those that this daemon or the next one goes by, less those
	// of owners that end them themselves.
	Registrations(ctx context.Context) ([]wire.Registration, error)
}

// Models is the model daemon of a GPU, which is found or started.
type Models interface {
	// Hold has a model of a tenant on a GPU, loaded from the file if it is not there,
	// and holds it until it is closed.
	Hold(ctx context.Context, gpu, tenant, name, file string) (HeldModel, error)
}

// HeldModel is a model that stays on the GPU.
type HeldModel interface {
	Folder() string                          // of the socket, model.sock, that speaks for the tenant
	Keep(ctx context.Context, pid int) error // has a process hold it, for as long as that lives
	Close() error
}

// SimulatedDevice is the folder that the processes on the simulated device share.
type SimulatedDevice interface {
	Keep(id string) error    // keeps it in place for an instance that has it mounted
	Release(id string) error // takes that back, and removes what killed programs left
}

// Launcher starts and stops instances. It is safe for concurrent use.
type Launcher struct {
	config    Config
	simulated sync.Once
	warned    sync.Map // the warnings that have been passed on

	mu       sync.Mutex
	runtimes map[string]*opening
}

var _ ports.Starter = (*Launcher)(nil)

// New returns a Launcher. It does nothing yet.
func New(config Config) *Launcher {
	if config.Patience == 0 {
		config.Patience = DefaultPatience
	}
	if config.LogDir == "" {
		config.LogDir = filepath.Join(config.RunDir, "logs")
	}
	if config.Note == nil {
		config.Note = func(string, ...any) {}
	}
	return &Launcher{config: config, runtimes: map[string]*opening{}}
}

// RuntimeOf names the runtime that runs a function: Docker when it has an image,
// else Process.
func RuntimeOf(fn function.Function) string {
	if fn.Image != "" {
		return instance.Docker
	}
	return instance.Process
}

// definition identifies a version of a function: instances of another version have to be
// started anew. Functions of different folders are different. Empty means not known.
func definition(fn function.Function) string {
	fn = fn.Versioned()
	fn.GPUMem = 0 // is in the slice
	text, err := function.Format([]function.Function{fn})
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(append(text, fn.Dir...))
	return hex.EncodeToString(sum[:8])
}

// Intended is the record of an instance before it is started.
func Intended(fn function.Function, p instance.Placement) instance.Record {
	return instance.Record{
		ID: p.ID, Function: fn.Name, Runtime: RuntimeOf(fn), GPUs: p.GPUs, Slice: p.Slice, State: instance.Starting,
		Definition: definition(fn), Turns: p.Turns, RPS: p.RPS, Restarts: p.Restarts,
	}
}

// Start registers an instance with the token daemon, starts it on the runtime
// that RuntimeOf names, and waits until it is ready. An instance that spans
// several GPUs has its slice on each of them. After an error, or when ctx is
// cancelled, nothing of the instance is left; the error is a *ports.StartError
// with the last lines it printed.
func (l *Launcher) Start(ctx context.Context, fn function.Function, p instance.Placement) (instance.Record, error) {
	r := Intended(fn, p)
	r.Runtime = "" // until it was asked
	if err := check(p); err != nil {
		return r, &ports.StartError{ID: p.ID, Err: err}
	}
	rt, err := l.runtime(ctx, RuntimeOf(fn))
	if err != nil {
		return r, err
	}
	simulated := simulated(p.GPUs)
	if simulated && l.config.Simulated != nil {
		l.simulated.Do(l.config.Simulated)
	}
	if fn.Kind == function.Kernels && l.config.KernelDaemon != nil {
		if err := l.config.KernelDaemon(ctx, fn); err != nil {
			return r, &ports.StartError{ID: p.ID, Err: err}
		}
	}
	folder, held, err := l.hold(ctx, fn, p)
	if err != nil {
		return r, &ports.StartError{ID: p.ID, Err: err, OutOfMemory: noRoom(err)}
	}
	defer held.Close()
	secret := rand.Text()
	// Not under ctx: one that is cut short may still take place, and after it
	// was taken back.
	registering, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	answer, err := l.config.Tokens.Register(registering, registration(fn, p, secret))
	late := registering.Err() != nil
	cancel()
	if err != nil {
		// Refused, the id is someone else's, and so is what there is of it. Late,
		// the daemon may have it all the same.
		failed := &ports.StartError{ID: p.ID, Err: err}
		if late {
			r.Registered = []string{p.ID}
			l.undoRegistration(ctx, r, failed)
		}
		return r, failed
	}
	r.Registered = []string{p.ID}
	if answer.Note != "" {
		l.config.Note("note: %s: %s", p.ID, answer.Note)
	}
	l.warn(answer)
	if simulated && rt.Name() == instance.Docker {
		if err := l.config.Device.Keep(p.ID); err != nil {
			return r, l.undo(ctx, rt, r, fmt.Errorf("the simulated device's folder: %w", err))
		}
	}
	r.Runtime = rt.Name()
	r.Handle, err = rt.Start(ctx, l.spec(fn, p, secret, answer.MPSPipeDir, folder))
	if err != nil {
		r.Handle = instance.Handle{}
		return r, l.undo(ctx, rt, r, err)
	}
	if p.Note != nil {
		if err := p.Note(r); err != nil {
			return r, l.undo(ctx, rt, r, err)
		}
	}
	if err := l.keep(ctx, rt, r, held); err != nil {
		return r, l.undo(ctx, rt, r, err)
	}
	contract, err := l.waitReady(ctx, rt, fn, r.Handle)
	if err == nil {
		err = rt.Unlimited(ctx, r.Handle)
	}
	if err != nil {
		return r, l.undo(ctx, rt, r, err)
	}
	r.State, r.Contract = instance.Ready, contract
	return r, nil
}

func check(p instance.Placement) error {
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

// simulated says whether an instance's GPUs are.
func simulated(gpus []string) bool {
	d, err := gpu.ParseDevice(gpus[0])
	return err == nil && d.Simulated
}

// SLOMS returns the latency objective of a function's instances for the token daemon.
func SLOMS(fn function.Function) float64 {
	if fn.Kind == "training" { // which has no latency
		return 0
	}
	return float64(fn.SLO) / float64(time.Millisecond)
}

func registration(fn function.Function, p instance.Placement, secret string) wire.Registration {
	r := wire.Registration{Instance: p.ID, Function: fn.Name, Secret: secret, SLOMS: SLOMS(fn), StopUnmanaged: fn.Unmanaged == function.StopUnmanaged}
	for n, name := range p.GPUs {
		alloc := wire.Allocation{
			GPU: name, SMPct: p.Slice.SMPct, QuotaRequest: p.Slice.QuotaRequest, QuotaLimit: p.Slice.QuotaLimit, MemLimit: p.Slice.Mem,
		}
		if p.Turns != nil {
			alloc.Turns = p.Turns[n]
		}
		if n == 0 {
			r.Allocation = alloc
		} else {
			r.More = append(r.More, alloc)
		}
	}
	return r
}

// spec is what the runtime is asked for. A process starts in the folder of
// its function file, and a command with a relative path is found there.
func (l *Launcher) spec(fn function.Function, p instance.Placement, secret, mpsPipes, models string) instance.Spec {
	spec := instance.Spec{
		ID: p.ID, Function: fn.Name, Image: fn.Image, Command: append([]string(nil), fn.Command...),
		Env: fn.Env, Port: fn.Port, GPUs: p.GPUs, Slice: p.Slice, Secret: secret, MPSPipeDir: mpsPipes, ModelFolder: models,
		Oversubscribe: p.Oversubscribe, LogPath: l.logPath(p.ID),
		Restart: fn.Restart, Limits: fn.Limits, ReadOnly: fn.ReadOnly,
	}
	if fn.Image != "" {
		return spec
	}
	spec.Dir = fn.Dir
	if fn.Kind == function.Kernels {
		spec.Command = l.config.Kernels(fn)
		return spec
	}
	if len(spec.Command) > 0 && filepath.Base(spec.Command[0]) != spec.Command[0] && !filepath.IsAbs(spec.Command[0]) {
		spec.Command[0] = filepath.Join(fn.Dir, spec.Command[0])
	}
	return spec
}

// waitReady waits until the instance answers, has ended, or had its time.
func (l *Launcher) waitReady(ctx context.Context, rt ports.Runtime, fn function.Function, h instance.Handle) (string, error) {
	ready, cancel := context.WithTimeout(ctx, l.config.Patience)
	defer cancel()
	alive := func(ctx context.Context) error {
		state, err := rt.State(ctx, h)
		if err == nil && (!state.Running || state.Restarts > 0) {
			err = fmt.Errorf("ended before it was ready: %s", state.Detail)
		}
		return err
	}
	contract, err := l.config.Ready(ready, h.Address, fn.Contract, alive)
	if err != nil && ctx.Err() == nil && errors.Is(ready.Err(), context.DeadlineExceeded) {
		return "", &notReadyError{after: l.config.Patience, last: err}
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return contract, err
}

// notReadyError says that an instance ran but did not become ready in time.
type notReadyError struct {
	after time.Duration
	last  error
}

func (e *notReadyError) Error() string {
	return fmt.Sprintf("not ready after %v: %v", e.after, e.last)
}

// Hint says what to do about it.
func (e *notReadyError) Hint() string {
	return "give it longer (--timeout of gfaas up, --start-timeout of gfaas-profile run), or see whether it serves $PORT by its contract"
}

// Unwrap makes it count as a timeout.
func (e *notReadyError) Unwrap() error { return context.DeadlineExceeded }

// Adopt takes over an instance that another Launcher on this run directory
// started. What the token daemon knows of it is as it was.
func (l *Launcher) Adopt(ctx context.Context, r instance.Record) error {
	if r.State != instance.Ready {
		return &ports.GoneError{ID: r.ID, Why: "it was not ready yet when its starter ended"}
	}
	state, err := l.State(ctx, r.Handle)
	if err != nil {
		return fmt.Errorf("adopt instance %s: %w", r.ID, err)
	}
	if !state.Running {
		return &ports.GoneError{ID: r.ID, Why: state.Detail}
	}
	return nil
}

// Registrations are what the token daemon, or the next one, holds instances to.
func (l *Launcher) Registrations(ctx context.Context) ([]wire.Registration, error) {
	return l.config.Tokens.Registrations(ctx)
}

// Change changes the slice of an instance while it runs.
func (l *Launcher) Change(ctx context.Context, id string, c wire.Change) error {
	return l.config.Tokens.Change(ctx, id, c)
}

// Wait returns how an instance ended, as soon as it has.
func (l *Launcher) Wait(ctx context.Context, r instance.Record) (instance.State, error) {
	rt, err := l.runtime(ctx, r.Handle.Runtime)
	if err != nil {
		return instance.State{}, err
	}
	return rt.Wait(ctx, r.Handle)
}

// State tells whether an instance still runs.
func (l *Launcher) State(ctx context.Context, h instance.Handle) (instance.State, error) {
	rt, err := l.runtime(ctx, h.Runtime)
	if err != nil {
		return instance.State{}, err
	}
	return rt.State(ctx, h)
}

// Logs returns what an instance printed.
func (l *Launcher) Logs(ctx context.Context, r instance.Record, o ports.LogOptions) ports.LogLines {
	return func(yield func(ports.LogLine, error) bool) {
		if r.Handle.Runtime == "" { // nothing of it runs yet
			return
		}
		rt, err := l.runtime(ctx, r.Handle.Runtime)
		if err != nil {
			yield(ports.LogLine{}, err)
			return
		}
		rt.Logs(ctx, r.Handle, o)(yield)
	}
}

// Close gives the runtimes back. Instances live on.
func (l *Launcher) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, o := range l.runtimes {
		if o.runtime != nil {
			errs = append(errs, o.runtime.Close())
		}
	}
	clear(l.runtimes)
	return errors.Join(errs...)
}

// opening is a runtime that is opened once. One that does not answer in time
// is waited for once, and not again at once for each instance.
type opening struct {
	mu      sync.Mutex
	runtime ports.Runtime
	silent  error
	since   time.Time // of silent
}

// runtimeNames are the runtimes there are.
var runtimeNames = []string{instance.Process, instance.Docker}

// runtime returns the runtime of that name, opened at its first use.
func (l *Launcher) runtime(ctx context.Context, name string) (ports.Runtime, error) {
	if name != instance.Process && name != instance.Docker {
		return nil, fmt.Errorf("runtime %q is not known: expected %s", name, strings.Join(runtimeNames, " or "))
	}
	l.mu.Lock()
	o := l.runtimes[name]
	if o == nil {
		o = &opening{}
		l.runtimes[name] = o
	}
	l.mu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.runtime != nil {
		return o.runtime, nil
	}
	if o.silent != nil && time.Since(o.since) < silence {
		return nil, o.silent
	}
	rt, err := l.config.Runtime(ctx, name)
	if err != nil {
		if ports.Unavailable(err) && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			o.silent, o.since = err, time.Now()
		}
		return nil, err
	}
	o.runtime = rt
	return rt, nil
}
