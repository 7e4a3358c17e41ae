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
			t.Errorf("memory query: got GPU %s, which has no client, want sim", device)
		}
		return answer, failure
	}
	for _, counts := range []bool{false, true} {
		s := serve(t, Config{Memory: memory, CountContext: counts})
		s.register(reg("b", share{sm: 1, request: 1, limit: 1}))
		otherGPU := reg("c", share{sm: 1, request: 1, limit: 1})
		otherGPU.GPU = "sim:1"
		s.register(otherGPU)
		a := s.join(reg("a", share{sm: 60, request: 1, limit: 1}))
		atomic.StoreUint64(&a.Slot().MemUsed, 100<<20)
		s.d.occupancy.measure()
		if got := s.row("a").ContextMiB; got != 200 {
			t.Errorf("context of a: got %v MiB, want 200", got)
		}
		if got := s.row("b").ContextMiB; got != 0 {
			t.Errorf("context of b, without a process: got %v MiB, want 0", got)
		}
		if got := atomic.LoadUint64(&a.Slot().MemForeign); (got == 200<<20) != counts || got != 0 && !counts {
			t.Errorf("foreign memory in the page with CountContext %v: got %d bytes, want %d if it counts, else 0", counts, got, 200<<20)
		}
		atomic.StoreUint64(&a.Slot().MemUsed, 1<<63) // more than its memory on the GPU: managed memory, or a wrong value
		s.d.occupancy.measure()
		if got := s.row("a").ContextMiB; got != 0 {
			t.Errorf("context of a process with more than its memory on the GPU: got %v MiB, want 0", got)
		}
		atomic.StoreUint64(&a.Slot().MemUsed, 0)
		s.d.occupancy.measure()
		mu.Lock()
		failure = errors.New("the GPU is lost")
		mu.Unlock()
		s.d.occupancy.measure()
		if got := s.row("a").ContextMiB; got != 300 {
			t.Errorf("context of a while the query fails: got %v MiB, want the last value, 300", got)
		}
		mu.Lock()
		failure = nil
		mu.Unlock()
	}
}

// TestForeignMemoryIsMeasured checks that the daemon measures periodically while clients exist.
func TestForeignMemoryIsMeasured(t *testing.T) {
	var queries atomic.Int64
	s := serve(t, Config{Memory: func(string) (map[int]gpu.Bytes, error) {
		queries.Add(1)
		return nil, nil
	}})
	s.join(reg("a", share{sm: 60, request: 1, limit: 1}))
	eventually(t, "the daemon has queried the memory", func() bool { return queries.Load() > 0 })
}
