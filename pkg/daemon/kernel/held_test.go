package kernel_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/kernel"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

// gated is an executor whose jobs are over when a test says so.
type gated struct {
	kernel.Executor
	open <-chan struct{}
}

func (g gated) Wait(id uint64, patience time.Duration) (job.Outcome, error) {
	<-g.open
	return g.Executor.Wait(id, patience)
}

// serveGated is serve, where what runs ends once open is called.
func serveGated(t testing.TB, change func(*kernel.Config)) (d *daemon, open func()) {
	t.Helper()
	gate := make(chan struct{})
	open = sync.OnceFunc(func() { close(gate) })
	d = serve(t, newMachine(t, ""), func(c *kernel.Config) {
		change(c)
		c.KernelTimeout = time.Hour
		start := c.Start
		c.Start = func(ctx context.Context, gpu string, h kernel.Host) (kernel.Executor, job.Hello, error) {
			e, hello, err := start(ctx, gpu, h)
			if err != nil {
				return nil, hello, err
			}
			return gated{e, gate}, hello, nil
		}
	})
	t.Cleanup(open) // before it is to end
	return d, open
}

// padded is a request of about so many MiB, which is none that came before.
func padded(i, mibs int) string {
	return custom(fmt.Sprint(tinyPTX, "// ", i, strings.Repeat(" ", mibs*mib-1024)), "slow", 1)
}

// arguments is a request of so many kernels with many arguments: it takes ten times its
// text, of 1.1 KB a kernel.
func arguments(kernels int) string {
	args := strings.TrimSuffix(strings.Repeat(`{"i32":1},`, 100), ",")
	kernel := fmt.Sprintf(`{"module":"m","name":"slow","grid":[1,1,1],"block":[1,1,1],"args":[%s]},`, args)
	params := strings.TrimSuffix(strings.Repeat(".param .u32 p,", 100), ",")
	return fmt.Sprintf(`{"version":1,"modules":{"m":{"ptx":%q}},"kernels":[%s]}`,
		strings.Replace(tinyPTX, "slow()", "slow("+params+")", 1), strings.TrimSuffix(strings.Repeat(kernel, kernels), ","))
}

// Requests that wait take memory up to a bound: what is more is refused, those that
// wait go on, and others have room.
func TestMemoryOfWaiting(t *testing.T) {
	for _, c := range []struct {
		name    string
		budget  int64
		beside  int64 // what else may come of it
		many    int
		request func(i int) string
	}{
		{"text", 32 * mib, 16 * mib, 14, func(i int) string { return padded(i, 2) }},
		{"arguments", 14 * mib, 6 * mib, 8, func(int) string { return arguments(300) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			budget, many := c.budget, c.many
			d, open := serveGated(t, func(cfg *kernel.Config) { cfg.RequestMem = budget })
			var all sync.WaitGroup
			defer all.Wait()
			defer open()
			all.Go(func() {
				if _, err := d.run("first", custom(tinyPTX, "slow", 1)); err != nil {
					t.Error(err)
				}
			})
			waitFor(t, func() bool { return d.stats().GPUs[0].Running != "" })
			texts := make([]string, many)
			for i := range texts {
				texts[i] = c.request(i)
			}
			before := heap()
			var ran, busy atomic.Int64
			send := func(client, text string) {
				_, err := d.run(client, text)
				var p *kernel.Problem
				switch {
				case err == nil:
					ran.Add(1)
				case asProblem(err, &p) && p.Code == "busy" && p.Status == 429:
					busy.Add(1)
				default:
					t.Error(err)
				}
			}
			waiting := func(client string) (n int) {
				for _, c := range d.stats().Clients {
					if c.Client == client {
						n = c.Waiting
					}
				}
				return n
			}
			for _, text := range texts {
				all.Go(func() { send("greedy", text) })
			}
			waitFor(t, func() bool { return waiting("greedy")+int(busy.Load()) == many })
			s, wait := d.stats(), waiting("greedy")
			if s.Requests.Budget != budget || s.Requests.Used > budget/2+mib || s.Requests.Used < budget/4 || wait < 2 {
				t.Errorf("%d wait, with %+v", wait, s.Requests)
			}
			// The texts of those that wait are once more in their callers.
			if grown := heap() - before; grown > budget+c.beside {
				t.Errorf("%d requests wait and take %d MiB, and they say %d", wait, grown/mib, s.Requests.Used/mib)
			}
			// Others have room, of what the greedy one may not have.
			all.Go(func() {
				if _, err := d.run("other", texts[0]); err != nil {
					t.Errorf("another client: %v", err)
				}
			})
			waitFor(t, func() bool { return waiting("other") == 1 })
			// Small ones, too.
			all.Go(func() {
				if _, err := d.run("small", custom(tinyPTX, "slow", 1)); err != nil {
					t.Errorf("another client: %v", err)
				}
			})
			waitFor(t, func() bool { return waiting("small") == 1 })
			if got := waiting("greedy"); got != wait {
				t.Errorf("%d wait of %d", got, wait)
			}
			open()
			all.Wait()
			if int(ran.Load()) != wait {
				t.Errorf("%d ran of %d that waited", ran.Load(), wait)
			}
			waitFor(t, func() bool { return d.stats().Requests.Used == 0 })
			send("greedy", texts[0])
			if int(ran.Load()) != wait+1 {
				t.Errorf("there is no room when all is over")
			}
		})
	}
}

// Room is found before a body is read, so that who only says that much will come has
// no more of it than others.
func TestMemoryOfBodies(t *testing.T) {
	const budget = 64 * mib
	d := serve(t, newMachine(t, ""), func(c *kernel.Config) { c.RequestMem, c.Stall = budget, patience })
	used := func(n int64) { t.Helper(); waitFor(t, func() bool { return d.stats().Requests.Used == n }) }
	busy := func(conn io.ReadWriter, code string) {
		t.Helper()
		got, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(got.Body)
		if !strings.Contains(string(text), `"code":"`+code+`"`) {
			t.Errorf("%d %s, want %s", got.StatusCode, text, code)
		}
	}
	first, second := d.dial(), d.dial()
	d.say(first, post("POST", "/v1/run", "{", 16*mib-1))
	d.say(second, post("POST", "/v1/run", "{", 16*mib-1))
	used(32 * mib)
	third := d.dial()
	d.say(third, post("POST", "/v1/run", "{", mib))
	busy(third, "busy")
	// What is sent without saying how long it is is counted as it comes.
	fourth := d.dial()
	d.say(fourth, "POST /v1/run HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n\r\n")
	busy(fourth, "busy")
	chunk := fmt.Sprintf("%x\r\n%s\r\n", mib, strings.Repeat(" ", mib))
	other := d.dial()
	d.say(other, "POST /v1/run HTTP/1.1\r\nHost: k\r\nGfaas-Client: other\r\nTransfer-Encoding: chunked\r\n\r\n"+strings.Repeat(chunk, 5))
	used(40 * mib)
	d.say(other, strings.Repeat(chunk, 12)+"0\r\n\r\n")
	busy(other, "busy")
	used(32 * mib)
	d.mustRun("other", padded(0, 8))
	_ = first.Close()
	used(16 * mib)
	d.mustRun("", padded(0, 8))
	_ = second.Close()
	used(0)
}

// What could never have room is said to be too large.
func TestMemoryOfOne(t *testing.T) {
	d := serve(t, newMachine(t, ""), func(c *kernel.Config) { c.RequestMem = 8 * mib })
	d.refused("", padded(0, 5), "too-large", "")
	d.refused("", arguments(600), "too-large", "")
	d.mustRun("", padded(0, 3))
	if s := d.stats(); s.Requests.Used != 0 {
		t.Errorf("%+v", s.Requests)
	}
}

// Requests whose callers have left keep their places, and what they take, until those
// before them are over.
func TestMemoryOfThoseThatLeft(t *testing.T) {
	d, open := serveGated(t, func(c *kernel.Config) { c.RequestMem = 64 * mib })
	d.put("", "a", ramp(10, 1))
	var all sync.WaitGroup
	all.Go(func() {
		if _, err := d.run("", sum("a", "a", "a", 10, "")); err != nil {
			t.Error(err)
		}
	})
	waitFor(t, func() bool { return d.stats().GPUs[0].Running != "" })
	alone := d.stats().Requests.Used
	conn := d.dial()
	behind := strings.Replace(sum("a", "a", "b", 10, ""), `"modules":{`, fmt.Sprintf(`"modules":{"p":{"ptx":%q},`, tinyPTX+strings.Repeat(" ", 8*mib)), 1)
	d.say(conn, post("POST", "/v1/run", behind, 0))
	waitFor(t, func() bool { return d.stats().Clients[0].Waiting == 1 })
	_ = conn.Close()
	// What it would have written is not expected any more once it has left.
	reader := strings.ReplaceAll(sum("b", "b", "c", 10, ""), `"key":"b"`, `"key":"b","size":8`)
	waitFor(t, func() bool {
		var p *kernel.Problem
		_, err := d.run("", reader)
		if !asProblem(err, &p) || p.Code != "bad-request" && p.Code != "not-found" {
			t.Fatalf("%v", err)
		}
		return p.Code == "not-found"
	})
	if s := d.stats(); s.Requests.Used < alone+8*mib {
		t.Errorf("%+v", s.Requests)
	}
	open()
	all.Wait()
	waitFor(t, func() bool { return d.stats().Requests.Used == 0 })
}

// outputs is a request that stores so many objects of one byte, from that number on.
func outputs(from, n int) string {
	buffers := make([]string, n)
	for i := range buffers {
		buffers[i] = fmt.Sprintf(`"b%d":{"kind":"output","key":"%s%d","size":1}`, i, strings.Repeat("k", 240), from+i)
	}
	return strings.Replace(custom(tinyPTX, "slow", 1), `"version":1`, `"version":1,"buffers":{`+strings.Join(buffers, ",")+`}`, 1)
}

// Objects of no size are bounded too, however they come about.
func TestManyObjects(t *testing.T) {
	d := serve(t, newMachine(t, ""), func(c *kernel.Config) { c.MaxObjects = 400 })
	put := func(client, key, code string) {
		t.Helper()
		var p *kernel.Problem
		_, err := d.do(client, "PUT", object(key), []byte("x"))
		if code == "" && err != nil || code != "" && (!asProblem(err, &p) || p.Code != code) {
			t.Errorf("%s puts %s: %v, want %q", client, key, err, code)
		}
	}
	d.refused("many", outputs(0, 201), "too-large", "/buffers")
	d.mustRun("many", outputs(0, 199))
	d.refused("many", strings.Replace(outputs(199, 1), "entry slow() { ret; }", "entry slow() {", 1), "bad-request", "/modules/m/ptx")
	put("many", "one", "")
	d.refused("many", outputs(199, 1), "too-large", "/buffers")
	put("many", "two", "too-large")
	put("many", "one", "")             // in its own place
	d.mustRun("many", outputs(0, 199)) // likewise
	put("other", "one", "")
	d.mustRun("other", outputs(0, 99))
	put("other", "two", "too-large")
	put("third", "one", "")
	if _, err := d.do("many", "DELETE", object("one"), nil); err != nil {
		t.Fatal(err)
	}
	put("many", "two", "too-large") // others have some now
	if n := len(d.list("many")); n != 199 {
		t.Errorf("%d objects", n)
	}
	for _, o := range d.list("many")[:60] {
		if _, err := d.do("many", "DELETE", object(o.Key), nil); err != nil {
			t.Fatal(err)
		}
	}
	put("many", "two", "")
}

// Of a long list that nobody takes little is kept.
func TestMemoryOfLists(t *testing.T) {
	const n, lists = 10_000, 20
	d := serve(t, newMachine(t, ""), func(c *kernel.Config) { c.Stall = patience })
	for i := 0; i < n; i += 1000 {
		d.mustRun("", outputs(i, 1000))
	}
	listed := d.list("")
	if len(listed) != n || !slices.IsSortedFunc(listed, func(a, b kernel.Object) int { return strings.Compare(a.Key, b.Key) }) {
		t.Errorf("%d objects are listed", len(listed))
	}
	listed = nil
	d.client.CloseIdleConnections()
	before := heap()
	for range lists {
		conn := d.dial()
		d.say(conn, "GET /v1/objects HTTP/1.1\r\nHost: k\r\n\r\n")
		if _, err := io.ReadFull(conn, make([]byte, 15)); err != nil { // it has begun
			t.Fatal(err)
		}
	}
	if grown := heap() - before; grown > 32*mib {
		t.Errorf("%d lists take %d MiB", lists, grown/mib)
	}
	if s := d.stats(); s.Requests.Used < lists*n*100 {
		t.Errorf("%+v", s.Requests)
	}
}

// Connections of a socket are bounded: those that are idle give way to others, and
// those of another socket are no matter.
func TestManyConnections(t *testing.T) {
	const most, many = 4, 40
	d := serve(t, newMachine(t, ""), func(c *kernel.Config) {
		c.Conns, c.Stall = most, patience
		c.Clients = []kernel.ClientConfig{{Name: "alice", Weight: 1}}
	})
	var closed atomic.Int64
	var all sync.WaitGroup
	var conns []net.Conn
	for range many {
		conn, err := net.Dial("unix", filepath.Join(d.dir, "kernel-alice.sock"))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		_ = conn.SetDeadline(time.Now().Add(patience))
		d.say(conn, "GET /v1/objects HTTP/1.1\r\nHost: k\r\n\r\n")
		r := bufio.NewReader(conn)
		got, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, got.Body)
		all.Go(func() {
			if _, err := r.ReadByte(); errors.Is(err, io.EOF) {
				closed.Add(1)
			}
		})
	}
	waitFor(t, func() bool { return closed.Load() >= many-most })
	for range most { // none of these is idle
		d.say(d.dial(), post("PUT", "/v1/objects/x", "x", 1000))
	}
	alice := clientOf(filepath.Join(d.dir, "kernel-alice.sock"))
	got, err := alice.Get("http://kerneld/v1/stats")
	if err != nil || got.StatusCode != 200 {
		t.Fatalf("%+v, %v", got, err)
	}
	_ = got.Body.Close()
	alice.CloseIdleConnections()
	for _, conn := range conns {
		_ = conn.Close()
	}
	all.Wait()
}
