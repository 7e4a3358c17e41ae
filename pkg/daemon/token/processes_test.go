package token

import (
	"context"
	"testing"
	"time"
)

// TestProcessesShareQuotaAndPage: two processes of an instance draw on one
// budget, and each has its own slot of one page.
func TestProcessesShareQuotaAndPage(t *testing.T) {
	s := serve(t, Config{})
	a := s.join(reg("a", 20, 0.4, 0.4))
	b, err := s.dial("a", 3<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if a.Welcome.Slot == b.Welcome.Slot {
		t.Fatal("one slot for two processes")
	}
	a.Slot().MemUsed = 5 << 20
	rows := s.status().GPUs[0].Clients
	if len(rows) != 2 || rows[0].MemUsedMiB+rows[1].MemUsedMiB != 8 {
		t.Errorf("status %+v", rows)
	}
	const length = time.Second
	ctx, cancel := context.WithTimeout(context.Background(), length)
	defer cancel()
	sum := make(chan time.Duration)
	go func() {
		used, err := a.Saturate(ctx, time.Millisecond)
		if err != nil {
			t.Error(err)
		}
		sum <- used
	}()
	used, err := b.Saturate(ctx, time.Millisecond)
	if err != nil {
		t.Error(err)
	}
	if got := (used + <-sum).Seconds() / length.Seconds(); got < 0.35 || got > 0.45 {
		t.Errorf("together they used %.3f of the GPU, want 0.4", got)
	}
}
