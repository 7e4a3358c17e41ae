package kernel_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/kernel"
)

const mib = 1 << 20

// mibs returns an object of n MiB in which all floats are v.
func mibs(n int, v float32) []float32 {
	out := make([]float32, n*mib/4)
	for i := range out {
		out[i] = v
	}
	return out
}

// Evicted objects are not lost, even volatile ones. Objects that were used more than once stay longer than
// those that were used once; within each group, the least recently used object is evicted first.
func TestEviction(t *testing.T) {
	const n = 4 * mib / 4
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.GPUMem = 20 * mib })
	d.putObject("", "a", mibs(4, 1))
	d.putObject("", "b", mibs(4, 2))
	d.mustRun("", sum("a", "b", "v", n, `,"volatile":true`))
	d.mustRun("", sum("a", "a", "c", n, "")) // on the GPU: a, b, v and c, 16 MiB
	if got := locations(d, ""); got != "a:h0 b:h0 c:h0 v:0" {
		t.Errorf("locations before an eviction: got %s, want a:h0 b:h0 c:h0 v:0", got)
	}
	// One more object fits. Then b, v and c are the objects used once, in this order.
	d.mustRun("", sum("a", "a", "d", n, ""))
	a := d.mustRun("", sum("a", "a", "e", n, ""))
	if got := locations(d, ""); got != "a:h0 b:h c:h0 d:h0 e:h0 v:0" || a.Cache.Evicted != 1 {
		t.Errorf("after one eviction: got the locations %s and the cache %+v, want a:h0 b:h c:h0 d:h0 e:h0 v:0 and Evicted 1", got, a.Cache)
	}
	a = d.mustRun("", sum("a", "a", "f", n, ""))
	if got := locations(d, ""); got != "a:h0 b:h c:h0 d:h0 e:h0 f:h0 v:h" || a.Cache.Evicted != 1 {
		t.Errorf("after two evictions: got the locations %s and the cache %+v, want a:h0 b:h c:h0 d:h0 e:h0 f:h0 v:h (the volatile object is saved) and Evicted 1", got, a.Cache)
	}
	if got := d.getObject("", "v"); got[0] != 3 || got[n-1] != 3 {
		t.Errorf("first and last value of v: got %v and %v, want 3 and 3", got[0], got[n-1])
	}
	// A request that needs the whole GPU.
	big := fmt.Sprintf(`{"version":1,"modules":{"m":{"builtin":"blas"}},"buffers":{"t":{"kind":"temporary","size":%d},"v":{"kind":"inout","key":"v"}},
"kernels":[{"module":"m","name":"saxpy","args":[{"f32":1},{"buffer":"t"},{"buffer":"v"},{"i32":%d}]}]}`, 16*mib, n)
	d.mustRun("", big)
	if got := locations(d, ""); got != "a:h b:h c:h d:h e:h f:h v:h0" {
		t.Errorf("locations after a request for the whole GPU: got %s, want a:h b:h c:h d:h e:h f:h v:h0", got)
	}
	if got := d.getObject("", "v"); got[n-1] != 3 { // new memory contains zeros, not older data
		t.Errorf("last value of v after a request for the whole GPU: got %v, want 3", got[n-1])
	}
	if s := d.stats(); s.Host.Used != 28*mib || s.GPUs[0].Used != 4*mib {
		t.Errorf("memory: got %+v on the host and %+v on the GPU, want Used %d and %d", s.Host, s.GPUs[0], 28*mib, 4*mib)
	}
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "v"} {
		if _, err := d.do("", "DELETE", object(key), nil); err != nil {
			t.Fatal(err)
		}
	}
	if s := d.stats(); s.Host.Used != 0 || s.GPUs[0].Used != 0 || s.GPUs[0].Objects != 0 {
		t.Errorf("memory after all objects were deleted: got %+v on the host and %+v on the GPU, want Used 0 and Objects 0", s.Host, s.GPUs[0])
	}
}

// If each client has its own executor, a GPU has at most 16. Beyond that, the least recently used executor ends,
// and objects that only it has are saved.
func TestManyExecutors(t *testing.T) {
	const n, most = 100, 16
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.Isolate = true })
	client := func(i int) string { return fmt.Sprint("c", i) }
	run := func(i int) { d.mustRun(client(i), sum("a", "a", "v", n, `,"volatile":true`)) }
	for i := range most + 2 {
		d.putObject(client(i), "a", ramp(n, float32(i)))
	}
	for i := range most {
		run(i)
	}
	run(1)
	run(1) // used most often, but not most recently
	for i := range most {
		if i != 1 {
			run(i)
		}
	}
	run(most)
	if first, second := locations(d, client(0)), locations(d, client(1)); first != "a:h0 v:0" || second != "a:h v:h" {
		t.Errorf("locations after one client more: got %s of the first client and %s of the second, want a:h0 v:0 and a:h v:h", first, second)
	}
	run(most + 1)
	if s := d.stats(); s.GPUs[0].Executors != most || s.GPUs[0].Started != 1+most+2 || s.GPUs[0].Faults != 0 {
		t.Errorf("statistics of the GPU: got %+v, want Executors %d, Started %d, Faults 0", s.GPUs[0], most, 1+most+2)
	}
	for i := range most + 2 {
		if v := d.getObject(client(i), "v"); v[n-1] != 2*(n-1+float32(i)) {
			t.Errorf("last value of v of the client %s: got %v, want %v", client(i), v[n-1], 2*(n-1+float32(i)))
		}
	}
}

// listObjects returns a client's objects.
func (d *daemon) listObjects(client string) []kernel.Object {
	d.t.Helper()
	text, err := d.do(client, "GET", "/v1/objects", nil)
	if err != nil {
		d.t.Fatal(err)
	}
	var list struct{ Objects []kernel.Object }
	unmarshal(d.t, text, &list)
	return list.Objects
}

// locations lists where a client's objects are: h for the host, and the numbers of GPUs.
func locations(d *daemon, client string) string {
	d.t.Helper()
	var out []string
	for _, o := range d.listObjects(client) {
		at := o.Key + ":"
		if o.Host {
			at += "h"
		}
		for _, g := range o.GPUs {
			at += fmt.Sprint(g)
		}
		out = append(out, at)
	}
	return strings.Join(out, " ")
}

// While a request changes an object in place, readers get the old contents: other requests, and other buffers
// of the same request.
func TestInout(t *testing.T) {
	const n = 1000
	d := serve(t, newExecutorPool(t, ""), nil)
	d.putObject("", "a", ramp(n, 1))
	twice := fmt.Sprintf(`{"version":1,"modules":{"m":{"builtin":"blas"}},"buffers":{"old":{"kind":"input","key":"a"},"new":{"kind":"inout","key":"a","volatile":true}},
"kernels":[{"module":"m","name":"saxpy","args":[{"f32":1},{"buffer":"old"},{"buffer":"new"},{"i32":%d}]},{"module":"m","name":"saxpy","args":[{"f32":1},{"buffer":"old"},{"buffer":"new"},{"i32":%d}]}]}`, n, n)
	for _, want := range []float32{3, 9, 27} { // afterwards, a is only on the GPU
		d.mustRun("", twice)
		if got := locations(d, ""); want < 9 && got != "a:0" {
			t.Errorf("locations of a: got %s, want a:0", got)
		}
		if got := d.getObject("", "a")[0]; got != want {
			t.Fatalf("first value of a: got %v, want %v", got, want)
		}
	}
	d.mustRun("", twice)
	// A request that changes an object that is only on the GPU, and faults: the object was saved before.
	d.refused("", wild("a"), "fault", "/kernels/0")
	if got := d.getObject("", "a")[0]; got != 81 {
		t.Errorf("first value of a after the fault: got %v, want 81", got)
	}
}

// The answer contains each output's bytes under its name, whatever characters the name has.
func TestAnswers(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), nil)
	d.putObject("", "ones", mibs1(1, 1))
	names := []string{`"data":"AAAA"`, `data`, "a\x00", "<é>", `\`, "z"}
	var buffers strings.Builder
	for i, name := range names {
		quoted, err := json.Marshal(name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&buffers, `%s:{"kind":"output","size":%d,"inline":true},`, quoted, i+3)
	}
	a := d.mustRun("", fmt.Sprintf(`{"version":1,"modules":{"m":{"builtin":"blas"}},"buffers":{%s
"kept":{"kind":"output","key":"AAAA","size":4},"x":{"kind":"input","key":"ones"},"both":{"kind":"inout","key":"ones","inline":true}},
"kernels":[{"module":"m","name":"vadd","args":[{"buffer":"x"},{"buffer":"x"},{"buffer":"both"},{"i32":1}]}]}`, buffers.String()))
	if len(a.Outputs) != len(names)+2 {
		t.Errorf("outputs: got %d, want %d: %+v", len(a.Outputs), len(names)+2, a.Outputs)
	}
	for i, name := range names {
		if out := a.Outputs[name]; out.Key != "" || out.Size != int64(i+3) || !bytes.Equal(out.Data, make([]byte, i+3)) {
			t.Errorf("output %q: got %+v, want no key and %d zero bytes", name, out, i+3)
		}
	}
	if out := a.Outputs["kept"]; out.Key != "AAAA" || out.Size != 4 || out.Data != nil {
		t.Errorf("output kept: got %+v, want Key AAAA, Size 4, Data nil", out)
	}
	if out := a.Outputs["both"]; out.Key != "ones" || len(values(out.Data)) != 1 || values(out.Data)[0] != 2 {
		t.Errorf("output both: got %+v, want Key ones and the value 2", out)
	}
	eventually(t, "8 bytes of host memory are in use", func() bool { return d.stats().Host.Used == 8 })
}

// The bytes of an answer count against the host's budget until it is sent, unless they are also the bytes of a
// stored object.
func TestHostFullOfAnswers(t *testing.T) {
	const n = 2*mib + 2 // chosen so that base64 needs padding
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.HostMem = 30 * mib })
	for _, test := range []struct {
		what, key, more string
		taken, stored   int64 // in units of 4n bytes
	}{
		{"alone", ``, ``, 1, 0}, {"stored", `"key":"c",`, ``, 1, 1}, {"volatile", `"key":"c",`, `,"volatile":true`, 2, 1},
	} {
		t.Run(test.what, func(t *testing.T) {
			d.putObject("", "a", ramp(n, 0))
			used := d.stats().Host.Used
			conn := d.dial()
			if err := conn.SetReadBuffer(4096); err != nil { // so that most of the answer is unsent
				t.Fatal(err)
			}
			request := strings.Replace(sum("a", "a", "c", n, `,"inline":true`+test.more), `"key":"c",`, test.key, 1)
			d.write(conn, post("POST", "/v1/run", request, 0))
			got, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || got.StatusCode != 200 {
				t.Fatalf("answer: got %+v, %v; want StatusCode 200", got, err)
			}
			if now := d.stats().Host.Used - used; now != test.taken*4*n {
				t.Errorf("host memory in use while the answer is sent: got %d bytes more, want %d", now, test.taken*4*n)
			}
			d.putObject("", "a", ramp(1, 0)) // replaces the input
			if test.stored > 0 {
				if _, err := d.do("", "DELETE", object("c"), nil); err != nil {
					t.Error(err)
				}
			}
			text, err := io.ReadAll(got.Body)
			if err != nil {
				t.Fatal(err)
			}
			var a kernel.Answer
			unmarshal(t, text, &a)
			v := values(a.Outputs["c"].Data)
			if len(v) != n {
				t.Fatalf("output c: got %d values, want %v", len(v), n)
			}
			for i := range v {
				if v[i] != 2*float32(i) {
					t.Fatalf("value %d of c: got %v, want %v", i, v[i], 2*float32(i))
				}
			}
			eventually(t, "4 bytes of host memory are in use", func() bool { return d.stats().Host.Used == 4 })
		})
	}
	d.refused("", fmt.Sprintf(`{"version":1,"modules":{"m":{"ptx":%q}},"buffers":{"y":{"kind":"output","inline":true,"size":%d}},
"kernels":[{"module":"m","name":"slow","grid":[1,1,1],"block":[1,1,1],"args":[]}]}`, tinyPTX, 31*mib), "too-large", "/buffers/y")
	if s := d.stats(); s.Host.Used != 4 {
		t.Errorf("host memory in use after the refused request: got %d bytes, want 4", s.Host.Used)
	}
}

// The host's budget covers all objects. A request without room for its outputs is refused before it runs.
func TestHostFull(t *testing.T) {
	const n = 4 * mib / 4
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.HostMem = 10 * mib })
	d.putObject("", "a", mibs(4, 1))
	d.mustRun("", sum("a", "a", "b", n, `,"volatile":true`))
	d.refused("", sum("a", "a", "c", n, ""), "too-large", "/buffers/c")
	var p *problem
	if _, err := d.do("", "PUT", object("d"), make([]byte, 4*mib)); !errors.As(err, &p) || p.Code != "too-large" {
		t.Errorf("PUT with a full host: got %v, want too-large", err)
	}
	d.putObject("", "d", ramp(10, 0))
	if got := d.getObject("", "b")[n-1]; got != 2 {
		t.Errorf("last value of b: got %v, want 2", got)
	}
}

// A deleted object counts against the host's budget until its last reader has finished.
func TestHostFullOfInputs(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.HostMem = 10 * mib })
	d.putObject("", "a", mibs(8, 1))
	reader := d.dial()
	if err := reader.SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	d.write(reader, "GET /v1/objects/a HTTP/1.1\r\nHost: k\r\n\r\n")
	got, err := http.ReadResponse(bufio.NewReader(reader), nil)
	if err != nil || got.StatusCode != http.StatusOK {
		t.Fatalf("GET of a: got %+v, %v; want StatusCode %v", got, err, http.StatusOK)
	}
	if _, err := d.do("", "DELETE", object("a"), nil); err != nil {
		t.Fatal(err)
	}
	var p *problem
	if _, err := d.do("", "PUT", object("b"), make([]byte, 8*mib)); !errors.As(err, &p) || p.Code != "too-large" {
		t.Errorf("PUT while the deleted object a is still being read: got %v, want too-large", err)
	}
	s := d.stats()
	if c := s.Clients[0]; s.Host.Used != 8*mib || c.Objects != 0 || c.Bytes != 8*mib {
		t.Errorf("got %d bytes of host memory in use and the client %+v, want %d, Objects 0 and Bytes %d", s.Host.Used, c, 8*mib, 8*mib)
	}
	_ = reader.Close()
	_ = got.Body.Close()
	eventually(t, "no host memory is in use", func() bool { return d.stats().Host.Used == 0 })
	d.putObject("", "b", mibs(8, 1))
}

// An object larger than the memory is refused like any other, without effects on other clients.
func TestPutLargerThanMemory(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), nil)
	d.putObject("", "a", ramp(10, 0))
	conn := d.dial()
	d.write(conn, fmt.Sprintf("PUT /v1/objects/b HTTP/1.1\r\nHost: k\r\nContent-Length: %d\r\n\r\nx", math.MaxInt64))
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || got.StatusCode != http.StatusRequestEntityTooLarge {
		t.Fatalf("PUT with the longest length: got %+v, %v; want StatusCode %v", got, err, http.StatusRequestEntityTooLarge)
	}
	_ = got.Body.Close()
	d.putObject("", "c", ramp(10, 0))
	if s := d.stats(); s.Host.Used != 80 {
		t.Errorf("host memory in use: got %d bytes, want 80", s.Host.Used)
	}
}

// Each client has its own objects.
func TestClients(t *testing.T) {
	for _, isolate := range []bool{false, true} {
		t.Run(fmt.Sprint("process ", isolate), func(t *testing.T) {
			const n = 1000
			d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) {
				c.Isolate = isolate
				c.GPUMem = 1 * mib
				c.Clients = []kernel.ClientConfig{{Name: "alice", Weight: 2}, {Name: "bob", Weight: 1}}
			})
			own := *d
			own.client = clientOf(d.dir + "/kernel-alice.sock")
			defer own.client.CloseIdleConnections()
			own.putObject("", "a", ramp(n, 0))
			d.putObject("bob", "a", ramp(n, 1000))
			own.mustRun("", sum("a", "a", "b", n, ""))
			d.mustRun("bob", sum("a", "a", "b", n, ""))
			if a, b := d.getObject("alice", "b")[1], own.getObject("", "b")[1]; a != 2 || b != 2 {
				t.Errorf("element 1 of alice's b: got %v on the common socket and %v on her own, want 2 and 2", a, b)
			}
			if got := d.getObject("bob", "b")[1]; got != 2002 {
				t.Errorf("element 1 of bob's b: got %v, want 2002", got)
			}
			if _, err := own.do("bob", "GET", object("a"), nil); err == nil {
				t.Error("GET for bob on alice's socket succeeded, want an error")
			}
			if _, err := own.do("", "PUT", "/v1/clients/alice", []byte(`{"weight":9}`)); err == nil {
				t.Error("PUT of alice's weight on her own socket succeeded, want an error")
			}
			if _, err := d.do("", "PUT", "/v1/clients/bob", []byte(`{"weight":3}`)); err != nil {
				t.Error(err)
			}
			s := d.stats()
			want := 1
			if isolate {
				want = 2
			}
			if len(s.Clients) != 2 || s.Clients[0].Weight != 2 || s.Clients[1].Weight != 3 || s.GPUs[0].Executors != want {
				t.Errorf("statistics: got %+v, want two clients of the weights 2 and 3 and Executors %d", s, want)
			}
			// Each client's requests evict the other's objects, also across executors.
			const large = 900 * 1024 / 4 / 3
			for round := range 3 {
				for _, client := range []string{"alice", "bob"} {
					key := fmt.Sprint("v", round)
					d.putObject(client, "x", ramp(large, 0))
					d.mustRun(client, sum("x", "x", key, large, `,"volatile":true`))
				}
			}
			for round := range 3 {
				for _, client := range []string{"alice", "bob"} {
					if got := d.getObject(client, fmt.Sprint("v", round))[large-1]; got != 2*(large-1) {
						t.Errorf("last value of v%d of %s: got %v, want %v", round, client, got, 2*(large-1))
					}
				}
			}
			// A fault of one client costs the other at most its copies on a shared executor.
			d.refused("bob", wild("a"), "fault", "/kernels/0")
			d.mustRun("alice", sum("a", "a", "c", n, ""))
			want = 2 // the first one, and a new one after the fault
			if isolate {
				want = 3 // one to query the GPU, alice's, and bob's, which is not replaced yet
			}
			if started := d.stats().GPUs[0].Started; started != want {
				t.Errorf("started executors: got %d, want %d", started, want)
			}
		})
	}
}

// Requests of a client that access the same objects run in their order; others may overtake them.
func TestOrder(t *testing.T) {
	const n = 64
	d := serve(t, newExecutorPool(t, "count=2"), func(c *kernel.Config) { c.GPUs = []string{"sim", "sim:1"} })
	d.putObject("", "one", mibs1(n, 1))
	d.putObject("", "x", mibs1(n, 0))
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			if _, err := d.run("", add(1, "one", "x", n)); err != nil {
				t.Error(err)
			}
		})
		all.Go(func() {
			if _, err := d.run("", sum("x", "one", "y", n, "")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := d.getObject("", "x")[n-1]; got != 40 {
		t.Errorf("last value of x after 40 additions of one: got %v, want 40", got)
	}
	// A request may read the output of an earlier request that has not run yet.
	var chain sync.WaitGroup
	slow := strings.Replace(sum("x", "one", "c0", n, ""), `"kernels":[`, `"kernels":[{"module":"s","name":"slow","grid":[160,1,1],"block":[1,1,1],"args":[]},`, 1)
	slow = strings.Replace(slow, `"modules":{`, fmt.Sprintf(`"modules":{"s":{"ptx":%q},`, slowPTX), 1)
	d.startRequest(&chain, "", slow)
	for i := range 5 {
		if _, err := d.run("", sum(fmt.Sprint("c", i), "one", fmt.Sprint("c", i+1), n, "")); err != nil {
			t.Error(err)
		}
	}
	chain.Wait()
	if got := d.getObject("", "c5")[0]; got != 46 {
		t.Errorf("last value of the chain, c5: got %v, want 46", got)
	}
}

// Requests whose callers disconnect before they run do not change the order of the others. If the host is so slow
// that the first request ends too early, the test retries with a longer one.
func TestOrderAfterDisconnect(t *testing.T) {
	for blocks := 2000; ; blocks *= 4 { // half a second
		if disconnectBetween(t, blocks) {
			return
		}
		if blocks > 100_000 {
			t.Fatal("the first request ended before the others arrived in each try, the last with more than 100,000 blocks")
		}
	}
}

// disconnectBetween starts a request with the given number of slow blocks that writes x. Two others would replace x,
// but their callers disconnect. It checks that the readers of x, one of which arrived between the two, get the
// result of the first request. It returns false if the first request ended too early.
func disconnectBetween(t *testing.T, blocks int) bool {
	const n = 64
	d := serve(t, newExecutorPool(t, "count=2"), func(c *kernel.Config) { c.GPUs = []string{"sim", "sim:1"} })
	d.putObject("", "one", mibs1(n, 1))
	d.putObject("", "x", mibs1(n, 10))
	state := func() (running, waiting int) {
		for _, g := range d.stats().GPUs {
			if g.Running != "" {
				running++
			}
		}
		return running, d.stats().Clients[0].Waiting
	}
	var all sync.WaitGroup
	defer all.Wait()
	startRun := func(request string) {
		all.Go(func() {
			if _, err := d.run("", request); err != nil {
				t.Error(err)
			}
		})
	}
	awaitQueued := func(queued int) bool {
		var running, waiting int
		eventually(t, fmt.Sprintf("%d requests are queued, or not exactly one runs", queued), func() bool { running, waiting = state(); return running != 1 || waiting == queued })
		return running == 1
	}
	slow := strings.Replace(sum("x", "one", "x", n, ""), `"kernels":[`, fmt.Sprintf(`"kernels":[{"module":"s","name":"slow","grid":[%d,1,1],"block":[1,1,1],"args":[]},`, blocks), 1)
	d.startRequest(&all, "", strings.Replace(slow, `"modules":{`, fmt.Sprintf(`"modules":{"s":{"ptx":%q},`, slowPTX), 1))
	same, shorter := d.dial(), d.dial()
	d.write(same, post("POST", "/v1/run", sum("one", "one", "x", n, ""), 0))
	if !awaitQueued(1) {
		return false
	}
	startRun(sum("x", "one", "y", n, ""))
	if !awaitQueued(2) {
		return false
	}
	d.write(shorter, post("POST", "/v1/run", sum("one", "one", "x", n/2, ""), 0))
	if !awaitQueued(3) {
		return false
	}
	for _, conn := range []*net.UnixConn{same, shorter} {
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		got, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = got.Body.Close()
		if got.StatusCode != http.StatusInternalServerError { // it was already dispatched
			return false
		}
	}
	if running, _ := state(); running == 0 {
		return false
	}
	startRun(sum("x", "one", "z", n, ""))
	all.Wait()
	for key, want := range map[string]float32{"x": 11, "y": 12, "z": 12} {
		if got := d.getObject("", key)[n-1]; got != want {
			t.Errorf("last value of %s: got %v, want %v", key, got, want)
		}
	}
	if running, waiting := state(); running != 0 || waiting != 0 {
		t.Errorf("after the last request: got %d running and %d queued requests, want 0 and 0", running, waiting)
	}
	return true
}

func mibs1(n int, v float32) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// eventually waits until a condition holds.
func eventually(t testing.TB, condition string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !done(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, condition)
		}
	}
}

// An object that is only on one GPU is moved to another GPU that needs it.
func TestAcrossGPUs(t *testing.T) {
	const n = 1000
	d := serve(t, newExecutorPool(t, "count=2"), func(c *kernel.Config) { c.GPUs = []string{"sim", "sim:1"} })
	d.putObject("", "a", ramp(n, 0))
	d.mustRun("", sum("a", "a", "v", n, `,"volatile":true`))
	// While that GPU runs another request, the client's requests run on the other one.
	var busy sync.WaitGroup
	slow := custom(slowPTX, "slow", 80*50)
	d.startRequest(&busy, "", strings.Replace(slow, `"version":1`, `"version":1,"buffers":{"q":{"kind":"temporary","size":4}}`, 1))
	for range 5 {
		d.mustRun("", sum("v", "a", "w", n, ""))
	}
	busy.Wait()
	if got := d.getObject("", "w")[10]; got != 30 {
		t.Errorf("element 10 of w: got %v, want 30", got)
	}
}
