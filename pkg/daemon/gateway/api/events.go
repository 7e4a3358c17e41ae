package api

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
)

const (
	eventEvery = time.Second
	eventStale = eventEvery / 2   // longest age of a status that viewers share
	eventTime  = 10 * time.Second // longest time to send an event to a viewer
	mostEvents = 256              // limit on concurrent viewers
)

// events streams the gateway's status to viewers.
type events struct {
	api *API

	mu      sync.Mutex
	viewers int
	at      time.Time // when text was made
	text    []byte    // latest status, as JSON
}

// status returns the status as JSON, at most eventStale old.
func (e *events) status() []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	if now := time.Now(); now.Sub(e.at) >= eventStale {
		text, err := json.Marshal(e.api.cfg.Dispatcher.Status())
		if err != nil {
			panic(err) // impossible
		}
		e.text, e.at = text, now
	}
	return e.text
}

// add changes the number of viewers. It returns false if the limit would be exceeded.
func (e *events) add(viewers int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.viewers+viewers > mostEvents {
		return false
	}
	e.viewers += viewers
	return true
}

// serve sends the status once a second as server-sent events.
func (e *events) serve(w http.ResponseWriter, r *http.Request) {
	if !e.add(1) {
		e.api.refuse(w, r, &refusal.Error{Code: refusal.QueueFull, Retry: time.Minute, Message: "too many clients follow the events"})
		return
	}
	defer e.add(-1)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	control := http.NewResponseController(w)
	tick := time.NewTicker(eventEvery)
	defer tick.Stop()
	for {
		_ = control.SetWriteDeadline(time.Now().Add(eventTime))
		event := append(append([]byte("event: status\ndata: "), e.status()...), "\n\n"...)
		if _, err := w.Write(event); err != nil {
			return
		}
		if control.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-e.api.cfg.Dispatcher.Draining:
			return
		case <-tick.C:
		}
	}
}
