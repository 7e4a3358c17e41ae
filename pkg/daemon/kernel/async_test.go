package kernel_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/daemon/kernel"
)

// submit submits an asynchronous run.
func (d *daemon) submit(client, request string) kernel.RunStatus {
	d.t.Helper()
	text, err := d.do(client, "POST", "/v1/runs", []byte(request))
	if err != nil {
		d.t.Fatal(err)
	}
	var s kernel.RunStatus
	unmarshal(d.t, text, &s)
	return s
}

// trySubmit submits an asynchronous run, which may be refused.
func (d *daemon) trySubmit(request string) (s kernel.RunStatus, err error) {
	text, err := d.do("", "POST", "/v1/runs", []byte(request))
	if err == nil {
		unmarshal(d.t, text, &s)
	}
	return s, err
}

// wait waits for the end of an asynchronous run.
func (d *daemon) wait(client, id string) kernel.RunStatus {
	d.t.Helper()
	text, err := d.do(client, "GET", "/v1/runs/"+id+"?wait=60s", nil)
	if err != nil {
		d.t.Fatal(err)
	}
	var s kernel.RunStatus
	unmarshal(d.t, text, &s)
	return s
}

// delete deletes a run or an object.
func (d *daemon) delete(client, path string) {
	d.t.Helper()
	if _, err := d.do(client, "DELETE", path, nil); err != nil {
		d.t.Fatal(err)
	}
}

// result returns a request for the result c = a + b with n floats.
func result(a, b string, n int, more string) string {
	return strings.Replace(sum(a, b, "c", n, more), `"key":"c"`, `"result":true`, 1)
}

// faulty is a request that faults, with a result c.
const faulty = `{"version":1,"modules":{"m":{"ptx":"// gfaas-sim: bad op=fault\n.version 7.0\n.target sm_50\n.visible .entry bad(.param .u32 code) { ret; }"}},
"buffers":{"c":{"kind":"output","size":16,"result":true}},
"kernels":[{"module":"m","name":"bad","grid":[1,1,1],"block":[1,1,1],"args":[{"u32":700}]}]}`

// isProblem reports whether an error is a refusal with a code, whose message contains a text.
func isProblem(err error, code, text string) bool {
	var p *problem
	return asProblem(err, &p) && p.Code == code && strings.Contains(p.Message, text)
}

// Requests can name results that do not exist yet. Each reference means the result of one run, whatever happens to
// keys meanwhile.
func TestAsyncGraph(t *testing.T) {
	d, open := serveGated(t, func(*kernel.Config) {})
	d.putObject("", "x", ramp(4, 1))
	first := d.submit("", result("x", "x", 4, ""))
	ref := "@" + first.ID + "/c"
	if first.Results["c"] != ref || first.State != "queued" && first.State != "running" {
		t.Errorf("answer to the first run: got %+v, want the result %s and a state before the end", first, ref)
	}
	second := d.submit("", result(ref, "x", 4, `,"inline":true,"volatile":true`))
	third := d.submit("", sum(second.Results["c"], ref, "z", 4, ""))
	var synchronous sync.WaitGroup
	synchronous.Go(func() { // a request that waits for its answer can refer to results, too
		a, err := d.run("", strings.Replace(result(ref, ref, 4, ""), `"result":true`, `"inline":true`, 1))
		if err != nil {
			t.Error(err)
		} else if got := values(a.Outputs["c"].Data); !slices.Equal(got, []float32{4, 8, 12, 16}) {
			t.Errorf("synchronous request that reads a result: got %v, want [4 8 12 16]", got)
		}
	})
	if _, err := d.do("", "GET", object(ref), nil); !isProblem(err, "not-found", "has not finished") {
		t.Errorf("get a result before it exists: got %v, want not-found", err)
	}
	text, err := d.do("", "GET", "/v1/runs/"+third.ID+"?wait=1ms", nil)
	if err != nil || !strings.Contains(string(text), `"state":"queued"`) {
		t.Errorf("status of a run that must wait: got %s, %v; want the state queued", text, err)
	}
	open()
	synchronous.Wait()
	if s := d.wait("", third.ID); s.State != "done" || s.Answer == nil || s.Answer.Outputs["c"].Key != "z" {
		t.Errorf("third run: got %+v, want done with the output z", s)
	}
	if got := d.getObject("", "z"); !slices.Equal(got, []float32{5, 10, 15, 20}) {
		t.Errorf("output of the third run: got %v, want [5 10 15 20]", got)
	}
	for range 2 { // the status can be read repeatedly
		if s := d.wait("", second.ID); s.Answer == nil || !slices.Equal(values(s.Answer.Outputs["c"].Data), []float32{3, 6, 9, 12}) {
			t.Errorf("second run: got %+v, want its result inline", s)
		}
	}
	if got := d.getObject("", ref); !slices.Equal(got, []float32{2, 4, 6, 8}) {
		t.Errorf("result of the first run: got %v, want [2 4 6 8]", got)
	}
	if got := locations(d, ""); strings.Contains(got, "@") {
		t.Errorf("list of objects: got %s, want no results", got)
	}
	var list struct{ Runs []kernel.RunSummary }
	text, err = d.do("", "GET", "/v1/runs", nil)
	if unmarshal(t, text, &list); err != nil || len(list.Runs) != 3 || list.Runs[0].ID != first.ID || list.Runs[2].State != "done" || list.Runs[0].Results != 1 {
		t.Errorf("list of runs: got %s, %v; want the three runs, in order", text, err)
	}
	// Deleting a run frees its results. Nothing else uses host memory then, except x and z.
	for _, s := range []kernel.RunStatus{first, second, third} {
		d.delete("", "/v1/runs/"+s.ID)
	}
	eventually(t, "the requests' memory is free", func() bool { return d.stats().Requests.Used == 0 }) // answers may still be sent
	s := d.stats()
	if s.Host.Used != 32 || s.Clients[0].Runs != 0 || s.Clients[0].Objects != 2 {
		t.Errorf("after the runs were deleted: got %+v and %+v; want the 32 bytes of x and z", s.Host, s.Clients[0])
	}
}

// A reference to a result that does not exist, or will not exist, is refused with the reason. This holds for requests
// that arrive later, and for those that wait.
func TestAsyncFailures(t *testing.T) {
	d, open := serveGated(t, func(*kernel.Config) {})
	d.putObject("", "x", ramp(4, 1))
	d.putObject("bob", "x", ramp(4, 1))
	failed := d.submit("", faulty)
	ref := failed.Results["c"]
	child := d.submit("", result(ref, "x", 4, ""))
	grandchild := d.submit("", result(child.Results["c"], "x", 4, ""))
	cancelled := d.submit("", result("x", "x", 4, ""))
	orphan := d.submit("", result(cancelled.Results["c"], "x", 4, ""))
	waiting := d.submit("", result(child.Results["c"], "x", 4, "")) // waits for another run, and not for the GPU
	last := d.submit("", sum(waiting.Results["c"], "x", "z", 4, ""))
	d.delete("", "/v1/runs/"+cancelled.ID)
	d.delete("", "/v1/runs/"+waiting.ID)
	if _, err := d.do("", "GET", "/v1/runs/"+cancelled.ID, nil); !isProblem(err, "not-found", "cancelled") {
		t.Errorf("status of a cancelled run: got %v, want not-found", err)
	}
	running := d.submit("bob", result("x", "x", 4, ""))
	open()
	for _, c := range []struct{ what, id, code, message string }{
		{"run that faults", failed.ID, "fault", ""},
		{"run that reads its result", child.ID, "failed-dependency", "the run " + failed.ID + `, whose result "c" is read, failed: fault: `},
		{"run that reads the result of that one", grandchild.ID, "failed-dependency", "the run " + child.ID},
		{"run that reads the result of a cancelled run", orphan.ID, "not-found", "unknown run " + cancelled.ID},
		{"run that reads the result of a run that was cancelled while it waited", last.ID, "not-found", "unknown run " + waiting.ID},
	} {
		s := d.wait("", c.id)
		if s.State != "failed" || s.Error == nil || s.Error.Code != c.code || !strings.Contains(s.Error.Message, c.message) || s.Answer != nil {
			t.Errorf("%s: got %+v with the error %+v, want %s with %q", c.what, s, s.Error, c.code, c.message)
		}
	}
	d.refused("", sum(ref, "x", "z", 4, ""), "failed-dependency", "/buffers/a/key")
	var p *problem
	if _, err := d.run("", sum("x", child.Results["c"], "z", 4, "")); !asProblem(err, &p) || p.Status != http.StatusFailedDependency {
		t.Errorf("request that reads the result of a failed run: got %v, want the status %d", err, http.StatusFailedDependency)
	}
	d.refused("", sum("@r-1-ABCDEFGH/c", "x", "z", 4, ""), "not-found", "/buffers/a/key")
	d.refused("", result("x", "x", 4, ""), "bad-request", "/buffers/c/result")
	d.refused("", strings.Replace(add(1, "x", "y", 4), `"key":"y"`, `"key":"@r/c"`, 1), "bad-request", "/buffers/y")
	if s := d.wait("bob", running.ID); s.State != "done" {
		t.Errorf("run of another client: got %+v, want done", s)
	}
	d.refused("", sum(running.Results["c"], "x", "z", 4, ""), "not-found", "/buffers/a/key") // bob's
	d.refused("bob", sum("@"+running.ID+"/d", "x", "z", 4, ""), "not-found", "/buffers/a/key")
	if _, err := d.do("bob", "PUT", object(running.Results["c"]), make([]byte, 16)); !isProblem(err, "bad-request", "invalid key") {
		t.Errorf("replace a result: got %v, want bad-request", err)
	}
	d.delete("bob", object(running.Results["c"]))
	d.refused("bob", sum(running.Results["c"], "x", "z", 4, ""), "not-found", "/buffers/a/key")
	if s := d.stats(); s.Host.Used != 32 {
		t.Errorf("host memory after the failures: got %d bytes, want the 32 of the inputs", s.Host.Used)
	}
}

// A volatile result is lost with its executor, and requests that read it are refused. Other runs continue with the
// next executor.
func TestAsyncExecutorDies(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), nil)
	d.putObject("", "x", ramp(4, 1))
	volatile := d.submit("", result("x", "x", 4, `,"volatile":true`))
	durable := d.submit("", result("x", "x", 4, ""))
	d.wait("", volatile.ID)
	d.wait("", durable.ID)
	if err := unix.Kill(d.stats().GPUs[0].PIDs[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	again := d.submit("", sum(durable.Results["c"], "x", "z", 4, ""))
	if s := d.wait("", again.ID); s.State != "done" {
		t.Errorf("run after its executor died: got %+v with the error %+v, want done", s, s.Error)
	}
	if got := d.getObject("", "z"); !slices.Equal(got, []float32{3, 6, 9, 12}) {
		t.Errorf("its output: got %v, want [3 6 9 12]", got)
	}
	_, err := d.run("", sum(volatile.Results["c"], "x", "z", 4, ""))
	if !isProblem(err, "not-found", "lost with its executor") {
		t.Errorf("request that reads the lost result: got %v, want not-found", err)
	}
}

// Whatever happens meanwhile, a run that completes has read the right results. Chains of runs, some of them with volatile
// results, proceed while executors die and runs are deleted. Every run either completes or is refused with a reason that
// fits.
func TestAsyncStorm(t *testing.T) {
	const chains, length = 12, 8
	d := serve(t, newExecutorPool(t, "count=2"), func(c *kernel.Config) { c.GPUs = []string{"sim:0", "sim:1"} })
	random := rand.New(rand.NewPCG(1, 2))
	type link struct {
		id   string
		want []float32
	}
	var links []link
	completed := 0
	for chain := range chains {
		key := fmt.Sprint("x", chain)
		d.putObject("", key, []float32{float32(chain), 1})
		from, want := key, []float32{float32(chain), 1}
		for i := range length {
			more := `,"inline":true`
			if random.IntN(2) == 0 {
				more += `,"volatile":true`
			}
			status, err := d.trySubmit(result(from, key, 2, more))
			if err != nil { // an earlier run of the chain has failed or was deleted
				if !isProblem(err, "not-found", "") && !isProblem(err, "failed-dependency", "") {
					t.Errorf("run %d of chain %d: got %v, want a reason that concerns its reference", i, chain, err)
				}
				break
			}
			want = []float32{want[0] + float32(chain), want[1] + 1}
			links = append(links, link{status.ID, want})
			from = status.Results["c"]
			switch random.IntN(10) {
			case 0:
				for _, g := range d.stats().GPUs {
					for _, pid := range g.PIDs {
						_ = unix.Kill(pid, unix.SIGKILL)
					}
				}
			case 1:
				d.delete("", "/v1/runs/"+links[random.IntN(len(links))].id)
				links = slices.DeleteFunc(links, func(l link) bool {
					_, err := d.do("", "GET", "/v1/runs/"+l.id, nil)
					return err != nil
				})
			}
		}
	}
	for _, l := range links {
		switch s := d.wait("", l.id); {
		case s.State == "done":
			completed++
			if got := values(s.Answer.Outputs["c"].Data); !slices.Equal(got, l.want) {
				t.Errorf("run %s: got %v, want %v", l.id, got, l.want)
			}
		case s.Error == nil || !slices.Contains([]string{"failed-dependency", "not-found", "fault"}, s.Error.Code):
			t.Errorf("run %s: got the error %+v, want a reason that concerns its executor or its reference", l.id, s.Error)
		}
	}
	if completed == 0 {
		t.Error("no run completed, want some")
	}
	t.Logf("%d of %d runs completed", completed, len(links))
}

// The daemon forgets finished runs after a time. If a client has too many, it forgets those without results first, and
// refuses further runs if all have results.
func TestAsyncLimits(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.MaxRuns = 2 })
	d.putObject("", "x", ramp(4, 1))
	plain := d.submit("", sum("x", "x", "y", 4, ""))
	d.wait("", plain.ID)
	first := d.submit("", result("x", "x", 4, ""))
	d.wait("", first.ID)
	second := d.submit("", result("x", "x", 4, ""))
	d.wait("", second.ID)
	if _, err := d.do("", "GET", "/v1/runs/"+plain.ID, nil); !isProblem(err, "not-found", "") {
		t.Errorf("status of the oldest run, which has no results: got %v, want not-found", err)
	}
	if _, err := d.do("", "POST", "/v1/runs", []byte(result("x", "x", 4, ""))); !isProblem(err, "busy", "2 asynchronous runs") {
		t.Errorf("run beyond the limit: got %v, want busy", err)
	}
	for _, s := range []kernel.RunStatus{first, second} {
		if got := d.getObject("", s.Results["c"]); !slices.Equal(got, []float32{2, 4, 6, 8}) {
			t.Errorf("result of %s: got %v, want [2 4 6 8]", s.ID, got)
		}
	}
	d.delete("", "/v1/runs/"+first.ID)
	d.submit("", result("x", "x", 4, ""))

	d = serve(t, newExecutorPool(t, ""), func(c *kernel.Config) { c.RunTTL = time.Millisecond })
	d.putObject("", "x", ramp(4, 1))
	short := d.submit("", result("x", "x", 4, ""))
	eventually(t, "the run is forgotten", func() bool {
		_, err := d.do("", "GET", "/v1/runs/"+short.ID, nil)
		return isProblem(err, "not-found", "has expired")
	})
	if s := d.stats(); s.Host.Used != 16 {
		t.Errorf("host memory after the run was forgotten: got %d bytes, want the 16 of x", s.Host.Used)
	}
	d.refused("", sum(short.Results["c"], "x", "z", 4, ""), "not-found", "/buffers/a/key")
}

// A daemon that replaces another one refuses references to results of the other, although its runs have the same numbers.
func TestAsyncRestart(t *testing.T) {
	m := newExecutorPool(t, "")
	var before kernel.RunStatus
	for range 2 {
		d := serve(t, m, nil)
		d.putObject("", "x", ramp(4, 1))
		if before.ID != "" {
			d.refused("", sum(before.Results["c"], "x", "z", 4, ""), "not-found", "/buffers/a/key")
		}
		now := d.submit("", result("x", "x", 4, ""))
		d.wait("", now.ID)
		if number := strings.LastIndex(now.ID, "-"); before.ID != "" && (before.ID[:number] != now.ID[:number] || before.ID == now.ID) {
			t.Errorf("IDs of the first runs of two daemons: got %s and %s, want the same number and different suffixes", before.ID, now.ID)
		}
		if before.ID != "" {
			d.refused("", sum(before.Results["c"], "x", "z", 4, ""), "not-found", "/buffers/a/key")
		}
		before = now
		d.stop()
	}
}
