package token

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gfaas/gfaas/pkg/gpu"
)

// TestForeignMemory checks that the driver's memory for a process is its memory on the GPU minus its
// allocations, and that it counts towards the limit only with CountContext.
func TestForeignMemory(t *testing.T) {
	var mu sync.Mutex
	answer, failure := map[int]gpu.Bytes{os.Getpid(): 300 << 20, 1: 7}, error(nil)
	memory := func(device string) (map[int]gpu.Bytes, error) {
		mu.Lock()
		defer mu.Unlock()
		if device != "sim" {
			t.Errorf("asked for GPU %s, where nobody is, want sim", device)
		}
		return answer, failure
	}
	for _, counts := range []bool{false, true} {
		s := serve(t, Config{Memory: memory, CountContext: counts})
		s.register(reg("b", 1, 1, 1))
		far := reg("c", 1, 1, 1)
		far.GPU = "sim:1"
		s.register(far)
		a := s.join(reg("a", 60, 1, 1))
		atomic.StoreUint64(&a.Slot().MemUsed, 100<<20)
		s.d.occupancy.measure()
		if got := s.row("a").ContextMiB; got != 200 {
			t.Errorf("context of %v MiB, want 200", got)
		}
		if got := s.row("b").ContextMiB; got != 0 {
			t.Errorf("context of %v MiB without a process, want 0", got)
		}
		if got := atomic.LoadUint64(&a.Slot().MemForeign); (got == 200<<20) != counts || got != 0 && !counts {
			t.Errorf("counts %v: the process is told %d", counts, got)
		}
		atomic.StoreUint64(&a.Slot().MemUsed, 1<<63) // more than its memory on the GPU: managed memory, or a lie
		s.d.occupancy.measure()
		if got := s.row("a").ContextMiB; got != 0 {
			t.Errorf("context of %v MiB, want 0", got)
		}
		atomic.StoreUint64(&a.Slot().MemUsed, 0)
		s.d.occupancy.measure()
		mu.Lock()
		failure = errors.New("the GPU is lost")
		mu.Unlock()
		s.d.occupancy.measure()
		if got := s.row("a").ContextMiB; got != 300 {
			t.Errorf("context of %v MiB while nobody tells, want the last, 300", got)
		}
		mu.Lock()
		failure = nil
		mu.Unlock()
	}
}

// TestForeignMemoryIsAsked checks that the daemon measures periodically while clients exist.
func TestForeignMemoryIsAsked(t *testing.T) {
	var asked atomic.Int64
	s := serve(t, Config{Memory: func(string) (map[int]gpu.Bytes, error) {
		asked.Add(1)
		return nil, nil
	}})
	s.join(reg("a", 60, 1, 1))
	eventually(t, "it asks", func() bool { return asked.Load() > 0 })
}
