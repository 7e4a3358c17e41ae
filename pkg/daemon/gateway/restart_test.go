package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
)

// record returns the record of an instance, or a zero Record if the catalog has none.
func (w *world) record(id string) (r instance.Record) {
	l, err := w.catalog.List(context.Background())
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

// TestRestart checks that if an instance of gfaas up ends, the gateway restarts it with
// its old placement and sends it calls again. It does not restart an instance that is
// stopped meanwhile, or whose function has no restart policy. A new gateway restarts an
// instance that ended while no gateway was running.
func TestRestart(t *testing.T) {
	t.Parallel()
	var log lines
	var released atomic.Int64
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) {
		c.Log = log.logger()
		c.Alone = func(context.Context) (func(), error) { return func() { released.Add(1) }, nil }
	})
	f := fn("f", func(f *function.Function) { f.Restart = "on-failure" })
	g := fn("g", func(f *function.Function) { f.Restart = "no" })
	w.apply(f, g)
	w.gfaasUp("f-0", f)
	w.gfaasUp("f-1", f)
	w.gfaasUp("g-0", g)
	w.until("three instances are adopted", func() bool { return len(w.startedIDs()) == 3 })
	before := w.record("f-0")
	for _, id := range []string{"f-0", "g-0"} {
		w.runtime.Kill(id, 3)
	}
	w.runtime.Kill("f-1", 3)
	w.until("the gateway has noticed the end of f-1", func() bool { return !slices.Contains(w.startedIDs(), "f-1") })
	// Stop the instance as gfaas down does. If the gateway was faster, it runs again by
	// now.
	if err := errors.Join(w.launcher().Stop(context.Background(), instance.Record{ID: "f-1"}), w.catalog.Forget(context.Background(), "f-1")); err != nil {
		t.Fatal(err)
	}
	w.until("f-0 runs again", func() bool {
		return fmt.Sprint(w.runtime.Running()) == "[f-0]" && slices.Contains(w.startedIDs(), "f-0")
	})
	if r := w.record("f-0"); r.Restarts != 1 || r.State != instance.Ready || r.Slice != before.Slice || r.Handle == before.Handle || r.Owner != "" {
		t.Errorf("got %+v; want state ready, one restart, a new handle and the same slice", r)
	}
	if a := w.do("POST", "/function/f", "x"); a.status != 200 || a.header.Get("Gfaas-Instance") != "f-0" || a.header.Get("Gfaas-Start") != "gpu-warm" {
		t.Errorf("got %+v; want status 200, Gfaas-Instance f-0, Gfaas-Start gpu-warm", a)
	}
	w.until("no restart is in progress", func() bool {
		begun := log.count("instance will be restarted")
		return begun >= 2 && released.Load() == int64(begun)
	})
	if running := w.runtime.Running(); fmt.Sprint(running) != "[f-0]" {
		t.Errorf("%v run, want [f-0]", running)
	}
	w.close()
	w.runtime.Kill("f-0", 0)
	w.open()
	w.until("f-0 runs again", func() bool { return slices.Contains(w.startedIDs(), "f-0") && w.record("f-0").Restarts == 2 })
}

// TestFailedRestartIsRetried checks that the gateway retries a failed restart, and
// between two tries the record shows the instance as starting. If the gateway ends
// between tries, the next gateway continues.
func TestFailedRestartIsRetried(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(echo), nil)
	f := fn("f", func(f *function.Function) { f.Restart = "always" })
	w.apply(f)
	w.gfaasUp("f-0", f)
	w.until("one instance is adopted", func() bool { return len(w.startedIDs()) == 1 })
	broken := fn("f", func(f *function.Function) { f.Restart, f.Env = "always", map[string]string{"PROBE_EXIT": "3"} })
	w.apply(broken)
	w.runtime.Kill("f-0", 1)
	w.until("the restart of f-0 was tried", func() bool { return w.record("f-0").Restarts >= 1 })
	w.close() // between two tries or during one
	if r := w.record("f-0"); r.State != instance.Starting || len(w.runtime.Running()) > 0 {
		t.Errorf("got %+v, and %v run; want state starting, and none", r, w.runtime.Running())
	}
	w.open()
	w.apply(f)
	w.until("f-0 runs again", func() bool { return slices.Contains(w.startedIDs(), "f-0") && w.record("f-0").State == instance.Ready })
}

// TestOwnInstanceIsReplaced checks that if an instance of the gateway itself ends, a new
// instance replaces it.
func TestOwnInstanceIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(fn("f", func(f *function.Function) { f.Restart = "always" }), fn("g"))
	w.do("POST", "/function/f", "x")
	w.do("POST", "/function/g", "x")
	w.runtime.Kill("f.1", 3)
	w.runtime.Kill("g.2", 3)
	w.until("f.3 replaces the ended instance", func() bool {
		return fmt.Sprint(w.startedIDs()) == "[f.3]" && fmt.Sprint(w.runtime.Running()) == "[f.3]"
	})
	if a := w.do("POST", "/function/f", "x"); a.header.Get("Gfaas-Instance") != "f.3" || a.header.Get("Gfaas-Start") != "gpu-warm" {
		t.Errorf("got %+v; want Gfaas-Instance f.3, Gfaas-Start gpu-warm", a)
	}
	if n := w.dispatcher.Function("f").Info().Instances; n != 1 {
		t.Errorf("got %d instances, want 1", n)
	}
}

// lines collects the lines of a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// count returns the number of occurrences of text in the log.
func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// last returns the digits after the last occurrence of text.
func (l *lines) last(text string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.text.String()
	at := strings.LastIndex(all, text)
	if at < 0 {
		return ""
	}
	all = all[at+len(text):]
	return all[:len(all)-len(strings.TrimLeft(all, "0123456789"))]
}

// TestPauseAfterEarlyEnd checks that if an instance of scale.min ends soon after each
// start, the pause before the next start grows. A call starts an instance regardless of
// the pause.
func TestPauseAfterEarlyEnd(t *testing.T) {
	t.Parallel()
	var log lines
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Log = log.logger() })
	w.apply(fn("f", func(f *function.Function) { f.Scale.Min = 1 }))
	w.until("scale.min has its instance", func() bool {
		return fmt.Sprint(w.startedIDs()) == "[f.1]" && len(w.runtime.Running()) == 1 && w.Status().Instances[0].State == "idle"
	})
	w.runtime.Kill("f.1", 3)
	w.until("the gateway has noticed the end", func() bool {
		return w.dispatcher.Function("f").Info().Spec.Min == 0 || log.count("an instance ended soon after its start") == 1
	})
	if a := w.do("POST", "/function/f", "x"); a.status != 200 || a.header.Get("Gfaas-Instance") != "f.2" {
		t.Errorf("got %+v; want status 200, Gfaas-Instance f.2", a)
	}
	w.runtime.Kill("f.2", 3)
	w.until("f.3 is the instance of scale.min", func() bool { return fmt.Sprint(w.startedIDs()) == "[f.3]" })
	if n := log.count("an instance ended soon after its start"); n != 2 || log.count("in=2s") != 1 {
		t.Errorf("got %d pauses, want 2, the second one of 2 s", n)
	}
}

// TestCostsOutliveGateway checks that a gateway uses the costs that the last one measured, unless the function
// has changed or the file is damaged.
func TestCostsOutliveGateway(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.LearnedFile = filepath.Join(t.TempDir(), "costs.json") })
	w.apply(fn("f"), fn("g"))
	unmeasured := w.dispatcher.Function("f").Info().Spec
	w.do("POST", "/function/f", "x")
	w.do("POST", "/function/f", "x")
	w.do("POST", "/function/g", "x")
	measured := w.dispatcher.Function("f").Info().Spec
	if measured.Warm == unmeasured.Warm || measured.Cold == unmeasured.Cold {
		t.Fatalf("costs after calls: got warm %v and cold %v, want others than before", measured.Warm, measured.Cold)
	}
	w.close()
	w.open()
	w.apply(fn("f"), fn("g", func(f *function.Function) { f.Command = []string{"./other"} }))
	near := func(a, b time.Duration) bool { return max(a-b, b-a) <= b/10 }
	if got := w.dispatcher.Function("f").Info().Spec; !near(got.Warm, measured.Warm) || !near(got.Cold, measured.Cold) {
		t.Errorf("costs after a restart: got warm %v and cold %v, want %v and %v", got.Warm, got.Cold, measured.Warm, measured.Cold)
	}
	if got := w.dispatcher.Function("g").Info().Spec; got.Warm != unmeasured.Warm || got.Cold != unmeasured.Cold {
		t.Errorf("costs of a changed function: got warm %v and cold %v, want %v and %v", got.Warm, got.Cold, unmeasured.Warm, unmeasured.Cold)
	}
	w.close()
	if err := os.WriteFile(w.cfg.LearnedFile, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.open()
	if got := w.dispatcher.Function("f").Info().Spec; got.Warm != unmeasured.Warm {
		t.Errorf("warm duration with a damaged file: got %v, want %v", got.Warm, unmeasured.Warm)
	}
}
