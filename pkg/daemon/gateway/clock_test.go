package gateway

import (
	"bytes"
	"encoding/json"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/clocktest"
	"github.com/gfaas/gfaas/pkg/function"
)

// TestClockIsSet checks that if the wall clock is set back and forth by hours while calls
// run and wait, the gateway ends no call and no instance, and every timer fires when it
// is due. The test changes the gateway's epoch instead of its current time: times that
// the gateway has stored before keep the right distance from now.
func TestClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{-5 * time.Hour, 5 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			began, goOn := make(chan bool, 2), make(chan bool)
			var text bytes.Buffer
			var mu sync.Mutex
			epoch := time.Now()
			w := newWorld(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/wait" {
					began <- true
					<-goOn
				}
			}), func(c *Config) {
				c.Record, c.Concurrency, c.QueueTimeout, c.Timeout = &text, 1, time.Hour, time.Hour
				c.dispatchConfig.Now = func() time.Duration {
					mu.Lock()
					defer mu.Unlock()
					return time.Since(epoch)
				}
			})
			short := fn("short", func(f *function.Function) { f.Scale.Idle, f.Scale.Max = 50*time.Millisecond, 1 })
			w.apply(fn("f", func(f *function.Function) { f.Scale.Idle, f.Scale.Max = time.Hour, 1 }), short)
			first := w.do("GET", "/function/f", "")
			answers := make(chan answer, 3)
			for range 2 { // one call runs, the other one is queued
				go func() { answers <- w.do("GET", "/function/f/wait", "") }()
			}
			<-began
			mu.Lock()
			epoch = clocktest.Set(t, epoch, by)
			mu.Unlock()
			go func() { answers <- w.do("GET", "/function/short", "") }() // queued behind the other two
			close(goOn)
			for range 3 {
				if a := <-answers; a.status != 200 || a.header.Get("Gfaas-Attempts") != "1" {
					t.Errorf("got %+v; want status 200, Gfaas-Attempts 1", a)
				}
			}
			w.until("the idle instance of short is stopped", func() bool {
				return w.dispatcher.Function("short").Info().Instances == 0
			})
			if a := w.do("GET", "/function/f", ""); a.status != 200 || a.header.Get("Gfaas-Instance") != first.header.Get("Gfaas-Instance") {
				t.Errorf("got %+v; want status 200 of the same instance as %+v", a, first)
			}
			if s := w.Status().Functions[0]; *s.RPS < 0 || *s.RPS > 4 || *s.P50MS <= 0 {
				t.Errorf("got %v calls per second with a median of %v ms; want 0 to 4 and more than 0", *s.RPS, *s.P50MS)
			}
			w.close()
			last := 0.0
			for _, line := range bytes.Split(bytes.TrimSpace(text.Bytes()), []byte("\n"))[1:] {
				var l struct {
					Time *float64 `json:"time_ms"`
				}
				if err := json.Unmarshal(line, &l); err != nil || l.Time == nil || *l.Time < last || *l.Time > 1e6 {
					t.Fatalf("got %s, %v; want a time from %v to 1e6", line, err, last)
				}
				last = *l.Time
			}
			if err := replayed(text.Bytes()); err != nil {
				t.Error(err)
			}
		})
	}
}
