package gateway

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/gfaas/gfaas/pkg/function"
)

// TestSpan: a function that spans several GPUs is served by instances of a plan, as
// many as there are, and refused at once without one.
func TestSpan(t *testing.T) {
	release, began := make(chan struct{}), make(chan struct{}, 10)
	w := newWorld(t, mixed{"/wait": func(http.ResponseWriter, *http.Request) { began <- struct{}{}; <-release }}, nil)
	f := fn("f", func(f *function.Function) { f.GPUs, f.Scale.Min = 2, 1 })
	w.apply(f, fn("g"))
	a := w.do("POST", "/function/f", "x")
	own(t, a, 502, codeStartFailed)
	if !strings.Contains(a.body, "spans 2 GPUs") || !strings.Contains(a.body, "gfaas up PLAN.json") {
		t.Error(a.body)
	}
	if a := w.do("POST", "/system/scale-function/f", `{"replicas":1}`); a.status != 400 || !strings.Contains(a.body, "spans 2 GPUs") {
		t.Errorf("%+v", a)
	}
	w.up("f-0", f)
	w.until("it is adopted", func() bool { return len(w.servers()) == 1 })
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			if a, err := w.try(context.Background(), "POST", "/function/f/wait", "x"); err != nil || a.status != 200 || a.header.Get("Gfaas-Instance") != "f-0" {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	<-began
	w.until("the second waits for it", func() bool { return *w.Status().Functions[0].Waiting == 1 })
	close(release)
	calls.Wait()
	w.runtime.Kill("f-0", 1)
	w.until("it is gone", func() bool { return len(w.servers()) == 0 })
	own(t, w.do("POST", "/function/f", "x"), 502, codeStartFailed)
	if a := w.do("POST", "/function/g", "x"); a.status != 200 {
		t.Errorf("another function: %+v", a)
	}
}
