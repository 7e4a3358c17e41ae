package gateway

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/policy/queue"
)

// TestModelsBesideStreams checks that two long answers, which take both slots of the GPU, do not hold up a third
// model whose instance is ready.
func TestModelsBesideStreams(t *testing.T) {
	t.Parallel()
	for _, policy := range queue.Names() {
		if slices.Contains([]string{"batch", "exclusive", "fcfs-naive"}, policy) || queue.OneAtATime(policy) {
			continue // they run one instance, or the instances of one function, on a GPU, or keep no instance
		}
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			began, release := make(chan bool, 2), make(chan bool)
			w := newWorld(t, pathHandlers{"/stream": func(http.ResponseWriter, *http.Request) { began <- true; <-release }},
				func(c *Config) { c.Policy.Policy, c.Concurrency = policy, 2 })
			several := func(f *function.Function) { f.Inflight, f.Scale.Max = 8, 1 }
			w.apply(fn("a", several), fn("b", several), fn("c", several))
			answers := make(chan answer, 3)
			for _, name := range []string{"a", "b", "c"} {
				if a := w.do("GET", "/function/"+name+"/x", ""); a.status != 200 {
					t.Fatalf("%s: got %+v, want status 200", name, a)
				}
			}
			for _, name := range []string{"a", "b"} {
				go func() { answers <- w.do("GET", "/function/"+name+"/stream", "") }()
				<-began
			}
			if a := w.do("GET", "/function/c/x", ""); a.status != 200 || a.reason() != "needs-no-slot" {
				t.Errorf("the third model: got %+v, want status 200, Gfaas-Reason needs-no-slot", a)
			}
			close(release)
			for range 2 {
				if a := <-answers; a.status != 200 {
					t.Errorf("a stream: got %+v, want status 200", a)
				}
			}
		})
	}
}

// TestBatchWindow checks, on a clock of its own, that calls join a running instance for the batch window after a call of
// another function has begun to wait, and that they go after that call then.
func TestBatchWindow(t *testing.T) {
	t.Parallel()
	for _, policy := range queue.Names() {
		if policy == "batch" {
			continue // it runs one call after another
		}
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			began, release := make(chan string, 8), make(chan bool)
			var ahead atomic.Int64
			epoch := time.Now()
			handler := func(_ http.ResponseWriter, r *http.Request) { began <- r.URL.RawQuery; <-release }
			w := newWorld(t, pathHandlers{"/wait": handler}, func(c *Config) {
				c.Policy.Policy, c.Concurrency, c.BatchWindow, c.GPUs = policy, 2, time.Hour, []GPU{{Name: "sim", Mem: 4 << 30}}
				c.QueueTimeout = 100 * time.Hour
				c.dispatchConfig.Now = func() time.Duration { return time.Since(epoch) + time.Duration(ahead.Load()) }
			})
			model := func(f *function.Function) { f.Inflight, f.GPUMem, f.Scale.Idle = 4, 3*gpu.GiB, 100*time.Hour }
			w.apply(fn("a", model), fn("b", model))
			answers := make(chan answer, 4)
			call := func(name, number string) {
				go func() { answers <- w.do("GET", "/function/"+name+"/wait?"+number, "") }()
			}
			next := func(want string) {
				t.Helper()
				if got := <-began; got != want {
					t.Fatalf("call %q begins, want %q", got, want)
				}
			}
			waiting := func(function, want int) {
				t.Helper()
				w.until("calls wait", func() bool { return *w.Status().Functions[function].Waiting == want })
			}
			call("a", "1")
			next("1")
			call("b", "2")
			waiting(1, 1)
			call("a", "3")
			next("3") // it joins, although 2 waits
			ahead.Add(int64(time.Hour))
			call("a", "4")
			waiting(0, 1)
			release <- true
			release <- true
			next("2")
			release <- true
			next("4")
			release <- true
			for range 4 {
				if a := <-answers; a.status != 200 {
					t.Errorf("got %+v, want status 200", a)
				}
			}
		})
	}
}
