package kernel_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/kernel"
)

// tinyPTX takes 10 us.
var tinyPTX = strings.ReplaceAll(slowPTX, "20000", "10")

// bare has a plain program launch the same kernel n times, waiting for it after
// every so many, and is how long a launch takes.
func (m *machine) bare(t testing.TB, n, every int) time.Duration {
	t.Helper()
	cmd := exec.Command("../../../build/victim/loop", strconv.Itoa(n), strconv.Itoa(every))
	cmd.Env = m.env
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	seconds, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(seconds / float64(n) * 1e9)
}

// compare is how long a request with n launches takes over one connection, and
// how long those launches take in a bare loop: in turns of some hundred
// milliseconds, since what else the machine does changes. Requests of several
// kernels are one list of them.
func (m *machine) compare(t testing.TB, d *daemon, n int) (ours, bare time.Duration) {
	request := strings.Replace(custom(tinyPTX, "slow", 1), `"version":1`, fmt.Sprintf(`"version":1,"iterations":%d`, n), 1)
	const launches = 4000
	bare = m.bare(t, launches, n) * time.Duration(n)
	begin := time.Now()
	for range launches / n {
		d.mustRun("", request)
	}
	return time.Since(begin) / time.Duration(launches/n), bare
}

// BenchmarkOverhead compares requests over one connection with the same launches in
// a bare loop with the driver, in turns, since what else the machine does changes.
func BenchmarkOverhead(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprint(n, " kernels"), func(b *testing.B) {
			m := newMachine(b, "")
			d := serve(b, m, nil)
			m.compare(b, d, n)
			var ours, bare time.Duration
			rounds := time.Duration(0)
			for b.Loop() {
				o, l := m.compare(b, d, n)
				ours, bare, rounds = ours+o, bare+l, rounds+1
			}
			b.ReportMetric(float64(bare)/float64(ours), "of-bare")
			b.ReportMetric(float64((ours / rounds).Microseconds()), "us/request")
			b.ReportMetric(float64((bare / rounds).Microseconds()), "us/bare")
		})
	}
}

// BenchmarkCached is the second request of 256 MiB of input, of the first.
func BenchmarkCached(b *testing.B) {
	d := serve(b, newMachine(b, ""), func(c *kernel.Config) { c.GPUMem, c.HostMem = 1<<30, 1<<30 })
	request := fmt.Sprintf(`{"version":1,"modules":{"m":{"ptx":%q}},"buffers":{"x":{"kind":"input","key":"x"}},
"kernels":[{"module":"m","name":"slow","grid":[1,1,1],"block":[1,1,1],"args":[]}]}`, tinyPTX)
	var first, second float64
	for b.Loop() {
		if _, err := d.do("", "PUT", object("x"), make([]byte, 256<<20)); err != nil {
			b.Fatal(err)
		}
		first += d.mustRun("", request).TotalMS
		a := d.mustRun("", request)
		if a.Cache.BytesUp != 0 {
			b.Fatalf("%+v", a.Cache)
		}
		second += a.TotalMS
	}
	b.ReportMetric(second/first, "of-first")
	b.ReportMetric(first/float64(b.N), "ms/first")
}

// BenchmarkTenants has four clients send requests, each when its last is over and
// with weights of 16 MiB, and compares that with four loops of one process a request:
// start, context, module, weights, run (KaaS, section 5).
func BenchmarkTenants(b *testing.B) {
	m := newMachine(b, "")
	d := serve(b, m, func(c *kernel.Config) { c.GPUMem, c.HostMem = 256<<20, 256<<20 })
	request := strings.Replace(custom(tinyPTX, "slow", 1), `"version":1`, `"version":1,"buffers":{"w":{"kind":"input","key":"w"}}`, 1)
	const clients, mibs = 4, 16
	for i := range clients {
		d.put(fmt.Sprint("c", i), "w", make([]float32, mibs<<20/4))
	}
	// in is how many times four loops do it, and how long one takes.
	in := func(do func(client string)) (rate, latency float64) {
		var all sync.WaitGroup
		var n atomic.Int64
		begin := time.Now()
		for i := range clients {
			all.Go(func() {
				for time.Since(begin) < time.Second {
					do(fmt.Sprint("c", i))
					n.Add(1)
				}
			})
		}
		all.Wait()
		took := time.Since(begin).Seconds()
		return float64(n.Load()) / took, took * clients / float64(n.Load())
	}
	var ours, theirs, fast, slow float64
	for b.Loop() {
		r, l := in(func(client string) { d.mustRun(client, request) })
		ours, fast = ours+r, fast+l
		r, l = in(func(string) {
			cmd := exec.Command("../../../build/victim/loop", "1", "1", strconv.Itoa(mibs))
			cmd.Env = m.env
			if err := cmd.Run(); err != nil {
				b.Error(err)
			}
		})
		theirs, slow = theirs+r, slow+l
	}
	b.ReportMetric(ours/theirs, "x-throughput")
	b.ReportMetric(fast/slow, "of-latency")
}

// TestOverhead guards what BenchmarkOverhead measures, with room for a machine that
// does other things.
func TestOverhead(t *testing.T) {
	if os.Getenv("GFAAS_RATIOS") == "" {
		t.Skip("SKIPPED: GFAAS_RATIOS=1 compares speeds, on a machine that does nothing else")
	}
	for n, least := range map[int]float64{1: 0.15, 100: 0.7} {
		m := newMachine(t, "")
		d := serve(t, m, nil)
		best := 0.0
		for range 10 {
			ours, bare := m.compare(t, d, n)
			best = max(best, float64(bare)/float64(ours))
		}
		if best < least {
			t.Errorf("%d kernels a request: %.2f of a bare loop, want %.2f", n, best, least)
		}
	}
}
