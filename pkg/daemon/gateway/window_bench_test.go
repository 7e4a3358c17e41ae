package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
)

const (
	modelLoad   = 500 * time.Millisecond // until a model server is ready
	tokenTime   = 10 * time.Millisecond  // of a token, if the server answers one call
	tokenSlope  = 0.1                    // how much longer for each other call
	answerOf    = 40                     // tokens
	callersEach = 4
	benchWindow = time.Second
)

// batchingServer is a model server that batches: each of n calls gets a token in tokenTime × (1 + tokenSlope × (n - 1)).
type batchingServer struct {
	began time.Time // of its start
	calls atomic.Int64
}

func (s *batchingServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if time.Since(s.began) < modelLoad {
		http.Error(w, "loading", http.StatusServiceUnavailable)
		return
	}
	if r.URL.Path == "/healthz" {
		return
	}
	s.calls.Add(1)
	defer s.calls.Add(-1)
	at := time.Now()
	for range answerOf {
		at = at.Add(time.Duration(float64(tokenTime) * (1 + tokenSlope*float64(s.calls.Load()-1))))
		time.Sleep(time.Until(at))
		_, _ = io.WriteString(w, "token\n")
		_ = http.NewResponseController(w).Flush()
	}
}

// loop runs callersEach callers for each of three models in a closed loop for a while. call sends a call and returns its
// answer. loop returns the rate of tokens, and the 95th percentiles and the maximum of the times to the first token, the
// largest of the models.
func loop(b *testing.B, lasts time.Duration, call func(model int) (*http.Response, func(), error)) (rate float64, ttft95, longest time.Duration) {
	var mu sync.Mutex
	var first [3][]time.Duration
	var tokens atomic.Int64
	var callers sync.WaitGroup
	end := time.Now().Add(lasts)
	for model := range first {
		for range callersEach {
			callers.Go(func() {
				for time.Now().Before(end) {
					sent := time.Now()
					response, done, err := call(model)
					if err != nil || response.StatusCode != 200 {
						b.Errorf("model %d: got %+v, %v; want status 200", model, response, err)
						return
					}
					token := make([]byte, len("token\n"))
					for n := 0; ; n++ {
						if _, err := io.ReadFull(response.Body, token); err != nil {
							break
						}
						if n == 0 {
							mu.Lock()
							first[model] = append(first[model], time.Since(sent))
							mu.Unlock()
						}
						if time.Now().Before(end) {
							tokens.Add(1)
						}
					}
					response.Body.Close()
					done()
				}
			})
		}
	}
	callers.Wait()
	for _, times := range first {
		if slices.Sort(times); len(times) > 0 {
			ttft95, longest = max(ttft95, times[(len(times)-1)*95/100]), max(longest, times[len(times)-1])
		}
	}
	return float64(tokens.Load()) / lasts.Seconds(), ttft95, longest
}

// direct holds model servers that are called without a gateway.
type direct struct {
	mu      sync.Mutex // held during a swap
	servers [3]*httptest.Server
	running [3]sync.WaitGroup
	used    []int // resident models, the least recently used first
	fit     int
	client  *http.Client
}

// call calls a model. If it is not resident, and no other fits, the least recently used model is unloaded first, after
// its calls have ended. Meanwhile, no other call begins.
func (d *direct) call(model int) (*http.Response, func(), error) {
	d.mu.Lock()
	if i := slices.Index(d.used, model); i >= 0 {
		d.used = slices.Delete(d.used, i, i+1)
	} else {
		if len(d.used) == d.fit {
			victim := d.used[0]
			d.running[victim].Wait()
			d.servers[victim].Close()
			d.used = d.used[1:]
		}
		d.servers[model] = httptest.NewServer(&batchingServer{began: time.Now()})
		time.Sleep(modelLoad)
	}
	d.used = append(d.used, model)
	d.running[model].Add(1)
	url := d.servers[model].URL
	d.mu.Unlock()
	response, err := d.client.Post(url+"/v1", "text/plain", nil)
	return response, d.running[model].Done, err
}

// BenchmarkBatches measures the tokens per second of three models with four callers each in a closed loop: direct calls and
// calls through the gateway, alternately. With two of three models that fit, the direct calls swap models in the order in
// which they arrive. (llama-swap lets calls of loaded models go first, for as long as there are any: its rate is higher, and
// some calls wait for 10 s and more.) It also reports the largest 95th percentile of a model's times to the first token, as a fraction of
// 2 × (batch window + longest answer) + one load.
func BenchmarkBatches(b *testing.B) {
	for _, fit := range []int{3, 2} {
		for _, policy := range []string{"gfaas", "mqfq-sticky", "fcfs"} {
			b.Run(fmt.Sprintf("fit=%d/%s", fit, policy), func(b *testing.B) {
				client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
				defer client.CloseIdleConnections()
				w := newWorld(b, nil, func(c *Config) {
					c.Policy.Policy, c.BatchWindow, c.GPUs = policy, benchWindow, []GPU{{Name: "sim", Mem: int64(fit) << 30}}
				})
				w.runtime.Handler = func(instance.Spec) http.Handler { return &batchingServer{began: time.Now()} }
				model := func(f *function.Function) { f.Inflight, f.GPUMem = 8, gpu.GiB }
				w.apply(fn("m0", model), fn("m1", model), fn("m2", model))
				gateway := func(model int) (*http.Response, func(), error) {
					r, _ := http.NewRequestWithContext(context.Background(), "POST", w.url(fmt.Sprintf("/function/m%d/v1", model)), nil)
					response, err := client.Do(r)
					return response, func() {}, err
				}
				d := &direct{fit: fit, client: client}
				defer func() {
					for _, i := range d.used {
						d.servers[i].Close()
					}
				}()
				const lasts = 8 * time.Second
				loop(b, time.Second, d.call) // starts what fits
				loop(b, time.Second, gateway)
				var rates [2]float64
				var p95, longest [2]time.Duration
				for range b.N {
					for i, call := range []func(int) (*http.Response, func(), error){d.call, gateway, d.call, gateway} {
						rate, first, most := loop(b, lasts, call)
						rates[i%2] += rate
						p95[i%2], longest[i%2] = max(p95[i%2], first), max(longest[i%2], most)
					}
				}
				const answer = time.Duration(answerOf * float64(tokenTime) * (1 + tokenSlope*(callersEach-1)))
				bound := 2*(benchWindow+answer) + modelLoad
				b.ReportMetric(rates[1]/rates[0], "rate-ratio")
				b.ReportMetric(rates[1]/float64(2*b.N), "tokens/s")
				b.ReportMetric(rates[0]/float64(2*b.N), "direct-tokens/s")
				b.ReportMetric(float64(p95[1])/float64(bound), "ttft-p95-of-bound")
				b.ReportMetric(p95[1].Seconds(), "ttft-p95-s")
				b.ReportMetric(p95[0].Seconds(), "direct-ttft-p95-s")
				b.ReportMetric(longest[1].Seconds(), "ttft-max-s")
				b.ReportMetric(longest[0].Seconds(), "direct-ttft-max-s")
			})
		}
	}
}
