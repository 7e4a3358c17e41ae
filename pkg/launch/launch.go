// Package launch starts, adopts, finds and stops instances of functions on this host. Its main type is
// Launcher, which implements ports.Starter and works with the ports in Config.
//
//  1. An instance is registered with the token daemon before its process starts, so that no process
//     runs outside its slice.
//  2. Start returns an instance only when it answers by its contract.
//  3. A failed Start removes all resources of the instance. If that fails too, the error has
//     ports.StartError.Remains set, and the caller must call Stop.
//  4. Launcher stores no list of instances. The callers keep the records.
//
// Invoker, Caller and Merged help the callers to send calls to instances and to read their logs. The gateway
// (pkg/daemon/gateway), pkg/rollout, pkg/measure and the commands use this package.
package launch

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/wire"
)

const (
	// DefaultReadyTimeout limits how long an instance may take to become ready if Config.ReadyTimeout is 0.
	DefaultReadyTimeout = 2 * time.Minute
	stopGrace           = 5 * time.Second  // from SIGTERM to SIGKILL
	failGrace           = 1 * time.Second  // the same for an instance that failed to start
	cleanupTime         = 30 * time.Second // for cleaning up, independent of the caller's context
	unavailableTime     = time.Minute      // how long a runtime that timed out counts as unavailable
	logLines            = 10               // lines of an instance's output in an error
	failedLines         = 10_000           // lines of output kept after a failed start
)

// Config holds the settings and ports of a Launcher.
type Config struct {
	LogDir       string        // folder of the process logs, absolute
	ReadyTimeout time.Duration // time limit for an instance to become ready; 0: DefaultReadyTimeout

	// Runtime opens a runtime by name. Launcher calls it when it first needs the runtime.
	Runtime func(ctx context.Context, name string) (ports.Runtime, error)
	// Ready waits until the instance at address passes the function's health check, and returns the
	// contract, with "auto" resolved. It gives up when alive returns an error: the instance has ended.
	Ready  func(ctx context.Context, address string, fn function.Function, alive func(context.Context) error) (string, error)
	Tokens Tokens
	// Sign, if set, signs a grant for an instance of a fleet, which registers itself with it at the token daemon
	// of its node. Tokens is then not used.
	Sign   func(r wire.Registration) (string, error)
	Device SimulatedDevice
	Models Models // nil: functions with a model file are rejected
	// Kernels returns the command that serves a function of the kind kernels. It forwards calls to
	// gfaas-kerneld.
	Kernels func(fn function.Function) []string
	// KernelDaemon returns an error if gfaas-kerneld is unavailable for such a function.
	KernelDaemon func(ctx context.Context, fn function.Function) error
	// The fields below must be set.

	// RemoveLog removes the log of a process. A missing log is no error.
	RemoveLog func(dir string) error

	// KeepFailed stores the output of an instance whose start failed.
	KeepFailed func(function, id string, lines ports.LogLines) error

	// OutOfMemory reports whether the driver refused GPU memory to a process of a registered
	// instance.
	OutOfMemory func(ctx context.Context, id string) bool

	// Note prints a message for the user. Simulated is called once, before the
	// first instance on a simulated GPU starts, because its timings differ from a real GPU's.
	Note      func(format string, args ...any)
	Simulated func()
}

// Tokens is a client of the token daemon. It starts the daemon if necessary.
type Tokens interface {
	Register(ctx context.Context, r wire.Registration) (wire.Registered, error)
	// Change changes the slice of a running, registered instance.
	Change(ctx context.Context, id string, c wire.Change) error
	Unregister(ctx context.Context, id string) error
	// Registrations returns the registrations that the daemon, or its successor after a restart,
	// applies, except jobs, which end with the process that owns them.
	Registrations(ctx context.Context) ([]wire.Registration, error)
}

// Models is a client of the GPUs' model daemons. It starts the daemons if necessary.
type Models interface {
	// Hold loads a tenant's model from the file onto a GPU unless it is loaded already. The model
	// stays there until the caller closes the result.
	Hold(ctx context.Context, gpu, tenant, name, file string) (HeldModel, error)
}

// HeldModel is a hold on a loaded model.
type HeldModel interface {
	Folder() string                              // folder with the tenant's socket, model.sock; "" without a model
	ExtendTo(ctx context.Context, pid int) error // extends the hold to the life of a process
	Close() error
}

// SimulatedDevice manages the folder that processes on the simulated device share.
type SimulatedDevice interface {
	Retain(id string) error  // keeps the folder in place for an instance that has mounted it
	Release(id string) error // reverts Retain and removes files of killed programs
}

// Launcher starts and stops instances. It is safe for concurrent use.
type Launcher struct {
	config    Config
	runtimes  *runtimes
	simulated sync.Once
	warned    sync.Map // warnings of the token daemon that have been printed
}

var _ ports.Starter = (*Launcher)(nil)

// New returns a Launcher. It opens no runtime yet.
func New(config Config) *Launcher {
	if config.ReadyTimeout == 0 {
		config.ReadyTimeout = DefaultReadyTimeout
	}
	return &Launcher{config: config, runtimes: &runtimes{open: config.Runtime, byName: map[string]*opening{}}}
}

// runtimeFor returns the name of the runtime of an instance at a placement.
func runtimeFor(fn function.Function, p instance.Placement) string {
	if len(p.GPUs) > 0 {
		if node, _ := gpu.SplitNode(p.GPUs[0]); node != "" {
			return instance.Swarm
		}
	}
	return RuntimeOf(fn)
}

// RuntimeOf returns the name of a function's runtime on this machine: Docker if the function has an image,
// and Process otherwise.
func RuntimeOf(fn function.Function) string {
	if fn.Image != "" {
		return instance.Docker
	}
	return instance.Process
}

// definition returns a hash of a function's version, or "" if it cannot be determined. An instance of
// another version must be replaced. The hash includes the function's folder.
func definition(fn function.Function) string {
	fn = fn.Versioned()
	fn.SM, fn.Quota, fn.GPUMem = 0, function.Quota{}, 0 // these belong to the slice
	text, err := function.Format([]function.Function{fn})
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(append(text, fn.Dir...))
	return hex.EncodeToString(sum[:8])
}

// Intended returns the record of an instance before its start.
func Intended(fn function.Function, p instance.Placement) instance.Record {
	return instance.Record{
		ID: p.ID, Function: fn.Name, Runtime: runtimeFor(fn, p), GPUs: p.GPUs, Slice: p.Slice, State: instance.Starting,
		Definition: definition(fn), Turns: p.Turns, RPS: p.RPS, Batch: p.Batch, Restarts: p.Restarts, Job: fn.Kind == function.Training,
	}
}

// Start registers an instance with the token daemon, starts it on the function's runtime and waits until
// it is ready. It does not wait for a job, which is never ready. An instance on several GPUs has the same slice on each. If Start fails or ctx is
// cancelled, it removes all of the instance's resources. Its error is then a *ports.StartError with the
// last lines of output, except if the runtime is unavailable.
func (l *Launcher) Start(ctx context.Context, fn function.Function, p instance.Placement) (instance.Record, error) {
	r := Intended(fn, p)
	r.Runtime = "" // set when the runtime receives the request
	if err := checkPlacement(p); err != nil {
		return r, &ports.StartError{ID: p.ID, Err: err}
	}
	rt, err := l.runtimes.get(ctx, runtimeFor(fn, p))
	if err != nil {
		return r, err
	}
	simulated := simulated(p.GPUs)
	if simulated {
		l.simulated.Do(l.config.Simulated)
	}
	if fn.Kind == function.Kernels {
		if err := l.config.KernelDaemon(ctx, fn); err != nil {
			return r, &ports.StartError{ID: p.ID, Err: err}
		}
	}
	folder, held, err := l.holdModel(ctx, fn, p)
	if err != nil {
		return r, &ports.StartError{ID: p.ID, Err: err, OutOfMemory: isModelMemoryError(err)}
	}
	defer held.Close()
	secret, signed := rand.Text(), ""
	var answer wire.Registered
	if l.config.Sign != nil {
		if signed, err = l.config.Sign(NewRegistration(fn, p, secret)); err != nil {
			return r, &ports.StartError{ID: p.ID, Err: err}
		}
	} else if answer, err = l.register(ctx, &r, fn, p, secret); err != nil {
		return r, err
	}
	if simulated && rt.Name() == instance.Docker {
		if err := l.config.Device.Retain(p.ID); err != nil {
			return r, l.undo(ctx, rt, r, fmt.Errorf("reserve the folder of the simulated GPU: %w", err))
		}
	}
	r.Runtime = rt.Name()
	started := p
	started.Slice.SMPct = cmp.Or(answer.SMPct, p.Slice.SMPct)
	spec := l.spec(fn, started, secret, answer.MPSPipeDir, folder)
	spec.Grant = signed
	r.Handle, err = rt.Start(ctx, spec)
	if err != nil {
		r.Handle = instance.Handle{}
		return r, l.undo(ctx, rt, r, err)
	}
	if p.Note != nil {
		if err := p.Note(r); err != nil {
			return r, l.undo(ctx, rt, r, err)
		}
	}
	if err := l.extendHold(ctx, rt, r, held); err != nil {
		return r, l.undo(ctx, rt, r, err)
	}
	if r.Job {
		if err := l.awaitLimited(ctx, rt, r.Handle); err != nil {
			return r, l.undo(ctx, rt, r, err)
		}
		r.State = instance.Running
		return r, nil
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

// register registers an instance that is about to start with the token daemon, and notes that in its record. Its
// error is a *ports.StartError.
func (l *Launcher) register(ctx context.Context, r *instance.Record, fn function.Function, p instance.Placement, secret string) (wire.Registered, error) {
	// Register does not use ctx: a cancelled request could still succeed at the daemon after Start
	// has taken it back.
	registering, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	answer, err := l.config.Tokens.Register(registering, NewRegistration(fn, p, secret))
	late := registering.Err() != nil
	cancel()
	if err != nil {
		// If the daemon refused, the ID and its resources belong to another instance. After a timeout, the
		// daemon may have registered the instance nevertheless.
		failed := &ports.StartError{ID: p.ID, Err: err}
		if late {
			r.Registered = []string{p.ID}
			l.undoRegistration(ctx, *r, failed)
		}
		return answer, failed
	}
	r.Registered = []string{p.ID}
	l.report(p.ID, answer)
	return answer, nil
}

func checkPlacement(p instance.Placement) error {
	if len(p.GPUs) == 0 {
		return errors.New("its placement has no GPU")
	}
	for _, name := range p.GPUs {
		_, device := gpu.SplitNode(name)
		if _, err := gpu.ParseDevice(device); err != nil {
			return err
		}
	}
	if p.Turns != nil && len(p.Turns) != len(p.GPUs) {
		return fmt.Errorf("its placement has turns for %d GPUs, expected %d", len(p.Turns), len(p.GPUs))
	}
	return p.Slice.Validate()
}

// simulated reports whether an instance's GPUs are simulated. An instance does not mix both kinds.
func simulated(gpus []string) bool {
	_, device := gpu.SplitNode(gpus[0])
	d, err := gpu.ParseDevice(device)
	return err == nil && d.Simulated
}

// SLOMS returns the latency objective of a function's instances for the token daemon.
func SLOMS(fn function.Function) float64 {
	if fn.Kind == function.Training { // training has no latency
		return 0
	}
	return float64(fn.SLO) / float64(time.Millisecond)
}

func NewRegistration(fn function.Function, p instance.Placement, secret string) wire.Registration {
	r := wire.Registration{Instance: p.ID, Function: fn.Name, Secret: secret, SLOMS: SLOMS(fn), LLM: fn.LLM(), StopUnmanaged: fn.Unmanaged == function.StopUnmanaged}
	if fn.Kind == function.Training {
		r.Kind = function.Training
	}
	all := make([]wire.Allocation, len(p.GPUs))
	for n, name := range p.GPUs {
		all[n] = wire.AllocationOf(name, p.Slice)
		if p.Turns != nil {
			all[n].Turns = p.Turns[n]
		}
	}
	r.SetAllocations(all)
	return r
}

// spec returns the runtime's specification of an instance. A process starts in the folder of its
// function file, and a relative path of its command is relative to that folder.
func (l *Launcher) spec(fn function.Function, p instance.Placement, secret, mpsPipes, models string) instance.Spec {
	spec := instance.Spec{
		ID: p.ID, Function: fn.Name, Image: fn.Image, Command: append([]string(nil), fn.Command...),
		Env: fn.Env, Port: fn.Port, GPUs: p.GPUs, Slice: p.Slice, Secret: secret, MPSPipeDir: mpsPipes, ModelFolder: models,
		Oversubscribe: p.Oversubscribe, AllSMs: p.AllSMs, LogPath: l.logPath(p.ID),
		Restart: fn.Restart, Limits: fn.Limits, ReadOnly: fn.ReadOnly, Job: instance.JobOf(fn),
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

// waitReady waits until the instance answers. It fails if the instance ends or exceeds its time limit.
func (l *Launcher) waitReady(ctx context.Context, rt ports.Runtime, fn function.Function, h instance.Handle) (string, error) {
	ready, cancel := context.WithTimeout(ctx, l.config.ReadyTimeout)
	defer cancel()
	alive := func(ctx context.Context) error {
		state, err := rt.State(ctx, h)
		if err == nil && (!state.Running || state.Restarts > 0) {
			err = fmt.Errorf("ended before it was ready: %s", state.Detail)
		}
		return err
	}
	contract, err := l.config.Ready(ready, h.Address, fn, alive)
	if err != nil && ctx.Err() == nil && errors.Is(ready.Err(), context.DeadlineExceeded) {
		return "", &notReadyError{after: l.config.ReadyTimeout, last: err}
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return contract, err
}

const (
	limitedTime = 2 * time.Second       // how long a job may take to load the preload library
	limitedPoll = 20 * time.Millisecond // interval of checks
)

// awaitLimited waits until a job that has just started is held to its slice. Unlike an instance that is
// ready, it may still be about to load the preload library.
func (l *Launcher) awaitLimited(ctx context.Context, rt ports.Runtime, h instance.Handle) error {
	for end := time.Now().Add(limitedTime); ; {
		err := rt.Unlimited(ctx, h)
		if err == nil || !time.Now().Before(end) {
			return err
		}
		if state, failed := rt.State(ctx, h); failed == nil && !state.Running {
			return nil // it has ended
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(limitedPoll):
		}
	}
}

// notReadyError reports an instance that runs but did not become ready in time.
type notReadyError struct {
	after time.Duration
	last  error
}

func (e *notReadyError) Error() string {
	return fmt.Sprintf("not ready after %v: %v", e.after, e.last)
}

// Hint returns the next step for the user.
func (e *notReadyError) Hint() string {
	return "allow more time (--timeout of gfaas up, --start-timeout of gfaas serve and gfaas-profile run), or check that it answers on $PORT according to its contract"
}

// Unwrap returns context.DeadlineExceeded, which gives the error the exit status of a timeout.
func (e *notReadyError) Unwrap() error { return context.DeadlineExceeded }

// Adopt takes over an instance that another Launcher of this run directory started. It returns a
// *ports.GoneError if the instance has ended or was not ready. It leaves the registration unchanged.
func (l *Launcher) Adopt(ctx context.Context, r instance.Record) error {
	if r.State != instance.Ready && r.State != instance.Running {
		return &ports.GoneError{ID: r.ID, Why: "it was not yet ready when the command that started it ended"}
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

// Registrations returns the token daemon's registrations, as Tokens.Registrations does.
func (l *Launcher) Registrations(ctx context.Context) ([]wire.Registration, error) {
	return l.config.Tokens.Registrations(ctx)
}

// Change changes the slice of a running instance.
func (l *Launcher) Change(ctx context.Context, id string, c wire.Change) error {
	return l.config.Tokens.Change(ctx, id, c)
}

// Wait waits until an instance ends and returns its final state.
func (l *Launcher) Wait(ctx context.Context, r instance.Record) (instance.State, error) {
	rt, err := l.runtimes.get(ctx, r.Handle.Runtime)
	if err != nil {
		return instance.State{}, err
	}
	return rt.Wait(ctx, r.Handle)
}

// State returns the state of an instance.
func (l *Launcher) State(ctx context.Context, h instance.Handle) (instance.State, error) {
	rt, err := l.runtimes.get(ctx, h.Runtime)
	if err != nil {
		return instance.State{}, err
	}
	return rt.State(ctx, h)
}

// Logs returns an instance's output. It yields nothing if the instance has no process or container yet.
func (l *Launcher) Logs(ctx context.Context, r instance.Record, o ports.LogOptions) ports.LogLines {
	return func(yield func(ports.LogLine, error) bool) {
		if r.Handle.Runtime == "" { // not started
			return
		}
		rt, err := l.runtimes.get(ctx, r.Handle.Runtime)
		if err != nil {
			yield(ports.LogLine{}, err)
			return
		}
		rt.Logs(ctx, r.Handle, o)(yield)
	}
}

// Close closes the runtimes. Instances keep running.
func (l *Launcher) Close() error { return l.runtimes.close() }
