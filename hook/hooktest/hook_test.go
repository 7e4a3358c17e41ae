package hooktest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// TestProgramWaitsForDaemon kills the daemon under a running program. The program
// stalls, prints one message, and continues when the daemon is back, which still knows
// the instance.
func TestProgramWaitsForDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	env := h.register("stall", whole)
	h.kill()
	p := h.run(env, "check/route", "link", "cuLaunchKernel", "3")
	h.eventually("the program prints that it waits", func() bool { return strings.Contains(p.errout.String(), "no gfaas-tokend") })
	if p.out.String() != "" {
		t.Errorf("output without a daemon: got %s, want none", p.out.String())
	}
	h.start()
	h.eventually("the program continues", func() bool { return strings.Contains(p.out.String(), "ok") })
	if err := p.wait(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(p.errout.String(), "\n"); n != 1 {
		t.Errorf("messages of the program: got %d lines, want 1:\n%s", n, p.errout.String())
	}
}

// TestRefused presents a wrong secret to the daemon.
func TestRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	h.register("refused", whole)
	p := h.run(h.environ("refused", preload.NewSecret(), whole), "check/route", "link", "cuLaunchKernel", "1")
	h.eventually("the program prints that the daemon refuses it", func() bool { return strings.Contains(p.errout.String(), "refuses") })
	if _, ok := h.row("refused"); ok || p.out.String() != "" {
		t.Errorf("program with a wrong secret: got a client of the daemon (%v) or the output %q, want neither", ok, p.out.String())
	}
}

// TestMemoryLimit fills an instance's memory from one process, and from four at once.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	for _, processes := range []int{1, 4} {
		id := fmt.Sprintf("memory%d", processes)
		slice := whole
		slice.Mem = 256 * gpu.MiB
		p := h.run(h.register(id, slice), "check/memory", "16", fmt.Sprint(processes))
		if err := p.wait(); err != nil {
			t.Fatal(err)
		}
		sum, lines := 0, strings.Split(strings.TrimSpace(p.out.String()), "\n")
		for _, line := range lines {
			var got, total int
			if _, err := fmt.Sscanf(line, "%d of %d MiB", &got, &total); err != nil || total != 256 {
				t.Errorf("%q: %v; want a total of 256 MiB", line, err)
			}
			sum += got
		}
		// Two processes that race for the last bytes may both be refused. So the sum
		// never exceeds the limit, and lacks at most one chunk per process.
		if sum > 256 || sum < 256-16*(processes-1) || len(lines) != processes {
			t.Errorf("memory of %d processes: got %d MiB, want at most 256, and at most 16 less for each further process:\n%s", processes, sum, p.out.String())
		}
	}
}

// BenchmarkLaunch compares a launch with and without the library while a lease is held,
// marks included (meter.c). Both alternate in one process. The result is the median of
// several processes.
func BenchmarkLaunch(b *testing.B) {
	h := newHost(b)
	h.start()
	env := h.register("cost", whole)
	var bare, added []float64
	for range b.N {
		p := h.run(env, "check/cost", "1000")
		if err := p.wait(); err != nil {
			b.Fatal(err)
		}
		var own, more float64
		if _, err := fmt.Sscan(p.out.String(), &own, &more); err != nil {
			b.Fatal(err)
		}
		bare, added = append(bare, own), append(added, more)
	}
	slices.Sort(bare)
	slices.Sort(added)
	b.ReportMetric(bare[len(bare)/2], "ns/launch-bare")
	b.ReportMetric(added[len(added)/2], "ns/launch-added")
}
