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

// logs yields what the instances of a function printed, in order of time; of one
// instance if id is not empty. Followed, those that start later are among them, and
// it ends when ctx does.
func (g *Gateway) logs(ctx context.Context, t *target, id string, o ports.LogOptions) iter.Seq[logLine] {
	return func(yield func(logLine) bool) {
		if o.Follow {
			g.followLogs(ctx, t, id, o, yield)
			return
		}
		records := g.recordsOf(t, id)
		var logs []ports.LogLines
		for _, r := range records {
			logs = append(logs, g.cfg.Starter.Logs(ctx, r, o))
		}
		for p, err := range launch.Merged(logs) {
			if err != nil {
				g.log.Warn("log not read", "instance", records[p.From].ID, "err", err)
				continue
			}
			if !yield(lineOf(records[p.From], p.Line)) {
				return
			}
		}
	}
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
		for _, r := range g.recordsOf(t, id) {
			if followed[r.ID] {
				continue
			}
			followed[r.ID] = true
			reading.Go(func() {
				for line, err := range g.cfg.Starter.Logs(ctx, r, o) {
					if err != nil {
						return // most likely that it is over
					}
					select {
					case lines <- lineOf(r, line):
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

func lineOf(r instance.Record, l ports.LogLine) logLine {
	return logLine{Name: r.Function, Namespace: namespace, Instance: r.ID, Timestamp: l.Time, Text: l.Text}
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
