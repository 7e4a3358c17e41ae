package token

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
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
	// No more is parked than there is.
	a.Slot().MemParked, b.Slot().MemParked = 2<<20, 64<<20
	if rows := s.status().GPUs[0].Clients; rows[0].MemParkedMiB+rows[1].MemParkedMiB != 5 {
		t.Errorf("status %+v", rows)
	}
	a.Slot().MemParked, b.Slot().MemParked = 0, 0
	const length = time.Second
	undisturbed(t, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), length)
		defer cancel()
		var used [2]time.Duration
		var both errgroup.Group
		for n := range used {
			c, err := s.dial("a", 0)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			both.Go(func() (err error) {
				used[n], err = c.Saturate(ctx, time.Millisecond)
				return err
			})
		}
		if err := both.Wait(); err != nil {
			t.Fatal(err)
		}
		if got := (used[0] + used[1]).Seconds() / length.Seconds(); got < 0.35 || got > 0.45 {
			return fmt.Errorf("together they used %.3f of the GPU, want 0.4", got)
		}
		return nil
	})
}

// undisturbed repeats what other programs on this machine can spoil.
func undisturbed(t *testing.T, try func() error) {
	t.Helper()
	var err error
	for range 10 {
		if err = try(); err == nil {
			return
		}
		t.Log(err)
	}
	t.Error(err)
}
