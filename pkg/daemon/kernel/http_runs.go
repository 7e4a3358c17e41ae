package kernel

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/kgraph"
)

// RunStatus describes an asynchronous run.
type RunStatus struct {
	ID      string            `json:"id"`
	Client  string            `json:"client"`
	State   string            `json:"state"`             // queued, running, done or failed
	Results map[string]string `json:"results,omitempty"` // references to the results, by the name of the buffer
	Error   *Refusal          `json:"error,omitempty"`   // if failed
	Answer  *Answer           `json:"answer,omitempty"`  // if done
}

// RunSummary describes an asynchronous run in a list.
type RunSummary struct {
	ID      string  `json:"id"`
	State   string  `json:"state"`
	AgeMS   float64 `json:"age_ms"` // time since the run was submitted
	Results int     `json:"results"`
	Code    string  `json:"code,omitempty"` // if failed
}

// maxWait limits how long a request for the status of a run waits.
const maxWait = 5 * time.Minute

// submitRun accepts an asynchronous run and answers at once.
func (a *api) submitRun(w http.ResponseWriter, r *http.Request) *kgraph.Problem {
	ctx, cancel := context.WithCancel(context.Background())
	run := &asyncRun{cancel: cancel, done: make(chan struct{})}
	submitted, release, p := a.receiveRequest(w, r, run)
	defer release()
	if p != nil {
		cancel()
		return p
	}
	a.mu.Lock()
	status := a.statusOf(run)
	a.mu.Unlock()
	go func() {
		defer cancel()
		_, _ = a.await(ctx, submitted) // conclude records the outcome
	}()
	w.Header().Set("Location", "/v1/runs/"+status.ID)
	a.reply(w, http.StatusAccepted, status)
	return nil
}

// statusOf returns the status of a run, without its answer. The caller holds the lock.
func (a *api) statusOf(x *asyncRun) *RunStatus {
	status := &RunStatus{ID: x.id, Client: x.client.name, State: x.state()}
	for _, key := range x.results {
		_, name, _ := kgraph.Reference(key)
		if status.Results == nil {
			status.Results = map[string]string{}
		}
		status.Results[name] = key
	}
	if p := x.problem; p != nil {
		status.Error = &Refusal{p.Code, p.Message, p.Where}
	}
	return status
}

// findRun returns the run that the path of a request names. The caller holds the lock.
func (a *api) findRun(r *http.Request) (*asyncRun, *kgraph.Problem) {
	name, p := a.client(r)
	if p != nil {
		return nil, p
	}
	id := r.PathValue("id")
	c := a.clients[name]
	if c == nil || c.runs[id] == nil {
		return nil, problem(kgraph.NotFound, "", "unknown run %s: it was cancelled or deleted, has expired, or never existed", id)
	}
	return c.runs[id], nil
}

// getRun sends the status of a run. With the parameter wait, it first waits for the end of the run.
func (a *api) getRun(w http.ResponseWriter, r *http.Request) *kgraph.Problem {
	if text := r.URL.Query().Get("wait"); text != "" {
		limit, err := time.ParseDuration(text)
		if err != nil || limit < 0 || limit > maxWait {
			return problem(kgraph.BadRequest, "", "wait=%s, expected a duration from 0s to %v", text, maxWait)
		}
		a.mu.Lock()
		x, p := a.findRun(r)
		a.mu.Unlock()
		if p != nil {
			return p
		}
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-x.done:
		case <-timer.C:
		case <-r.Context().Done():
		}
	}
	a.mu.Lock()
	x, p := a.findRun(r)
	if p != nil {
		a.mu.Unlock()
		return p
	}
	status := a.statusOf(x)
	if x.answer == nil {
		a.mu.Unlock()
		a.reply(w, http.StatusOK, status)
		return nil
	}
	answer := *x.answer
	answer.Outputs = maps.Clone(answer.Outputs)
	for _, output := range answer.Outputs {
		if output.from != nil {
			output.from.readers++ // sendOutputs releases it
		}
	}
	a.mu.Unlock()
	status.Answer = &answer
	w.Header().Set("Server-Timing", answer.serverTiming())
	a.sendOutputs(w, status, answer.Outputs)
	return nil
}

// deleteRun cancels a queued run, and deletes the record and the results of any other.
func (a *api) deleteRunRequest(w http.ResponseWriter, r *http.Request) *kgraph.Problem {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, p := a.findRun(r)
	if p == nil {
		a.deleteRun(x)
		w.WriteHeader(http.StatusNoContent)
	}
	return p
}

// listRuns sends a list of the client's runs, in the order in which they were submitted.
func (a *api) listRuns(w http.ResponseWriter, r *http.Request) *kgraph.Problem {
	name, p := a.client(r)
	if p != nil {
		return p
	}
	list := struct {
		Runs []RunSummary `json:"runs"`
	}{[]RunSummary{}}
	a.mu.Lock()
	if c := a.clients[name]; c != nil {
		runs := slices.SortedFunc(maps.Values(c.runs), func(a, b *asyncRun) int {
			if n := a.submitted.Compare(b.submitted); n != 0 {
				return n
			}
			return strings.Compare(a.id, b.id)
		})
		for _, x := range runs {
			summary := RunSummary{ID: x.id, State: x.state(), AgeMS: ms(time.Since(x.submitted)), Results: len(x.results)}
			if x.problem != nil {
				summary.Code = x.problem.Code
			}
			list.Runs = append(list.Runs, summary)
		}
	}
	a.mu.Unlock()
	a.reply(w, http.StatusOK, list)
	return nil
}
