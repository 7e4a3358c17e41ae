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

// BenchmarkTenants has four clients send requests, each when its last is over, with
// weights of so many MiB, and compares that with four loops of one process a request:
// start, context, module, weights, run (KaaS, section 5).
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
			// As many wait at any time for both, so that latencies are as rates.
			b.ReportMetric(o/l, "x-throughput")
			b.ReportMetric(l/o, "of-latency")
			b.ReportMetric(1e6/o, "us/request")
			b.ReportMetric(1e6/l, "us/process")
		})
	}
}

// tenants are four clients of a daemon that has what they need.
type tenants struct {
	m       *machine
	callers [4]*caller
	mibs    int
}

func newTenants(t testing.TB, mibs int) *tenants {
	m := newMachine(t, "")
	d := serve(t, m, func(c *kernel.Config) { c.GPUMem, c.HostMem = 256<<20, 256<<20 })
	request := custom(tinyPTX, "slow", 1)
	if mibs > 0 {
		request = strings.Replace(request, `"version":1`, `"version":1,"buffers":{"w":{"kind":"input","key":"w"}}`, 1)
	}
	all := &tenants{m: m, mibs: mibs}
	for i := range all.callers {
		name := fmt.Sprint("c", i)
		if mibs > 0 {
			d.put(name, "w", make([]float32, mibs<<20/4))
		}
		all.callers[i] = newCaller(t, d, name, request)
	}
	return all
}

// caller sends one request over and over. It is as simple as a program in C would be,
// so that it takes little of the processors that the daemon is measured on.
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

// run sends the request and reads the whole answer.
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
		c.t.Error(answer.Status, err)
	}
}

// compare is how many requests a second four clients have answered, and how many
// four loops of processes do, in turns.
func (t *tenants) compare(each time.Duration) (ours, theirs float64) {
	ours = t.rate(each, t.ours)
	theirs = t.rate(each, func(int) { t.process() })
	return ours, theirs
}

// ours has a client send a request.
func (t *tenants) ours(client int) { t.callers[client].run() }

// process starts a process that does what the request asks for.
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

// rate is how often four loops do something in a second.
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

// TestTenants guards what BenchmarkTenants measures, likewise.
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
			t.Errorf("%d MiB: %.1f times as many requests as processes, want %d", mibs, best, least)
		}
	}
}
