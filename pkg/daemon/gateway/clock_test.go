package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/clocktest"
	"github.com/gfaas/gfaas/pkg/function"
)

// TestClockIsSet: that somebody sets the wall's clock, by hours and to and fro, while
// calls run and wait, ends none of them and no instance, and nothing that is due comes
// earlier or later for it. The gateway's beginning is set, and not its now: what it
// keeps of times before is as far from now as it would be.
func TestClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{-5 * time.Hour, 5 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			began, goOn := make(chan bool, 2), make(chan bool)
			var text bytes.Buffer
			w := newWorld(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/wait" {
					began <- true
					<-goOn
				}
			}), func(c *Config) { c.Record, c.Concurrency, c.QueueTimeout, c.Timeout = &text, 1, time.Hour, time.Hour })
			short := fn("short", func(f *function.Function) { f.Scale.Idle, f.Scale.Max = 50*time.Millisecond, 1 })
			w.apply(fn("f", func(f *function.Function) { f.Scale.Idle, f.Scale.Max = time.Hour, 1 }), short)
			first := w.do("GET", "/function/f", "")
			answers := make(chan answer, 3)
			for range 2 { // one runs, one waits
				go func() { answers <- w.do("GET", "/function/f/wait", "") }()
			}
			<-began
			w.engine.mu.Lock()
			w.engine.epoch = clocktest.Set(t, w.engine.epoch, by)
			w.engine.mu.Unlock()
			go func() { answers <- w.do("GET", "/function/short", "") }() // waits behind them
			close(goOn)
			for range 3 {
				if a := <-answers; a.status != 200 || a.header.Get("Gfaas-Attempts") != "1" {
					t.Errorf("%+v", a)
				}
			}
			w.until("what has idled for as long as it may is stopped", func() bool {
				w.engine.mu.Lock()
				defer w.engine.mu.Unlock()
				return (*w.names.Load())["short"].instances == 0
			})
			if a := w.do("GET", "/function/f", ""); a.status != 200 || a.header.Get("Gfaas-Instance") != first.header.Get("Gfaas-Instance") {
				t.Errorf("before %+v, then %+v", first, a)
			}
			if s := w.status().Functions[0]; *s.RPS < 0 || *s.RPS > 4 || *s.P50MS <= 0 {
				t.Errorf("%v calls a second, in %v ms", *s.RPS, *s.P50MS)
			}
			w.close()
			last := 0.0
			for _, line := range bytes.Split(bytes.TrimSpace(text.Bytes()), []byte("\n"))[1:] {
				var l struct {
					Time *float64 `json:"time_ms"`
				}
				if err := json.Unmarshal(line, &l); err != nil || l.Time == nil || *l.Time < last || *l.Time > 1e6 {
					t.Fatalf("after %v: %s, %v", last, line, err)
				}
				last = *l.Time
			}
			if err := replayed(text.Bytes()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRecent: rates and latencies are of the last minute, whatever the wall's clock says.
func TestRecent(t *testing.T) {
	var r recent
	for at := range 200 {
		r.add(time.Duration(at)*time.Second, 10*time.Millisecond)
	}
	for _, c := range []struct {
		at  time.Duration
		rps string
	}{{200 * time.Second, "1.0"}, {230 * time.Second, "0.4"}, {time.Hour, "0.0"}} {
		rps, ms := r.look(c.at, 0.5)
		if got := fmt.Sprintf("%.1f", rps); got != c.rps || rps > 0 && (ms[0] < 9 || ms[0] > 11) {
			t.Errorf("at %v %s a second, in %v ms; want %s", c.at, got, ms, c.rps)
		}
	}
}
