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

// dial is a connection on which a test says what it likes.
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

func (d *daemon) say(conn net.Conn, text string) {
	d.t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		d.t.Error(err)
	}
}

// post is a request as it goes over the wire, whose body is said to be so much
// longer than it is.
func post(method, path, body string, missing int) string {
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: k\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body)+missing, body)
}

// Who sends half of a request holds nobody up: one that stalls is given up, and
// nothing is left of what it began.
func TestSlowSenders(t *testing.T) {
	d := serve(t, newMachine(t, ""), func(c *kernel.Config) { c.Stall = 3 * time.Second })
	d.put("", "a", ramp(10, 0))
	before := d.stats().Host.Used
	request := sum("a", "a", "c", 10, "")
	stalled := map[string]*net.UnixConn{}
	for what, text := range map[string]string{
		"half a request": post("POST", "/v1/run", request[:len(request)/2], 100),
		"half an object": post("PUT", "/v1/objects/half", strings.Repeat("x", 1000), 1000),
		"half a weight":  post("PUT", "/v1/clients/c", `{"wei`, 10),
	} {
		stalled[what] = d.dial()
		d.say(stalled[what], text)
	}
	halfClosed := d.dial()
	d.say(halfClosed, post("POST", "/v1/run", request, 1))
	if err := halfClosed.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	gone := d.dial()
	d.say(gone, post("PUT", "/v1/objects/gone", strings.Repeat("x", 1000), 1000))
	_ = gone.Close()
	header := d.dial()
	d.say(header, "POST /v1/run HTTP/1.1\r\nHos") // the server gives it ten seconds: nobody waits for it here
	early := d.dial()                             // refused before its body is read
	d.say(early, post("PUT", "/v1/objects/.x", "x", 10))
	taker := d.dial() // takes nothing of what it asks for
	d.put("", "big", mibs(16, 1))
	before += 16 * mib
	d.say(taker, "GET /v1/objects/big HTTP/1.1\r\nHost: k\r\n\r\n")
	d.mustRun("", request) // meanwhile
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
			t.Errorf("%d %s, want %d %s", got.StatusCode, text, status, code)
		}
	}
	answer(halfClosed, 400, "bad-request")
	answer(stalled["half a request"], 504, "timeout")
	answer(stalled["half an object"], 504, "timeout")
	answer(stalled["half a weight"], 504, "timeout")
	answer(early, 400, "bad-request")
	waitFor(t, func() bool { _, err := io.WriteString(taker, "x"); return err != nil })
	waitFor(t, func() bool { return d.stats().Host.Used == before+40 }) // c
	if got := where(d, ""); got != "a:h0 big:h c:h0" {
		t.Errorf("there is %s", got)
	}
	// A slow one that goes on is waited for.
	slow := d.dial()
	whole := post("POST", "/v1/run", request, 0)
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for len(whole) > 0 {
		n := min(len(whole), 14)
		d.say(slow, whole[:n])
		whole = whole[n:]
		<-tick.C // slower than the stall in all, faster in each part
	}
	got, err := http.ReadResponse(bufio.NewReader(slow), nil)
	if err != nil || got.StatusCode != 200 {
		t.Fatalf("%+v, %v", got, err)
	}
	_ = got.Body.Close()
}

// Who sends an object byte by byte does not keep the room for it from others.
func TestSlowPut(t *testing.T) {
	d := serve(t, newMachine(t, ""), func(c *kernel.Config) { c.Stall = 400 * time.Millisecond })
	conn := d.dial()
	d.say(conn, post("PUT", "/v1/objects/all", "x", 64*mib-1))
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
		t.Errorf("%+v, %v", got, err)
	}
	_ = conn.Close()
	sender.Wait()
	if s := d.stats(); s.Host.Used != 0 {
		t.Errorf("%d bytes of the host are taken", s.Host.Used)
	}
}

// Requests that come on one connection without waiting are answered in their order.
func TestPipelined(t *testing.T) {
	const n, many = 16, 50
	d := serve(t, newMachine(t, ""), nil)
	d.put("", "one", mibs1(n, 1))
	d.put("", "x", mibs1(n, 0))
	conn := d.dial()
	var all strings.Builder
	for range many {
		all.WriteString(post("POST", "/v1/run", add(1, "one", "x", n), 0))
		all.WriteString(post("POST", "/v1/run", `{"version":2}`, 0))
		all.WriteString("GET /v1/objects/x HTTP/1.1\r\nHost: k\r\n\r\n")
	}
	var writer sync.WaitGroup
	writer.Go(func() { d.say(conn, all.String()) })
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
				t.Fatalf("answer %d is %d %s", i, got.StatusCode, text)
			}
		case 1:
			if got.StatusCode != 400 {
				t.Fatalf("answer %d is %d %s", i, got.StatusCode, text)
			}
		case 2:
			if v := values(text); len(v) != n || v[0] != float32(i/3+1) {
				t.Fatalf("answer %d is %v", i, v)
			}
		}
	}
}

// A kernel that never ends costs its own request: those behind it, of its client
// and of others, run as if it had not been there.
func TestEndless(t *testing.T) {
	const n = 100
	d := serve(t, newMachine(t, ""), func(c *kernel.Config) { c.KernelTimeout = 3 * time.Second })
	for _, client := range []string{"bad", "good"} {
		d.put(client, "a", ramp(n, 0))
	}
	d.mustRun("good", sum("a", "a", "b", n, ""))
	var all sync.WaitGroup
	all.Go(func() { d.refused("bad", custom(slowPTX, "slow", 1<<30), "timeout", "/kernels") })
	waitFor(t, func() bool { return d.stats().GPUs[0].Client == "bad" })
	for i := range 10 {
		for _, client := range []string{"bad", "good"} {
			all.Go(func() {
				if _, err := d.run(client, sum("a", "a", fmt.Sprint("c", i), n, "")); err != nil {
					t.Errorf("%s: %v", client, err)
				}
			})
		}
	}
	all.Wait()
	for i := range 10 {
		if got := d.get("good", fmt.Sprint("c", i))[n-1]; got != 2*(n-1) {
			t.Errorf("c%d is %v", i, got)
		}
	}
	if s := d.stats(); s.GPUs[0].Faults != 1 {
		t.Errorf("%+v", s.GPUs[0])
	}
}

// Memory of the GPU that others took is found missing before the first kernel: the
// request is refused, smaller ones run, and it runs when the memory is there again.
func TestMemoryOfOthers(t *testing.T) {
	const n = 40 * mib / 4
	m := newMachine(t, "mem=256MiB")
	d := serve(t, m, func(c *kernel.Config) { c.GPUMem, c.HostMem = 160*mib, 256*mib })
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
	take := job.Job{ID: 1, Limit: 1 << 40, Alloc: []job.Block{{Number: 0, Size: 160 * mib}}}
	other.Send(take.Append(nil), patience)
	if o, err := other.Wait(1, patience); err != nil || o.Code != 0 {
		t.Fatalf("%+v, %v", o, err)
	}
	d.put("", "a", mibs(40, 1))
	d.put("", "b", mibs(40, 2))
	// A kernel that would be seen to have run.
	large := strings.Replace(sum("a", "b", "c", n, ""), `"buffers":{`, `"buffers":{"io":{"kind":"inout","key":"io"},`, 1)
	large = strings.Replace(large, `"kernels":[`, `"kernels":[{"module":"m","name":"vadd","args":[{"buffer":"io"},{"buffer":"io"},{"buffer":"io"},{"i32":10}]},`, 1)
	d.put("", "io", ramp(10, 1))
	d.refused("", large, "too-large", "/buffers")
	if got := d.get("", "io")[0]; got != 1 {
		t.Errorf("a kernel has run: io is %v", got)
	}
	d.mustRun("other", custom(tinyPTX, "slow", 1))
	d.mustRun("", sum("a", "a", "c", 1*mib/4, "")) // 40 and 1, or what a class of them takes
	if s := d.stats(); s.GPUs[0].Faults != 0 || s.GPUs[0].Started != 1 {
		t.Errorf("%+v", s.GPUs[0])
	}
	other.Kill()
	d.mustRun("", large)
	if c, io := d.get("", "c"), d.get("", "io"); c[n-1] != 3 || io[9] != 20 {
		t.Errorf("c is %v, io %v", c[n-1], io[9])
	}
}

// Who reads an object has it to its end, whatever takes its place meanwhile; so has
// a request that runs.
func TestReplacedWhileRead(t *testing.T) {
	const large, n = 16 * mib / 4, 1000
	d := serve(t, newMachine(t, ""), func(c *kernel.Config) { c.HostMem, c.Stall = 256*mib, patience }) // it is not given up while others are put
	d.put("", "big", mibs1(large, 1))
	conn := d.dial()
	if err := conn.SetReadBuffer(4096); err != nil { // most of the object is still to come
		t.Fatal(err)
	}
	d.say(conn, "GET /v1/objects/big HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n")
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	for v := float32(2); v < 5; v++ {
		d.put("", "big", mibs1(large, v))
	}
	if _, err := d.do("", "DELETE", object("big"), nil); err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(got.Body)
	_ = got.Body.Close()
	if err != nil || len(data) != 4*large {
		t.Fatalf("%d bytes, %v", len(data), err)
	}
	for i, v := range values(data) {
		if v != 1 {
			t.Fatalf("float %d of it is %v", i, v)
		}
	}

	slow := strings.Replace(add(1, "x", "y", n), `"kernels":[`, `"kernels":[{"module":"s","name":"slow","grid":[4000,1,1],"block":[1,1,1],"args":[]},`, 1)
	slow = strings.Replace(slow, `"modules":{`, fmt.Sprintf(`"modules":{"s":{"ptx":%q},`, slowPTX), 1)
	seen := false
	for round := 0; round < 10 && !seen; round++ { // until they are replaced while it runs, for a second
		d.put("", "x", mibs1(n, 1))
		d.put("", "y", mibs1(n, 1))
		var running sync.WaitGroup
		d.begin(&running, "", slow)
		d.put("", "x", mibs1(n, 100)) // what it reads
		d.put("", "y", mibs1(n, 100)) // what it will replace
		running.Wait()
		x, y := d.get("", "x")[0], d.get("", "y")[0]
		switch {
		case x == 100 && y == 2:
			seen = true
		case x == 100 && (y == 101 || y == 200): // it had its turn, and took them up only after they were replaced
		case x == 100 && y == 100: // it was over before
		default:
			t.Fatalf("x is %v and y %v", x, y)
		}
	}
	if !seen {
		t.Fatal("its objects were never replaced while it ran")
	}
	if s := d.stats(); s.Host.Used != 2*4*n {
		t.Errorf("%d bytes are left of %d", s.Host.Used, 2*4*n)
	}
}

// several is a request for some of the kernels k0, k1 and so on, each of its own PTX.
func several(from, to int) string {
	var modules, kernels []string
	for i := from; i < to; i++ {
		modules = append(modules, fmt.Sprintf(`"m%d":{"ptx":%q}`, i, strings.ReplaceAll(tinyPTX, "slow", fmt.Sprint("k", i))))
		kernels = append(kernels, fmt.Sprintf(`{"module":"m%d","name":"k%d","grid":[1,1,1],"block":[1,1,1],"args":[]}`, i, i))
	}
	return fmt.Sprintf(`{"version":1,"modules":{%s},"kernels":[%s]}`, strings.Join(modules, ","), strings.Join(kernels, ","))
}

// Many kernels: each is linked once, and more than are kept are linked again.
func TestManyKernels(t *testing.T) {
	d := serve(t, newMachine(t, ""), nil)
	linked := func(from, to int) (n int) {
		for i := from; i < to; i++ {
			n += d.mustRun("", several(i, i+1)).Cache.ModulesLinked
		}
		return n
	}
	if n := linked(0, 100); n != 100 {
		t.Errorf("%d of 100 were linked", n)
	}
	if n := linked(0, 100); n != 0 {
		t.Errorf("%d of 100 were linked again", n)
	}
	if n := linked(100, 300); n != 200 {
		t.Errorf("%d of 200 were linked", n)
	}
	if n := linked(200, 300); n != 0 {
		t.Errorf("%d of those used last were linked again", n)
	}
	if n := linked(0, 10); n != 10 {
		t.Errorf("%d of 10 that had to go were linked", n)
	}
	if s := d.stats(); s.GPUs[0].Modules != 256 {
		t.Errorf("%d modules are kept", s.GPUs[0].Modules)
	}
	// In one request.
	if a := d.mustRun("", several(0, 100)); a.Cache.ModulesLinked != 90 { // 0 to 9 are there
		t.Errorf("%+v", a.Cache)
	}
}

// heap is how many bytes of Go's memory are in use, all that is not being free.
func heap() int64 {
	runtime.GC()
	runtime.GC() // what was in pools, too
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Of what large requests brought nothing is kept once they are over.
func TestMemoryOfRequests(t *testing.T) {
	d := serve(t, newMachine(t, ""), nil)
	before := heap()
	for i := range 4 {
		d.mustRun("", custom(fmt.Sprint(tinyPTX, "// ", i, strings.Repeat(" ", 8*mib)), "slow", 1))
	}
	d.client.CloseIdleConnections()
	if now := heap(); now-before > 16*mib {
		t.Errorf("%d MiB are kept", (now-before)/mib)
	}
}

// What is kept of requests to have the next ones read sooner is bounded, whatever
// PTX is in them.
func TestMemoryOfPTX(t *testing.T) {
	d := serve(t, newMachine(t, ""), nil)
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
		t.Errorf("%d MiB are kept", (now-before)/mib)
	}
}

// Keys are what they are: nothing about them is cleaned.
func TestKeys(t *testing.T) {
	d := serve(t, newMachine(t, ""), nil)
	for i, key := range []string{"a//b", "a/../b", "b", "a/", "a/.", strings.Repeat("k", 255)} {
		d.put("", key, ramp(10, float32(i)))
	}
	for i, key := range []string{"a//b", "a/../b", "b", "a/", "a/.", strings.Repeat("k", 255)} {
		if got := d.get("", key); len(got) != 10 || got[0] != float32(i) {
			t.Errorf("%s is %v", key, got)
		}
		raw, err := d.do("", "GET", "/v1/objects/"+key, nil) // as it is
		if err != nil || values(raw)[0] != float32(i) {
			t.Errorf("%s: %v", key, err)
		}
	}
	var p *kernel.Problem
	for _, key := range []string{"", "/", "../a", strings.Repeat("k", 256), "a b", "ä"} {
		if _, err := d.do("", "PUT", object(key), []byte("x")); !errors.As(err, &p) || p.Code != "bad-request" {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// What another GPU has alone is neither on this one nor on the host.
func TestMisses(t *testing.T) {
	const n = 100
	d := serve(t, newMachine(t, "count=2"), func(c *kernel.Config) { c.GPUs = []string{"sim", "sim:1"} })
	d.put("", "a", ramp(n, 0))
	for range 10 { // until it has to go to the GPU that the object is not on
		first := d.mustRun("", sum("a", "a", "v", n, `,"volatile":true`))
		var busy sync.WaitGroup
		d.begin(&busy, "", custom(slowPTX, "slow", 80*100)) // two seconds
		a := d.mustRun("", sum("v", "a", "w", n, ""))
		busy.Wait()
		if got := d.get("", "w")[n-1]; got != 3*(n-1) {
			t.Errorf("w is %v", got)
		}
		if a.GPU == first.GPU {
			continue
		}
		if c := a.Cache; c.Misses != 1 || c.HostHits+c.GPUHits != 1 || c.HostHits == 1 && c.BytesUp != 8*n {
			t.Errorf("%+v", c)
		}
		return
	}
	t.Fatal("it ran on the same GPU each time")
}

// Sockets of clients that a killed daemon left are removed; other files are not.
func TestDeadSockets(t *testing.T) {
	m := newMachine(t, "")
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
