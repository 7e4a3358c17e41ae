package gateway

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

const (
	eventEvery = time.Second
	eventStale = eventEvery / 2   // until when one look serves several viewers
	eventTime  = 10 * time.Second // for a viewer to take one
	mostEvents = 256              // viewers at a time
)

// looks is how everything stands, as all who follow it are told.
type looks struct {
	mu      sync.Mutex
	viewers int
	at      time.Time
	text    []byte
}

// text is how everything stands, or stood just now.
func (g *Gateway) text() []byte {
	l := &g.looks
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); now.Sub(l.at) >= eventStale {
		text, err := json.Marshal(g.status())
		if err != nil {
			panic(err) // there is nothing in it that cannot be
		}
		l.text, l.at = text, now
	}
	return l.text
}

// viewing takes note of a viewer; false if there are too many.
func (l *looks) viewing(by int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.viewers+by > mostEvents {
		return false
	}
	l.viewers += by
	return true
}

// serveEvents tells how everything stands, every second, as server-sent events.
func (g *Gateway) serveEvents(w http.ResponseWriter, r *http.Request) {
	if !g.looks.viewing(1) {
		g.refuse(w, r, &Error{Status: http.StatusTooManyRequests, Code: codeQueueFull, Retry: time.Minute, Message: "too many follow the events already"})
		return
	}
	defer g.looks.viewing(-1)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	control := http.NewResponseController(w)
	tick := time.NewTicker(eventEvery)
	defer tick.Stop()
	for {
		_ = control.SetWriteDeadline(time.Now().Add(eventTime))
		event := append(append([]byte("event: status\ndata: "), g.text()...), "\n\n"...)
		if _, err := w.Write(event); err != nil {
			return
		}
		if control.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-g.leaving:
			return
		case <-tick.C:
		}
	}
}
