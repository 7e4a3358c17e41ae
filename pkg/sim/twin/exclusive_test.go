package twin

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gfaas/gfaas/pkg/policy/queue"
	"github.com/gfaas/gfaas/pkg/policy/residency"
	"github.com/gfaas/gfaas/pkg/sim"
	"github.com/gfaas/gfaas/pkg/trace"
)

// TestExclusive checks KaaS's description of its exclusive policy (section 4.1.4), regardless of
// how pools are balanced: functions never share a GPU, a function starts cold on a new GPU, and
// every invocation that fits is served.
func TestExclusive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		functions := drawFunctions(t, time.Millisecond)
		rows := drawRows(t, len(functions), time.Millisecond)
		s := drawSettings(t, "batch")
		s.policy, s.pool = "exclusive", rapid.SampledFrom([]int{-1, s.d, s.d + 1}).Draw(t, "containers")
		type use struct {
			function int32
			until    time.Duration
		}
		last := make([]use, s.gpus)
		for g := range last {
			last[g].function = -1
		}
		started, rejected := 0, 0
		c := s.config(functions)
		c.Decide = func(now time.Duration, a *queue.Action) error {
			if a.Kind == queue.Reject {
				rejected++
			}
			if a.Kind != queue.Run {
				return nil
			}
			started++
			g := &last[a.GPU]
			if g.function != a.Function {
				if now < g.until {
					t.Fatalf("at %v: function %d starts on GPU %d, where function %d runs until %v, want a start after that", now, a.Function, a.GPU, g.function, g.until)
				}
				if a.Start != residency.Cold {
					t.Fatalf("at %v: start of function %d on GPU %d of another function: got %v, want %v", now, a.Function, a.GPU, a.Start, residency.Cold)
				}
			}
			g.function, g.until = a.Function, max(g.until, now+a.Expected)
			return nil
		}
		result, err := sim.Run(c, trace.NewList(rows))
		if err != nil {
			t.Fatal(err)
		}
		if started+rejected != len(rows) || result.Completed != int64(started) {
			t.Fatalf("%d rows: got %d started, %d completed, %d rejected; want each one completed or rejected", len(rows), started, result.Completed, rejected)
		}
	})
}

// pools implements the policy exclusive.
type pools struct {
	plain
	owner       []int // by GPU: its owner, or -1
	promised    []int // by GPU: the next owner after the work there has ended, or -1
	expectedEnd []time.Duration
	lastLoss    []int // by function: sequence number of its last loss of a GPU
	losses      int
	vain        []int // functions without a place at this instant
}

func newPools(w *world) *pools {
	p := &pools{expectedEnd: make([]time.Duration, w.gpus), lastLoss: make([]int, len(w.functions))}
	for range w.gpus {
		p.owner, p.promised = append(p.owner, -1), append(p.promised, -1)
	}
	return p
}

// size returns the number of GPUs that a function keeps or is promised.
func (p *pools) size(f int) (n int) {
	for g := range p.owner {
		if p.promised[g] == f || p.promised[g] < 0 && p.owner[g] == f {
			n++
		}
	}
	return n
}

func (p *pools) advanced(*world) { p.vain = nil }

func (p *pools) pick(w *world) (*invocation, int) {
	for _, f := range w.waitingFunctions() {
		if slices.Contains(p.vain, f) {
			continue
		}
		at := w.placeIf(f, func(g int) bool { return p.owner[g] == f && p.promised[g] < 0 })
		if at < 0 {
			at = p.acquire(w, f)
		}
		if at >= 0 {
			return w.head(f), at
		}
		p.vain = append(p.vain, f)
	}
	return nil, -1
}

// acquire returns the GPU that a function gets now, or -1 if the function has to wait for a GPU
// or gets no GPU.
func (p *pools) acquire(w *world, f int) int {
	waits := w.queued(f)
	for _, to := range p.promised {
		if to == f {
			waits--
		}
	}
	if waits <= 0 {
		return -1
	}
	if g := slices.Index(p.owner, -1); g >= 0 {
		p.owner[g] = f
		return g
	}
	victim := -1
	for g, o := range p.owner {
		if p.promised[g] < 0 && (victim < 0 || p.losesBefore(o, victim)) {
			victim = o
		}
	}
	if victim < 0 || p.size(f) >= p.size(victim) {
		return -1
	}
	at := -1
	for g, o := range p.owner {
		if o != victim || p.promised[g] >= 0 {
			continue
		}
		busy := w.onGPU(g) > 0
		if at < 0 || !busy && w.onGPU(at) > 0 || busy && w.onGPU(at) > 0 && p.expectedEnd[g] < p.expectedEnd[at] {
			at = g
		}
	}
	p.losses++
	p.lastLoss[victim] = p.losses
	if w.onGPU(at) > 0 {
		p.promised[at] = f
		return -1
	}
	p.transfer(w, at, f)
	return at
}

// losesBefore reports whether pool a gives up a GPU before pool b.
func (p *pools) losesBefore(a, b int) bool {
	if p.size(a) != p.size(b) {
		return p.size(a) > p.size(b)
	}
	return p.lastLoss[a] < p.lastLoss[b] || p.lastLoss[a] == p.lastLoss[b] && a < b
}

// transfer transfers a GPU to a new owner.
func (p *pools) transfer(w *world, gpu, f int) {
	p.owner[gpu], p.promised[gpu] = f, -1
	w.containers = slices.DeleteFunc(w.containers, func(b *container) bool { return b.gpu == gpu })
}

func (p *pools) started(w *world, _ *invocation, gpu int, d time.Duration) {
	p.expectedEnd[gpu] = max(p.expectedEnd[gpu], w.now+d)
}

func (p *pools) finished(w *world, in *invocation) {
	if f := p.promised[in.gpu]; f >= 0 && w.onGPU(in.gpu) == 0 {
		p.transfer(w, in.gpu, f)
	}
}
