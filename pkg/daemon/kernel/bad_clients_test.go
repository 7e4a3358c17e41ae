package kernel_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/kernel"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

// dial opens a connection on which a test sends raw bytes.
func (d *daemon) dial() *net.UnixConn {
	d.t.Helper()
	conn, err := net.Dial("unix", filepath.Join(d.dir, "kernel.sock"))
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		d.t.Fatal(err)
	}
	return conn.(*net.UnixConn)
}

func (d *daemon) write(conn net.Conn, text string) {
	d.t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		d.t.Error(err)
	}
}

// post returns a raw HTTP request whose Content-Length exceeds its body by missing bytes.
func post(method, path, body string, missing int) string {
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: k\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body)+missing, body)
}

// A client that stops in the middle of a request does not delay others. The daemon gives it up and
// releases everything that it reserved.
func TestSlowSenders(t *testing.T) {
	t.Parallel() // it waits for time limits
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.Stall = 3 * time.Second })
	d.putObject("", "a", ramp(10, 0))
	before := d.stats().Host.Used
	request := sum("a", "a", "c", 10, "")
	stalled := map[string]*net.UnixConn{}
	for name, text := range map[string]string{
		"half a request": post("POST", "/v1/run", request[:len(request)/2], 100),
		"half an object": post("PUT", "/v1/objects/half", strings.Repeat("x", 1000), 1000),
		"half a weight":  post("PUT", "/v1/clients/c", `{"wei`, 10),
	} {
		stalled[name] = d.dial()
		d.write(stalled[name], text)
	}
	halfClosed := d.dial()
	d.write(halfClosed, post("POST", "/v1/run", request, 1))
	if err := halfClosed.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	disconnected := d.dial()
	d.write(disconnected, post("PUT", "/v1/objects/gone", strings.Repeat("x", 1000), 1000))
	_ = disconnected.Close()
	header := d.dial()
	d.write(header, "POST /v1/run HTTP/1.1\r\nHos") // the server waits 10 s for the header; the test does not wait
	early := d.dial()                               // refused before its body is read
	d.write(early, post("PUT", "/v1/objects/.x", "x", 10))
	unread := d.dial() // does not read the answer that it requests
	d.putObject("", "big", mibs(16, 1))
	before += 16 * mib
	d.write(unread, "GET /v1/objects/big HTTP/1.1\r\nHost: k\r\n\r\n")
	d.mustRun("", request) // the stalled connections do not block it
	answer := func(conn net.Conn, status int, code string) {
		t.Helper()
		got, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer got.Body.Close()
		text, _ := io.ReadAll(got.Body)
		if got.StatusCode != status || !strings.Contains(string(text), `"code":"`+code+`"`) {
			t.Errorf("answer: got %d %s, want %d with the code %s", got.StatusCode, text, status, code)
		}
	}
	answer(halfClosed, 400, "bad-request")
	answer(stalled["half a request"], 504, "timeout")
	answer(stalled["half an object"], 504, "timeout")
	answer(stalled["half a weight"], 504, "timeout")
	answer(early, 400, "bad-request")
	eventually(t, "the daemon closes the connection that does not read its answer", func() bool { _, err := io.WriteString(unread, "x"); return err != nil })
	eventually(t, fmt.Sprintf("%d bytes of host memory are in use", before+40), func() bool { return d.stats().Host.Used == before+40 }) // c
	if got := locations(d, ""); got != "a:h0 big:h c:h0" {
		t.Errorf("locations of the objects: got %s, want a:h0 big:h c:h0", got)
	}
	// The daemon waits for a slow client that keeps sending.
	slow := d.dial()
	whole := post("POST", "/v1/run", request, 0)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for len(whole) > 0 {
		n := min(len(whole), 14)
		d.write(slow, whole[:n])
		whole = whole[n:]
		<-tick.C // the body takes longer than the stall, but each part takes less
	}
	got, err := http.ReadResponse(bufio.NewReader(slow), nil)
	if err != nil || got.StatusCode != 200 {
		t.Fatalf("PUT of a slow sender: got %+v, %v; want StatusCode 200", got, err)
	}
	_ = got.Body.Close()
}

// A client that sends an object byte by byte cannot keep its memory reserved.
func TestSlowPut(t *testing.T) {
	t.Parallel() // it waits for time limits
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.Stall = 400 * time.Millisecond })
	conn := d.dial()
	d.write(conn, post("PUT", "/v1/objects/all", "x", 64*mib-1))
	var sender sync.WaitGroup
	sender.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for { // until the daemon, or the test, closes the connection
			if _, err := io.WriteString(conn, "x"); err != nil {
				return
			}
			<-tick.C
		}
	})
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || got.StatusCode != 504 {
		t.Errorf("PUT of a sender that is too slow: got %+v, %v; want StatusCode 504", got, err)
	}
	_ = conn.Close()
	sender.Wait()
	if s := d.stats(); s.Host.Used != 0 {
		t.Errorf("host memory in use after the refused PUT: got %d bytes, want 0", s.Host.Used)
	}
}

// Pipelined requests on one connection are answered in order.
func TestPipelined(t *testing.T) {
	const n, many = 16, 50
	d := serve(t, newExecutorPool(t, ""), nil)
	d.putObject("", "one", mibs1(n, 1))
	d.putObject("", "x", mibs1(n, 0))
	conn := d.dial()
	var all strings.Builder
	for range many {
		all.WriteString(post("POST", "/v1/run", add(1, "one", "x", n), 0))
		all.WriteString(post("POST", "/v1/run", `{"version":2}`, 0))
		all.WriteString("GET /v1/objects/x HTTP/1.1\r\nHost: k\r\n\r\n")
	}
	var writer sync.WaitGroup
	writer.Go(func() { d.write(conn, all.String()) })
	defer writer.Wait()
	r := bufio.NewReader(conn)
	for i := range 3 * many {
		got, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(got.Body)
		if err != nil {
			t.Fatal(err)
		}
		switch i % 3 {
		case 0:
			if got.StatusCode != 200 || !bytes.Contains(text, []byte(`"outputs":{"y":`)) {
				t.Fatalf("answer %d: got %d %s, want 200 with the output y", i, got.StatusCode, text)
			}
		case 1:
			if got.StatusCode != 400 {
				t.Fatalf("answer %d: got %d %s, want 400", i, got.StatusCode, text)
			}
		case 2:
			if v := values(text); len(v) != n || v[0] != float32(i/3+1) {
				t.Fatalf("answer %d: got the values %v, want %d values that begin with %v", i, v, n, float32(i/3+1))
			}
		}
	}
}

// A kernel that never ends affects only its own request. Later requests of its client and of others run
// as usual.
func TestEndlessKernel(t *testing.T) {
	t.Parallel() // it waits for time limits
	const n = 100
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.KernelTimeout = 3 * time.Second })
	for _, client := range []string{"bad", "good"} {
		d.putObject(client, "a", ramp(n, 0))
	}
	d.mustRun("good", sum("a", "a", "b", n, ""))
	var all sync.WaitGroup
	all.Go(func() { d.refused("bad", custom(slowPTX, "slow", 1<<30), "timeout", "/kernels") })
	eventually(t, "the request of the client bad runs", func() bool { return d.stats().GPUs[0].Client == "bad" })
	for i := range 10 {
		for _, client := range []string{"bad", "good"} {
			all.Go(func() {
				if _, err := d.run(client, sum("a", "a", fmt.Sprint("c", i), n, "")); err != nil {
					t.Errorf("run a request of %s: %v", client, err)
				}
			})
		}
	}
	all.Wait()
	for i := range 10 {
		if got := d.getObject("good", fmt.Sprint("c", i))[n-1]; got != 2*(n-1) {
			t.Errorf("last value of good's object c%d: got %v, want %v", i, got, 2*(n-1))
		}
	}
	if s := d.stats(); s.GPUs[0].Faults != 1 {
		t.Errorf("statistics of the GPU: got %+v, want Faults 1", s.GPUs[0])
	}
}

// If other processes use the GPU's memory, a request fails before its first kernel runs. Smaller requests
// run, and the large one runs after the memory was freed.
func TestMemoryOfOthers(t *testing.T) {
	const n = 40 * mib / 4
	m := newExecutorPool(t, "mem=256MiB")
	d := serve(t, m, func(c *kernel.Config) {
		c.GPUMem, c.HostMem, c.KernelTimeout = 160*mib, 256*mib, patience
	})
	ports := m.ports()
	host, err := ports.NewHost(mib)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := ports.Start(context.Background(), "sim", host)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Kill()
	allocate := job.Job{ID: 1, Limit: 1 << 40, Alloc: []job.Block{{Number: 0, Size: 160 * mib}}}
	other.Send(allocate.Append(nil), patience)
	if o, err := other.Wait(1, patience); err != nil || o.Code != 0 {
		t.Fatalf("allocate 160 MiB in another process: got %+v, %v; want Code 0", o, err)
	}
	d.putObject("", "a", mibs(40, 1))
	d.putObject("", "b", mibs(40, 2))
	// The first kernel changes io, so that the test can detect whether it ran.
	large := strings.Replace(sum("a", "b", "c", n, ""), `"buffers":{`, `"buffers":{"io":{"kind":"inout","key":"io"},`, 1)
	large = strings.Replace(large, `"kernels":[`, `"kernels":[{"module":"m","name":"vadd","args":[{"buffer":"io"},{"buffer":"io"},{"buffer":"io"},{"i32":10}]},`, 1)
	d.putObject("", "io", ramp(10, 1))
	d.refused("", large, "too-large", "/buffers")
	if got := d.getObject("", "io")[0]; got != 1 {
		t.Errorf("first value of io after the refused request: got %v, want 1", got)
	}
	d.mustRun("other", custom(tinyPTX, "slow", 1))
	d.mustRun("", sum("a", "a", "c", 1*mib/4, "")) // 40 MiB and 1 MiB fit, rounded up to their footprints
	if s := d.stats(); s.GPUs[0].Faults != 0 || s.GPUs[0].Started != 1 {
		t.Errorf("statistics of the GPU: got %+v, want Faults 0 and Started 1", s.GPUs[0])
	}
	other.Kill()
	d.mustRun("", large)
	if c, io := d.getObject("", "c"), d.getObject("", "io"); c[n-1] != 3 || io[9] != 20 {
		t.Errorf("last values of c and io: got %v and %v, want 3 and 20", c[n-1], io[9])
	}
}

// A reader of an object gets it completely, even if it is replaced or deleted meanwhile. The same holds for
// a running request.
func TestReplacedWhileRead(t *testing.T) {
	const large, n = 16 * mib / 4, 1000
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.HostMem, c.Stall = 256*mib, patience }) // no stall while the test replaces objects
	d.putObject("", "big", mibs1(large, 1))
	conn := d.dial()
	if err := conn.SetReadBuffer(4096); err != nil { // so that most of the object is unsent
		t.Fatal(err)
	}
	d.write(conn, "GET /v1/objects/big HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n")
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	for v := float32(2); v < 5; v++ {
		d.putObject("", "big", mibs1(large, v))
	}
	if _, err := d.do("", "DELETE", object("big"), nil); err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(got.Body)
	_ = got.Body.Close()
	if err != nil || len(data) != 4*large {
		t.Fatalf("read the object: got %d bytes and the error %v, want %d bytes", len(data), err, 4*large)
	}
	for i, v := range values(data) {
		if v != 1 {
			t.Fatalf("value %d of the object: got %v, want 1", i, v)
		}
	}

	slow := strings.Replace(add(1, "x", "y", n), `"kernels":[`, `"kernels":[{"module":"s","name":"slow","grid":[4000,1,1],"block":[1,1,1],"args":[]},`, 1)
	slow = strings.Replace(slow, `"modules":{`, fmt.Sprintf(`"modules":{"s":{"ptx":%q},`, slowPTX), 1)
	seen := false
	for round := 0; round < 10 && !seen; round++ { // until the objects are replaced while the request runs, which takes 1 s
		d.putObject("", "x", mibs1(n, 1))
		d.putObject("", "y", mibs1(n, 1))
		var running sync.WaitGroup
		d.startRequest(&running, "", slow)
		d.putObject("", "x", mibs1(n, 100)) // an input
		d.putObject("", "y", mibs1(n, 100)) // the object that the request replaces
		running.Wait()
		x, y := d.getObject("", "x")[0], d.getObject("", "y")[0]
		switch {
		case x == 100 && y == 2:
			seen = true
		case x == 100 && (y == 101 || y == 200): // dispatched, but it took up its objects only after the replacement
		case x == 100 && y == 100: // it finished before the replacement
		default:
			t.Fatalf("last values of x and y: got %v and %v, want 100 and one of 2, 100, 101 and 200", x, y)
		}
	}
	if !seen {
		t.Fatal("no request had its objects replaced while it ran, want at least one")
	}
	if s := d.stats(); s.Host.Used != 2*4*n {
		t.Errorf("host memory in use: got %d bytes, want %d", s.Host.Used, 2*4*n)
	}
}

// several returns a request for the kernels with the numbers from to to-1, each in a module of its own.
func several(from, to int) string {
	var modules, kernels []string
	for i := from; i < to; i++ {
		modules = append(modules, fmt.Sprintf(`"m%d":{"ptx":%q}`, i, strings.ReplaceAll(tinyPTX, "slow", fmt.Sprint("k", i))))
		kernels = append(kernels, fmt.Sprintf(`{"module":"m%d","name":"k%d","grid":[1,1,1],"block":[1,1,1],"args":[]}`, i, i))
	}
	return fmt.Sprintf(`{"version":1,"modules":{%s},"kernels":[%s]}`, strings.Join(modules, ","), strings.Join(kernels, ","))
}

// A module is linked once while it is cached, and again after its eviction.
func TestManyKernels(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), nil)
	linked := func(from, to int) (n int) {
		for i := from; i < to; i++ {
			n += d.mustRun("", several(i, i+1)).Cache.ModulesLinked
		}
		return n
	}
	if n := linked(0, 100); n != 100 {
		t.Errorf("modules linked by the first 100 requests: got %d, want 100", n)
	}
	if n := linked(0, 100); n != 0 {
		t.Errorf("modules linked by the same 100 requests: got %d, want 0", n)
	}
	if n := linked(100, 300); n != 200 {
		t.Errorf("modules linked by 200 new requests: got %d, want 200", n)
	}
	if n := linked(200, 300); n != 0 {
		t.Errorf("modules linked by the 100 most recent requests: got %d, want 0", n)
	}
	if n := linked(0, 10); n != 10 {
		t.Errorf("modules linked by 10 requests whose modules were evicted: got %d, want 10", n)
	}
	if s := d.stats(); s.GPUs[0].Modules != 256 {
		t.Errorf("cached modules: got %d, want 256", s.GPUs[0].Modules)
	}
	// Many kernels in one request.
	if a := d.mustRun("", several(0, 100)); a.Cache.ModulesLinked != 90 { // 0 to 9 are cached
		t.Errorf("cache of a request with 100 kernels: got %+v, want ModulesLinked 90", a.Cache)
	}
}

// heap returns the bytes of Go's heap in use after garbage collection.
func heap() int64 {
	runtime.GC()
	runtime.GC() // again, for the contents of pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// skipUnderRace skips a test that measures memory, which the race detector changes; make race passes -short.
func skipUnderRace(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it measures memory")
	}
}

// The daemon keeps no memory of large requests after they have finished.
func TestMemoryOfRequests(t *testing.T) {
	skipUnderRace(t)
	d := serve(t, newExecutorPool(t, ""), nil)
	before := heap()
	for i := range 4 {
		d.mustRun("", custom(fmt.Sprint(tinyPTX, "// ", i, strings.Repeat(" ", 8*mib)), "slow", 1))
	}
	d.client.CloseIdleConnections()
	if now := heap(); now-before > 16*mib {
		t.Errorf("growth of the heap after requests with long PTX: got %d MiB, want at most 16", (now-before)/mib)
	}
}

// The cache of parsed requests is bounded, whatever PTX they contain.
func TestMemoryOfPTX(t *testing.T) {
	skipUnderRace(t)
	d := serve(t, newExecutorPool(t, ""), nil)
	var kernels strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&kernels, ".entry k%d;", i)
	}
	many := kernels.String()
	before := heap()
	for i := range 8 {
		d.refused("", custom(fmt.Sprint(".version 7.0\n.target sm_50\n// ", i, "\n")+many, "none", 1), "bad-request", "/kernels/0/name")
	}
	d.refused("", custom(".version 7.0\n.target sm_50\n"+strings.Repeat(many, 4), "none", 1), "bad-request", "/kernels/0/name")
	if now := heap(); now-before > 64*mib {
		t.Errorf("growth of the heap after refused modules: got %d MiB, want at most 64", (now-before)/mib)
	}
}

// The daemon does not clean keys like paths.
func TestKeys(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), nil)
	for i, key := range []string{"a//b", "a/../b", "b", "a/", "a/.", strings.Repeat("k", 255)} {
		d.putObject("", key, ramp(10, float32(i)))
	}
	for i, key := range []string{"a//b", "a/../b", "b", "a/", "a/.", strings.Repeat("k", 255)} {
		if got := d.getObject("", key); len(got) != 10 || got[0] != float32(i) {
			t.Errorf("object %q: got %v, want 10 values that begin with %v", key, got, float32(i))
		}
		raw, err := d.do("", "GET", "/v1/objects/"+key, nil) // not escaped
		if err != nil || values(raw)[0] != float32(i) {
			t.Errorf("GET of the object %q without escapes: got %v, want values that begin with %v", key, err, float32(i))
		}
	}
	var p *problem
	for _, key := range []string{"", "/", "../a", strings.Repeat("k", 256), "a b", "ä"} {
		if _, err := d.do("", "PUT", object(key), []byte("x")); !errors.As(err, &p) || p.Code != "bad-request" {
			t.Errorf("PUT of the object %q: got %v, want bad-request", key, err)
		}
	}
}

// An object that is only on another GPU counts as a miss.
func TestMisses(t *testing.T) {
	const n = 100
	d := serve(t, newExecutorPool(t, "count=2"), func(c *kernel.Config) { c.GPUs = []string{"sim", "sim:1"} })
	d.putObject("", "a", ramp(n, 0))
	for range 10 { // until the request runs on the GPU without the object
		first := d.mustRun("", sum("a", "a", "v", n, `,"volatile":true`))
		var busy sync.WaitGroup
		d.startRequest(&busy, "", custom(slowPTX, "slow", 80*100)) // 2 s
		a := d.mustRun("", sum("v", "a", "w", n, ""))
		busy.Wait()
		if got := d.getObject("", "w")[n-1]; got != 3*(n-1) {
			t.Errorf("last value of w: got %v, want %v", got, 3*(n-1))
		}
		if a.GPU == first.GPU {
			continue
		}
		if c := a.Cache; c.Misses != 1 || c.HostHits+c.GPUHits != 1 || c.HostHits == 1 && c.BytesUp != 8*n {
			t.Errorf("cache of a request on another GPU: got %+v, want Misses 1 and one hit, with BytesUp %d if it is on the host", c, 8*n)
		}
		return
	}
	t.Fatal("each request ran on the GPU of the first, want one on another GPU")
}

// The daemon removes client sockets that a killed daemon left behind, but no other files.
func TestDeadSockets(t *testing.T) {
	m := newExecutorPool(t, "")
	dir := t.TempDir()
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "kernel-old.sock"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	if err := os.WriteFile(filepath.Join(dir, "kernel-file.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := serve(t, m, func(c *kernel.Config) { c.Socket = filepath.Join(dir, "kernel.sock") })
	if _, err := os.Lstat(filepath.Join(dir, "kernel-old.sock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the dead socket: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "kernel-file.sock")); err != nil {
		t.Errorf("the file: %v", err)
	}
	d.stop()
}
