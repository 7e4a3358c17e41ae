package kernel_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gfaas/gfaas/pkg/adapter/executor"
	"github.com/gfaas/gfaas/pkg/daemon/kernel"
	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for a required event.
const patience = time.Minute

// executorPool starts real executors on the simulated driver and tracks them.
type executorPool struct {
	t    testing.TB
	path string
	sim  string // the simulated GPU's folder
	env  []string

	mu        sync.Mutex
	executors []*executor.Executor
	hosts     []*executor.Host
}

func newExecutorPool(t testing.TB, shape string) *executorPool {
	t.Helper()
	lib, err := filepath.Abs("../../../build/lib")
	if err != nil {
		t.Fatal(err)
	}
	path, err := executor.Find(lib)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/dev/shm", "kernel")
	if err != nil {
		t.Fatal(err)
	}
	m := &executorPool{t: t, path: path, sim: dir, env: append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(lib, "sim"), "GFAAS_SIM_DIR="+dir, "GFAAS_SIM_GPU="+shape)}
	t.Cleanup(func() {
		for _, e := range m.executors {
			e.Kill() // it has ended already; Kill waits for the process
		}
		for _, h := range m.hosts {
			h.Close()
		}
		_ = os.RemoveAll(dir)
	})
	return m
}

func (m *executorPool) ports() kernel.Ports {
	return kernel.Ports{
		NewHost: func(size int64) (kernel.Host, error) {
			h, err := executor.NewHost(size)
			if err != nil {
				return nil, err
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			m.hosts = append(m.hosts, h)
			return unclosed{h}, nil
		},
		Start: func(ctx context.Context, gpu string, h kernel.Host) (kernel.Executor, job.Hello, error) {
			_, index, _ := strings.Cut(gpu, ":")
			if index == "" {
				index = "0"
			}
			e, hello, err := executor.Start(ctx, executor.Config{Path: m.path, Env: append(m.env[:len(m.env):len(m.env)], "CUDA_VISIBLE_DEVICES="+index), Host: h.(unclosed).Host})
			if err != nil {
				return nil, hello, err
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			m.executors = append(m.executors, e)
			return e, hello, nil
		},
	}
}

// unclosed is memory that the daemon does not close; the pool closes it after the test.
type unclosed struct{ *executor.Host }

func (unclosed) Close() {}

// daemon is a running daemon with a client.
type daemon struct {
	t      testing.TB
	m      *executorPool
	dir    string
	stop   func()
	client *http.Client
	killed bool // the test kills the daemon, so requests may get no answer
}

func serve(t testing.TB, m *executorPool, change func(*kernel.Config)) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "kerneld")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := kernel.Config{Ports: m.ports(), GPUs: []string{"sim"}, GPUMem: 64 << 20, HostMem: 64 << 20, Policy: "cfs-affinity",
		Socket: filepath.Join(dir, "kernel.sock")}
	if change != nil {
		change(&cfg)
	}
	k, err := kernel.Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- k.Serve(ctx) }()
	d := &daemon{t: t, m: m, dir: dir, client: clientOf(filepath.Join(dir, "kernel.sock"))}
	var stopOnce sync.Once
	d.stop = func() {
		stopOnce.Do(func() {
			cancel()
			d.client.CloseIdleConnections()
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Errorf("the daemon has not ended after %v", patience)
			}
			if remaining, err := os.ReadDir(dir); err != nil || len(remaining) > 0 {
				t.Errorf("run directory after the end: got the files %v and the error %v, want no files", remaining, err)
			}
		})
	}
	t.Cleanup(d.stop)
	return d
}

func clientOf(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
}

// problem is a refusal, with its HTTP status.
type problem struct {
	kgraph.Problem
	Status int
}

// do sends a request as a client. It returns a refusal as a *problem.
func (d *daemon) do(client, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequest(method, "http://kerneld"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if client != "" {
		req.Header.Set(kernel.ClientHeader, client)
	}
	answer, err := d.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode < 300 {
		return text, err
	}
	var failure struct {
		Error struct{ Code, Message, Where string }
	}
	if err := json.Unmarshal(text, &failure); err != nil {
		return nil, fmt.Errorf("decode the answer %d %q: %w", answer.StatusCode, text, err)
	}
	e := failure.Error
	return nil, &problem{kgraph.Problem{Code: e.Code, Message: e.Message, Where: e.Where}, answer.StatusCode}
}

func (d *daemon) run(client, request string) (*kernel.Answer, error) {
	text, err := d.do(client, "POST", "/v1/run", []byte(request))
	if err != nil {
		return nil, err
	}
	var a kernel.Answer
	return &a, json.Unmarshal(text, &a)
}

// startRequest sends a request and returns when it runs. On a slow host, it may return only after the request has
// finished.
func (d *daemon) startRequest(requests *sync.WaitGroup, client, request string) {
	d.t.Helper()
	var finished atomic.Bool
	requests.Go(func() {
		defer finished.Store(true)
		if _, err := d.run(client, request); err != nil {
			d.t.Errorf("run a request of %s: %v", client, err)
		}
	})
	eventually(d.t, "the request runs or has finished", func() bool {
		return finished.Load() || slices.ContainsFunc(d.stats().GPUs, func(g kernel.GPUStats) bool { return g.Running != "" })
	})
}

func (d *daemon) mustRun(client, request string) *kernel.Answer {
	d.t.Helper()
	a, err := d.run(client, request)
	if err != nil {
		d.t.Fatal(err)
	}
	return a
}

// refused checks that a request is refused with the given code and place.
func (d *daemon) refused(client, request, code, where string) {
	d.t.Helper()
	_, err := d.run(client, request)
	var p *problem
	if !errors.As(err, &p) || p.Code != code || p.Where != where {
		d.t.Errorf("run a request that must be refused: got %v, want %s at %s", err, code, where)
	}
}

func asProblem(err error, p **problem) bool { return errors.As(err, p) }

func object(key string) string { return "/v1/objects/" + url.PathEscape(key) }

func (d *daemon) putObject(client, key string, values []float32) {
	d.t.Helper()
	if _, err := d.do(client, "PUT", object(key), floats(values)); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) getObject(client, key string) []float32 {
	d.t.Helper()
	data, err := d.do(client, "GET", object(key), nil)
	if err != nil {
		d.t.Fatal(err)
	}
	return values(data)
}

func (d *daemon) stats() kernel.Stats {
	d.t.Helper()
	text, err := d.do("", "GET", "/v1/stats", nil)
	if err != nil {
		d.t.Fatal(err)
	}
	var s kernel.Stats
	if err := json.Unmarshal(text, &s); err != nil {
		d.t.Fatal(err)
	}
	return s
}

func floats(values []float32) (out []byte) {
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

func values(data []byte) (out []float32) {
	for i := 0; i+4 <= len(data); i += 4 {
		out = append(out, math.Float32frombits(binary.LittleEndian.Uint32(data[i:])))
	}
	return out
}

func unmarshal(t testing.TB, text []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(text, v); err != nil {
		t.Fatal(err)
	}
}

func ramp(n int, first float32) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = first + float32(i)
	}
	return out
}

// sum returns a request for c = a + b with n floats.
func sum(a, b, c string, n int, more string) string {
	return fmt.Sprintf(`{"version":1,"modules":{"m":{"builtin":"blas"}},
"buffers":{"a":{"kind":"input","key":%q},"b":{"kind":"input","key":%q},"c":{"kind":"output","key":%q,"size":%d%s}},
"kernels":[{"module":"m","name":"vadd","args":[{"buffer":"a"},{"buffer":"b"},{"buffer":"c"},{"i32":%d}]}]}`, a, b, c, 4*n, more, n)
}

// add returns a request for y += s · x in place.
func add(s float32, x, y string, n int) string {
	return fmt.Sprintf(`{"version":1,"modules":{"m":{"builtin":"blas"}},
"buffers":{"x":{"kind":"input","key":%q},"y":{"kind":"inout","key":%q}},
"kernels":[{"module":"m","name":"saxpy","args":[{"f32":%v},{"buffer":"x"},{"buffer":"y"},{"i32":%d}]}]}`, x, y, s, n)
}

// custom returns a request for one kernel without arguments.
func custom(ptx, name string, blocks int) string {
	return fmt.Sprintf(`{"version":1,"modules":{"m":{"ptx":%q}},"kernels":[{"module":"m","name":%q,"grid":[%d,1,1],"block":[32,1,1],"args":[]}]}`, ptx, name, blocks)
}

// slowPTX is a kernel that takes 20 ms for each 80 blocks, which the GPU runs at once.
const slowPTX = `// gfaas-sim: slow block_us=20000
.version 7.0
.target sm_50
.address_size 64
.visible .entry slow() { ret; }
`

// wildPTX is a kernel that writes n floats, whatever the size of the buffer.
const wildPTX = `// gfaas-sim: wild op=vadd_f32
.version 7.0
.target sm_50
.address_size 64
.visible .entry wild(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) { ret; }
`

func wild(key string) string {
	return fmt.Sprintf(`{"version":1,"modules":{"m":{"ptx":%q}},"buffers":{"a":{"kind":"inout","key":%q}},
"kernels":[{"module":"m","name":"wild","grid":[1,1,1],"block":[32,1,1],"args":[{"buffer":"a"},{"buffer":"a"},{"buffer":"a"},{"i32":1000000000}]}]}`, wildPTX, key)
}

func TestRun(t *testing.T) {
	const n = 1000
	d := serve(t, newExecutorPool(t, ""), nil)
	d.putObject("", "vec/a", ramp(n, 0))
	d.putObject("", "vec/b", ramp(n, 5))
	first := d.mustRun("", sum("vec/a", "vec/b", "vec/c", n, `,"inline":true`))
	if c := first.Cache; c.HostHits != 2 || c.GPUHits != 0 || c.BytesUp != 8*n || c.ModulesLinked != 1 {
		t.Errorf("cache of the first request: got %+v, want HostHits 2, GPUHits 0, BytesUp %d, ModulesLinked 1", c, 8*n)
	}
	for i, v := range d.getObject("", "vec/c") {
		if v != float32(2*i+5) {
			t.Fatalf("element %d of vec/c: got %v, want %v", i, v, 2*i+5)
		}
	}
	if out := first.Outputs["c"]; out.Key != "vec/c" || out.Size != 4*n || !bytes.Equal(out.Data, floats(d.getObject("", "vec/c"))) {
		t.Errorf("output c: got %+.100v, want Key vec/c, Size %d and the data of vec/c", out, 4*n)
	}
	second := d.mustRun("", sum("vec/a", "vec/c", "vec/c", n, ""))
	if c := second.Cache; c.HostHits != 0 || c.GPUHits != 2 || c.BytesUp != 0 || c.ModulesLinked != 0 {
		t.Errorf("cache of the second request: got %+v, want HostHits 0, GPUHits 2, BytesUp 0, ModulesLinked 0", c)
	}
	if got := d.getObject("", "vec/c")[9]; got != 3*9+5 {
		t.Errorf("element 9 of vec/c: got %v, want %v", got, 3*9+5)
	}
	d.mustRun("", add(-3, "vec/a", "vec/c", n))
	for i, v := range d.getObject("", "vec/c") {
		if v != 5 {
			t.Fatalf("element %d of vec/c after the addition: got %v, want 5", i, v)
		}
	}
	if first.Client != "default" || first.ID == second.ID || second.TotalMS <= 0 || second.GPUMS <= 0 {
		t.Errorf("got the client %q, the IDs %v and %v, and %v ms, %v of them on the GPU; want the client default, two IDs and times above 0", first.Client, first.ID, second.ID, second.TotalMS, second.GPUMS)
	}
}

// Matrix products with partial tiles on every side, and of single numbers.
func TestProduct(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), nil)
	for _, s := range [][3]int{{1, 1, 1}, {130, 200, 17}, {3, 129, 300}} {
		m, n, k := s[0], s[1], s[2]
		a, b := make([]float32, m*k), make([]float32, k*n)
		for i := range a {
			a[i] = float32(i%7) - 3
		}
		for i := range b {
			b[i] = float32(i%5) - 2
		}
		d.putObject("", "A", a)
		d.putObject("", "B", b)
		d.mustRun("", fmt.Sprintf(`{"version":1,"modules":{"m":{"builtin":"blas"}},
"buffers":{"A":{"kind":"input","key":"A"},"B":{"kind":"input","key":"B"},"C":{"kind":"output","key":"C","size":%d}},
"kernels":[{"module":"m","name":"sgemm","args":[{"buffer":"A"},{"buffer":"B"},{"buffer":"C"},{"i32":%d},{"i32":%d},{"i32":%d}]}]}`, 4*m*n, m, n, k))
		for i, got := range d.getObject("", "C") {
			var want float32
			for l := range k {
				want += a[i/n*k+l] * b[l*n+i%n]
			}
			if got != want {
				t.Fatalf("product %v: element %d: got %v, want %v", s, i, got, want)
			}
		}
	}
}

// A request that faults stores nothing and does not affect other requests.
func TestFault(t *testing.T) {
	const n = 1000
	d := serve(t, newExecutorPool(t, ""), nil)
	d.putObject("", "a", ramp(n, 0))
	d.putObject("", "io", ramp(n, 7))
	d.mustRun("", sum("a", "a", "c", n, ""))
	d.mustRun("", sum("a", "a", "v", n, `,"volatile":true`))
	d.refused("", wild("io"), "fault", "/kernels/0")
	if got := d.getObject("", "io"); got[0] != 7 {
		t.Errorf("first value of io after the fault: got %v, want 7", got[0])
	}
	a := d.mustRun("", sum("a", "c", "d", n, ""))
	if a.Cache.GPUHits != 0 || a.Cache.HostHits != 2 {
		t.Errorf("cache of the request after the fault: got %+v, want GPUHits 0 and HostHits 2", a.Cache)
	}
	if got := d.getObject("", "d"); got[10] != 30 {
		t.Errorf("element 10 of d: got %v, want 30", got[10])
	}
	// An object that was only on the GPU is lost.
	d.refused("", sum("a", "v", "d", n, ""), "not-found", "/buffers/b/key")
	if s := d.stats(); s.GPUs[0].Faults != 1 || s.GPUs[0].Started != 2 {
		t.Errorf("statistics of the GPU: got %+v, want Faults 1 and Started 2", s.GPUs[0])
	}
}

func TestTimeout(t *testing.T) {
	t.Parallel() // it waits for time limits
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.KernelTimeout = time.Second })
	d.refused("", custom(slowPTX, "slow", 1<<30), "timeout", "/kernels")
	// Many kernels that take longer only in total are no timeout.
	long := strings.Replace(custom(slowPTX, "slow", 80), `"version":1`, `"version":1,"iterations":100`, 1)
	if a := d.mustRun("", long); a.TotalMS < 2000 {
		t.Errorf("time of a request with many kernels: got %v ms, want at least 2000", a.TotalMS)
	}
}

// TestProblems covers requests that are invalid on this GPU or with these objects.
func TestProblems(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), nil)
	d.putObject("", "a", ramp(10, 0))
	d.refused("", "{", "bad-request", "")
	d.refused("", sum("a", "b", "c", 10, ""), "not-found", "/buffers/b/key")
	d.refused("", sum("a", "a", "c", 11, ""), "bad-request", "/kernels/0/args/0")
	d.refused("", sum("a", "a", "c", 10, `,"size":4`), "bad-request", "/buffers/c/size")
	d.refused("", custom(".version 7.0\n.target sm_50\n.visible .entry slow() {", "slow", 1), "bad-request", "/modules/m/ptx")
	d.refused("", custom(".version 7.0\n.target sm_100\n.visible .entry slow() {}", "slow", 1), "unsupported", "/modules/m/ptx")
	d.refused("", strings.Replace(custom(slowPTX, "slow", 1), `"version":1`, `"version":1,"buffers":{"t":{"kind":"temporary","size":100000000}}`, 1), "too-large", "/buffers")
	d.refused("", strings.Replace(custom(slowPTX, "slow", 1), `"shared"`, ``, 1)+"x", "bad-request", "")
	for path, want := range map[string]string{
		"PUT /v1/objects/.x": "bad-request", "GET /v1/objects/none": "not-found", "DELETE /v1/objects/none": "not-found",
		"GET /v1/none": "not-found", "PATCH /v1/run": "not-found", "PUT /v1/objects/empty": "bad-request", "PUT /v1/clients/c": "bad-request",
	} {
		method, path, _ := strings.Cut(path, " ")
		var p *problem
		if _, err := d.do("", method, path, nil); !errors.As(err, &p) || p.Code != want {
			t.Errorf("%s %s: got %v, want %s", method, path, err, want)
		}
	}
	var p *problem
	if _, err := d.do("a b", "GET", "/v1/objects", nil); !errors.As(err, &p) || p.Code != "bad-request" {
		t.Errorf("a client with a blank: %v", err)
	}
	if _, err := d.do("", "PUT", object("big"), make([]byte, 65<<20)); !errors.As(err, &p) || p.Code != "too-large" {
		t.Errorf("PUT of an object larger than the host memory: got %v, want too-large", err)
	}
	for _, body := range []string{`{"weight":2,"weight":3}`, `{"weight":2} {}`, `{"weight":2}x`, `{"weight":2,"more":1}`, `{"Weight":2}`, `{"weight":"2"}`,
		`{"weight":null}`, `{"weight":0}`, `{"weight":2e6}`, `{}`, `[2]`, `2`, `{"weight":2}` + strings.Repeat(" ", 4096)} {
		if _, err := d.do("", "PUT", "/v1/clients/c", []byte(body)); !errors.As(err, &p) || p.Code != "bad-request" {
			t.Errorf("PUT of a client as %.40s: got %v, want bad-request", body, err)
		}
	}
	// The refused requests had no effect.
	d.mustRun("", sum("a", "a", "c", 10, ""))
}
