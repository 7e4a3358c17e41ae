package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// BenchmarkCall holds a call through a warm instance against one through a bare
// httputil.ReverseProxy to the same server, turn by turn in one run: ratios of
// median and 99th percentile of latency, and of calls a second.
func BenchmarkCall(b *testing.B) {
	for _, connections := range []int{1, 64} {
		b.Run(fmt.Sprint(connections), func(b *testing.B) {
			w := newWorld(b, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(rw, "a small answer")
			}), func(c *Config) { c.Concurrency, c.Queue = 128, 1024 })
			w.apply(fn("f", func(f *function.Function) { f.Scale.Max, f.Inflight = 1, 128 }))
			if a := w.do("POST", "/function/f", "x"); a.status != 200 {
				b.Fatalf("%+v", a)
			}
			w.engine.mu.Lock()
			var address string
			for _, s := range w.engine.servers {
				address = s.record.Handle.Address
			}
			w.engine.mu.Unlock()
			bare := httptest.NewServer(&httputil.ReverseProxy{
				Rewrite: func(p *httputil.ProxyRequest) {
					p.SetURL(&url.URL{Scheme: "http", Host: address})
					p.Out.URL.Path = "/"
					p.SetXForwarded()
				},
				Transport: &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true}, BufferPool: &buffers{},
			})
			defer bare.Close()
			var through, direct []time.Duration
			var busy [2]time.Duration
			const turn = 200
			b.ResetTimer()
			for n := 0; n < b.N; n += turn * connections {
				for i, to := range []string{w.url("/function/f"), bare.URL} {
					begin := time.Now()
					took := load(b, to, connections, turn)
					busy[i] += time.Since(begin)
					if i == 0 {
						through = append(through, took...)
					} else {
						direct = append(direct, took...)
					}
				}
			}
			b.StopTimer()
			at := func(d []time.Duration, q float64) float64 {
				slices.Sort(d)
				return float64(d[int(q*float64(len(d)-1))])
			}
			b.ReportMetric(at(through, 0.5)/at(direct, 0.5), "p50-ratio")
			b.ReportMetric(at(through, 0.99)/at(direct, 0.99), "p99-ratio")
			b.ReportMetric(busy[0].Seconds()/busy[1].Seconds(), "time-ratio")
			b.ReportMetric(at(direct, 0.5)/1e3, "bare-p50-us")
			b.ReportMetric(float64(len(direct))/busy[1].Seconds(), "bare-rps")
		})
	}
}

// load sends calls over so many connections, each so often, and says how long each
// took.
func load(b *testing.B, to string, connections, times int) []time.Duration {
	transport := &http.Transport{MaxIdleConnsPerHost: connections, DisableCompression: true}
	defer transport.CloseIdleConnections()
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
					b.Errorf("%d, %v", answer.StatusCode, err)
					return
				}
				all[c] = append(all[c], time.Since(begin))
			}
		})
	}
	callers.Wait()
	return slices.Concat(all...)
}

// answering is an instance that answers at once, without a connection.
type answering struct{}

func (answering) answer() *http.Response {
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/plain"}, "Date": {"now"}}, ContentLength: 14,
		Body: io.NopCloser(strings.NewReader("a small answer"))}
}

func (a answering) Invoke(_ context.Context, _ instance.Record, c ports.Call) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, c.Body)
	return a.answer(), nil
}

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, r.Body)
	return a.answer(), nil
}

// BenchmarkOverhead is what a call takes beside its connections: here, and in a
// bare httputil.ReverseProxy.
func BenchmarkOverhead(b *testing.B) {
	w := newWorld(b, http.HandlerFunc(echo), func(c *Config) { c.Invoker = answering{} })
	w.apply(fn("f"))
	bare := &httputil.ReverseProxy{Transport: answering{}, BufferPool: &buffers{}, Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(&url.URL{Scheme: "http", Host: "x"})
		p.SetXForwarded()
	}}
	for name, handler := range map[string]http.Handler{"gateway": w.Gateway, "bare": bare} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest("POST", "/function/f", strings.NewReader("a small body"))
				handler.ServeHTTP(httptest.NewRecorder(), r)
			}
		})
	}
}
