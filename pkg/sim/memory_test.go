package sim

import (
	"io"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/trace"
)

// alternating is a trace of invocations of functions 0 and 1 in turn, a second apart.
type alternating struct{ left, next int }

func (r *alternating) Next() (trace.Row, error) {
	if r.left == 0 {
		return trace.Row{}, io.EOF
	}
	row := trace.Row{At: time.Duration(r.next) * time.Second, Function: int32(r.next % 2)}
	r.left, r.next = r.left-1, r.next+1
	return row, nil
}

// TestMovers checks the times of invocations of two functions on a GPU that can hold the memory of one:
// of a cold start that evicts memory, and of a host-warm start that evicts memory.
func TestMovers(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		mover          string
		cold, hostWarm time.Duration
	}{
		{"", 100 * ms, 110 * ms},
		{"uvm", 120 * ms, 140 * ms},
		{"madvise", 123 * ms, 143 * ms},
		{"prefetch", 110 * ms, 120 * ms},
		{"prefetch-swap", 100 * ms, 110 * ms},
	} {
		t.Run(c.mover, func(t *testing.T) {
			f := trace.Function{Warm: 100 * ms, Load: 10 * ms, Cold: 100 * ms, MemMiB: 60, Weight: 1}
			config := Config{Config: queue.Config{Policy: "mqfq-sticky", Pool: residency.Unlimited, Options: queue.Defaults()},
				Functions: []trace.Function{f, f}, GPUs: 1, Mem: 100 << 20, Concurrency: 1, Fault: 2, Hints: 3 * ms}
			config.Functions[0].Name, config.Functions[1].Name = "a", "b"
			if c.mover != "" && !config.SetMover(c.mover) {
				t.Fatalf("unknown mover %s", c.mover)
			}
			config.FixedTTL = true // 0: a function is inactive as soon as it is idle
			r, err := Run(config, &alternating{left: 4})
			if err != nil {
				t.Fatal(err)
			}
			// The first invocation evicts nothing.
			first := 100 * ms
			if c.mover == "madvise" {
				first += 3 * ms
			}
			want := []time.Duration{first + c.hostWarm, c.cold + c.hostWarm}
			for i, f := range r.Functions {
				if got := time.Duration(f.ServiceMS * float64(ms)); got != want[i] {
					t.Errorf("service of %s: got %v, want %v", f.Function, got, want[i])
				}
			}
		})
	}
}
