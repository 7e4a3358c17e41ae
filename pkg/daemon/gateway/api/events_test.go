package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/dispatch"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/metrics"
	"github.com/gfaas/gfaas/pkg/daemon/gateway/proxy"
	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
)

// TestTooManyViewers checks that viewers beyond mostEvents are refused until others have
// left.
func TestTooManyViewers(t *testing.T) {
	d, err := dispatch.New(t.Context(), dispatch.Config{Metrics: metrics.New(), Policy: queue.Config{Policy: "gfaas", Pool: residency.Unlimited, Options: queue.Defaults()}}, dispatch.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	a := New(Config{Dispatcher: d, Proxy: proxy.New(proxy.Config{Dispatcher: d})}, Access{})
	if !a.events.add(mostEvents) {
		t.Fatalf("%d viewers: got a refusal, want them accepted", mostEvents)
	}
	ask := func() int {
		ctx, leave := context.WithCancel(t.Context())
		leave()
		w := httptest.NewRecorder()
		a.events.serve(w, httptest.NewRequest("GET", "/system/events", nil).WithContext(ctx))
		return w.Code
	}
	if got := ask(); got != http.StatusTooManyRequests {
		t.Errorf("one too many: %d, want %v", got, http.StatusTooManyRequests)
	}
	a.events.add(-1)
	if got := ask(); got != http.StatusOK {
		t.Errorf("after one left: %d, want %v", got, http.StatusOK)
	}
}
