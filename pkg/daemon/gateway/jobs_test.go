package gateway

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
)

// training returns a training function of which the gateway starts min jobs.
func training(name string, min int, change ...func(*function.Function)) function.Function {
	f := fn(name, change...)
	f.Kind, f.Restart, f.MaxRestarts, f.Scale.Min = function.Training, function.RestartOnFailure, 6, min
	return f
}

// jobState returns the state of a job in the status of the gateway, or "".
func (w *world) jobState(id string) string {
	for _, i := range w.Status().Instances {
		if i.ID == id {
			return i.State
		}
	}
	return ""
}

// TestJobs checks that the gateway starts as many jobs of a training function as its scale.min, once: a job
// that has ended is not started again, neither by this gateway nor by the next one, until its record is removed
// or its function changes. An unfinished job survives the gateway.
func TestJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(echo), nil)
	w.apply(training("good", 1), training("bad", 1), training("long", 1), training("none", 0))
	ids := map[string]string{} // by function
	w.until("three jobs are running", func() bool {
		for _, i := range w.Status().Instances {
			if i.State == instance.Running {
				ids[i.Function] = i.ID
			}
		}
		return len(ids) == 3
	})
	if ids["none"] != "" {
		t.Errorf("a job of a function with scale.min 0 runs: %s", ids["none"])
	}
	w.runtime.Kill(ids["good"], 0)
	w.runtime.Kill(ids["bad"], 3)
	ended := func() bool {
		return w.jobState(ids["good"]) == instance.Succeeded && w.jobState(ids["bad"]) == instance.Failed
	}
	w.until("one job has succeeded, and one has failed", ended)
	for _, f := range w.Status().Functions {
		if want := map[string]string{"good": "succeeded", "bad": "failed", "long": "running", "none": "idle"}[f.Function]; f.State != want {
			t.Errorf("state of function %s: got %s, want %s", f.Function, f.State, want)
		}
	}
	w.close()
	if running := w.runtime.Running(); !slices.Equal(running, []string{ids["long"]}) {
		t.Errorf("jobs that run after the gateway: got %v, want [%s]", running, ids["long"])
	}
	w.open()
	w.until("the next gateway knows the results", ended)
	if s := w.jobState(ids["long"]); s != instance.Running {
		t.Errorf("state of the unfinished job: got %q, want running", s)
	}

	changed := training("good", 1, func(f *function.Function) { f.Env = map[string]string{"EPOCHS": "2"} })
	w.apply(changed, training("long", 1, func(f *function.Function) { f.GPUMem = 1 << 20 }))
	if err := w.catalog.Forget(context.Background(), ids["bad"]); err != nil { // as gfaas down does
		t.Fatal(err)
	}
	w.until("new jobs of both have started", func() bool {
		running := w.runtime.Running()
		return len(running) == 3 && slices.Contains(running, ids["long"]) && !slices.Contains(running, ids["good"]) && w.record(ids["good"]).ID == ""
	})

	w.apply(training("long", 0))
	w.until("the job that is not wanted any longer has ended", func() bool { return !slices.Contains(w.runtime.Running(), ids["long"]) })
	if err := w.catalog.Remove(context.Background(), "good", "bad"); err != nil {
		t.Fatal(err)
	}
	w.until("no job runs after its function was removed", func() bool { return len(w.runtime.Running()) == 0 })
}

// TestJobOfPlan checks that the gateway neither calls, restarts nor stops a job of gfaas up, and counts it.
func TestJobOfPlan(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(echo), nil)
	f := training("f", 1, func(f *function.Function) { f.GPUs = 2 }) // the gateway itself could not start it
	w.apply(f)
	w.gfaasUp("f-0", f)
	w.until("the job is running", func() bool { return w.jobState("f-0") == instance.Running })
	w.runtime.Kill("f-0", 3)
	w.until("the job has failed", func() bool { return w.jobState("f-0") == instance.Failed })
	if running := w.runtime.Running(); len(running) > 0 {
		t.Errorf("jobs that run: got %v, want none", running)
	}
	w.apply(training("f", 0))
	if r := w.record("f-0"); r.ID == "" {
		t.Error("the gateway removed a job of a plan")
	}
}

// TestJobsAnswerNoCalls checks that calls of a training function are refused at once, in all ways to call.
func TestJobsAnswerNoCalls(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.Async.Dir = t.TempDir(); c.Async.Concurrency, c.Async.Max = 1, 1 })
	w.apply(training("f", 0))
	for _, call := range []struct{ method, path string }{
		{"POST", "/function/f"}, {"GET", "/function/f/health"}, {"POST", "/async-function/f"}, {"GET", "/v2/models/f/ready"},
	} {
		t.Run(fmt.Sprint(call), func(t *testing.T) {
			a := w.do(call.method, call.path, "x")
			checkRefusal(t, a, 405, refusal.NotCallable)
			if allow, set := a.header["Allow"]; !set || allow[0] != "" {
				t.Errorf("header Allow: got %q, want an empty one", allow)
			}
		})
	}
}

// TestJobWaitsForGPU checks that a job that fits on no GPU is not started, and does not block others.
func TestJobWaitsForGPU(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(echo), func(c *Config) { c.GPUs = []GPU{{Name: "sim", Mem: 1 << 30}, {Name: "sim:1", Mem: 1 << 30}} })
	w.apply(training("large", 1, func(f *function.Function) { f.GPUMem = 2 << 30 }), training("small", 2, func(f *function.Function) { f.GPUMem = 1 << 29 }))
	on := map[string]bool{}
	w.until("both small jobs are running", func() bool {
		n := 0
		for _, i := range w.Status().Instances {
			if i.Function == "small" && i.State == instance.Running {
				n, on[i.GPU] = n+1, true
			}
		}
		return n == 2
	})
	if len(on) != 2 {
		t.Errorf("GPUs of the two jobs: got %v, want one job on each", on)
	}
	if running := w.runtime.Running(); len(running) != 2 {
		t.Errorf("jobs that run: got %v, want two", running)
	}
	w.apply(training("small", 0))
}
