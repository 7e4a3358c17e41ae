package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/gateway/refusal"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/splitmix"
	"github.com/gfaas/gfaas/pkg/trace"
)

// doubler is a model server. It answers an instance, a number, with twice its value, in v1 and v2. It answers 400 to a
// request with a negative instance and 500 to one with 500, closes the connection on 666, and omits the prediction of
// 777.
type doubler struct {
	mu       sync.Mutex
	requests [][]float64
	headers  []http.Header
	arrived  chan struct{} // if release is set: receives a value for each request
	release  chan struct{} // if set: each answer waits until it can receive
}

type tensorJSON struct {
	Name     string    `json:"name"`
	Shape    []int     `json:"shape"`
	Datatype string    `json:"datatype"`
	Data     []float64 `json:"data"`
}

func (d *doubler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/healthz" {
		return
	}
	var body struct {
		Instances []float64    `json:"instances"`
		Inputs    []tensorJSON `json:"inputs"`
	}
	text, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(text, &body); err != nil {
		http.Error(w, "malformed: "+err.Error(), http.StatusUnprocessableEntity)
		return
	}
	numbers := body.Instances
	for _, in := range body.Inputs {
		numbers = append(numbers, in.Data...)
	}
	d.mu.Lock()
	d.requests, d.headers = append(d.requests, numbers), append(d.headers, r.Header)
	d.mu.Unlock()
	if d.release != nil {
		d.arrived <- struct{}{}
		select {
		case <-d.release:
		case <-r.Context().Done():
			return
		}
	}
	w.Header().Set("Model", "doubler")
	w.Header().Set("Set-Cookie", "session=1")
	var twice []float64
	for _, n := range numbers {
		switch {
		case n < 0:
			http.Error(w, fmt.Sprint("negative: ", n), 400)
			return
		case n == 500:
			http.Error(w, "failed", 500)
			return
		case n == 666:
			panic(http.ErrAbortHandler)
		case n == 777: // an answer without its prediction
			continue
		}
		twice = append(twice, 2*n)
	}
	w.Header().Set("Content-Type", "application/json")
	if len(body.Inputs) > 0 {
		_ = json.NewEncoder(w).Encode(map[string]any{"model_name": "m", "outputs": []tensorJSON{{"y", []int{len(twice)}, "FP64", twice}}})
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"predictions": twice})
}

// seen returns the sorted numbers of each request.
func (d *doubler) seen() (all [][]float64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, numbers := range d.requests {
		numbers = slices.Clone(numbers)
		slices.Sort(numbers)
		all = append(all, numbers)
	}
	return all
}

// batching returns a function that forms batches of at most max inferences. They wait so long that only their size
// decides when they are sent.
func batching(most int, change ...func(*function.Function)) function.Function {
	return fn("f", append([]func(*function.Function){func(f *function.Function) {
		f.Batcher = &function.Batcher{Max: most, Latency: patience}
	}}, change...)...)
}

func v1(numbers ...float64) string {
	text, _ := json.Marshal(map[string]any{"instances": numbers})
	return string(text)
}

// predictions returns the predictions of an answer in v1.
func predictions(t *testing.T, a answer) (got []float64) {
	t.Helper()
	var body struct {
		Predictions []float64 `json:"predictions"`
	}
	if err := json.Unmarshal([]byte(a.body), &body); err != nil || a.status != 200 {
		t.Errorf("got status %d, %v, %s; want predictions", a.status, err, a.body)
	}
	return body.Predictions
}

// together sends bodies at the same time and returns the answers.
func (w *world) together(bodies []string, headers ...[]string) []answer {
	w.t.Helper()
	answers := make([]answer, len(bodies))
	var wg sync.WaitGroup
	for i, body := range bodies {
		var h []string
		if i < len(headers) {
			h = headers[i]
		}
		wg.Go(func() {
			var err error
			if answers[i], err = w.try(context.Background(), "POST", "/function/f/v1/models/m:predict", body, h...); err != nil {
				w.t.Error(err)
			}
		})
	}
	wg.Wait()
	return answers
}

// waiting waits until that number of calls waits.
func (w *world) waiting(n int) {
	w.t.Helper()
	w.until(fmt.Sprint(n, " calls wait"), func() bool { return *w.Status().Functions[0].Waiting == n })
}

// checkNoMemory waits until no memory is reserved for bodies and answers.
func (w *world) checkNoMemory() {
	w.t.Helper()
	w.until("no memory is reserved", func() bool { return w.intake.Usage().Memory == 0 })
}

// TestBatch: calls that together fill a batch reach the instance as one request, and each gets its own answer.
func TestBatch(t *testing.T) {
	d := &doubler{}
	w := newWorld(t, d, nil)
	w.apply(batching(6))
	answers := w.together([]string{v1(1), v1(2, 3), v1(4), v1(5, 6)}, []string{"X-Call-Id", "one", "User-Agent", "a", "X-Own", "x"}, []string{"X-Own", "x"}, []string{"X-Own", "x"}, []string{"X-Own", "x"})
	for i, want := range [][]float64{{2}, {4, 6}, {8}, {10, 12}} {
		a := answers[i]
		if got := predictions(t, a); !slices.Equal(got, want) {
			t.Errorf("call %d: got %v, want %v", i, got, want)
		}
		h := a.header
		if h.Get("Gfaas-Batch") != "6" || h.Get("Gfaas-Instance") != "f.1" || h.Get("Model") != "doubler" || h.Get("Gfaas-Attempts") != "1" || h.Get("Gfaas-Start") != "cold" ||
			h.Get("Set-Cookie") != "" || h.Get("Content-Length") != fmt.Sprint(len(a.body)) {
			t.Errorf("call %d: got the headers %v", i, h)
		}
	}
	if id := answers[0].header.Get("X-Call-Id"); id != "one" {
		t.Errorf("got the call ID %q, want one", id)
	}
	if got := d.seen(); len(got) != 1 || !slices.Equal(got[0], []float64{1, 2, 3, 4, 5, 6}) || d.headers[0].Get("X-Own") != "x" || d.headers[0].Get("User-Agent") == "a" {
		t.Errorf("the instance got %v with the headers %v, want one request", got, d.headers)
	}
	metrics := w.do("GET", "/metrics", "").body
	for _, want := range []string{`gfaas_batch_size_sum{function="f"} 6`, `gfaas_batch_size_count{function="f"} 1`, `gfaas_batch_wait_seconds_count{function="f"} 1`, `gfaas_requests_total{code="200",function="f"} 4`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics: want %s, got\n%s", want, metrics)
		}
	}
	w.checkNoMemory()
	w.awaitNoCalls()
}

// TestBatchIsSized checks that the policy expects a batch to take as long as its inferences need, also in a replay of the
// record.
func TestBatchIsSized(t *testing.T) {
	var text bytes.Buffer
	w := newWorld(t, &doubler{}, func(c *Config) {
		c.Record, c.FixedCosts = &text, true
		c.Costs = map[string]trace.Function{"f": {Name: "f", Warm: time.Second, Cold: time.Second, BatchSlope: 0.5}}
	})
	w.apply(batching(4))
	w.together([]string{v1(1), v1(2, 3), v1(4)}) // 4 inferences take 1 + 0.5 × 3 times as long as one
	w.together([]string{v1(1, 2, 3, 4)})
	w.awaitNoCalls()
	w.close()
	if got := strings.Count(text.String(), `"event":"sized"`); got != 2 || strings.Count(text.String(), `"times":2.5`) != 2 {
		t.Errorf("record: got %d events sized, want 2 with 2.5 times\n%s", got, &text)
	}
	if err := replayed(text.Bytes()); err != nil {
		t.Error(err)
	}
}

// TestBatchV2: the same for tensors.
func TestBatchV2(t *testing.T) {
	d := &doubler{}
	w := newWorld(t, d, nil)
	w.apply(batching(3))
	body := func(id string, numbers ...float64) string {
		text, _ := json.Marshal(map[string]any{"id": id, "inputs": []tensorJSON{{"x", []int{len(numbers)}, "FP64", numbers}}})
		return string(text)
	}
	answers := w.together([]string{body("a", 1), body("b", 2, 3)})
	for i, want := range []string{
		`{"model_name":"m","outputs":[{"name":"y","shape":[1],"datatype":"FP64","data":[2]}],"id":"a"}`,
		`{"model_name":"m","outputs":[{"name":"y","shape":[2],"datatype":"FP64","data":[4,6]}],"id":"b"}`,
	} {
		if answers[i].body != want {
			t.Errorf("got %+v, want the body %s", answers[i], want)
		}
	}
	if got := d.seen(); len(got) != 1 {
		t.Errorf("the instance got %v, want one request", got)
	}
}

// TestBatchLatency: a call without others is sent, unchanged, after the latency.
func TestBatchLatency(t *testing.T) {
	d := &doubler{}
	w := newWorld(t, d, nil)
	w.apply(fn("f", func(f *function.Function) { f.Batcher = &function.Batcher{Max: 8, Latency: time.Millisecond} }))
	a := w.together([]string{v1(4)}, []string{"User-Agent", "a"})[0]
	if got := predictions(t, a); !slices.Equal(got, []float64{8}) || a.header.Get("Gfaas-Batch") != "" || a.header.Get("Set-Cookie") == "" || d.headers[0].Get("User-Agent") != "a" {
		t.Errorf("got %+v from a request with the headers %v, want the answer to an unchanged request", a, d.headers)
	}
}

// TestBatchAlone: calls that cannot share a batch are sent at once: other forms, malformed and large bodies, and other
// methods.
func TestBatchAlone(t *testing.T) {
	d := &doubler{}
	w := newWorld(t, d, nil)
	w.apply(batching(2))
	for name, c := range map[string]struct {
		body    string
		headers []string
		status  int
	}{
		"another form": {`{"x":1}`, nil, 200}, "malformed": {`{"instances":[1,}`, nil, 422}, "larger than a batch": {v1(1, 2, 3), nil, 200},
		"longer than the buffer": {`{"instances":[` + strings.Repeat("1.000,", 400) + `1]}`, nil, 200}, "encoded": {v1(1), []string{"Content-Encoding", "br"}, 200},
	} {
		if a := w.do("POST", "/function/f", c.body, c.headers...); a.status != c.status || a.header.Get("Gfaas-Batch") != "" {
			t.Errorf("%s: got %d with the headers %v, want %d alone", name, a.status, a.header, c.status)
		}
	}
	if a := w.do("PUT", "/function/f", v1(1)); a.status != 200 {
		t.Errorf("PUT: got %+v, want status 200", a)
	}
	w.awaitNoCalls()
}

// TestBatchHeaderOfFunction: a function cannot set the header Gfaas-Batch of an answer.
func TestBatchHeaderOfFunction(t *testing.T) {
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Gfaas-Batch", "8") }), nil)
	w.apply(fn("f"))
	if a := w.do("POST", "/function/f", "x"); a.status != 200 || a.header["Gfaas-Batch"] != nil {
		t.Errorf("got %+v, want status 200 without Gfaas-Batch", a)
	}
}

// TestBatchKeys: calls with different paths, queries, headers or structures do not share a request.
func TestBatchKeys(t *testing.T) {
	d := &doubler{}
	w := newWorld(t, d, nil)
	w.apply(batching(2))
	var wg sync.WaitGroup
	for _, c := range []struct {
		path   string
		body   string
		header []string
	}{
		{"/function/f/a", v1(1), nil}, {"/function/f/b", v1(2), nil}, {"/function/f/a?q=1", v1(3), nil},
		{"/function/f/a", v1(4), []string{"Authorization", "Bearer 1"}}, {"/function/f/a", v1(5), []string{"Authorization", "Bearer 2"}},
	} {
		for range 2 {
			wg.Go(func() {
				if a, err := w.try(context.Background(), "POST", c.path, c.body, c.header...); err != nil || a.header.Get("Gfaas-Batch") != "2" {
					t.Errorf("%s: got %+v, %v; want the answer of a batch", c.path, a, err)
				}
			})
		}
	}
	wg.Wait()
	for _, numbers := range d.seen() {
		if len(numbers) != 2 || numbers[0] != numbers[1] {
			t.Errorf("the instance got %v in one request", numbers)
		}
	}
}

// TestBatchFailures: the failure of one member is confined to it, as far as calls may be sent again.
func TestBatchFailures(t *testing.T) {
	key := []string{"Idempotency-Key", "k"}
	for name, c := range map[string]struct {
		bad     float64
		repeat  bool
		headers [][]string // of the bad call and of two good ones
		status  [3]int
		reason  [3]string
		sent    int // requests to the instance
	}{
		"refused":                  {-1, false, nil, [3]int{400, 200, 200}, [3]string{}, 4},
		"failed":                   {500, false, nil, [3]int{502, 502, 502}, [3]string{"batch-failed", "batch-failed", "batch-failed"}, 1},
		"failed, one idempotent":   {500, false, [][]string{nil, key}, [3]int{502, 200, 502}, [3]string{"batch-failed", "", "batch-failed"}, 2},
		"failed, repeat":           {500, true, nil, [3]int{500, 200, 200}, [3]string{}, 4},
		"died":                     {666, false, [][]string{nil, nil, key}, [3]int{502, 502, 200}, [3]string{"instance-died", "instance-died", ""}, 2},
		"too few predictions":      {777, false, [][]string{nil, nil, key}, [3]int{502, 502, 200}, [3]string{"bad-answer", "bad-answer", ""}, 2},
		"died, repeated only once": {666, true, nil, [3]int{502, 200, 200}, [3]string{"instance-died", "", ""}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &doubler{}
			w := newWorld(t, d, nil)
			w.apply(batching(3, func(f *function.Function) { f.Batcher.Repeat = c.repeat }))
			answers := w.together([]string{v1(c.bad), v1(1), v1(2)}, c.headers...)
			for i, a := range answers {
				if a.status != c.status[i] || c.reason[i] != "" && a.reason() != c.reason[i] {
					t.Errorf("call %d: got %+v, want status %d, reason %q", i, a, c.status[i], c.reason[i])
				}
				if a.status == 200 {
					if got := predictions(t, a); !slices.Equal(got, []float64{2 * float64(i)}) || a.header.Get("Gfaas-Attempts") != "2" {
						t.Errorf("call %d: got %v after %s attempts, want %v after 2", i, got, a.header.Get("Gfaas-Attempts"), 2*i)
					}
				}
			}
			if got := d.seen(); len(got) != c.sent {
				t.Errorf("the instance got the requests %v, want %d", got, c.sent)
			}
			w.checkNoMemory()
			w.awaitNoCalls()
		})
	}
}

// TestBatchDisconnects: a member whose caller disconnects leaves a waiting batch. If the batch was sent, the others still
// get their answers, and the batch is cancelled only when all callers have disconnected.
func TestBatchDisconnects(t *testing.T) {
	d := &doubler{arrived: make(chan struct{}, 10), release: make(chan struct{})}
	w := newWorld(t, d, nil)
	w.apply(batching(2))
	call := func(body string) (cancel func(), done chan error) {
		ctx, cancel := context.WithCancel(context.Background())
		done = make(chan error, 1)
		go func() {
			a, err := w.try(ctx, "POST", "/function/f", body)
			if err == nil && a.status != 200 {
				err = fmt.Errorf("%+v", a)
			}
			done <- err
		}()
		return cancel, done
	}
	leave, gone := call(v1(1))
	w.waiting(1)
	leave()
	<-gone
	w.waiting(0)
	stay, first := call(v1(2))
	defer stay()
	w.waiting(1)
	leave, gone = call(v1(3))
	<-d.arrived // both are running
	leave()
	<-gone
	d.release <- struct{}{}
	if err := <-first; err != nil {
		t.Error(err)
	}
	if got := d.seen(); len(got) != 1 || !slices.Equal(got[0], []float64{2, 3}) {
		t.Errorf("the instance got %v, want one request with 2 and 3", got)
	}
	leave, gone = call(v1(4))
	leaveToo, goneToo := call(v1(5))
	<-d.arrived
	leave()
	leaveToo()
	<-gone
	<-goneToo
	w.awaitNoCalls() // the instance's answer is not awaited
	w.checkNoMemory()
}

// TestBatchQueue: the calls of batches count for the queue, and each has its own limit on its wait.
func TestBatchQueue(t *testing.T) {
	d := &doubler{arrived: make(chan struct{}, 10), release: make(chan struct{})}
	began, ahead := time.Now(), atomic.Int64{}
	w := newWorld(t, d, func(c *Config) {
		c.Concurrency, c.QueueTimeout = 1, time.Hour
		c.dispatchConfig.Now = func() time.Duration { return time.Since(began) + time.Duration(ahead.Load()) }
	})
	w.apply(fn("f", func(f *function.Function) {
		f.Queue, f.Scale.Max, f.Timeout = 3, 1, time.Hour
		f.Batcher = &function.Batcher{Max: 8, Latency: time.Millisecond}
	}))
	var wg sync.WaitGroup
	wg.Go(func() { w.together([]string{v1(1)}) })
	<-d.arrived // it occupies the only instance
	early := make(chan answer, 1)
	wg.Go(func() { early <- w.together([]string{v1(2)})[0] })
	w.waiting(1)
	ahead.Store(int64(30 * time.Minute)) // the later calls may wait that much longer
	later := make(chan answer, 2)
	for n := range 2 {
		wg.Go(func() { later <- w.together([]string{v1(float64(3 + n))})[0] })
	}
	w.waiting(3)
	if s := w.Status(); *s.Functions[0].InFlight != 1 {
		t.Errorf("%d calls are in flight, want 1", *s.Functions[0].InFlight)
	}
	checkRefusal(t, w.do("POST", "/function/f", v1(9)), 429, refusal.QueueFull)
	checkRefusal(t, w.do("POST", "/function/f", "no batch"), 429, refusal.QueueFull)
	ahead.Store(int64(61 * time.Minute))
	w.apply(fn("other")) // an event, with which the policy looks at the time
	checkRefusal(t, <-early, 504, refusal.QueueTimeout)
	w.waiting(2)
	close(d.release)
	for range 2 {
		if a := <-later; a.status != 200 || a.header.Get("Gfaas-Batch") != "2" {
			t.Errorf("got %+v, want the answer of a batch of the two later calls", a)
		}
	}
	wg.Wait()
	w.awaitNoCalls()
}

// TestBatchDrains: calls that wait for their batch when the gateway shuts down are served.
func TestBatchDrains(t *testing.T) {
	d := &doubler{}
	w := newWorld(t, d, nil)
	w.apply(fn("f", func(f *function.Function) { f.Batcher = &function.Batcher{Max: 8, Latency: 200 * time.Millisecond} }))
	answers := make(chan []answer, 1)
	go func() { answers <- w.together([]string{v1(0), v1(1)}) }()
	w.waiting(2)
	w.close()
	for i, a := range <-answers {
		if got := predictions(t, a); !slices.Equal(got, []float64{2 * float64(i)}) {
			t.Errorf("call %d: got %+v, want %v", i, a, 2*i)
		}
	}
}

// TestBatchDrainsAlone: the calls of a batch that the instance refuses while the gateway shuts down are sent again, alone.
func TestBatchDrainsAlone(t *testing.T) {
	d := &doubler{arrived: make(chan struct{}, 10), release: make(chan struct{})}
	w := newWorld(t, d, nil)
	w.apply(batching(2))
	answers := make(chan []answer, 1)
	go func() { answers <- w.together([]string{v1(-1), v1(1)}) }()
	<-d.arrived
	w.stop()
	w.until("the gateway drains", w.dispatcher.Draining.IsSet)
	close(d.release)
	got := <-answers
	if got[0].status != 400 {
		t.Errorf("the refused call: got %+v, want status 400", got[0])
	}
	if p := predictions(t, got[1]); !slices.Equal(p, []float64{2}) {
		t.Errorf("the other call: got %v, want 2", p)
	}
	w.close()
}

// TestBatchTimeout: the limit on the time until an answer holds for all calls of a batch.
func TestBatchTimeout(t *testing.T) {
	d := &doubler{arrived: make(chan struct{}, 1), release: make(chan struct{})}
	w := newWorld(t, d, nil)
	w.apply(batching(2, func(f *function.Function) { f.Timeout = 50 * time.Millisecond }))
	for _, a := range w.together([]string{v1(0), v1(1)}, []string{"Idempotency-Key", "k"}) {
		checkRefusal(t, a, 504, refusal.Timeout)
	}
	w.awaitNoCalls()
	w.checkNoMemory()
}

// TestBatchStorm: among many callers, some of which disconnect, and calls that the instance refuses, each caller gets its
// own answer.
func TestBatchStorm(t *testing.T) {
	d := &doubler{}
	w := newWorld(t, d, func(c *Config) { c.Concurrency = 3 })
	w.apply(fn("f", func(f *function.Function) {
		f.Scale.Max, f.Queue = 3, 1000
		f.Batcher = &function.Batcher{Max: 8, Latency: time.Millisecond}
	}))
	var callers sync.WaitGroup
	for n := range 24 {
		callers.Go(func() {
			r := splitmix.Source(n)
			for range 12 {
				numbers := make([]float64, 1+r.Below(3))
				for i := range numbers {
					numbers[i] = float64(1000 + r.Below(1000))
				}
				refused := r.Below(20) == 0
				if refused {
					numbers[0] = -1
				}
				ctx, leave := context.WithCancel(context.Background())
				if r.Below(5) == 0 {
					time.AfterFunc(time.Duration(r.Below(3000))*time.Microsecond, leave)
				}
				a, err := w.try(ctx, "POST", "/function/f", v1(numbers...))
				left := ctx.Err() != nil
				leave()
				switch {
				case left:
				case err != nil:
					t.Error(err)
				case refused:
					if a.status != 400 {
						t.Errorf("%v: got %+v, want status 400", numbers, a)
					}
				default:
					got := predictions(t, a)
					for i := range numbers {
						if len(got) != len(numbers) || got[i] != 2*numbers[i] {
							t.Errorf("%v: got %v", numbers, got)
							break
						}
					}
				}
			}
		})
	}
	callers.Wait()
	w.awaitNoCalls()
	w.checkNoMemory()
	if f := w.Status().Functions[0]; *f.Waiting != 0 || *f.InFlight != 0 {
		t.Errorf("%d calls wait and %d run, want none", *f.Waiting, *f.InFlight)
	}
}

// TestBatchWithoutMemory: without memory for a batch's answer, its calls are sent alone.
func TestBatchWithoutMemory(t *testing.T) {
	d := &doubler{}
	w := newWorld(t, d, func(c *Config) { c.Buffer, c.BufferMemory = 64<<10, 64<<10 })
	w.apply(batching(2))
	for i, a := range w.together([]string{v1(0), v1(1)}) {
		if got := predictions(t, a); !slices.Equal(got, []float64{2 * float64(i)}) || a.header.Get("Gfaas-Batch") != "" {
			t.Errorf("call %d: got %+v, want %v from a request of its own", i, a, 2*i)
		}
	}
	w.checkNoMemory()
}

// TestPlanBatch: the batch of a plan's instance is the number of calls at once of a server that batches by itself, and
// the largest batch for one that does not. It can change while the instance runs.
func TestPlanBatch(t *testing.T) {
	t.Run("inflight", func(t *testing.T) {
		d := &doubler{arrived: make(chan struct{}, 10), release: make(chan struct{})}
		w := newWorld(t, d, nil)
		f := fn("f", func(f *function.Function) { f.Inflight = 2 })
		w.apply(f)
		r := w.gfaasUpBatch("f-0", f, 3)
		var wg sync.WaitGroup
		for n := range 4 {
			wg.Go(func() {
				if a := w.together([]string{v1(float64(n))})[0]; a.status != 200 || a.header.Get("Gfaas-Instance") != "f-0" {
					t.Errorf("got %+v, want the answer of f-0", a)
				}
			})
		}
		inFlight := func(n int) {
			w.until(fmt.Sprint(n, " calls run"), func() bool {
				f := w.Status().Functions[0]
				return *f.InFlight == n && *f.Waiting == 4-n
			})
		}
		inFlight(3)
		r.Batch = 4
		if err := w.catalog.Update(context.Background(), r); err != nil {
			t.Fatal(err)
		}
		inFlight(4)
		close(d.release)
		wg.Wait()
	})
	t.Run("batcher", func(t *testing.T) {
		d := &doubler{}
		w := newWorld(t, d, nil)
		f := batching(8)
		w.apply(f)
		w.gfaasUpBatch("f-0", f, 2)
		for i, a := range w.together([]string{v1(0), v1(1)}) {
			if got := predictions(t, a); !slices.Equal(got, []float64{2 * float64(i)}) || a.header.Get("Gfaas-Batch") != "2" || a.header.Get("Gfaas-Instance") != "f-0" {
				t.Errorf("call %d: got %+v, want %v from a batch of 2 on f-0", i, a, 2*i)
			}
		}
	})
}

// gfaasUpBatch is like gfaasUp, for an instance with a batch in the plan.
func (w *world) gfaasUpBatch(id string, f function.Function, batch int) instance.Record {
	w.t.Helper()
	r := w.gfaasUp(id, f)
	w.until("the instance is adopted", func() bool { return slices.Contains(w.startedIDs(), id) })
	r.Batch = batch
	if err := w.catalog.Update(context.Background(), r); err != nil {
		w.t.Fatal(err)
	}
	w.until("the gateway knows the batch", func() bool {
		all := w.dispatcher.Function(f.Name).Records(id)
		return len(all) == 1 && all[0].Batch == batch
	})
	return r
}
