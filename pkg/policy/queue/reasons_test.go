package queue_test

import (
	"testing"

	"github.com/gfaas/gfaas/pkg/policy/queue"
)

func TestReasons(t *testing.T) {
	if err := queue.Reasons.Valid(); err != nil {
		t.Error(err)
	}
	for _, r := range []struct {
		reason queue.Reason
		text   string
	}{
		{queue.Reason{Code: queue.QueueFull, Value: 7, Waiting: 3}, "queue-full"},
		{queue.Reason{Code: "shortest-expected-time", Value: 12.5}, "shortest-expected-time; vt_ms=12.5"},
		{queue.Reason{Code: "least-virtual-time"}, "least-virtual-time; lead_ms=0"},
	} {
		if full, appended := r.reason.Full().String(), string(r.reason.Append(nil)); full != r.text || appended != r.text {
			t.Errorf("%+v: Full %q, Append %q, want %q", r.reason, full, appended, r.text)
		}
	}
	to, r := make([]byte, 0, 128), queue.Reason{Code: "shortest-expected-time", Value: 12.345678}
	if allocations := testing.AllocsPerRun(100, func() { r.Append(to) }); allocations > 0 {
		t.Errorf("Append allocates %v times, want 0", allocations)
	}
}
