// Package dispatch connects a gateway's calls, functions and instances to its queueing
// policy (pkg/policy/queue). A Dispatcher turns everything that happens to them into events
// of the policy, and carries out the policy's actions. The gateway and its subpackages
// proxy, instances and api call it.
//
//  1. One lock, Dispatcher.mu, guards all state. "Locked" in a function's comment means that the caller
//     holds it. It is held for short work only, with one exception: a step waits while more than maxUnwritten
//     bytes of a record are pending.
//  2. Work that takes time (starting, stopping and parking instances) belongs to the Shell,
//     which reports the outcome later.
//  3. A call has one Attempt, from Submit to Finish, even if it is sent more than once. Each
//     turn that the attempt receives tells the call on which instance to run, or why it is
//     refused. If the instance fails to answer, Retry puts the same attempt back into the
//     queue, and it receives another turn.
//  4. The policy knows two kinds of instances. The gateway's own are started and stopped at
//     the policy's request. Instances of a plan (gfaas up) only receive calls; the policy
//     neither starts nor stops them.
//
// Parts of the state have types of their own: Instances, GPUs, jobs, the ledger of measured memory, and the
// placements of functions whose GPUs a placer chooses. The driver runs the policy. A chooser derives from a
// function's definition, its profile and the GPUs what its instances can be.
package dispatch

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/metrics"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy/placement"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/scale"
	"github.com/gfaas/gfaas/pkg/profile"
	"github.com/gfaas/gfaas/pkg/trace"
	"github.com/gfaas/gfaas/pkg/wire"
)

// Config configures a Dispatcher.
type Config struct {
	Log     *slog.Logger
	Metrics *metrics.Metrics

	Policy      queue.Config
	Concurrency int   // calls in progress per GPU (D)
	GPUs        []GPU // at first, by number; GPUs.Set adds others
	SideBySide  bool  // instances without a profile share the SMs and run at the same time; otherwise they take turns

	BatchWindow  time.Duration // how long calls join a running batch while others wait, for a function that sets none
	Queue        int           // limit on the queued calls of a function that sets none
	QueueTimeout time.Duration // longest time that a call waits for a slot on an instance
	Timeout      time.Duration // longest pause of an answer, for a function that sets no timeout

	Placement   string             // one of placement.Names; empty means that the policy chooses the GPUs of scaled instances
	Placing     *placement.Options // parameters of the placement; nil means the defaults
	Scaler      string             // one of Scalers; empty means none
	Estimator   string             // one of scale.Estimators, for a scaler that follows an estimate; empty means last
	Scaling     *scale.Options     // parameters of the scaler and the estimator, without the bounds; nil means the defaults
	Park        string             // ParkSwap or ParkCheckpoint; empty: idle instances keep their memory on the GPU
	AdoptParked bool               // the memory of adopted instances may be on the host, so Shell.Unpark precedes their first call

	// Unsupported, if set, returns why the gateway can never start an instance of a function, or "".
	Unsupported func(function.Function) string

	// LearnedFile keeps the measured costs of functions for the next gateway. If it is empty, they are
	// lost at the end.
	LearnedFile string

	// Forgotten, if set, is called when the policy forgets a removed function. The lock is
	// held.
	Forgotten func(name string)

	// Now returns the time since some fixed instant. If it is nil, the monotonic clock is
	// used.
	Now func() time.Duration
}

// The ways of moving the memory of idle instances to the host.
const (
	ParkSwap       = "swap"       // by the preload library in the instance
	ParkCheckpoint = "checkpoint" // by the CUDA driver
)

// GPU is a GPU that instances run on.
type GPU struct {
	Name string // as in gpu.ParseDevice
	Mem  int64  // bytes; 0 means no limit
	// Model selects the profile rows for this GPU model. If it is empty, all rows match.
	Model string
}

// Settings are the part of the configuration that may change while the gateway runs.
type Settings struct {
	Costs      map[string]trace.Function
	FixedCosts bool                     // do not update Costs from measurements
	Profile    map[string][]profile.Row // rows per function, for slices and autoscalers
}

// Sharing is how an instance shares its GPU; the fields are those of instance.Placement.
type Sharing struct {
	Oversubscribe gpu.Oversubscription
	AllSMs        bool
}

// Shell performs the operations that take time. Its methods are called with the
// dispatcher's lock held, so they return at once and report the outcome from another
// goroutine.
type Shell interface {
	// Start starts an instance of fn, and cancels the start if ctx ends. It reports to
	// Instance.Started or Instance.NotStarted, or to Instance.Stopped if the start was cancelled.
	Start(ctx context.Context, i *Instance, fn function.Function, s Sharing)
	// Stop stops an instance and reports to Instance.Stopped.
	Stop(i *Instance)
	// Park moves the instance's memory to the host and reports to Instance.Parked.
	Park(i *Instance)
	// Unpark moves the instance's memory to the GPU and reports to Instance.Unparked. Until then,
	// the instance can run no call.
	Unpark(i *Instance)
	// Prefetch lets the preload library move the instance's memory to the GPU, and reports to
	// Instance.Prefetched. Calls can run meanwhile.
	Prefetch(i *Instance)
}

// Dispatcher connects calls, functions and instances to a queueing policy.
type Dispatcher struct {
	cfg   Config // never modified after New
	log   *slog.Logger
	life  context.Context // parent context of all starts and function versions
	shell Shell
	names atomic.Pointer[nameTable]

	Known    Signal // set once the applied functions and the running instances are known
	Draining Signal // set once Submit refuses attempts

	// mu guards GPUs and Instances. Their exported methods lock it. Their other methods are Locked.
	GPUs      GPUs
	Instances Instances

	mu          sync.Mutex // guards the fields below, and all functions, instances and attempts
	policy      driver
	settings    Settings
	numbers     queue.Numbers // numbers of functions
	tenants     queue.Numbers
	weights     map[weightsOn]bool // see SetWeights
	functions   map[int32]*Function
	attempts    map[int64]*Attempt // queued and running attempts, without probes
	lastAttempt int64
	memory      ledger
	learned     map[string]learnedCosts // by function: costs that earlier gateways measured
	usage       *wire.Status            // latest report of the token daemon; nil if there is none
	placements  placements
	jobs        jobs // of training functions
}

// New returns a Dispatcher whose policy has not begun (Begin). The end of life cancels all
// starts.
func New(life context.Context, cfg Config, settings Settings) (*Dispatcher, error) {
	policy, err := queue.New(cfg.Policy)
	if err != nil {
		return nil, err
	}
	d := &Dispatcher{
		cfg: cfg, log: cfg.Log, life: life, settings: settings, Known: make(Signal), Draining: make(Signal),
		functions: map[int32]*Function{}, attempts: map[int64]*Attempt{},
	}
	d.GPUs, d.Instances = newGPUs(d, cfg.GPUs), newInstances(d)
	d.placements.d = d
	if d.placements.placer, d.placements.scaled, err = newPlacer(&cfg, cfg.GPUs); err != nil {
		return nil, err
	}
	d.memory = newLedger(d)
	d.learned = readLearned(d.cfg.LearnedFile, d.log)
	d.names.Store(&nameTable{})
	if cfg.Now == nil {
		began := time.Now()
		cfg.Now = func() time.Duration { return time.Since(began) }
	}
	d.policy.init(policy, cfg.Now, d.do, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.policy.woke()
	})
	d.policy.name = d.numbers.Name
	return d, nil
}

// Now returns the current time on the clock of Config.Now.
func (d *Dispatcher) Now() time.Duration { return d.policy.now() }

// Parks returns Config.Park.
func (d *Dispatcher) Parks() string { return d.cfg.Park }

// Begin sets the shell and sends the GPUs to the policy.
func (d *Dispatcher) Begin(shell Shell) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shell = shell
	for i := range d.GPUs.list {
		d.GPUs.open(int32(i))
	}
}

// Close stops the policy: later events have no effect.
func (d *Dispatcher) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.policy.close()
}

// Run runs the autoscalers, starts missing instances of placed functions, and closes idle upgraded connections that block queued calls,
// once a second until ctx ends.
func (d *Dispatcher) Run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			d.scale()
			d.Yield()
		}
	}
}

// SetKnown sets Known and starts the instances that functions need for their scale.min.
func (d *Dispatcher) SetKnown() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.Known)
	for _, f := range d.inOrder() {
		if !f.removed && f.newSpec() != f.spec {
			f.respec()
		}
	}
}

// Signal is a channel that is closed when a condition becomes true for good.
type Signal chan struct{}

// IsSet reports whether the signal was closed.
func (s Signal) IsSet() bool {
	select {
	case <-s:
		return true
	default:
		return false
	}
}

// Idle reports whether no attempt remains, probes excluded.
func (d *Dispatcher) Idle() bool { return d.Attempts() == 0 }

// CutAll cuts all remaining calls, probes included, with ErrDraining.
func (d *Dispatcher) CutAll() {
	d.mu.Lock()
	all := slices.Collect(maps.Values(d.attempts))
	for _, i := range d.Instances.byID {
		all = append(all, i.probes...)
	}
	d.mu.Unlock()
	slices.SortFunc(all, func(a, b *Attempt) int { return cmp.Compare(a.id, b.id) })
	for _, a := range all {
		a.cut(ErrDraining)
	}
}

// Reconfigure replaces the settings and sends changed costs of functions to the policy.
func (d *Dispatcher) Reconfigure(s Settings) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settings = s
	for _, f := range d.inOrder() {
		f.rescale()
		f.relearn()
	}
}

// Apply replaces the applied functions.
func (d *Dispatcher) Apply(functions []function.Function) {
	d.mu.Lock()
	defer d.mu.Unlock()
	names, models := nameTable{map[string]*Function{}, map[string]*Function{}}, sharedModels(functions, &d.numbers)
	for _, fn := range functions {
		f := d.set(fn, models[fn.Name])
		names.functions[fn.Name] = f
		for _, name := range fn.Names() {
			names.models[function.CanonicalName(name)] = f
		}
	}
	for _, f := range d.inOrder() {
		if names.functions[f.name] == nil && !f.removed {
			f.removed = true
			f.renew()
			d.policy.step(&queue.FunctionRemoved{Function: f.number})
		}
	}
	d.names.Store(&names)
}

// SetApplied records when the functions were applied, by name.
func (d *Dispatcher) SetApplied(times map[string]time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.functions {
		f.applied = times[f.name]
	}
}

// set applies a new or changed function with the given queue.Function.Model. Locked.
func (d *Dispatcher) set(fn function.Function, model int32) *Function {
	number := d.numbers.Of(fn.Name)
	f := d.functions[number]
	added := f == nil
	if added {
		f = &Function{d: d, name: fn.Name, number: number, since: time.Now(), instances: instanceSet{}, Counts: d.cfg.Metrics.Function(fn.Name)}
		d.functions[number] = f
	}
	if f.removed {
		f.since = time.Now()
	}
	// Instances of the old definition cannot serve the new one if their versioned parts differ.
	renew := !added && (f.removed || !reflect.DeepEqual(f.definition.Versioned(), fn.Versioned()))
	if added || renew {
		f.renew()
	}
	f.define(fn)
	if added || renew {
		f.recall()
	}
	f.model = model
	spec := f.newSpec()
	if added || renew || spec != f.spec {
		f.spec, f.removed = spec, false
		d.policy.step(functionSet(f, spec, renew))
		f.relearnClasses()
	}
	return f
}

// forget deletes a removed function and frees its number. Locked.
func (d *Dispatcher) forget(number int32) {
	name := d.numbers.Name(number)
	if f := d.functions[number]; f != nil {
		f.Counts.Remove()
	}
	if d.cfg.Forgotten != nil {
		d.cfg.Forgotten(name)
	}
	delete(d.functions, number)
	d.numbers.Forget(number)
}

// inOrder returns the functions ordered by number. Locked.
func (d *Dispatcher) inOrder() []*Function {
	return slices.SortedFunc(maps.Values(d.functions), func(a, b *Function) int {
		return cmp.Compare(a.number, b.number)
	})
}

// nameTable holds the applied functions by name. It is never changed.
type nameTable struct {
	functions map[string]*Function
	models    map[string]*Function // by the canonical form of names and aliases
}

// Function returns the applied function with that name, or nil.
func (d *Dispatcher) Function(name string) *Function { return d.names.Load().functions[name] }

// Model returns the applied function with that name or alias, or nil.
func (d *Dispatcher) Model(name string) *Function {
	return d.names.Load().models[function.CanonicalName(name)]
}

// Attempts returns the number of queued and running attempts, probes excluded.
func (d *Dispatcher) Attempts() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.attempts)
}
