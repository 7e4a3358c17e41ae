package gateway

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
)

// connected is a gateway with many callers. Some keep an idle connection, others read a
// stream of events.
type connected struct {
	*world
	ticks []chan int // the next event of each stream
	seen  chan error // one value per event that a caller has read: nil if it is the expected one
	conns []net.Conn
}

const (
	manyIdle    = 1000
	manyStreams = 200
)

func connect(tb testing.TB) *connected {
	c := &connected{seen: make(chan error, manyStreams)}
	for range manyStreams {
		c.ticks = append(c.ticks, make(chan int, 1))
	}
	events := func(rw http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		rw.Header().Set("Content-Type", "text/event-stream")
		rw.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(rw).Flush()
		for {
			select {
			case tick, more := <-c.ticks[n]:
				if !more {
					return
				}
				fmt.Fprintf(rw, "data: %d\n\n", tick)
				_ = http.NewResponseController(rw).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}
	c.world = newWorld(tb, pathHandlers{"/events": events}, func(c *Config) { c.Queue = 1024 })
	c.apply(fn("quick"), fn("events", func(f *function.Function) { f.Scale.Max, f.Inflight = 1, manyStreams }))
	for _, name := range []string{"quick", "events"} {
		if a := c.do("GET", "/function/"+name, ""); a.status != 200 {
			tb.Fatalf("got %+v; want status 200", a)
		}
	}
	return c
}

// request sends a GET request on a new connection, which stays open until leave, and
// returns a reader for the answer.
func (c *connected) request(path string) (*bufio.Reader, error) {
	conn, err := net.Dial("tcp", c.WebAddr().String())
	if err != nil {
		return nil, err
	}
	c.conns = append(c.conns, conn)
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: gateway\r\n\r\n", path)
	return bufio.NewReaderSize(conn, 512), err
}

// come opens all idle connections and all streams, and starts a reader for each stream.
func (c *connected) come() {
	c.t.Helper()
	for range manyIdle {
		in, err := c.request("/function/quick")
		if err != nil {
			c.t.Fatal(err)
		}
		answer, err := http.ReadResponse(in, nil)
		if err != nil || answer.StatusCode != http.StatusOK {
			c.t.Fatalf("got %+v, %v; want status %v", answer, err, http.StatusOK)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
	}
	for n := range manyStreams {
		in, err := c.request(fmt.Sprint("/function/events/events?n=", n))
		if err != nil {
			c.t.Fatal(err)
		}
		answer, err := http.ReadResponse(in, nil)
		if err != nil || answer.StatusCode != http.StatusOK {
			c.t.Fatalf("got %+v, %v; want status %v", answer, err, http.StatusOK)
		}
		go func() {
			lines := bufio.NewScanner(answer.Body)
			for want := 0; lines.Scan(); {
				if lines.Text() == "" {
					continue
				}
				var err error
				if text := lines.Text(); text != fmt.Sprint("data: ", want) {
					err = fmt.Errorf("stream %d: %q, want event %d", n, text, want)
				}
				want++
				c.seen <- err
			}
		}()
	}
}

// event sends one event on each stream and waits until every caller has read it. No later
// event could flush a delayed one.
func (c *connected) event(n int) {
	c.t.Helper()
	for _, tick := range c.ticks {
		tick <- n
	}
	timeout := time.After(patience)
	for range manyStreams {
		select {
		case err := <-c.seen:
			if err != nil {
				c.t.Error(err)
			}
		case <-timeout:
			c.t.Fatalf("event %d did not arrive on all %d streams within %v, want it on each", n, manyStreams, patience)
		}
	}
}

// leave ends the streams and closes the connections.
func (c *connected) leave() {
	for _, tick := range c.ticks {
		close(tick)
	}
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

// resident returns the resident memory of this process in bytes, after it has returned
// unused memory to the system.
func resident(tb testing.TB) int64 {
	tb.Helper()
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		tb.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// used returns the memory that objects and stacks use, in bytes. It excludes the memory
// of tools: the race detector's own memory is larger than all of this.
func used() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// quick calls the other function on one connection until ctx ends, and returns the time
// span of each call.
func (c *connected) quick(ctx context.Context) (took []span) {
	transport := &http.Transport{DisableCompression: true}
	defer transport.CloseIdleConnections()
	for ctx.Err() == nil {
		r, err := http.NewRequest("GET", c.url("/function/quick"), nil)
		if err != nil {
			c.t.Error(err)
			return took
		}
		begin := time.Now()
		answer, err := transport.RoundTrip(r)
		if err != nil {
			c.t.Error(err)
			return took
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		took = append(took, span{begin.UnixNano(), time.Now().UnixNano()})
		if answer.StatusCode != http.StatusOK {
			c.t.Errorf("got status %d, want 200", answer.StatusCode)
			return took
		}
	}
	return took
}

// TestManyConnections checks that 1,000 idle connections and 200 streams stay within the
// memory limit, callers and instances included. Each event reaches all streams at once,
// and other calls are answered meanwhile.
func TestManyConnections(t *testing.T) {
	c := connect(t)
	defer c.close()
	before := used()
	defer c.leave()
	c.come()
	ctx, stop := context.WithCancel(context.Background())
	var others sync.WaitGroup
	answered := 0
	others.Go(func() { answered = len(c.quick(ctx)) })
	for n := range 10 {
		c.event(n)
	}
	stop()
	others.Wait()
	const most = 100 << 20
	more := used() - before
	t.Logf("they take %d MiB", more>>20)
	if more > most {
		t.Errorf("they take %d MiB, want at most %d", more>>20, most>>20)
	}
	if answered == 0 {
		t.Error("other calls that were answered meanwhile: got 0, want at least 1")
	}
}

// witness repeatedly sleeps for a millisecond and reports each span by which it woke up
// more than a millisecond late. It returns when on returns false.
func witness(on func() bool, held func(span)) {
	for on() {
		begin := time.Now()
		time.Sleep(time.Millisecond)
		if due, end := begin.Add(2*time.Millisecond), time.Now(); end.After(due) {
			held(span{due.UnixNano(), end.UnixNano()})
		}
	}
}

// delayWitness is an environment variable that turns this program into a witness. A delay
// of that process, caused by the host or by another process, delays all processes.
const delayWitness = "GATEWAY_TEST_WITNESS"

func witnessHost() {
	witness(func() bool { return true }, func(s span) { fmt.Println(s.begin, s.end) }) // until the process is killed
}

// span is a period of time, in ns since 1970.
type span struct{ begin, end int64 }

// witnessedHost starts a witness in a separate process. The returned function stops it
// and returns the delays that it measured.
func witnessedHost(b *testing.B) (stop func() []span) {
	w := exec.Command(os.Args[0])
	w.Env = append(os.Environ(), delayWitness+"=1")
	out, err := w.StdoutPipe()
	if err == nil {
		err = w.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	var held []span
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var s span
			if _, err := fmt.Sscan(lines.Text(), &s.begin, &s.end); err == nil {
				held = append(held, s)
			}
		}
	}()
	return func() []span {
		_ = w.Process.Kill()
		<-read
		_ = w.Wait()
		return held
	}
}

// witnessedHere runs a witness in this process, where its goroutine competes with the
// goroutines of the callers, the instances and the gateway.
func witnessedHere() (stop func() []span) {
	var held []span
	var ended atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		witness(func() bool { return !ended.Load() }, func(s span) { held = append(held, s) })
	}()
	return func() []span {
		ended.Store(true)
		<-done
		return held
	}
}

// less returns the duration of each call, minus the time in which the witness was delayed
// too.
func less(took []span, held []span) (remaining []time.Duration) {
	for _, t := range took {
		d := t.end - t.begin
		for _, h := range held {
			d -= max(min(t.end, h.end)-max(t.begin, h.begin), 0)
		}
		remaining = append(remaining, time.Duration(d))
	}
	return remaining
}

// BenchmarkConnections measures the memory that the callers of TestManyConnections use.
// It also measures the maximum and the typical duration of a call to another function,
// alternately without load and while all 200 streams send events. It reports the maximum
// again after subtracting the delays of a goroutine, or of a process, that only sleeps.
func BenchmarkConnections(b *testing.B) {
	c := connect(b)
	defer c.leave()
	before := resident(b)
	c.come()
	memory := resident(b) - before
	var quiet, beside []span
	host, here := witnessedHost(b), witnessedHere()
	b.ResetTimer()
	for n := range b.N {
		for _, streams := range []bool{false, true} {
			ctx, end := context.WithTimeout(context.Background(), 50*time.Millisecond)
			var took []span
			var others sync.WaitGroup
			others.Go(func() { took = c.quick(ctx) })
			if streams {
				c.event(n)
			}
			others.Wait()
			end()
			if streams {
				beside = append(beside, took...)
			} else {
				quiet = append(quiet, took...)
			}
		}
	}
	b.StopTimer()
	heldHost, heldHere := host(), here()
	ms := func(d []time.Duration, q float64) float64 {
		slices.Sort(d)
		return d[int(q*float64(len(d)-1))].Seconds() * 1e3
	}
	b.ReportMetric(float64(memory)/(1<<20), "MiB")
	for name, took := range map[string][]span{"quiet": quiet, "beside": beside} {
		all := less(took, nil)
		b.ReportMetric(ms(all, 0.99), name+"-p99-ms")
		b.ReportMetric(ms(all, 1), name+"-max-ms")
		b.ReportMetric(ms(less(took, heldHost), 1), name+"-max-less-host-ms")
		b.ReportMetric(ms(less(took, heldHere), 1), name+"-max-less-goroutine-ms")
	}
	b.ReportMetric(ms(append(less(heldHost, nil), 0), 1), "host-max-ms")
	b.ReportMetric(ms(append(less(heldHere, nil), 0), 1), "goroutine-max-ms")
}
