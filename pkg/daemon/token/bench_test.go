package token

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkGrantRoundTrip measures the time from a request to the open gate (grant), and from the
// return of a lease with a new request to the next open gate (cycle). It compares both with round
// trips of a message: to an echo in Go, like the daemon, and to an echo in C, which is the minimum
// for such a socket. All are measured alternately, with the same client code and the other end in
// its own process.
func BenchmarkGrantRoundTrip(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	dir := runDir(b)
	s, _ := serveApart(b, filepath.Join(dir, "token.sock"))
	s.register(reg("a", share{sm: 100, request: 1, limit: 1}))
	client := connectTo(b, s.clientSocket())
	client.greet(b, "a")
	role(b, roleEcho, filepath.Join(dir, "echo"), "serves")
	echo := connectTo(b, filepath.Join(dir, "echo"))
	bare := filepath.Join(dir, "bare")
	if out, err := exec.Command("cc", "-O2", "-o", bare, "testdata/echo.c").CombinedOutput(); err != nil {
		b.Fatalf("compile testdata/echo.c: %v: %s", err, out)
	}
	start(b, exec.Command(bare, bare+".sock"), "serves")
	bareEcho := connectTo(b, bare+".sock")
	samples := map[string][]time.Duration{}
	for b.Loop() {
		elapsed, _ := echo.roundTrip(b)
		samples["go"] = append(samples["go"], elapsed)
		elapsed, _ = bareEcho.roundTrip(b)
		samples["c"] = append(samples["c"], elapsed)
		elapsed, lease := client.roundTrip(b)
		samples["grant"] = append(samples["grant"], elapsed)
		began := time.Now()
		client.returnLease(b, lease, true)
		lease = client.await(b)
		samples["cycle"] = append(samples["cycle"], time.Since(began))
		client.returnLease(b, lease, false)
	}
	p50, p99 := map[string]float64{}, map[string]float64{}
	for what, all := range samples {
		slices.Sort(all)
		p50[what], p99[what] = float64(all[len(all)/2]), float64(all[len(all)*99/100])
	}
	for _, what := range []string{"grant", "cycle"} {
		for _, echo := range []string{"go", "c"} {
			b.ReportMetric(p50[what]/p50[echo], what+"/"+echo+"-echo-p50")
			b.ReportMetric(p99[what]/p99[echo], what+"/"+echo+"-echo-p99")
		}
	}
	b.ReportMetric(p50["grant"], "grant-p50-ns")
	b.ReportMetric(p50["c"], "c-echo-p50-ns")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkGrants measures how many leases per second the daemon grants to n clients, each in its own
// instance.
func BenchmarkGrants(b *testing.B) {
	for _, n := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("clients=%d", n), func(b *testing.B) {
			s, _ := serveApart(b, filepath.Join(runDir(b), "token.sock"))
			clients := make([]*caller, n)
			for i := range clients {
				id := fmt.Sprintf("i%d", i)
				s.register(reg(id, share{sm: 100 / float64(n), request: 1, limit: 1}))
				clients[i] = connectTo(b, s.clientSocket())
				clients[i].greet(b, id)
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			var done sync.WaitGroup
			b.ResetTimer()
			for _, c := range clients {
				done.Go(func() {
					for left.Add(-1) >= 0 {
						_, lease := c.roundTrip(b)
						c.returnLease(b, lease, false)
					}
				})
			}
			done.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "grants/s")
		})
	}
}

// BenchmarkIdle measures the fraction of a core that the daemon uses while 256 idle clients are
// connected.
func BenchmarkIdle(b *testing.B) {
	s, daemon := serveApart(b, filepath.Join(runDir(b), "token.sock"))
	for i := range 256 {
		id := fmt.Sprintf("i%d", i)
		s.register(reg(id, share{sm: 1, request: 0.01, limit: 1}))
		connectTo(b, s.clientSocket()).greet(b, id)
	}
	const length = 3 * time.Second
	before := cpuTime(b, daemon.Process.Pid)
	<-time.After(length)
	b.ReportMetric(100*(cpuTime(b, daemon.Process.Pid)-before).Seconds()/length.Seconds(), "%core")
	b.ReportMetric(0, "ns/op")
}

// cpuTime returns the CPU time of a process.
func cpuTime(b *testing.B, pid int) time.Duration {
	var sum time.Duration
	for _, which := range []string{"schedstat"} {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/%s", pid, which))
		if err != nil || len(tasks) == 0 {
			b.Fatalf("threads of process %d: got %d, %v; want at least one", pid, len(tasks), err)
		}
		for _, path := range tasks {
			var ns int64
			if text, err := os.ReadFile(path); err == nil {
				_, _ = fmt.Sscan(string(text), &ns)
			}
			sum += time.Duration(ns)
		}
	}
	return sum
}

// BenchmarkCensus measures a census in which no process of the host is new.
func BenchmarkCensus(b *testing.B) {
	s := serve(b, Config{})
	s.register(reg("a", share{sm: 60, request: 1, limit: 1}))
	for b.Loop() {
		s.d.unmanaged.takeCensus()
	}
	b.ReportMetric(float64(len(s.d.unmanaged.census.sightings)), "processes")
}
