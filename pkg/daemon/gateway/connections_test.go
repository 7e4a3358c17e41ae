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

// connected is a gateway with many callers: some keep a connection and say nothing,
// some read an answer that goes on, event by event.
type connected struct {
	*world
	ticks []chan int // the next event of each answer
	seen  chan error // one for each event that its caller has, nil as it should be
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
	c.world = newWorld(tb, mixed{"/events": events}, func(c *Config) { c.Queue = 1024 })
	c.apply(fn("quick"), fn("events", func(f *function.Function) { f.Scale.Max, f.Inflight = 1, manyStreams }))
	for _, name := range []string{"quick", "events"} {
		if a := c.do("GET", "/function/"+name, ""); a.status != 200 {
			tb.Fatalf("%+v", a)
		}
	}
	return c
}

// request sends one on a connection of its own, which stays open until leave, and
// returns what comes on it.
func (c *connected) request(path string) (*bufio.Reader, error) {
	conn, err := net.Dial("tcp", c.WebAddr().String())
	if err != nil {
		return nil, err
	}
	c.conns = append(c.conns, conn)
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: gateway\r\n\r\n", path)
	return bufio.NewReaderSize(conn, 512), err
}

// come has all of them come.
func (c *connected) come() {
	c.t.Helper()
	for range manyIdle {
		in, err := c.request("/function/quick")
		if err != nil {
			c.t.Fatal(err)
		}
		answer, err := http.ReadResponse(in, nil)
		if err != nil || answer.StatusCode != http.StatusOK {
			c.t.Fatalf("%+v, %v", answer, err)
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
			c.t.Fatalf("%+v, %v", answer, err)
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

// event has each answer go on by one event, and waits until every caller has it:
// nothing else comes that would push it on.
func (c *connected) event(n int) {
	c.t.Helper()
	for _, tick := range c.ticks {
		tick <- n
	}
	late := time.After(patience)
	for range manyStreams {
		select {
		case err := <-c.seen:
			if err != nil {
				c.t.Error(err)
			}
		case <-late:
			c.t.Fatalf("event %d did not come to all", n)
		}
	}
}

// leave ends the answers and the connections.
func (c *connected) leave() {
	for _, tick := range c.ticks {
		close(tick)
	}
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

// resident is the memory of this process that is in use, in bytes, once what is not
// was given back.
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

// used is the memory that objects and stacks take, in bytes: a tool such as the race
// detector has more of its own than all of that.
func used() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// quick calls the other function on one connection until the context ends, and
// returns when each call was.
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
			c.t.Errorf("%d", answer.StatusCode)
			return took
		}
	}
	return took
}

// TestManyConnections: 1,000 connections that say nothing and 200 answers that go on
// take no more memory than they may, callers and instances included, and each event
// comes to all at once, while others are answered.
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
		t.Error("nobody else was answered")
	}
}

// witness does nothing but sleep for a millisecond at a time, and tells when it woke
// later than a millisecond after that, for as long as it is to go on.
func witness(on func() bool, held func(span)) {
	for on() {
		begin := time.Now()
		time.Sleep(time.Millisecond)
		if due, end := begin.Add(2*time.Millisecond), time.Now(); end.After(due) {
			held(span{due.UnixNano(), end.UnixNano()})
		}
	}
}

// witnessing, in its environment, has this program be a witness and nothing else: what
// holds that up, the machine or what else runs on it, holds up everybody.
const witnessing = "GATEWAY_TEST_WITNESS"

func witnessHost() {
	witness(func() bool { return true }, func(s span) { fmt.Println(s.begin, s.end) }) // until it is killed
}

// span is a time, in ns since 1970.
type span struct{ begin, end int64 }

// witnessedHost starts a witness in a process of its own. The function it returns ends
// it and says when it was held up.
func witnessedHost(b *testing.B) (stop func() []span) {
	w := exec.Command(os.Args[0])
	w.Env = append(os.Environ(), witnessing+"=1")
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

// witnessedHere is the same in this process, where a goroutine has its turn with all
// others: those of the callers, the instances and the gateway.
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

// less is what is left of times without those in which the witness was held up too,
// of each call that took long.
func less(took []span, held []span) (left []time.Duration) {
	for _, t := range took {
		d := t.end - t.begin
		for _, h := range held {
			d -= max(min(t.end, h.end)-max(t.begin, h.begin), 0)
		}
		left = append(left, time.Duration(d))
	}
	return left
}

// BenchmarkConnections is what TestManyConnections' callers take in memory, and how
// long a call of another function takes at most, and as a rule, while all 200 answers
// go on together: without them, and with them, turn by turn; and that at most, less
// what held up a goroutine, or a process, that only sleeps meanwhile.
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
