package kernel_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/daemon/kernel"
)

// busyPTX is a kernel that takes about 2 ms with 80 blocks.
var busyPTX = strings.ReplaceAll(slowPTX, "20000", "2000")

// load keeps depth requests of a client in flight until stop is set; done counts completed requests.
func (d *daemon) load(clients *sync.WaitGroup, name string, depth int, stop *atomic.Bool, done *atomic.Int64) {
	for range depth {
		clients.Go(func() {
			for !stop.Load() {
				if _, err := d.run(name, custom(busyPTX, "slow", 80)); err != nil {
					d.t.Errorf("run a request of %s: %v", name, err)
					return
				}
				done.Add(1)
			}
		})
	}
}

// Clients that always have work share the GPU time by their weights, within 5 points over 100 requests. On a
// slow host, more requests may be needed. A client that starts later has no claim to earlier time.
func TestShares(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) {
		c.Clients = []kernel.ClientConfig{{Name: "heavy", Weight: 3}, {Name: "light", Weight: 1}}
	})
	var stop atomic.Bool
	var done [2]atomic.Int64
	var clients sync.WaitGroup
	defer func() { stop.Store(true); clients.Wait() }()
	d.load(&clients, "heavy", 4, &stop, &done[0])
	eventually(t, "50 requests of heavy have run", func() bool { return done[0].Load() >= 50 }) // alone, without a debt for that time
	d.load(&clients, "light", 4, &stop, &done[1])
	eventually(t, "a request of light has run", func() bool { return done[1].Load() >= 1 })
	before := d.stats()
	all := done[0].Load() + done[1].Load()
	var after kernel.Stats
	ran := func(i int) float64 { return after.Clients[i].RanMS - before.Clients[i].RanMS }
	fair := func() bool { return math.Abs(ran(0)/(ran(0)+ran(1))-0.75) <= 0.05 }
	for requests := int64(100); requests <= 2000 && (requests == 100 || !fair()); requests += 100 {
		eventually(t, fmt.Sprintf("%d more requests have run", requests), func() bool { return done[0].Load()+done[1].Load() >= all+requests })
		after = d.stats()
	}
	if !fair() {
		t.Errorf("share of the GPU's time of the client heavy: got %.3f, want 0.75 ± 0.05", ran(0)/(ran(0)+ran(1)))
	}
	if r := after.Clients[0].DispatchReason; r.Code != "least-gpu-time" && r.Code != "least-gpu-time-elsewhere" {
		t.Errorf("reason for dispatching the last request of heavy: got %q, want least-gpu-time or least-gpu-time-elsewhere", r)
	}
}

// With the policy exclusive, each GPU belongs to one client. A GPU that changes hands keeps no objects.
func TestExclusive(t *testing.T) {
	d := serve(t, newExecutorPool(t, "count=2"), func(c *kernel.Config) {
		c.Policy, c.GPUs = "exclusive", []string{"sim", "sim:1"}
	})
	var gpus [3]map[int]bool
	for i := range gpus {
		gpus[i] = map[int]bool{}
		d.putObject(fmt.Sprint("c", i), "a", ramp(10, 0))
	}
	for range 3 {
		for i := range 2 {
			gpus[i][d.mustRun(fmt.Sprint("c", i), sum("a", "a", "b", 10, "")).GPU] = true
		}
	}
	if len(gpus[0]) != 1 || len(gpus[1]) != 1 || gpus[0][0] == gpus[1][0] {
		t.Errorf("GPUs of two clients on two GPUs: got %v, want one each, and different ones", gpus)
	}
	// A third client gets a GPU on which no other client has objects.
	d.mustRun("c2", sum("a", "a", "b", 10, ""))
	for g := range 2 {
		on := map[string]bool{}
		for _, client := range []string{"c0", "c1", "c2"} {
			if strings.Contains(locations(d, client), fmt.Sprint("h", g)) {
				on[client] = true
			}
		}
		if len(on) > 1 {
			t.Errorf("clients with objects on GPU %d: got %v, want at most one", g, on)
		}
	}
	for range 5 {
		for i := range 3 {
			d.mustRun(fmt.Sprint("c", i), sum("a", "b", "b", 10, ""))
		}
	}
	for i := range 3 {
		if got := d.getObject(fmt.Sprint("c", i), "b")[1]; got != 2+5 { // 1 + 1, then 1 added five times
			t.Errorf("element 1 of b of the client c%d: got %v, want %v", i, got, 2+5)
		}
	}
}

// With the policy fcfs, requests run in the order of arrival, across clients. If the host is so slow that the
// first request ends before all others have arrived, the test retries with a longer one.
func TestFCFS(t *testing.T) {
	for rounds := 20; ; rounds *= 4 {
		if arriveInOrder(t, rounds) {
			return
		}
		if rounds > 1000 {
			t.Fatalf("12 requests did not arrive while a request of %d ms ran", rounds*20)
		}
	}
}

// arriveInOrder sends 12 requests one after the other while a first request runs for rounds × 20 ms, and checks
// that they run in this order: each uses the kernel that its predecessor has linked, and links one more. It
// returns false if the first request ended too early.
func arriveInOrder(t *testing.T, rounds int) bool {
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.Policy = "fcfs" })
	var all sync.WaitGroup
	defer all.Wait()
	d.startRequest(&all, "first", custom(slowPTX, "slow", 80*rounds))
	var linked [12]int
	for i := range linked {
		all.Go(func() {
			a, err := d.run(fmt.Sprint("c", i/4), several(i, i+2))
			if err != nil {
				t.Error(err)
				return
			}
			linked[i] = a.Cache.ModulesLinked
		})
		runs := true
		eventually(t, fmt.Sprintf("%d requests are queued, or the first one has ended", i+1), func() bool {
			s, waiting := d.stats(), 0
			for _, c := range s.Clients {
				waiting += c.Waiting
			}
			runs = s.GPUs[0].Client == "first"
			return !runs || waiting == i+1
		})
		if !runs {
			return false
		}
	}
	all.Wait()
	want := [...]int{2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	if linked != want {
		t.Errorf("modules linked by each request: got %v, want %v", linked, want)
	}
	return true
}

// If a client's queue is full, further requests of that client are refused at once; other clients are not
// affected. If the host is so slow that the first request ends before the queue is full, the test retries with
// a longer one.
func TestFullQueue(t *testing.T) {
	for rounds := 100; ; rounds *= 4 {
		if fillQueue(t, rounds) {
			return
		}
		if rounds > 1000 {
			t.Fatalf("1100 requests did not fill the queue while a request of %d ms ran", rounds*20)
		}
	}
}

// fillQueue sends 1,100 requests while another one runs for rounds × 20 ms. It reports whether any was
// refused.
func fillQueue(t *testing.T, rounds int) bool {
	d := serve(t, newExecutorPool(t, ""), nil)
	var all sync.WaitGroup
	var busy, ran atomic.Int64
	d.startRequest(&all, "greedy", custom(slowPTX, "slow", 80*rounds))
	for range 1100 {
		all.Go(func() {
			_, err := d.run("greedy", custom(strings.ReplaceAll(slowPTX, "20000", "1"), "slow", 1))
			var p *problem
			switch {
			case err == nil:
				ran.Add(1)
			case asProblem(err, &p) && p.Code == "busy" && p.Status == 429:
				busy.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	eventually(t, "a request was refused, or the first one has ended", func() bool { return busy.Load() > 0 || ran.Load() > 76 })
	other := make(chan error, 1)
	go func() { _, err := d.run("other", custom(busyPTX, "slow", 80)); other <- err }()
	select {
	case err := <-other:
		if err != nil {
			t.Errorf("run a request of another client: %v", err)
		}
	case <-time.After(patience):
		t.Fatalf("the request of another client has not ended after %v", patience)
	}
	all.Wait()
	if busy.Load() == 0 {
		return false
	}
	if busy.Load() > 76 || ran.Load() < 1024 { // requests that arrive after the end of the first one find room
		t.Errorf("1100 requests during another one: got %d that ran and %d refused, want at least 1024 and at most 76", ran.Load(), busy.Load())
	}
	return true
}

// A client exists only after its first accepted request or object.
func TestRefusedIsNoClient(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), nil)
	d.refused("run", sum("a", "a", "c", 10, ""), "not-found", "/buffers/a/key")
	var p *problem
	if _, err := d.do("put", "PUT", object("big"), make([]byte, 65*mib)); !asProblem(err, &p) || p.Code != "too-large" {
		t.Errorf("PUT of an object larger than the host memory: got %v, want too-large", err)
	}
	if s := d.stats(); len(s.Clients) != 0 {
		t.Errorf("clients after a refused PUT: got %+v, want none", s.Clients)
	}
}

// The number of past clients is not limited. Beyond the maximum, the daemon forgets the oldest client without
// requests and objects, and ends that client's executor.
func TestManyClients(t *testing.T) {
	const most = 1024
	for _, policy := range kernel.Policies() {
		t.Run(policy, func(t *testing.T) {
			isolate := policy == "exclusive"
			d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) {
				c.Policy, c.Isolate, c.HostMem = policy, isolate, 1*mib
				c.Clients = []kernel.ClientConfig{{Name: "known", Weight: 1}}
			})
			if _, err := d.do("", "PUT", "/v1/clients/weighed", []byte(`{"weight":3}`)); err != nil {
				t.Fatal(err)
			}
			d.putObject("holds", "a", ramp(10, 0))
			connectAndClose := func(client string) {
				t.Helper()
				d.putObject(client, "a", ramp(10, 0))
				if _, err := d.do(client, "DELETE", object("a"), nil); err != nil {
					t.Fatal(err)
				}
			}
			known := func(client string) bool {
				return slices.ContainsFunc(d.stats().Clients, func(c kernel.ClientStats) bool { return c.Client == client })
			}
			d.mustRun("oldest", custom(tinyPTX, "slow", 1))
			for i := range most - 4 {
				connectAndClose(fmt.Sprint("c", i))
			}
			if n := len(d.stats().Clients); n != most || !known("oldest") {
				t.Fatalf("clients: got %d (oldest known: %v), want %d with oldest", n, known("oldest"), most)
			}
			d.mustRun("next", custom(tinyPTX, "slow", 1))
			if n := len(d.stats().Clients); n != most || known("oldest") || !known("c0") {
				t.Errorf("clients after one more: got %d (oldest known: %v, c0 known: %v), want %d without oldest and with c0", n, known("oldest"), known("c0"), most)
			}
			eventually(t, "one executor is running", func() bool { return d.stats().GPUs[0].Executors == 1 })
			for i := range most - 4 { // replaces all clients that can be forgotten
				d.putObject(fmt.Sprint("d", i), "a", ramp(10, 0))
			}
			for _, client := range []string{"known", "weighed", "holds"} {
				if !known(client) {
					t.Errorf("the client %s was forgotten, want it kept", client)
				}
			}
			d.mustRun("next", custom(tinyPTX, "slow", 1))
			d.putObject("next", "a", ramp(10, 0))
			var p *problem
			if _, err := d.do("none", "PUT", object("a"), []byte("x")); !asProblem(err, &p) || p.Code != "busy" {
				t.Errorf("a client more than there may be: %v", err)
			}
		})
	}
}
