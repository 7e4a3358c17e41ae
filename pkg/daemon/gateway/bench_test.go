package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/proxy"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// BenchmarkCall compares a call to a warm instance through the gateway with a call
// through a plain httputil.ReverseProxy to the same server. It alternates between both in
// one run and reports ratios of the median and 99th percentile of latency, of the time
// for an equal number of calls, and of the CPU time, callers and instance included. For
// chunks, the latency is the time between the instance's write of a chunk of an event stream
// and its arrival.
func BenchmarkCall(b *testing.B) {
	for _, connections := range []int{1, 64} {
		b.Run(fmt.Sprint(connections), func(b *testing.B) {
			compare(b, func(rw http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(rw, "a small answer")
			}, func(transport http.RoundTripper, url string, turns int) []time.Duration {
				return load(b, transport, url, connections, max(turns/connections, 1))
			})
		})
	}
	b.Run("chunks", func(b *testing.B) {
		next, wrote := make(chan bool), make(chan time.Time, 1)
		compare(b, func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "text/event-stream")
			for _ = http.NewResponseController(rw).Flush(); r.Method == http.MethodGet && r.URL.Path == "/" && <-next; {
				wrote <- time.Now()
				_, _ = io.WriteString(rw, chunk)
				_ = http.NewResponseController(rw).Flush()
			}
		}, func(transport http.RoundTripper, url string, turns int) []time.Duration {
			return receive(b, transport, url, turns, next, wrote)
		})
	})
}

const chunk = `data: {"choices":[{"index":0,"delta":{"content":" token"}}]}` + "\n\n"

// receive calls url and returns for each chunk of the answer the time that it took to arrive. The
// instance writes a chunk for each value in next, and reports when.
func receive(b *testing.B, transport http.RoundTripper, url string, chunks int, next chan<- bool, wrote <-chan time.Time) (took []time.Duration) {
	r, err := http.NewRequest("GET", url, nil)
	if err != nil {
		b.Fatal(err)
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		b.Fatal(err)
	}
	defer answer.Body.Close()
	got := make([]byte, len(chunk))
	for range chunks {
		next <- true
		if _, err := io.ReadFull(answer.Body, got); err != nil || string(got) != chunk {
			b.Fatalf("got %q, %v; want a chunk", got, err)
		}
		took = append(took, time.Since(<-wrote))
	}
	next <- false
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		b.Fatal(err)
	}
	return took
}

// compare measures a handler through the gateway and through a plain proxy. call calls the handler a number of
// times and returns the latencies.
func compare(b *testing.B, handler http.HandlerFunc, call func(transport http.RoundTripper, url string, turns int) []time.Duration) {
	w := newWorld(b, handler, func(c *Config) { c.Concurrency, c.Queue = 128, 1024 })
	w.apply(fn("f", func(f *function.Function) { f.Scale.Max, f.Inflight = 1, 128 }))
	if a := w.do("POST", "/function/f", "x"); a.status != 200 {
		b.Fatalf("got %+v; want status 200", a)
	}
	address := w.Status().Instances[0].Address
	bare := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: address})
			p.Out.URL.Path = "/"
			p.SetXForwarded()
		},
		Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}, BufferPool: &proxy.Buffers{},
	})
	defer bare.Close()
	transport := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	defer transport.CloseIdleConnections()
	sides := [2]side{{url: w.url("/function/f")}, {url: bare.URL}}
	for i := range sides { // each side opens its connections
		call(transport, sides[i].url, 20*64)
	}
	b.ResetTimer()
	for n := 0; n < b.N; n += turn {
		for i := range sides {
			s := &sides[i]
			begin, cpu := time.Now(), cpuTime(b)
			s.took = append(s.took, call(transport, s.url, turn)...)
			s.busy += time.Since(begin)
			s.cpu += cpuTime(b) - cpu
		}
	}
	b.StopTimer()
	at := func(s side, q float64) float64 {
		slices.Sort(s.took)
		return float64(s.took[int(q*float64(len(s.took)-1))])
	}
	through, direct := sides[0], sides[1]
	b.ReportMetric(at(through, 0.5)/at(direct, 0.5), "p50-ratio")
	b.ReportMetric(at(through, 0.99)/at(direct, 0.99), "p99-ratio")
	b.ReportMetric(through.busy.Seconds()/direct.busy.Seconds(), "time-ratio")
	b.ReportMetric(through.cpu.Seconds()/direct.cpu.Seconds(), "cpu-ratio")
	b.ReportMetric(at(direct, 0.5)/1e3, "bare-p50-us")
	b.ReportMetric(float64(len(direct.took))/direct.busy.Seconds(), "bare-rps")
}

// turn is the number of calls to one side before the benchmark switches to the other.
const turn = 256

// side holds the measurements of the gateway or of the plain proxy.
type side struct {
	url       string
	took      []time.Duration
	busy, cpu time.Duration
}

// cpuTime returns the CPU time that this process has used. On a shared host it is a
// steadier measure than elapsed time.
func cpuTime(b *testing.B) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// load sends calls over the given number of connections, the given number of times on
// each, and returns the duration of each call.
func load(b *testing.B, transport http.RoundTripper, to string, connections, times int) []time.Duration {
	all := make([][]time.Duration, connections)
	var callers sync.WaitGroup
	for c := range connections {
		callers.Go(func() {
			for range times {
				r, err := http.NewRequest("POST", to, strings.NewReader("a small body"))
				if err != nil {
					b.Error(err)
					return
				}
				begin := time.Now()
				answer, err := transport.RoundTrip(r)
				if err != nil {
					b.Error(err)
					return
				}
				_, err = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
				if err != nil || answer.StatusCode != 200 {
					b.Errorf("call: got status %d, %v; want 200", answer.StatusCode, err)
					return
				}
				all[c] = append(all[c], time.Since(begin))
			}
		})
	}
	callers.Wait()
	return slices.Concat(all...)
}

// answering is an instance that answers immediately, without a connection.
type answering struct{}

func (answering) answer() *http.Response {
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/plain"}, "Date": {"now"}}, ContentLength: 14,
		Body: io.NopCloser(strings.NewReader("a small answer"))}
}

func (a answering) Invoke(_ context.Context, _ *instance.Record, c ports.Call) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, c.Body)
	return a.answer(), nil
}

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, r.Body)
	return a.answer(), nil
}

// BenchmarkOverhead measures a call without the cost of connections, through the gateway
// and through a plain httputil.ReverseProxy.
func BenchmarkOverhead(b *testing.B) {
	w := newWorld(b, http.HandlerFunc(echo), func(c *Config) { c.Invoker = answering{} })
	w.apply(fn("f"))
	bare := &httputil.ReverseProxy{Transport: answering{}, BufferPool: &proxy.Buffers{}, Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(&url.URL{Scheme: "http", Host: "x"})
		p.SetXForwarded()
	}}
	handlers := [2]http.Handler{w.api, bare}
	var used [2]time.Duration
	var allocs [2]uint64
	var m runtime.MemStats
	for n := 0; n < b.N; n += turn {
		for i, handler := range handlers {
			runtime.ReadMemStats(&m)
			before, cpu := m.Mallocs, cpuTime(b)
			for range turn {
				r := httptest.NewRequest("POST", "/function/f", strings.NewReader("a small body"))
				handler.ServeHTTP(httptest.NewRecorder(), r)
			}
			used[i] += cpuTime(b) - cpu
			runtime.ReadMemStats(&m)
			allocs[i] += m.Mallocs - before
		}
	}
	calls := float64((b.N + turn - 1) / turn * turn)
	b.ReportMetric(used[0].Seconds()*1e6/calls, "cpu-us")
	b.ReportMetric(used[1].Seconds()*1e6/calls, "bare-cpu-us")
	b.ReportMetric(float64(allocs[0])/calls, "allocs")
	b.ReportMetric(float64(allocs[1])/calls, "bare-allocs")
}
