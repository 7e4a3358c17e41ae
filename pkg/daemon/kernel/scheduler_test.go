package kernel

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// A shutdown does not cut off a request before KernelTimeout, which may exceed the wait without it.
func TestDrainWaitsForKernelTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &core{cfg: Config{KernelTimeout: time.Minute}, log: slog.New(slog.DiscardHandler)}
		q := &scheduler{runner: &runner{&gpus{store: &store{core: c}}}, pending: 1}
		go func() {
			time.Sleep(time.Minute)
			q.mu.Lock()
			defer q.mu.Unlock()
			close(q.idle)
		}()
		began := time.Now()
		q.drain()
		if waited := time.Since(began); waited != time.Minute {
			t.Errorf("drain with a running kernel: waited %v, want 1m", waited)
		}
	})
}
