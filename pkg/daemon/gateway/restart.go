package gateway

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// What ends by itself is started again as its function's restart says: after a
// second, then two, four, … up to a minute, and from the beginning once it has run
// for a while. Containers are started again by their engine.
const (
	firstRestart = time.Second
	lastRestart  = time.Minute
	steady       = 10 * time.Second
)

// restarts is what is being started again, and how often it was.
type restarts struct {
	mu     sync.Mutex
	tries  map[string]int  // in a row, by instance, or by function of the gateway's own
	atWork map[string]bool // instances
	starts map[string]bool // instances that are starting now
}

// next is how long to wait before what ran for so long is started again.
func (r *restarts) next(name string, ran time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tries == nil {
		r.tries = map[string]int{}
	}
	if ran >= steady {
		r.tries[name] = 0
	}
	n := r.tries[name]
	r.tries[name] = n + 1
	return min(firstRestart<<min(n, 10), lastRestart)
}

// begin says whether nobody is at work on an instance yet.
func (r *restarts) begin(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.atWork == nil {
		r.atWork = map[string]bool{}
	}
	if r.atWork[id] {
		return false
	}
	r.atWork[id] = true
	return true
}

// forget has the next start of what has these names be the first again.
func (r *restarts) forget(names ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		delete(r.tries, name)
	}
}

// set notes whether an instance is starting now.
func (r *restarts) set(id string, starts bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.starts == nil {
		r.starts = map[string]bool{}
	}
	r.starts[id] = starts
	if !starts {
		delete(r.starts, id)
	}
}

// starting reports whether an instance is starting now.
func (r *restarts) starting(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.starts[id]
}

func (r *restarts) end(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.atWork, id)
}

// restartable says whether an instance that ended so is for the gateway to start
// again. How one ended that another process started may not be known: that counts as
// a failure.
func restartable(fn function.Function, runtime string, how instance.State) bool {
	if runtime == instance.Docker {
		return false
	}
	return fn.Restart == "always" || fn.Restart == "on-failure" && how.ExitCode != 0
}

// applied returns a function as it is applied now, and the life of that version.
func (g *Gateway) applied(name string) (fn function.Function, life context.Context, ok bool) {
	t := (*g.names.Load())[name]
	if t == nil {
		return fn, nil, false
	}
	g.engine.mu.Lock()
	defer g.engine.mu.Unlock()
	return t.function, t.life, !t.gone
}

// restartOwn has another instance take the place of one of the gateway's own that
// ended, unless calls have had one started meanwhile, there is no room, or its function
// has changed.
func (g *Gateway) restartOwn(s *server, how instance.State) {
	r := s.record
	if s.generation.life.Err() != nil || !restartable(s.function, r.Runtime, how) {
		return
	}
	want := g.engine.live(s.target) + 1
	wait := g.restarts.next(r.Function, time.Since(r.Handle.Started))
	g.log.Warn("another instance will be started in its place", "instance", r.ID, "function", r.Function, "in", wait.String())
	if pause(s.generation.life, wait) {
		g.engine.restore(s, want)
	}
}

// hold has a function of which an instance ended soon after its start wait, longer
// each time, before another is started because so many are to be kept: one that ends
// as soon as it is ready would keep the GPU busy with starts. Locked.
func (e *engine) hold(s *server) {
	t, its := s.target, s.generation
	if !s.own || s.outdated() || t.function.Scale.Min == 0 {
		return
	}
	ran := time.Since(s.record.Handle.Started)
	wait := e.g.restarts.next(keeping(t.name), ran)
	if ran >= steady {
		return
	}
	e.g.log.Warn("an instance ended too soon: another is kept ready later", "instance", s.record.ID, "function", t.name, "in", wait.String())
	its.held++
	its.kept = e.count(t)
	e.respec(t)
	e.g.deed(func() {
		if !pause(its.life, wait) {
			return
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if its.held--; its.held == 0 && t.generation == its {
			e.respec(t)
		}
	})
}

// keeping is what the restarts of the instances that a function keeps ready go by.
func keeping(name string) string { return "min of " + name }

// live is how many instances of a function run or start.
func (e *engine) live(t *target) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.count(t)
}

func (e *engine) count(t *target) (n int) {
	for _, s := range e.servers {
		if s.target == t && (s.state == serverStarts || s.state == serverReady) && !s.outdated() {
			n++
		}
	}
	return n
}

// restore has the policy start one more instance of the function of one that ended, if it
// has fewer than wanted: for the time of a step it is to have that many.
func (e *engine) restore(s *server, wanted int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := s.target
	have := e.count(t)
	if s.outdated() || have >= wanted || e.g.draining.Load() {
		return
	}
	usual := e.spec(t)
	now := usual
	now.Min = max(usual.Min, int32(have+1))
	t.spec = usual
	e.step(queue.Event{Kind: queue.FunctionSet, Function: t.number, Spec: &now})
	e.step(queue.Event{Kind: queue.FunctionSet, Function: t.number, Spec: &usual})
}

// restartOther starts an instance again that a plan placed, with the slice and the
// turns it has there, for as long as its record says that it is the same. When its
// function has changed that is tried at once.
func (g *Gateway) restartOther(r instance.Record, how instance.State) {
	if fn, _, ok := g.applied(r.Function); ok && restartable(fn, r.Runtime, how) {
		g.restartLater(r, false)
	}
}

// restartLater starts an instance again after a pause, as often as it takes, unless that is
// being done. One that has faulted is stopped first.
func (g *Gateway) restartLater(r instance.Record, faulted bool) {
	if !g.restarts.begin(r.ID) {
		return
	}
	g.deed(func() {
		ran := time.Since(r.Handle.Started)
		for {
			_, life, ok := g.applied(r.Function)
			if !ok {
				g.restarts.end(r.ID)
				return
			}
			wait := g.restarts.next(r.ID, ran)
			ran = 0 // from now on it has not run
			g.log.Warn("instance will be started again", "instance", r.ID, "function", r.Function, "in", wait.String())
			if !pause(life, wait) {
				g.restarts.forget(r.ID)
			}
			if g.life.Err() != nil {
				g.restarts.end(r.ID)
				return
			}
			again, err := g.restart(r, faulted)
			if err == nil {
				g.restarts.end(r.ID) // from here on it may end again
				g.log.Info("instance started again", "instance", r.ID, "function", r.Function, "restarts", again.Restarts)
				g.write(func(ctx context.Context) error { return g.cfg.Catalog.Update(ctx, again) })
				return // who follows the state takes it over
			}
			if errors.Is(err, errOthers) {
				g.restarts.end(r.ID)
				return
			}
			g.log.Error("instance not started again", "instance", r.ID, "function", r.Function, "err", err)
			faulted = faulted && again.Handle == r.Handle
			r = again
		}
	})
}

// errOthers says that an instance is not the gateway's to start again.
var errOthers = errors.New("it was stopped, or started again, by somebody else")

// restart starts an instance again that has ended or faulted, and returns its record as it
// is then, or after an error as it was left. Until it is written down what was started,
// nobody else starts or stops instances of plans.
func (g *Gateway) restart(r instance.Record, faulted bool) (instance.Record, error) {
	release := func() {}
	if g.cfg.Alone != nil {
		var err error
		if release, err = g.cfg.Alone(g.life); err != nil {
			return r, err
		}
	}
	release = sync.OnceFunc(release)
	defer release()
	ctx, cancel := context.WithTimeout(g.life, stateTime)
	defer cancel()
	l, err := g.cfg.Catalog.Look(ctx)
	if err != nil {
		return r, err
	}
	fn, err := l.Function(r.Function)
	at := slices.IndexFunc(l.Instances, func(other instance.Record) bool { return other.ID == r.ID })
	if err != nil || at < 0 || l.Instances[at].Handle != r.Handle || fn.Restart == "no" || fn.Restart == "" {
		return r, errOthers
	}
	r = l.Instances[at]
	var gone *ports.GoneError
	switch err := g.cfg.Starter.Adopt(ctx, r); {
	case err == nil && faulted:
	case err == nil:
		return r, errOthers
	case !errors.As(err, &gone): // it may have ended
		return r, err
	}
	left := r
	g.restarts.set(r.ID, true)
	defer g.restarts.set(r.ID, false)
	again, err := g.cfg.Starter.Restart(g.life, fn, r, func(noted instance.Record) error {
		noted.Owner = r.Owner
		err := g.cfg.Catalog.Update(g.life, noted)
		if err == nil {
			left = noted
		}
		release()
		return err
	})
	if err != nil {
		return left, err
	}
	return again, nil
}
