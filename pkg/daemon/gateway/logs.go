package gateway

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
)

// logLine is a line that an instance printed, as OpenFaaS has it.
type logLine struct {
	Name      string    `json:"name"`
	Namespace string    `json:"namespace"`
	Instance  string    `json:"instance"`
	Timestamp time.Time `json:"timestamp"`
	Text      string    `json:"text"`
}

// logs yields what the instances of a function printed, and those whose starts failed, in
// order of time; of one instance if id is not empty. Followed, it goes on with instances
// that start or fail to start later, until ctx ends.
func (g *Gateway) logs(ctx context.Context, t *target, id string, o ports.LogOptions) iter.Seq[logLine] {
	return func(yield func(logLine) bool) {
		if o.Follow {
			g.followLogs(ctx, t, id, o, yield)
			return
		}
		sources := g.sourcesOf(t, id)
		var logs []ports.LogLines
		for _, s := range sources {
			logs = append(logs, s.lines(ctx, o))
		}
		for p, err := range launch.Merged(logs) {
			if err != nil {
				g.log.Warn("log not read", "instance", sources[p.From].id, "err", err)
				continue
			}
			if !yield(sources[p.From].line(t.name, p.Line)) {
				return
			}
		}
	}
}

// source is where an instance's log comes from.
type source struct {
	id    string
	lines func(context.Context, ports.LogOptions) ports.LogLines
}

// sourcesOf returns the logs of a function's instances, and of its starts that failed, less
// those of ids that have an instance now.
func (g *Gateway) sourcesOf(t *target, id string) (out []source) {
	for _, r := range g.recordsOf(t, id) {
		out = append(out, source{r.ID, func(ctx context.Context, o ports.LogOptions) ports.LogLines { return g.cfg.Starter.Logs(ctx, r, o) }})
	}
	if g.cfg.FailedStarts == nil {
		return out
	}
	for _, f := range g.cfg.FailedStarts(t.name) {
		if (id == "" || f.ID == id) && !slices.ContainsFunc(out, func(s source) bool { return s.id == f.ID }) {
			out = append(out, source{f.ID, f.Logs})
		}
	}
	return out
}

func (s source) line(function string, l ports.LogLine) logLine {
	return logLine{Name: function, Namespace: namespace, Instance: s.id, Timestamp: l.Time, Text: l.Text}
}

// newInstances is how often it is looked for instances whose logs are to be
// followed.
const newInstances = 250 * time.Millisecond

func (g *Gateway) followLogs(ctx context.Context, t *target, id string, o ports.LogOptions, yield func(logLine) bool) {
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	lines := make(chan logLine)
	followed := map[string]bool{}
	tick := time.NewTicker(newInstances)
	defer tick.Stop()
	for {
		for _, s := range g.sourcesOf(t, id) {
			if followed[s.id] {
				continue
			}
			followed[s.id] = true
			reading.Go(func() {
				for line, err := range s.lines(ctx, o) {
					if err != nil {
						return // most likely that it is over
					}
					select {
					case lines <- s.line(t.name, line):
					case <-ctx.Done():
						return
					}
				}
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-g.life.Done():
			return
		case <-tick.C:
		case line := <-lines:
			if !yield(line) {
				return
			}
		}
	}
}

// recordsOf are the instances of a function that run, by id; the one of that id if
// it is not empty.
func (g *Gateway) recordsOf(t *target, id string) (records []instance.Record) {
	e := &g.engine
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.servers {
		if s.target == t && s.record.Handle.Runtime != "" && (id == "" || s.record.ID == id) {
			records = append(records, s.record)
		}
	}
	slices.SortFunc(records, func(a, b instance.Record) int { return strings.Compare(a.ID, b.ID) })
	return records
}
