package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/launch"
)

// logLine is a line of an instance's output, in OpenFaaS's format.
type logLine struct {
	Name      string    `json:"name"`
	Namespace string    `json:"namespace"`
	Instance  string    `json:"instance"`
	Timestamp time.Time `json:"timestamp"`
	Text      string    `json:"text"`
}

// InstanceLog is the log of one instance.
type InstanceLog struct {
	ID   string
	Logs func(context.Context, ports.LogOptions) ports.LogLines
}

// logLines yields the output of a function's instances, failed starts included, in order of
// time. If id is not empty, it yields only that instance's output. If the log is followed,
// logLines continues with instances that start or fail to start later, until ctx ends.
func (a *API) logLines(ctx context.Context, f *dispatch.Function, id string, o ports.LogOptions) iter.Seq[logLine] {
	return func(yield func(logLine) bool) {
		if o.Follow {
			a.followLogs(ctx, f, id, o, yield)
			return
		}
		sources := a.logsOf(f, id)
		var logs []ports.LogLines
		for _, s := range sources {
			logs = append(logs, s.Logs(ctx, o))
		}
		for p, err := range launch.Merged(logs) {
			if err != nil {
				a.cfg.Log.Warn("cannot read the log of an instance", "instance", sources[p.From].ID, "err", err)
				continue
			}
			if !yield(sources[p.From].line(f.Name(), p.Line)) {
				return
			}
		}
	}
}

// logsOf returns the logs of a function's instances, and of its failed starts unless a
// current instance has the same ID.
func (a *API) logsOf(f *dispatch.Function, id string) (out []InstanceLog) {
	for _, r := range f.Records(id) {
		out = append(out, InstanceLog{r.ID, func(ctx context.Context, o ports.LogOptions) ports.LogLines {
			return a.cfg.Starter.Logs(ctx, r, o)
		}})
	}
	for _, failed := range a.cfg.FailedStarts(f.Name()) {
		if (id == "" || failed.ID == id) && !slices.ContainsFunc(out, func(s InstanceLog) bool { return s.ID == failed.ID }) {
			out = append(out, failed)
		}
	}
	return out
}

func (s InstanceLog) line(function string, line ports.LogLine) logLine {
	return logLine{Name: function, Namespace: namespace, Instance: s.ID, Timestamp: line.Time, Text: line.Text}
}

// newInstances is the interval of checks for new instances while logs are followed.
const newInstances = 250 * time.Millisecond

func (a *API) followLogs(ctx context.Context, f *dispatch.Function, id string, o ports.LogOptions, yield func(logLine) bool) {
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel()
	lines := make(chan logLine)
	followed := map[string]bool{}
	tick := time.NewTicker(newInstances)
	defer tick.Stop()
	for {
		for _, s := range a.logsOf(f, id) {
			if followed[s.ID] {
				continue
			}
			followed[s.ID] = true
			reading.Go(func() {
				for line, err := range s.Logs(ctx, o) {
					if err != nil {
						return // most likely because the log has ended
					}
					select {
					case lines <- s.line(f.Name(), line):
					case <-ctx.Done():
						return
					}
				}
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-a.cfg.Life:
			return
		case <-tick.C:
		case line := <-lines:
			if !yield(line) {
				return
			}
		}
	}
}

// serveLogs answers with the output of a function's instances, one JSON object per line.
func (o *openFaaS) serveLogs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	options, err := logOptions(q.Get("tail"), q.Get("since"), q.Get("follow"))
	if err != nil {
		o.refuse(w, r, stateFault(err))
		return
	}
	name, _ := splitName(q.Get("name"))
	t := o.cfg.Dispatcher.Function(name)
	if t == nil || !isNamespace(q.Get("namespace")) {
		o.refuse(w, r, refusal.UnknownFunction(name))
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	control := http.NewResponseController(w)
	_ = control.Flush()
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	for l := range o.logLines(r.Context(), t, q.Get("instance"), options) {
		line.Reset()
		_ = enc.Encode(l)
		_ = control.SetWriteDeadline(time.Now().Add(logPause))
		if _, err := w.Write(line.Bytes()); err != nil {
			return
		}
		if options.Follow && control.Flush() != nil {
			return
		}
	}
}

// logPause is the longest time to send one line to a reader.
const logPause = 30 * time.Second

func logOptions(tail, since, follow string) (o ports.LogOptions, err error) {
	o.Tail = -1
	if tail != "" {
		if _, err := fmt.Sscanf(tail+"\n", "%d\n", &o.Tail); err != nil {
			return o, refusal.Bad("tail: expected a number of lines")
		}
		if o.Tail == 0 {
			o.Tail = -1 // in OpenFaaS, a tail of 0 means no limit
		}
	}
	if since != "" {
		if o.Since, err = time.Parse(time.RFC3339Nano, since); err != nil {
			return o, refusal.Bad("since: expected a time like 2026-01-02T15:04:05Z")
		}
	}
	switch follow {
	case "true", "1":
		o.Follow = true
	case "", "false", "0":
	default:
		return o, refusal.Bad("follow: expected true or false")
	}
	return o, nil
}
