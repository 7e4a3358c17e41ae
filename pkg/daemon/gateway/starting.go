package gateway

import (
	"slices"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// An instance that another process starts is in the state file from before its start on.
// The gateway counts it from then on, and calls of its function wait for it. It is
// forgotten when its record is gone or when nothing is at work that could make it ready.

// startingLook is how often the gateway checks that another process is still at work.
const startingLook = time.Second

// starting follows instances of others that are not ready yet.
type starting struct {
	abandoned map[string]instance.Record // whose starters have ended, by id
}

// follow makes the instances known that others are starting, and forgets those that are
// not in the records any more.
func (s *starting) follow(g *Gateway, records []instance.Record) {
	there := map[string]bool{}
	for _, r := range records {
		if r.Owner == instance.Gateway {
			continue
		}
		there[r.ID] = true
		if old, known := s.abandoned[r.ID]; known && !sameStart(old, r) {
			delete(s.abandoned, r.ID)
		}
		_, abandoned := s.abandoned[r.ID]
		switch {
		case r.State != instance.Starting || abandoned:
		case g.atWork(r):
			g.announce(r)
		case r.Restarts == 0:
			s.abandoned[r.ID] = r
		}
	}
	for id := range s.abandoned {
		if !there[id] {
			delete(s.abandoned, id)
		}
	}
	for _, v := range g.engine.announced() {
		if !there[v.record.ID] {
			g.engine.retract(v)
		}
	}
}

// sameStart reports whether two records of an id are of one start.
func sameStart(a, b instance.Record) bool {
	return a.State == b.State && a.Handle == b.Handle && a.Restarts == b.Restarts
}

// atWork reports whether the process that starts an instance may still run.
func (g *Gateway) atWork(r instance.Record) bool {
	if r.Restarts > 0 { // a gateway starts it again: this one, or one that was killed
		return g.restarts.starting(r.ID)
	}
	return g.cfg.AtWork == nil || g.cfg.AtWork()
}

// announce makes an instance known that another process is starting. One whose function or
// GPU is not served here is of no use.
func (g *Gateway) announce(r instance.Record) {
	t := (*g.names.Load())[r.Function]
	gpu := g.firstGPU(r)
	if t == nil || gpu < 0 {
		return
	}
	if s, fresh := g.engine.announce(t, int32(gpu), r); fresh {
		g.deed(func() { g.watchStart(s) })
	}
}

// watchStart forgets an instance that nothing is starting any more.
func (g *Gateway) watchStart(s *server) {
	for pause(g.life, startingLook) {
		r, starts := g.engine.startOf(s)
		if !starts {
			return
		}
		if g.atWork(r) {
			continue
		}
		l, err := g.cfg.Catalog.Look(g.life) // its starter may have ended because it is ready
		if err != nil {
			continue
		}
		at := slices.IndexFunc(l.Instances, func(other instance.Record) bool { return other.ID == r.ID })
		if at < 0 || l.Instances[at].State == instance.Starting {
			g.log.Warn("instance not waited for: what started it has ended", "instance", r.ID, "function", r.Function)
			g.engine.retract(s)
			return
		}
	}
}

// announce makes an instance known that is starting. Fresh says that it was not known.
func (e *engine) announce(t *target, gpu int32, r instance.Record) (s *server, fresh bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.announcedAs(r.ID); s != nil && s.target == t && s.gpu == gpu {
		s.record = r
		return s, false
	} else if s != nil {
		e.forsake(s)
	}
	s = e.other(t, gpu, r, serverStarts)
	e.step(queue.Event{Kind: queue.Adopted, Instance: s.id, Function: t.number, GPU: gpu, To: residency.GPUWarm, Pinned: true, Starting: true, Mem: int64(r.Slice.Mem)})
	return s, true
}

// announced returns the instances that others are starting.
func (e *engine) announced() (out []*server) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.servers {
		if !s.own && s.state == serverStarts {
			out = append(out, s)
		}
	}
	return out
}

// announcedAs returns the instance of that id which another process is starting, or nil.
// Locked.
func (e *engine) announcedAs(id string) *server {
	for _, s := range e.servers {
		if !s.own && s.state == serverStarts && s.record.ID == id {
			return s
		}
	}
	return nil
}

// startOf returns the record of an instance of another process, and whether it is still
// starting.
func (e *engine) startOf(s *server) (r instance.Record, starts bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return s.record, s.state == serverStarts
}

// retract forgets an instance of another process that will not become ready.
func (e *engine) retract(s *server) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forsake(s)
}

// retractID is retract of the instance of that id, if another process was starting it.
func (e *engine) retractID(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.announcedAs(id); s != nil {
		e.forsake(s)
	}
}

// forsake is retract. Locked.
func (e *engine) forsake(s *server) {
	if s.state != serverStarts {
		return
	}
	e.gone(s)
	e.step(queue.Event{Kind: queue.Lost, Instance: s.id, Function: s.target.number})
}
