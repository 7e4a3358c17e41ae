package kernel_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/kernel"
)

// tinyPTX is a kernel that takes 10 µs.
var tinyPTX = strings.ReplaceAll(slowPTX, "20000", "10")

// bare runs a plain CUDA program that launches the kernel n times and synchronizes after every so many
// launches. It returns the time per launch.
func (m *executorPool) bare(t testing.TB, n, every int) time.Duration {
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

// compare returns the time of a request with n launches on one connection, and the time of the same
// launches in a plain program. It measures both within some hundred milliseconds, because the load of the
// host changes. A request with several kernels lists all of them.
func (m *executorPool) compare(t testing.TB, d *daemon, n int) (ours, bare time.Duration) {
	request := strings.Replace(custom(tinyPTX, "slow", 1), `"version":1`, fmt.Sprintf(`"version":1,"iterations":%d`, n), 1)
	const launches = 4000
	bare = m.bare(t, launches, n) * time.Duration(n)
	begin := time.Now()
	for range launches / n {
		d.mustRun("", request)
	}
	return time.Since(begin) / time.Duration(launches/n), bare
}

// BenchmarkOverhead compares requests on one connection with the same launches in a plain program. It
// alternates between the two, because the load of the host changes.
func BenchmarkOverhead(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprint(n, " kernels"), func(b *testing.B) {
			m := newExecutorPool(b, "")
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

// BenchmarkCached compares the second request with an input of 256 MiB with the first.
func BenchmarkCached(b *testing.B) {
	d := serve(b, newExecutorPool(b, ""), func(c *kernel.Config) { c.GPUMem, c.HostMem = 1<<30, 1<<30 })
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
			b.Fatalf("cache of a repeated request: got %+v, want BytesUp 0", a.Cache)
		}
		second += a.TotalMS
	}
	b.ReportMetric(second/first, "of-first")
	b.ReportMetric(first/float64(b.N), "ms/first")
}

// BenchmarkTenants compares four clients, each with one request in flight and with weights of the given
// size, with four loops that start a process for each request: start, context, module, weights, run (KaaS,
// section 5).
func BenchmarkTenants(b *testing.B) {
	for _, mibs := range []int{0, 16} {
		b.Run(fmt.Sprint(mibs, " MiB"), func(b *testing.B) {
			t := newTenants(b, mibs)
			t.compare(time.Second / 4)
			var ours, theirs []float64
			for b.Loop() {
				o, l := t.compare(time.Second)
				ours, theirs = append(ours, o), append(theirs, l)
			}
			slices.Sort(ours)
			slices.Sort(theirs)
			o, l := ours[len(ours)/2], theirs[len(theirs)/2]
			// Both have the same number of requests in flight, so latencies are inverse to rates.
			b.ReportMetric(o/l, "x-throughput")
			b.ReportMetric(l/o, "of-latency")
			b.ReportMetric(1e6/o, "us/request")
			b.ReportMetric(1e6/l, "us/process")
		})
	}
}

// tenants holds four clients of a daemon that has their objects.
type tenants struct {
	m       *executorPool
	callers [4]*caller
	mibs    int
}

func newTenants(t testing.TB, mibs int) *tenants {
	m := newExecutorPool(t, "")
	d := serve(t, m, func(c *kernel.Config) { c.GPUMem, c.HostMem = 256<<20, 256<<20 })
	request := custom(tinyPTX, "slow", 1)
	if mibs > 0 {
		request = strings.Replace(request, `"version":1`, `"version":1,"buffers":{"w":{"kind":"input","key":"w"}}`, 1)
	}
	all := &tenants{m: m, mibs: mibs}
	for i := range all.callers {
		name := fmt.Sprint("c", i)
		if mibs > 0 {
			d.putObject(name, "w", make([]float32, mibs<<20/4))
		}
		all.callers[i] = newCaller(t, d, name, request)
	}
	return all
}

// caller sends one request repeatedly. It is as simple as a C program, so that it takes little processor
// time from the daemon.
type caller struct {
	t       testing.TB
	conn    net.Conn
	in      *bufio.Reader
	request []byte
}

func newCaller(t testing.TB, d *daemon, client, request string) *caller {
	conn, err := net.Dial("unix", filepath.Join(d.dir, "kernel.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	text := fmt.Sprintf("POST /v1/run HTTP/1.1\r\nHost: kerneld\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s",
		kernel.ClientHeader, client, len(request), request)
	return &caller{t, conn, bufio.NewReader(conn), []byte(text)}
}

// run sends the request and reads the complete answer.
func (c *caller) run() {
	if _, err := c.conn.Write(c.request); err != nil {
		c.t.Error(err)
		return
	}
	answer, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.t.Error(err)
		return
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil || answer.StatusCode != http.StatusOK {
		c.t.Errorf("run a request: got %s, %v; want 200", answer.Status, err)
	}
}

// compare returns the requests per second of four clients and those of four loops of processes.
func (t *tenants) compare(each time.Duration) (ours, theirs float64) {
	ours = t.rate(each, t.ours)
	theirs = t.rate(each, func(int) { t.process() })
	return ours, theirs
}

// ours sends one request of a client.
func (t *tenants) ours(client int) { t.callers[client].run() }

// process runs a process that does the work of one request.
func (t *tenants) process() {
	args := []string{"1", "1"}
	if t.mibs > 0 {
		args = append(args, strconv.Itoa(t.mibs))
	}
	cmd := exec.Command("../../../build/victim/loop", args...)
	cmd.Env = t.m.env
	if err := cmd.Run(); err != nil {
		t.m.t.Error(err)
	}
}

// rate returns how many calls of do per second four loops complete.
func (t *tenants) rate(each time.Duration, do func(client int)) float64 {
	var all sync.WaitGroup
	var n atomic.Int64
	begin := time.Now()
	for i := range 4 {
		all.Go(func() {
			for time.Since(begin) < each {
				do(i)
				n.Add(1)
			}
		})
	}
	all.Wait()
	return float64(n.Load()) / time.Since(begin).Seconds()
}

// TestOverhead limits the overhead that BenchmarkOverhead measures, with a margin for other load.
func TestOverhead(t *testing.T) {
	if os.Getenv("GFAAS_RATIOS") == "" {
		t.Skip("SKIPPED: GFAAS_RATIOS=1 compares speeds, on a machine that does nothing else")
	}
	for n, least := range map[int]float64{1: 0.15, 100: 0.7} {
		m := newExecutorPool(t, "")
		d := serve(t, m, nil)
		best := 0.0
		for range 10 {
			ours, bare := m.compare(t, d, n)
			best = max(best, float64(bare)/float64(ours))
		}
		if best < least {
			t.Errorf("requests of %d kernels: got %.2f times the rate of a bare loop, want at least %.2f", n, best, least)
		}
	}
}

// TestTenants does the same for BenchmarkTenants.
func TestTenants(t *testing.T) {
	if os.Getenv("GFAAS_RATIOS") == "" {
		t.Skip("SKIPPED: GFAAS_RATIOS=1 compares speeds, on a machine that does nothing else")
	}
	for _, mibs := range []int{0, 16} {
		all := newTenants(t, mibs)
		best := 0.0
		for range 5 {
			ours, theirs := all.compare(time.Second / 2)
			best = max(best, ours/theirs)
		}
		const least = 10
		if best < least {
			t.Errorf("objects of %d MiB: got %.1f times as many requests as with one process each, want at least %d", mibs, best, least)
		}
	}
}
