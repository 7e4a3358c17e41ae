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
	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = time.Minute

// machine starts real executors on the simulated driver, and knows them.
type machine struct {
	t    testing.TB
	path string
	sim  string // the simulated GPU's folder
	env  []string

	mu        sync.Mutex
	executors []*executor.Executor
	hosts     []*executor.Host
}

func newMachine(t testing.TB, shape string) *machine {
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
	m := &machine{t: t, path: path, sim: dir, env: append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(lib, "sim"), "GFAAS_SIM_DIR="+dir, "GFAAS_SIM_GPU="+shape)}
	t.Cleanup(func() {
		for _, e := range m.executors {
			e.Kill() // which has ended: this waits
		}
		for _, h := range m.hosts {
			h.Close()
		}
		_ = os.RemoveAll(dir)
	})
	return m
}

func (m *machine) ports() kernel.Ports {
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

// unclosed memory is closed when the test is over.
type unclosed struct{ *executor.Host }

func (unclosed) Close() {}

// daemon is one that serves.
type daemon struct {
	t      testing.TB
	m      *machine
	dir    string
	stop   func()
	client *http.Client
	killed bool // now and then, so that it may not answer
}

func serve(t testing.TB, m *machine, change func(*kernel.Config)) *daemon {
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
	var once sync.Once
	d.stop = func() {
		once.Do(func() {
			cancel()
			d.client.CloseIdleConnections()
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Error("the daemon does not end")
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left in the run directory: %v, %v", left, err)
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

// do asks as a client; an answer that is no is a *kernel.Problem.
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
	var no struct {
		Error struct{ Code, Message, Where string }
	}
	if err := json.Unmarshal(text, &no); err != nil {
		return nil, fmt.Errorf("%d %q: %w", answer.StatusCode, text, err)
	}
	return nil, &kernel.Problem{Status: answer.StatusCode, Code: no.Error.Code, Message: no.Error.Message, Where: no.Error.Where}
}

func (d *daemon) run(client, request string) (*kernel.Answer, error) {
	text, err := d.do(client, "POST", "/v1/run", []byte(request))
	if err != nil {
		return nil, err
	}
	var a kernel.Answer
	return &a, json.Unmarshal(text, &a)
}

// begin sends a request, and returns when it runs; or is over, where the host is so
// slow that nobody has seen it run.
func (d *daemon) begin(all *sync.WaitGroup, client, request string) {
	d.t.Helper()
	var over atomic.Bool
	all.Go(func() {
		defer over.Store(true)
		if _, err := d.run(client, request); err != nil {
			d.t.Errorf("%s: %v", client, err)
		}
	})
	waitFor(d.t, func() bool {
		return over.Load() || slices.ContainsFunc(d.stats().GPUs, func(g kernel.GPUStats) bool { return g.Running != "" })
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

// refused holds that a request is refused.
func (d *daemon) refused(client, request, code, where string) {
	d.t.Helper()
	_, err := d.run(client, request)
	var p *kernel.Problem
	if !errors.As(err, &p) || p.Code != code || p.Where != where {
		d.t.Errorf("%v, want %s at %s", err, code, where)
	}
}

func asProblem(err error, p **kernel.Problem) bool { return errors.As(err, p) }

func object(key string) string { return "/v1/objects/" + url.PathEscape(key) }

func (d *daemon) put(client, key string, values []float32) {
	d.t.Helper()
	if _, err := d.do(client, "PUT", object(key), floats(values)); err != nil {
		d.t.Fatal(err)
	}
}

func (d *daemon) get(client, key string) []float32 {
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

// sum is a request for c = a + b of n floats.
func sum(a, b, c string, n int, more string) string {
	return fmt.Sprintf(`{"version":1,"modules":{"m":{"builtin":"blas"}},
"buffers":{"a":{"kind":"input","key":%q},"b":{"kind":"input","key":%q},"c":{"kind":"output","key":%q,"size":%d%s}},
"kernels":[{"module":"m","name":"vadd","args":[{"buffer":"a"},{"buffer":"b"},{"buffer":"c"},{"i32":%d}]}]}`, a, b, c, 4*n, more, n)
}

// add is a request for y += s · x in place.
func add(s float32, x, y string, n int) string {
	return fmt.Sprintf(`{"version":1,"modules":{"m":{"builtin":"blas"}},
"buffers":{"x":{"kind":"input","key":%q},"y":{"kind":"inout","key":%q}},
"kernels":[{"module":"m","name":"saxpy","args":[{"f32":%v},{"buffer":"x"},{"buffer":"y"},{"i32":%d}]}]}`, x, y, s, n)
}

// custom is a request for one kernel of PTX without arguments.
func custom(ptx, name string, blocks int) string {
	return fmt.Sprintf(`{"version":1,"modules":{"m":{"ptx":%q}},"kernels":[{"module":"m","name":%q,"grid":[%d,1,1],"block":[32,1,1],"args":[]}]}`, ptx, name, blocks)
}

// slowPTX has a kernel that takes 20 ms a block beyond the GPU's 80.
const slowPTX = `// gfaas-sim: slow block_us=20000
.version 7.0
.target sm_50
.address_size 64
.visible .entry slow() { ret; }
`

// wildPTX reaches n floats beyond wherever it begins.
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
	d := serve(t, newMachine(t, ""), nil)
	d.put("", "vec/a", ramp(n, 0))
	d.put("", "vec/b", ramp(n, 5))
	first := d.mustRun("", sum("vec/a", "vec/b", "vec/c", n, `,"inline":true`))
	if c := first.Cache; c.HostHits != 2 || c.GPUHits != 0 || c.BytesUp != 8*n || c.ModulesLinked != 1 {
		t.Errorf("first: %+v", c)
	}
	for i, v := range d.get("", "vec/c") {
		if v != float32(2*i+5) {
			t.Fatalf("element %d is %v", i, v)
		}
	}
	if out := first.Outputs["c"]; out.Key != "vec/c" || out.Size != 4*n || !bytes.Equal(out.Data, floats(d.get("", "vec/c"))) {
		t.Errorf("the output is %+.100v", out)
	}
	second := d.mustRun("", sum("vec/a", "vec/c", "vec/c", n, ""))
	if c := second.Cache; c.HostHits != 0 || c.GPUHits != 2 || c.BytesUp != 0 || c.ModulesLinked != 0 {
		t.Errorf("second: %+v", c)
	}
	if got := d.get("", "vec/c")[9]; got != 3*9+5 {
		t.Errorf("%v", got)
	}
	d.mustRun("", add(-3, "vec/a", "vec/c", n))
	for i, v := range d.get("", "vec/c") {
		if v != 5 {
			t.Fatalf("element %d is %v", i, v)
		}
	}
	if first.Client != "default" || first.ID == second.ID || second.TotalMS <= 0 || second.GPUMS <= 0 {
		t.Errorf("%+v", second)
	}
}

// A product with parts of tiles on every side, and one that is a single number.
func TestProduct(t *testing.T) {
	d := serve(t, newMachine(t, ""), nil)
	for _, s := range [][3]int{{1, 1, 1}, {130, 200, 17}, {3, 129, 300}} {
		m, n, k := s[0], s[1], s[2]
		a, b := make([]float32, m*k), make([]float32, k*n)
		for i := range a {
			a[i] = float32(i%7) - 3
		}
		for i := range b {
			b[i] = float32(i%5) - 2
		}
		d.put("", "A", a)
		d.put("", "B", b)
		d.mustRun("", fmt.Sprintf(`{"version":1,"modules":{"m":{"builtin":"blas"}},
"buffers":{"A":{"kind":"input","key":"A"},"B":{"kind":"input","key":"B"},"C":{"kind":"output","key":"C","size":%d}},
"kernels":[{"module":"m","name":"sgemm","args":[{"buffer":"A"},{"buffer":"B"},{"buffer":"C"},{"i32":%d},{"i32":%d},{"i32":%d}]}]}`, 4*m*n, m, n, k))
		for i, got := range d.get("", "C") {
			var want float32
			for l := range k {
				want += a[i/n*k+l] * b[l*n+i%n]
			}
			if got != want {
				t.Fatalf("%v: element %d is %v, want %v", s, i, got, want)
			}
		}
	}
}

// Nothing of a request that fails is stored, and nobody else notices.
func TestFault(t *testing.T) {
	const n = 1000
	d := serve(t, newMachine(t, ""), nil)
	d.put("", "a", ramp(n, 0))
	d.put("", "io", ramp(n, 7))
	d.mustRun("", sum("a", "a", "c", n, ""))
	d.mustRun("", sum("a", "a", "v", n, `,"volatile":true`))
	d.refused("", wild("io"), "fault", "/kernels/0")
	if got := d.get("", "io"); got[0] != 7 {
		t.Errorf("io begins with %v", got[0])
	}
	a := d.mustRun("", sum("a", "c", "d", n, ""))
	if a.Cache.GPUHits != 0 || a.Cache.HostHits != 2 {
		t.Errorf("after the fault: %+v", a.Cache)
	}
	if got := d.get("", "d"); got[10] != 30 {
		t.Errorf("%v", got[10])
	}
	// What was on the GPU alone is lost.
	d.refused("", sum("a", "v", "d", n, ""), "not-found", "/buffers/b/key")
	if s := d.stats(); s.GPUs[0].Faults != 1 || s.GPUs[0].Started != 2 {
		t.Errorf("%+v", s.GPUs[0])
	}
}

func TestTimeout(t *testing.T) {
	d := serve(t, newMachine(t, ""), func(c *kernel.Config) { c.KernelTimeout = time.Second })
	d.refused("", custom(slowPTX, "slow", 1<<30), "timeout", "/kernels")
	// Many kernels that together take longer are none.
	long := strings.Replace(custom(slowPTX, "slow", 80), `"version":1`, `"version":1,"iterations":100`, 1)
	if a := d.mustRun("", long); a.TotalMS < 2000 {
		t.Errorf("it took %v ms", a.TotalMS)
	}
}

// TestProblems: what is wrong with a request on this GPU, and with these objects.
func TestProblems(t *testing.T) {
	d := serve(t, newMachine(t, ""), nil)
	d.put("", "a", ramp(10, 0))
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
		var p *kernel.Problem
		if _, err := d.do("", method, path, nil); !errors.As(err, &p) || p.Code != want {
			t.Errorf("%s %s: %v, want %s", method, path, err, want)
		}
	}
	var p *kernel.Problem
	if _, err := d.do("a b", "GET", "/v1/objects", nil); !errors.As(err, &p) || p.Code != "bad-request" {
		t.Errorf("a client with a blank: %v", err)
	}
	if _, err := d.do("", "PUT", object("big"), make([]byte, 65<<20)); !errors.As(err, &p) || p.Code != "too-large" {
		t.Errorf("more than the host has: %v", err)
	}
	for _, body := range []string{`{"weight":2,"weight":3}`, `{"weight":2} {}`, `{"weight":2}x`, `{"weight":2,"more":1}`, `{"Weight":2}`, `{"weight":"2"}`,
		`{"weight":null}`, `{"weight":0}`, `{"weight":2e6}`, `{}`, `[2]`, `2`, `{"weight":2}` + strings.Repeat(" ", 4096)} {
		if _, err := d.do("", "PUT", "/v1/clients/c", []byte(body)); !errors.As(err, &p) || p.Code != "bad-request" {
			t.Errorf("%.40s: %v, want bad-request", body, err)
		}
	}
	// All of it did no harm.
	d.mustRun("", sum("a", "a", "c", 10, ""))
}
