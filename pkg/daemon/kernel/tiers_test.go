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

// mibs is an object of so many MiB whose floats are all v.
func mibs(n int, v float32) []float32 {
	out := make([]float32, n*mib/4)
	for i := range out {
		out[i] = v
	}
	return out
}

// What leaves the GPU is not lost, whatever the tier it was in; what stays is what
// was used often, and then what was used last.
func TestEviction(t *testing.T) {
	const n = 4 * mib / 4
	d := serve(t, newMachine(t, ""), func(c *kernel.Config) { c.GPUMem = 20 * mib })
	d.put("", "a", mibs(4, 1))
	d.put("", "b", mibs(4, 2))
	d.mustRun("", sum("a", "b", "v", n, `,"volatile":true`))
	d.mustRun("", sum("a", "a", "c", n, "")) // 16 MiB are there: a and b, v, c
	if got := where(d, ""); got != "a:h0 b:h0 c:h0 v:0" {
		t.Errorf("before: %s", got)
	}
	// One more fits; then b, v and c are those used once, in this order.
	d.mustRun("", sum("a", "a", "d", n, ""))
	a := d.mustRun("", sum("a", "a", "e", n, ""))
	if got := where(d, ""); got != "a:h0 b:h c:h0 d:h0 e:h0 v:0" || a.Cache.Evicted != 1 {
		t.Errorf("after one: %s, %+v", got, a.Cache)
	}
	a = d.mustRun("", sum("a", "a", "f", n, ""))
	if got := where(d, ""); got != "a:h0 b:h c:h0 d:h0 e:h0 f:h0 v:h" || a.Cache.Evicted != 1 {
		t.Errorf("after two, the volatile one was saved: %s, %+v", got, a.Cache)
	}
	if got := d.get("", "v"); got[0] != 3 || got[n-1] != 3 {
		t.Errorf("v is %v … %v", got[0], got[n-1])
	}
	// A request that takes all of the GPU.
	big := fmt.Sprintf(`{"version":1,"modules":{"m":{"builtin":"blas"}},"buffers":{"t":{"kind":"temporary","size":%d},"v":{"kind":"inout","key":"v"}},
"kernels":[{"module":"m","name":"saxpy","args":[{"f32":1},{"buffer":"t"},{"buffer":"v"},{"i32":%d}]}]}`, 16*mib, n)
	d.mustRun("", big)
	if got := where(d, ""); got != "a:h b:h c:h d:h e:h f:h v:h0" {
		t.Errorf("after all: %s", got)
	}
	if got := d.get("", "v"); got[n-1] != 3 { // fresh memory is zeros, whoever had it
		t.Errorf("v is %v", got[n-1])
	}
	if s := d.stats(); s.Host.Used != 28*mib || s.GPUs[0].Used != 4*mib {
		t.Errorf("%+v %+v", s.Host, s.GPUs[0])
	}
	for _, key := range []string{"a", "b", "c", "d", "e", "f", "v"} {
		if _, err := d.do("", "DELETE", object(key), nil); err != nil {
			t.Fatal(err)
		}
	}
	if s := d.stats(); s.Host.Used != 0 || s.GPUs[0].Used != 0 || s.GPUs[0].Objects != 0 {
		t.Errorf("after all was deleted: %+v %+v", s.Host, s.GPUs[0])
	}
}

// Where each client has its own executor there are at most 16 on a GPU: that used
// least recently ends, whatever it has, and what it alone has is saved.
func TestManyExecutors(t *testing.T) {
	const n, most = 100, 16
	d := serve(t, newMachine(t, ""), func(c *kernel.Config) { c.Isolate = true })
	client := func(i int) string { return fmt.Sprint("c", i) }
	run := func(i int) { d.mustRun(client(i), sum("a", "a", "v", n, `,"volatile":true`)) }
	for i := range most + 2 {
		d.put(client(i), "a", ramp(n, float32(i)))
	}
	for i := range most {
		run(i)
	}
	run(1)
	run(1) // used more often than any, but not last
	for i := range most {
		if i != 1 {
			run(i)
		}
	}
	run(most)
	if first, second := where(d, client(0)), where(d, client(1)); first != "a:h0 v:0" || second != "a:h v:h" {
		t.Errorf("after one more there is %s of the first, %s of the second", first, second)
	}
	run(most + 1)
	if s := d.stats(); s.GPUs[0].Executors != most || s.GPUs[0].Started != 1+most+2 || s.GPUs[0].Faults != 0 {
		t.Errorf("%+v", s.GPUs[0])
	}
	for i := range most + 2 {
		if v := d.get(client(i), "v"); v[n-1] != 2*(n-1+float32(i)) {
			t.Errorf("v of %s is %v", client(i), v[n-1])
		}
	}
}

// list is a client's objects.
func (d *daemon) list(client string) []kernel.Object {
	d.t.Helper()
	text, err := d.do(client, "GET", "/v1/objects", nil)
	if err != nil {
		d.t.Fatal(err)
	}
	var list struct{ Objects []kernel.Object }
	unmarshal(d.t, text, &list)
	return list.Objects
}

// where lists a client's objects: h is the host, numbers are GPUs.
func where(d *daemon, client string) string {
	d.t.Helper()
	var out []string
	for _, o := range d.list(client) {
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

// An object that a request changes in place is the old one until the request is
// over, and for whoever reads it by another name meanwhile.
func TestInout(t *testing.T) {
	const n = 1000
	d := serve(t, newMachine(t, ""), nil)
	d.put("", "a", ramp(n, 1))
	twice := fmt.Sprintf(`{"version":1,"modules":{"m":{"builtin":"blas"}},"buffers":{"old":{"kind":"input","key":"a"},"new":{"kind":"inout","key":"a","volatile":true}},
"kernels":[{"module":"m","name":"saxpy","args":[{"f32":1},{"buffer":"old"},{"buffer":"new"},{"i32":%d}]},{"module":"m","name":"saxpy","args":[{"f32":1},{"buffer":"old"},{"buffer":"new"},{"i32":%d}]}]}`, n, n)
	for _, want := range []float32{3, 9, 27} { // now on the GPU alone
		d.mustRun("", twice)
		if got := where(d, ""); want < 9 && got != "a:0" {
			t.Errorf("it is at %s", got)
		}
		if got := d.get("", "a")[0]; got != want {
			t.Fatalf("%v, want %v", got, want)
		}
	}
	d.mustRun("", twice)
	// One that changes what is on the GPU alone and faults: it was saved before.
	d.refused("", wild("a"), "fault", "/kernels/0")
	if got := d.get("", "a")[0]; got != 81 {
		t.Errorf("after the fault: %v", got)
	}
}

// Each output's bytes are in the answer under its name, whatever that is.
func TestAnswers(t *testing.T) {
	d := serve(t, newMachine(t, ""), nil)
	d.put("", "ones", mibs1(1, 1))
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
		t.Errorf("%+v", a.Outputs)
	}
	for i, name := range names {
		if out := a.Outputs[name]; out.Key != "" || out.Size != int64(i+3) || !bytes.Equal(out.Data, make([]byte, i+3)) {
			t.Errorf("%q is %+v", name, out)
		}
	}
	if out := a.Outputs["kept"]; out.Key != "AAAA" || out.Size != 4 || out.Data != nil {
		t.Errorf("kept is %+v", out)
	}
	if out := a.Outputs["both"]; out.Key != "ones" || len(values(out.Data)) != 1 || values(out.Data)[0] != 2 {
		t.Errorf("both is %+v", out)
	}
	waitFor(t, func() bool { return d.stats().Host.Used == 8 })
}

// What an answer carries is in the host's tier until it is sent, beside what is
// stored of it or as that.
func TestHostFullOfAnswers(t *testing.T) {
	const n = 2*mib + 2 // so many that their base64 needs padding
	d := serve(t, newMachine(t, ""), func(c *kernel.Config) { c.HostMem = 30 * mib })
	for _, test := range []struct {
		what, key, more string
		taken, stored   int64 // times 4n bytes
	}{
		{"alone", ``, ``, 1, 0}, {"stored", `"key":"c",`, ``, 1, 1}, {"volatile", `"key":"c",`, `,"volatile":true`, 2, 1},
	} {
		t.Run(test.what, func(t *testing.T) {
			d.put("", "a", ramp(n, 0))
			used := d.stats().Host.Used
			conn := d.dial()
			if err := conn.SetReadBuffer(4096); err != nil { // most of the answer is still to come
				t.Fatal(err)
			}
			request := strings.Replace(sum("a", "a", "c", n, `,"inline":true`+test.more), `"key":"c",`, test.key, 1)
			d.say(conn, post("POST", "/v1/run", request, 0))
			got, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || got.StatusCode != 200 {
				t.Fatalf("%+v, %v", got, err)
			}
			if now := d.stats().Host.Used - used; now != test.taken*4*n {
				t.Errorf("%d bytes are taken while it is sent, want %d", now, test.taken*4*n)
			}
			d.put("", "a", ramp(1, 0)) // and what it is of
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
				t.Fatalf("%d floats", len(v))
			}
			for i := range v {
				if v[i] != 2*float32(i) {
					t.Fatalf("float %d is %v", i, v[i])
				}
			}
			waitFor(t, func() bool { return d.stats().Host.Used == 4 })
		})
	}
	d.refused("", fmt.Sprintf(`{"version":1,"modules":{"m":{"ptx":%q}},"buffers":{"y":{"kind":"output","inline":true,"size":%d}},
"kernels":[{"module":"m","name":"slow","grid":[1,1,1],"block":[1,1,1],"args":[]}]}`, tinyPTX, 31*mib), "too-large", "/buffers/y")
	if s := d.stats(); s.Host.Used != 4 {
		t.Errorf("%d bytes are left", s.Host.Used)
	}
}

// The host's budget is for all objects, and a request that has no room for its
// outputs is refused before it runs.
func TestHostFull(t *testing.T) {
	const n = 4 * mib / 4
	d := serve(t, newMachine(t, ""), func(c *kernel.Config) { c.HostMem = 10 * mib })
	d.put("", "a", mibs(4, 1))
	d.mustRun("", sum("a", "a", "b", n, `,"volatile":true`))
	d.refused("", sum("a", "a", "c", n, ""), "too-large", "/buffers/c")
	var p *kernel.Problem
	if _, err := d.do("", "PUT", object("d"), make([]byte, 4*mib)); !errors.As(err, &p) || p.Code != "too-large" {
		t.Errorf("a PUT: %v", err)
	}
	d.put("", "d", ramp(10, 0))
	if got := d.get("", "b")[n-1]; got != 2 {
		t.Errorf("b is %v", got)
	}
}

// What was deleted takes its part of the host's budget until nobody reads it any more.
func TestHostFullOfWhatIsRead(t *testing.T) {
	d := serve(t, newMachine(t, ""), func(c *kernel.Config) { c.HostMem = 10 * mib })
	d.put("", "a", mibs(8, 1))
	reader := d.dial()
	if err := reader.SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	d.say(reader, "GET /v1/objects/a HTTP/1.1\r\nHost: k\r\n\r\n")
	got, err := http.ReadResponse(bufio.NewReader(reader), nil)
	if err != nil || got.StatusCode != http.StatusOK {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := d.do("", "DELETE", object("a"), nil); err != nil {
		t.Fatal(err)
	}
	var p *kernel.Problem
	if _, err := d.do("", "PUT", object("b"), make([]byte, 8*mib)); !errors.As(err, &p) || p.Code != "too-large" {
		t.Errorf("a PUT beside what is still read: %v", err)
	}
	s := d.stats()
	if c := s.Clients[0]; s.Host.Used != 8*mib || c.Objects != 0 || c.Bytes != 8*mib {
		t.Errorf("%d bytes are taken, and of the client %+v", s.Host.Used, c)
	}
	_ = reader.Close()
	_ = got.Body.Close()
	waitFor(t, func() bool { return d.stats().Host.Used == 0 })
	d.put("", "b", mibs(8, 1))
}

// An object that is larger than any memory is refused like others, and costs nobody
// anything.
func TestPutLargerThanMemory(t *testing.T) {
	d := serve(t, newMachine(t, ""), nil)
	d.put("", "a", ramp(10, 0))
	conn := d.dial()
	d.say(conn, fmt.Sprintf("PUT /v1/objects/b HTTP/1.1\r\nHost: k\r\nContent-Length: %d\r\n\r\nx", math.MaxInt64))
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || got.StatusCode != http.StatusRequestEntityTooLarge {
		t.Fatalf("%+v, %v", got, err)
	}
	_ = got.Body.Close()
	d.put("", "c", ramp(10, 0))
	if s := d.stats(); s.Host.Used != 80 {
		t.Errorf("%d bytes are taken, want 80", s.Host.Used)
	}
}

// A client's objects are its own.
func TestClients(t *testing.T) {
	for _, isolate := range []bool{false, true} {
		t.Run(fmt.Sprint("process ", isolate), func(t *testing.T) {
			const n = 1000
			d := serve(t, newMachine(t, ""), func(c *kernel.Config) {
				c.Isolate = isolate
				c.GPUMem = 1 * mib
				c.Clients = []kernel.ClientConfig{{Name: "alice", Weight: 2}, {Name: "bob", Weight: 1}}
			})
			own := *d
			own.client = clientOf(d.dir + "/kernel-alice.sock")
			defer own.client.CloseIdleConnections()
			own.put("", "a", ramp(n, 0))
			d.put("bob", "a", ramp(n, 1000))
			own.mustRun("", sum("a", "a", "b", n, ""))
			d.mustRun("bob", sum("a", "a", "b", n, ""))
			if a, b := d.get("alice", "b")[1], own.get("", "b")[1]; a != 2 || b != 2 {
				t.Errorf("alice's b is %v and %v", a, b)
			}
			if got := d.get("bob", "b")[1]; got != 2002 {
				t.Errorf("bob's b is %v", got)
			}
			if _, err := own.do("bob", "GET", object("a"), nil); err == nil {
				t.Error("alice's socket speaks for bob")
			}
			if _, err := own.do("", "PUT", "/v1/clients/alice", []byte(`{"weight":9}`)); err == nil {
				t.Error("alice changes her weight")
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
				t.Errorf("%+v", s)
			}
			// One makes room for the other, across executors.
			const large = 900 * 1024 / 4 / 3
			for round := range 3 {
				for _, client := range []string{"alice", "bob"} {
					key := fmt.Sprint("v", round)
					d.put(client, "x", ramp(large, 0))
					d.mustRun(client, sum("x", "x", key, large, `,"volatile":true`))
				}
			}
			for round := range 3 {
				for _, client := range []string{"alice", "bob"} {
					if got := d.get(client, fmt.Sprint("v", round))[large-1]; got != 2*(large-1) {
						t.Errorf("%s's v%d is %v", client, round, got)
					}
				}
			}
			// A fault of one costs the other nothing but, in one process, its copies.
			d.refused("bob", wild("a"), "fault", "/kernels/0")
			d.mustRun("alice", sum("a", "a", "c", n, ""))
			want = 2 // the first and, after the fault, another
			if isolate {
				want = 3 // one to look at the GPU, alice's and bob's, whose next has not come
			}
			if started := d.stats().GPUs[0].Started; started != want {
				t.Errorf("%d executors were started, want %d", started, want)
			}
		})
	}
}

// Requests of a client that touch the same objects keep their order; others go by.
func TestOrder(t *testing.T) {
	const n = 64
	d := serve(t, newMachine(t, "count=2"), func(c *kernel.Config) { c.GPUs = []string{"sim", "sim:1"} })
	d.put("", "one", mibs1(n, 1))
	d.put("", "x", mibs1(n, 0))
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
	if got := d.get("", "x")[n-1]; got != 40 {
		t.Errorf("40 additions of one come to %v", got)
	}
	// A request may count on what an earlier one makes, before it is there.
	var chain sync.WaitGroup
	slow := strings.Replace(sum("x", "one", "c0", n, ""), `"kernels":[`, `"kernels":[{"module":"s","name":"slow","grid":[160,1,1],"block":[1,1,1],"args":[]},`, 1)
	slow = strings.Replace(slow, `"modules":{`, fmt.Sprintf(`"modules":{"s":{"ptx":%q},`, slowPTX), 1)
	d.begin(&chain, "", slow)
	for i := range 5 {
		if _, err := d.run("", sum(fmt.Sprint("c", i), "one", fmt.Sprint("c", i+1), n, "")); err != nil {
			t.Error(err)
		}
	}
	chain.Wait()
	if got := d.get("", "c5")[0]; got != 46 {
		t.Errorf("the chain ends with %v", got)
	}
}

// Requests whose callers leave before they run keep the others in their order. Where
// the host is so slow that the first is over before, it is tried with a longer one.
func TestOrderWithoutThoseThatLeft(t *testing.T) {
	for blocks := 2000; ; blocks *= 4 { // half a second
		if leaveInBetween(t, blocks) {
			return
		}
		if blocks > 100_000 {
			t.Fatal("the first request never ran for as long as the others needed to come")
		}
	}
}

// leaveInBetween has a request of so many slow blocks write what two others would
// replace, whose callers leave, and holds that those that read it, one of which came
// between them, wait for the first. False: it was over too early.
func leaveInBetween(t *testing.T, blocks int) bool {
	const n = 64
	d := serve(t, newMachine(t, "count=2"), func(c *kernel.Config) { c.GPUs = []string{"sim", "sim:1"} })
	d.put("", "one", mibs1(n, 1))
	d.put("", "x", mibs1(n, 10))
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
	ask := func(request string) {
		all.Go(func() {
			if _, err := d.run("", request); err != nil {
				t.Error(err)
			}
		})
	}
	waits := func(so int) bool {
		var running, waiting int
		waitFor(t, func() bool { running, waiting = state(); return running != 1 || waiting == so })
		return running == 1
	}
	slow := strings.Replace(sum("x", "one", "x", n, ""), `"kernels":[`, fmt.Sprintf(`"kernels":[{"module":"s","name":"slow","grid":[%d,1,1],"block":[1,1,1],"args":[]},`, blocks), 1)
	d.begin(&all, "", strings.Replace(slow, `"modules":{`, fmt.Sprintf(`"modules":{"s":{"ptx":%q},`, slowPTX), 1))
	same, shorter := d.dial(), d.dial()
	d.say(same, post("POST", "/v1/run", sum("one", "one", "x", n, ""), 0))
	if !waits(1) {
		return false
	}
	ask(sum("x", "one", "y", n, ""))
	if !waits(2) {
		return false
	}
	d.say(shorter, post("POST", "/v1/run", sum("one", "one", "x", n/2, ""), 0))
	if !waits(3) {
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
		if got.StatusCode != http.StatusInternalServerError { // it had begun
			return false
		}
	}
	if running, _ := state(); running == 0 {
		return false
	}
	ask(sum("x", "one", "z", n, ""))
	all.Wait()
	for key, want := range map[string]float32{"x": 11, "y": 12, "z": 12} {
		if got := d.get("", key)[n-1]; got != want {
			t.Errorf("%s is %v, want %v", key, got, want)
		}
	}
	if running, waiting := state(); running != 0 || waiting != 0 {
		t.Errorf("%d requests run and %d wait", running, waiting)
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

func waitFor(t testing.TB, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !done(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("it does not happen")
		}
	}
}

// What is on one GPU alone is brought to another that wants it.
func TestAcrossGPUs(t *testing.T) {
	const n = 1000
	d := serve(t, newMachine(t, "count=2"), func(c *kernel.Config) { c.GPUs = []string{"sim", "sim:1"} })
	d.put("", "a", ramp(n, 0))
	d.mustRun("", sum("a", "a", "v", n, `,"volatile":true`))
	// While its GPU is taken by another's work, the client goes to the other.
	var busy sync.WaitGroup
	slow := custom(slowPTX, "slow", 80*50)
	d.begin(&busy, "", strings.Replace(slow, `"version":1`, `"version":1,"buffers":{"q":{"kind":"temporary","size":4}}`, 1))
	for range 5 {
		d.mustRun("", sum("v", "a", "w", n, ""))
	}
	busy.Wait()
	if got := d.get("", "w")[10]; got != 30 {
		t.Errorf("w is %v", got)
	}
}
