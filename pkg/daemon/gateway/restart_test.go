package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
)

func TestRestartable(t *testing.T) {
	for _, c := range []struct {
		restart, runtime string
		status           int
		want             bool
	}{
		{"", instance.Process, 1, false}, {"no", instance.Process, 1, false},
		{"on-failure", instance.Process, 1, true}, {"on-failure", instance.Process, 0, false}, {"on-failure", instance.Process, -1, true},
		{"always", instance.Process, 0, true}, {"always", instance.Docker, 1, false},
	} {
		if got := restartable(function.Function{Restart: c.restart}, c.runtime, instance.State{ExitCode: c.status}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestPauses: 1, 2, 4, … 60 s between starts in a row, and 1 s again after what ran
// for a while; a clock that was set back is no while.
func TestPauses(t *testing.T) {
	var r restarts
	var got []time.Duration
	for range 8 {
		got = append(got, r.next("f", time.Second)/time.Second)
	}
	if want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60}; !slices.Equal(got, want) {
		t.Errorf("%d, want %d", got, want)
	}
	if first := r.next("f", steady); first != firstRestart || r.next("g", -time.Hour) != firstRestart || r.next("f", 0) != 2*firstRestart {
		t.Errorf("%v after it ran for a while", first)
	}
}

// record is that of an instance; its id is empty if there is none.
func (w *world) record(id string) (r instance.Record) {
	l, err := w.catalog.Look(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range l.Instances {
		if r.ID == id {
			return r
		}
	}
	return r
}

// TestRestart: an instance of gfaas up that ended is started again as it was, and is
// called again; one that is stopped meanwhile, or whose function does not say so, is
// not; one that ended while there was no gateway is, by the next.
func TestRestart(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	f := fn("f", func(f *function.Function) { f.Restart = "on-failure" })
	g := fn("g", func(f *function.Function) { f.Restart = "no" })
	w.apply(f, g)
	w.up("f-0", f)
	w.up("f-1", f)
	w.up("g-0", g)
	w.until("all are there", func() bool { return len(w.servers()) == 3 })
	before := w.record("f-0")
	for _, id := range []string{"f-0", "g-0"} {
		w.runtime.Kill(id, 3)
	}
	w.runtime.Kill("f-1", 3)
	w.until("it is known to have ended", func() bool { return !slices.Contains(w.servers(), "f-1") })
	// As gfaas down does. Where this comes late it runs again by now.
	if err := errors.Join(w.launcher().Stop(context.Background(), instance.Record{ID: "f-1"}), w.catalog.Forget(context.Background(), "f-1")); err != nil {
		t.Fatal(err)
	}
	w.until("it runs again", func() bool { return fmt.Sprint(w.runtime.Running()) == "[f-0]" && slices.Contains(w.servers(), "f-0") })
	if r := w.record("f-0"); r.Restarts != 1 || r.State != instance.Ready || r.Slice != before.Slice || r.Handle == before.Handle || r.Owner != "" {
		t.Errorf("started again as %+v", r)
	}
	if a := w.do("POST", "/function/f", "x"); a.status != 200 || a.header.Get("Gfaas-Instance") != "f-0" || a.header.Get("Gfaas-Start") != "gpu-warm" {
		t.Errorf("%+v", a)
	}
	w.until("nobody is at work on the other", func() bool {
		w.restarts.mu.Lock()
		defer w.restarts.mu.Unlock()
		return len(w.restarts.atWork) == 0
	})
	if running := w.runtime.Running(); fmt.Sprint(running) != "[f-0]" {
		t.Errorf("%v run", running)
	}
	w.close()
	w.runtime.Kill("f-0", 0)
	w.open()
	w.until("it runs again", func() bool { return slices.Contains(w.servers(), "f-0") && w.record("f-0").Restarts == 2 })
}

// TestRestartFails: as long as an instance does not start again it is tried, and it
// is as it was between; a gateway that is killed while it tries leaves it to the next.
func TestRestartFails(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	f := fn("f", func(f *function.Function) { f.Restart = "always" })
	w.apply(f)
	w.up("f-0", f)
	w.until("it is there", func() bool { return len(w.servers()) == 1 })
	broken := fn("f", func(f *function.Function) { f.Restart, f.Env = "always", map[string]string{"PROBE_EXIT": "3"} })
	w.apply(broken)
	w.runtime.Kill("f-0", 1)
	w.until("it was tried", func() bool { return w.record("f-0").Restarts >= 1 })
	w.close() // between two tries, or in one
	if r := w.record("f-0"); r.State != instance.Starting || len(w.runtime.Running()) > 0 {
		t.Errorf("%+v, and %v run", r, w.runtime.Running())
	}
	w.open()
	w.apply(f)
	w.until("it runs again", func() bool { return slices.Contains(w.servers(), "f-0") && w.record("f-0").State == instance.Ready })
}

// TestRestartLater: as long as nobody says whether an instance has ended it is not
// given up.
func TestRestartLater(t *testing.T) {
	s := &silent{}
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { s.Starter, c.Starter = c.Starter, s })
	f := fn("f", func(f *function.Function) { f.Restart = "always" })
	w.apply(f)
	r := w.up("f-0", f)
	w.until("it is adopted", func() bool { return len(w.servers()) == 1 })
	s.times.Store(1)
	if _, err := w.restart(r, false); err == nil || errors.Is(err, errOthers) {
		t.Errorf("%v", err)
	}
	if _, err := w.restart(r, false); !errors.Is(err, errOthers) {
		t.Errorf("of one that runs: %v", err)
	}
}

// TestRestartOwn: another instance takes the place of one of the gateway's own.
func TestRestartOwn(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f", func(f *function.Function) { f.Restart = "always" }), fn("g"))
	w.do("POST", "/function/f", "x")
	w.do("POST", "/function/g", "x")
	w.runtime.Kill("f.1", 3)
	w.runtime.Kill("g.2", 3)
	w.until("another is there", func() bool { return fmt.Sprint(w.servers()) == "[f.3]" && fmt.Sprint(w.runtime.Running()) == "[f.3]" })
	if a := w.do("POST", "/function/f", "x"); a.header.Get("Gfaas-Instance") != "f.3" || a.header.Get("Gfaas-Start") != "gpu-warm" {
		t.Errorf("%+v", a)
	}
	if n := w.engine.live((*w.names.Load())["f"]); n != 1 {
		t.Errorf("%d instances", n)
	}
}

// TestEndsTooSoon: of what is kept ready and ends at once another is started later
// each time, and for a call all the same.
func TestEndsTooSoon(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f", func(f *function.Function) { f.Scale.Min = 1 }))
	w.until("one is kept", func() bool {
		return fmt.Sprint(w.servers()) == "[f.1]" && len(w.runtime.Running()) == 1 && w.Status().Instances[0].State == "idle"
	})
	w.runtime.Kill("f.1", 3)
	f := (*w.names.Load())["f"]
	w.until("it is known", func() bool {
		w.engine.mu.Lock()
		defer w.engine.mu.Unlock()
		return f.held == 1 && f.spec.Min == 0 || w.lastID.Load() == 2
	})
	if a := w.do("POST", "/function/f", "x"); a.status != 200 || a.header.Get("Gfaas-Instance") != "f.2" {
		t.Errorf("%+v", a)
	}
	w.runtime.Kill("f.2", 3)
	w.until("another is kept", func() bool { return fmt.Sprint(w.servers()) == "[f.3]" })
	w.restarts.mu.Lock()
	defer w.restarts.mu.Unlock()
	if n := w.restarts.tries["min of f"]; n != 2 {
		t.Errorf("%d pauses", n)
	}
}
