package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/wire"
)

// sick is a fake token daemon that reports faults.
type sick struct {
	mu     sync.Mutex
	faults []wire.InstanceFault
	log    strings.Builder
	asked  int
}

func (s *sick) ask(context.Context) ([]wire.InstanceFault, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	return slices.Clone(s.faults), nil
}

// report adds a fault of an instance.
func (s *sick) report(id string, change func(*wire.InstanceFault)) {
	f := wire.InstanceFault{Instance: id, GPU: "sim", PID: 1, Call: "cuCtxSynchronize", Code: 700, Name: wire.FaultName(700), Time: time.Now()}
	if change != nil {
		change(&f)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

func (s *sick) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(p)
}

func (s *sick) logged(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.log.String(), text)
}

// loggedOnce waits until the log contains text, because the log is written after the
// status has changed. It fails the test if text occurs more than once.
func (s *sick) loggedOnce(w *world, text string) {
	w.t.Helper()
	w.until(fmt.Sprintf("the log has %q", text), func() bool { return s.logged(text) > 0 })
	if n := s.logged(text); n != 1 {
		w.t.Errorf("logged %d times, want once:\n%s", n, s.log.String())
	}
}

func sickWorld(t *testing.T, handler http.Handler) (*world, *sick) {
	s := &sick{}
	return newWorld(t, handler, func(c *Config) {
		c.Faults, c.Log = s.ask, slog.New(slog.NewTextHandler(s, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}), s
}

// TestFaultedInstanceIsReplaced checks that if an instance of the gateway itself can no
// longer use CUDA, the gateway stops and replaces it once, whatever the function's
// restart policy.
func TestFaultedInstanceIsReplaced(t *testing.T) {
	t.Parallel()
	for _, restart := range []string{"", "no", "on-failure", "always"} {
		t.Run(restart, func(t *testing.T) {
			t.Parallel()
			w, s := sickWorld(t, http.HandlerFunc(echo))
			w.apply(fn("f", func(f *function.Function) { f.Restart = restart }), fn("g"))
			w.do("POST", "/function/f", "x")
			w.do("POST", "/function/g", "x")
			s.report("f.1", nil)
			w.until("the faulted instance is replaced", func() bool {
				return fmt.Sprint(w.startedIDs()) == "[f.3 g.2]" && fmt.Sprint(w.runtime.Running()) == "[f.3 g.2]"
			})
			if a := w.do("POST", "/function/f", "x"); a.status != 200 || a.header.Get("Gfaas-Instance") != "f.3" {
				t.Errorf("got %+v; want status 200, Gfaas-Instance f.3", a)
			}
			s.loggedOnce(w, "instance=f.1 function=f pid=1 call=cuCtxSynchronize code=700 error=CUDA_ERROR_ILLEGAL_ADDRESS")
		})
	}
}

// TestFaultedInstanceOfUp checks that if an instance of gfaas up can no longer use CUDA,
// the gateway restarts it if its function has a restart policy. Otherwise it keeps
// running, is shown as faulted and gets no calls.
func TestFaultedInstanceOfUp(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		restart, runtime string
		again            bool
	}{
		{"", instance.Process, false}, {"no", instance.Process, false}, {"on-failure", instance.Process, true}, {"always", instance.Process, true},
		{"no", instance.Docker, false}, {"on-failure", instance.Docker, true}, {"always", instance.Docker, true},
	} {
		t.Run(tt.restart+" "+tt.runtime, func(t *testing.T) {
			t.Parallel()
			w, s := sickWorld(t, http.HandlerFunc(echo))
			f := fn("f", func(f *function.Function) {
				f.Restart = tt.restart
				if tt.runtime == instance.Docker {
					f.Command, f.Image = nil, "image"
				}
			})
			w.apply(f)
			w.gfaasUp("f-0", f)
			w.until("f-0 is adopted", func() bool { return fmt.Sprint(w.startedIDs()) == "[f-0]" })
			before := w.record("f-0")
			s.report("f-0", func(f *wire.InstanceFault) { f.After = "other" })
			if tt.again {
				w.until("f-0 runs again", func() bool {
					r := w.record("f-0")
					return r.Restarts == 1 && r.State == instance.Ready && r.Handle != before.Handle && fmt.Sprint(w.startedIDs()) == "[f-0]" &&
						w.Status().Instances[0].State != "faulted"
				})
			} else {
				w.until("the status shows f-0 as faulted", func() bool { i := w.Status().Instances; return len(i) == 1 && i[0].State == "faulted" })
				if text := w.Status().Instances[0].Fault; text != "CUDA error 700 (CUDA_ERROR_ILLEGAL_ADDRESS) from cuCtxSynchronize, after the fault of other" {
					t.Errorf("the status has the fault %q, want error 700 after the fault of other", text)
				}
				if r := w.record("f-0"); r.Handle != before.Handle || fmt.Sprint(w.runtime.Running()) != "[f-0]" {
					t.Errorf("got %+v, and %v run; want an unchanged f-0", r, w.runtime.Running())
				}
			}
			want := map[bool]string{true: "f-0", false: "f.1"}[tt.again]
			if a := w.do("POST", "/function/f", "x"); a.status != 200 || a.header.Get("Gfaas-Instance") != want {
				t.Errorf("call after the fault: got %+v, want an answer of %s", a, want)
			}
			s.loggedOnce(w, "instance=f-0 function=f pid=1 call=cuCtxSynchronize code=700 error=CUDA_ERROR_ILLEGAL_ADDRESS after=other")
		})
	}
}

// TestFaultedCalls checks that calls that run on an instance when it faults are retried
// if the rules for calls without an answer allow it. Queued calls go to another instance.
func TestFaultedCalls(t *testing.T) {
	var mu sync.Mutex
	began := map[string]int{}
	w, s := sickWorld(t, pathHandlers{"/hang": func(rw http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Call-Id")
		mu.Lock()
		began[id]++
		n := began[id]
		mu.Unlock()
		if n == 1 && id != "waits" {
			<-r.Context().Done()
			return
		}
		_, _ = rw.Write([]byte("again"))
	}})
	w.apply(fn("f", func(f *function.Function) { f.Scale.Max = 1; f.Inflight = 2 }))
	var calls sync.WaitGroup
	send := func(id, method, key string, status, attempts int) {
		calls.Go(func() {
			r, err := http.NewRequest(method, "http://"+w.WebAddr().String()+"/function/f/hang", nil)
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("X-Call-Id", id)
			if key != "" {
				r.Header.Set("Idempotency-Key", key)
			}
			a, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			_ = a.Body.Close()
			if a.StatusCode != status || a.Header.Get("Gfaas-Attempts") != fmt.Sprint(attempts) {
				t.Errorf("%s: %d after %s attempts, want %d after %d", id, a.StatusCode, a.Header.Get("Gfaas-Attempts"), status, attempts)
			}
		})
	}
	send("get", "GET", "", 200, 2)
	send("post", "POST", "", 502, 1)
	w.until("both calls run", func() bool { mu.Lock(); defer mu.Unlock(); return began["get"] == 1 && began["post"] == 1 })
	send("waits", "POST", "", 200, 1)
	w.until("the third call is queued", func() bool { return *w.Status().Functions[0].Waiting == 1 })
	s.report("f.1", nil)
	calls.Wait()
	http.DefaultClient.CloseIdleConnections()
}

// TestUnrelatedFaultsChangeNothing checks that faults of other instances, of processes
// that have ended, and faults older than the instance change nothing.
func TestUnrelatedFaultsChangeNothing(t *testing.T) {
	w, s := sickWorld(t, http.HandlerFunc(echo))
	w.apply(fn("f"))
	s.report("f.1", func(f *wire.InstanceFault) { f.Time = f.Time.Add(-time.Hour) })
	s.report("f.1", func(f *wire.InstanceFault) { f.Ended = true })
	s.report("g.1", nil)
	w.do("POST", "/function/f", "x")
	s.mu.Lock()
	queries := s.asked
	s.mu.Unlock()
	w.until("the gateway has queried the token daemon three times", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.asked >= queries+3 })
	if a := w.do("POST", "/function/f", "x"); a.header.Get("Gfaas-Instance") != "f.1" || s.logged("CUDA") != 0 {
		t.Errorf("got %+v; want Gfaas-Instance f.1, and no CUDA error in the log:\n%s", a, s.log.String())
	}
}
