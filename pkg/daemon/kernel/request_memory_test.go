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

// gated is an executor whose jobs finish only after a test opens the gate.
type gated struct {
	kernel.Executor
	open <-chan struct{}
}

func (g gated) Wait(id uint64, patience time.Duration) (job.Outcome, error) {
	<-g.open
	return g.Executor.Wait(id, patience)
}

// serveGated does the same as serve, but jobs finish only after open is called.
func serveGated(t testing.TB, change func(*kernel.Config)) (d *daemon, open func()) {
	t.Helper()
	gate := make(chan struct{})
	open = sync.OnceFunc(func() { close(gate) })
	d = serve(t, newExecutorPool(t, ""), func(c *kernel.Config) {
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
	t.Cleanup(open) // before the daemon's shutdown
	return d, open
}

// padded returns a request of about the given size in MiB, different for each i.
func padded(i, mibs int) string {
	return custom(fmt.Sprint(tinyPTX, "// ", i, strings.Repeat(" ", mibs*mib-1024)), "slow", 1)
}

// arguments returns a request with the given number of kernels, each with many arguments. The parsed request
// takes ten times its text, which has 1.1 KB per kernel.
func arguments(kernels int) string {
	args := strings.TrimSuffix(strings.Repeat(`{"i32":1},`, 100), ",")
	kernel := fmt.Sprintf(`{"module":"m","name":"slow","grid":[1,1,1],"block":[1,1,1],"args":[%s]},`, args)
	params := strings.TrimSuffix(strings.Repeat(".param .u32 p,", 100), ",")
	return fmt.Sprintf(`{"version":1,"modules":{"m":{"ptx":%q}},"kernels":[%s]}`,
		strings.Replace(tinyPTX, "slow()", "slow("+params+")", 1), strings.TrimSuffix(strings.Repeat(kernel, kernels), ","))
}

// Queued requests take memory up to a bound. Beyond it, requests are refused, queued ones stay, and other
// clients have room.
func TestMemoryOfWaiting(t *testing.T) {
	skipUnderRace(t)
	for _, c := range []struct {
		name    string
		budget  int64
		beside  int64 // allowance for other memory
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
			eventually(t, "a request runs", func() bool { return d.stats().GPUs[0].Running != "" })
			texts := make([]string, many)
			for i := range texts {
				texts[i] = c.request(i)
			}
			before := heap()
			var ran, busy atomic.Int64
			send := func(client, text string) {
				_, err := d.run(client, text)
				var p *problem
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
			eventually(t, "all requests of greedy are queued or refused", func() bool { return waiting("greedy")+int(busy.Load()) == many })
			s, queued := d.stats(), waiting("greedy")
			if s.Requests.Budget != budget || s.Requests.Used > budget/2+mib || s.Requests.Used < budget/4 || queued < 2 {
				t.Errorf("got %d queued requests and the memory %+v, want at least 2, Budget %d and Used between %d and %d", queued, s.Requests, int64(budget), int64(budget/4), int64(budget/2+mib))
			}
			// The test itself holds the texts of the queued requests once more.
			if grown := heap() - before; grown > budget+c.beside {
				t.Errorf("growth of the heap with %d queued requests: got %d MiB, want at most %d; the daemon reports %d", queued, grown/mib, (budget+c.beside)/mib, s.Requests.Used/mib)
			}
			// There is room for another client, which the greedy client may not use.
			all.Go(func() {
				if _, err := d.run("other", texts[0]); err != nil {
					t.Errorf("run a request of another client: %v", err)
				}
			})
			eventually(t, "the request of other is queued", func() bool { return waiting("other") == 1 })
			// There is also room for a small request.
			all.Go(func() {
				if _, err := d.run("small", custom(tinyPTX, "slow", 1)); err != nil {
					t.Errorf("run a small request of another client: %v", err)
				}
			})
			eventually(t, "the request of small is queued", func() bool { return waiting("small") == 1 })
			if got := waiting("greedy"); got != queued {
				t.Errorf("queued requests of greedy after those of other clients: got %d, want %d", got, queued)
			}
			open()
			all.Wait()
			if int(ran.Load()) != queued {
				t.Errorf("requests of greedy that ran: got %d, want the %d queued ones", ran.Load(), queued)
			}
			eventually(t, "no memory of requests is in use", func() bool { return d.stats().Requests.Used == 0 })
			send("greedy", texts[0])
			if int(ran.Load()) != queued+1 {
				t.Errorf("requests of greedy that ran, with one sent after the others: got %d, want %d", ran.Load(), queued+1)
			}
		})
	}
}

// Memory is reserved before a body is read, so that a client cannot get more by announcing long bodies.
func TestMemoryOfBodies(t *testing.T) {
	const budget = 64 * mib
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.RequestMem, c.Stall = budget, patience })
	awaitUsed := func(n int64) {
		t.Helper()
		eventually(t, fmt.Sprintf("requests use %d bytes", n), func() bool { return d.stats().Requests.Used == n })
	}
	busy := func(conn io.ReadWriter, code string) {
		t.Helper()
		got, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(got.Body)
		if !strings.Contains(string(text), `"code":"`+code+`"`) {
			t.Errorf("answer: got %d %s, want the code %s", got.StatusCode, text, code)
		}
	}
	first, second := d.dial(), d.dial()
	d.write(first, post("POST", "/v1/run", "{", 16*mib-1))
	d.write(second, post("POST", "/v1/run", "{", 16*mib-1))
	awaitUsed(32 * mib)
	third := d.dial()
	d.write(third, post("POST", "/v1/run", "{", mib))
	busy(third, "busy")
	// A body of unknown length is counted while it arrives.
	fourth := d.dial()
	d.write(fourth, "POST /v1/run HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n\r\n")
	busy(fourth, "busy")
	chunk := fmt.Sprintf("%x\r\n%s\r\n", mib, strings.Repeat(" ", mib))
	other := d.dial()
	d.write(other, "POST /v1/run HTTP/1.1\r\nHost: k\r\nGfaas-Client: other\r\nTransfer-Encoding: chunked\r\n\r\n"+strings.Repeat(chunk, 5))
	awaitUsed(40 * mib)
	d.write(other, strings.Repeat(chunk, 12)+"0\r\n\r\n")
	busy(other, "busy")
	awaitUsed(32 * mib)
	d.mustRun("other", padded(0, 8))
	_ = first.Close()
	awaitUsed(16 * mib)
	d.mustRun("", padded(0, 8))
	_ = second.Close()
	awaitUsed(0)
}

// A request that exceeds the bound of a single request is refused as too large.
func TestMemoryOfOne(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.RequestMem = 8 * mib })
	d.refused("", padded(0, 5), "too-large", "")
	d.refused("", arguments(600), "too-large", "")
	d.mustRun("", padded(0, 3))
	if s := d.stats(); s.Requests.Used != 0 {
		t.Errorf("memory of requests: got %+v, want Used 0", s.Requests)
	}
}

// A queued request whose caller has disconnected keeps its place and its memory until the requests before it
// have finished.
func TestMemoryAfterDisconnect(t *testing.T) {
	d, open := serveGated(t, func(c *kernel.Config) { c.RequestMem = 64 * mib })
	d.putObject("", "a", ramp(10, 1))
	var all sync.WaitGroup
	all.Go(func() {
		if _, err := d.run("", sum("a", "a", "a", 10, "")); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the first request runs", func() bool { return d.stats().GPUs[0].Running != "" })
	first := d.stats().Requests.Used
	conn := d.dial()
	behind := strings.Replace(sum("a", "a", "b", 10, ""), `"modules":{`, fmt.Sprintf(`"modules":{"p":{"ptx":%q},`, tinyPTX+strings.Repeat(" ", 8*mib)), 1)
	d.write(conn, post("POST", "/v1/run", behind, 0))
	eventually(t, "the second request is queued", func() bool { return d.stats().Clients[0].Waiting == 1 })
	_ = conn.Close()
	// Its output is no longer expected after the disconnection.
	reader := strings.ReplaceAll(sum("b", "b", "c", 10, ""), `"key":"b"`, `"key":"b","size":8`)
	eventually(t, "the output of the disconnected request is no longer expected", func() bool {
		var p *problem
		_, err := d.run("", reader)
		if !asProblem(err, &p) || p.Code != "bad-request" && p.Code != "not-found" {
			t.Fatalf("read the output of the disconnected request: got %v, want bad-request or not-found", err)
		}
		return p.Code == "not-found"
	})
	if s := d.stats(); s.Requests.Used < first+8*mib {
		t.Errorf("memory of the disconnected request: got %+v, want Used of at least %d", s.Requests, first+8*mib)
	}
	open()
	all.Wait()
	eventually(t, "no memory of requests is in use", func() bool { return d.stats().Requests.Used == 0 })
}

// outputs returns a request that stores n objects of one byte, numbered from from.
func outputs(from, n int) string {
	buffers := make([]string, n)
	for i := range buffers {
		buffers[i] = fmt.Sprintf(`"b%d":{"kind":"output","key":"%s%d","size":1}`, i, strings.Repeat("k", 240), from+i)
	}
	return strings.Replace(custom(tinyPTX, "slow", 1), `"version":1`, `"version":1,"buffers":{`+strings.Join(buffers, ",")+`}`, 1)
}

// The number of objects is bounded, whether clients put them or requests create them.
func TestManyObjects(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.MaxObjects = 400 })
	put := func(client, key, code string) {
		t.Helper()
		var p *problem
		_, err := d.do(client, "PUT", object(key), []byte("x"))
		if code == "" && err != nil || code != "" && (!asProblem(err, &p) || p.Code != code) {
			t.Errorf("PUT of %s by %s: got %v, want the code %q", key, client, err, code)
		}
	}
	d.refused("many", outputs(0, 201), "too-large", "/buffers")
	d.mustRun("many", outputs(0, 199))
	d.refused("many", strings.Replace(outputs(199, 1), "entry slow() { ret; }", "entry slow() {", 1), "bad-request", "/modules/m/ptx")
	put("many", "one", "")
	d.refused("many", outputs(199, 1), "too-large", "/buffers")
	put("many", "two", "too-large")
	put("many", "one", "")             // replaces an object
	d.mustRun("many", outputs(0, 199)) // likewise
	put("other", "one", "")
	d.mustRun("other", outputs(0, 99))
	put("other", "two", "too-large")
	put("third", "one", "")
	if _, err := d.do("many", "DELETE", object("one"), nil); err != nil {
		t.Fatal(err)
	}
	put("many", "two", "too-large") // because other clients have objects now
	if n := len(d.listObjects("many")); n != 199 {
		t.Errorf("objects of the client many: got %d, want 199", n)
	}
	for _, o := range d.listObjects("many")[:60] {
		if _, err := d.do("many", "DELETE", object(o.Key), nil); err != nil {
			t.Fatal(err)
		}
	}
	put("many", "two", "")
}

// A long list that the client does not read takes little memory.
func TestMemoryOfLists(t *testing.T) {
	skipUnderRace(t)
	const n, lists = 10_000, 20
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.Stall = patience })
	for i := 0; i < n; i += 1000 {
		d.mustRun("", outputs(i, 1000))
	}
	listed := d.listObjects("")
	if len(listed) != n || !slices.IsSortedFunc(listed, func(a, b kernel.Object) int { return strings.Compare(a.Key, b.Key) }) {
		t.Errorf("list of objects: got %d, want %d, sorted by key", len(listed), n)
	}
	listed = nil
	d.client.CloseIdleConnections()
	before := heap()
	for range lists {
		conn := d.dial()
		d.write(conn, "GET /v1/objects HTTP/1.1\r\nHost: k\r\n\r\n")
		if _, err := io.ReadFull(conn, make([]byte, 15)); err != nil { // the answer has begun
			t.Fatal(err)
		}
	}
	if grown := heap() - before; grown > 32*mib {
		t.Errorf("growth of the heap with %d unread lists: got %d MiB, want at most 32", lists, grown/mib)
	}
	if s := d.stats(); s.Requests.Used < lists*n*100 {
		t.Errorf("memory of %d unread lists: got %+v, want Used of at least %d", lists, s.Requests, lists*n*100)
	}
}

// The connections of a socket are bounded. Idle ones are closed for new ones. The limit does not affect
// other sockets.
func TestManyConnections(t *testing.T) {
	const most, many = 4, 40
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) {
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
		d.write(conn, "GET /v1/objects HTTP/1.1\r\nHost: k\r\n\r\n")
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
	eventually(t, "the daemon has closed the connections beyond the limit", func() bool { return closed.Load() >= many-most })
	for range most { // connections that are not idle
		d.write(d.dial(), post("PUT", "/v1/objects/x", "x", 1000))
	}
	alice := clientOf(filepath.Join(d.dir, "kernel-alice.sock"))
	got, err := alice.Get("http://kerneld/v1/stats")
	if err != nil || got.StatusCode != 200 {
		t.Fatalf("GET /v1/stats of alice: got %+v, %v; want StatusCode 200", got, err)
	}
	_ = got.Body.Close()
	alice.CloseIdleConnections()
	for _, conn := range conns {
		_ = conn.Close()
	}
	all.Wait()
}
