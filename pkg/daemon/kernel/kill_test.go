package kernel_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/daemon/kernel"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// kills returns how many executors TestKills kills, and how often TestDaemonKills kills the daemon.
// GFAAS_KILLS overrides the default.
func kills(t *testing.T) int {
	if text := os.Getenv("GFAAS_KILLS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return 20
}

// TestKills kills executors at random times, while clients use objects that change, that are only on the GPU,
// that replace each other and that do not all fit. Every answer must be correct or an error, and every
// reported success must have happened.
func TestKills(t *testing.T) {
	for _, isolate := range []bool{false, true} {
		t.Run(fmt.Sprint("process ", isolate), func(t *testing.T) {
			m := newExecutorPool(t, "count=2")
			d := serve(t, m, func(c *kernel.Config) {
				c.GPUs = []string{"sim", "sim:1"}
				c.GPUMem, c.Isolate = 1*mib, isolate
			})
			var stop atomic.Bool
			var clients sync.WaitGroup
			var ran, failed atomic.Int64
			for i := range 4 {
				clients.Go(func() {
					w := &checkedClient{t: t, d: d, name: fmt.Sprint("c", i), r: rand.New(rand.NewPCG(1, uint64(i))), values: map[string]float32{}}
					for !stop.Load() && !t.Failed() {
						before := w.ran
						w.step()
						ran.Add(w.ran - before)
					}
					failed.Add(w.failed)
				})
			}
			r := rand.New(rand.NewPCG(7, 7))
			for range kills(t) {
				time.Sleep(time.Duration(r.Int64N(int64(60 * time.Millisecond)))) // the test is about the time of the kill
				m.killOne(r)
			}
			for deadline := time.Now().Add(time.Minute); ran.Load() < 20 && time.Now().Before(deadline); { // time for a busy host
				time.Sleep(10 * time.Millisecond)
			}
			stop.Store(true)
			clients.Wait()
			s := d.stats()
			t.Logf("%d requests, %d failed; executors: %+v", ran.Load(), failed.Load(), s.GPUs)
			if ran.Load() < 20 {
				t.Errorf("requests that ran: got %d, want at least 20", ran.Load())
			}
			// Nothing is leaked: only stored objects are charged, once the last readers of dropped
			// objects have finished.
			for _, c := range s.Clients {
				if c.Waiting != 0 || c.Running != 0 {
					t.Errorf("client after the last request: got %+v, want Waiting 0 and Running 0", c)
				}
			}
			var stored int64
			for i := range 4 {
				for _, o := range d.listObjects(fmt.Sprint("c", i)) {
					stored += o.Size
				}
			}
			eventually(t, "only stored objects are charged to the host memory", func() bool { s = d.stats(); return s.Host.Used <= stored })
			var counted int64
			for _, c := range s.Clients {
				counted += c.Bytes
			}
			if s.Host.Used != stored || counted != stored {
				t.Errorf("memory of objects: got %d bytes charged to the host and %d to the clients, want %d for the stored objects", s.Host.Used, counted, stored)
			}
			d.stop()
			m.checkNoneRunning()
		})
	}
}

// killOne kills a random executor that is alive.
func (m *executorPool) killOne(r *rand.Rand) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var alive []int
	for _, e := range m.executors {
		if ours(e.Pid()) {
			alive = append(alive, e.Pid())
		}
	}
	if len(alive) > 0 {
		_ = unix.Kill(alive[r.IntN(len(alive))], unix.SIGKILL)
	}
}

// ours reports whether an executor is alive. It excludes another process that has got the PID of an ended
// executor.
func ours(pid int) bool {
	s, err := procfs.Read(pid)
	return err == nil && s.Parent == os.Getpid()
}

// checkNoneRunning checks that all executors have ended and that the simulated GPU has no memory in use.
func (m *executorPool) checkNoneRunning() {
	m.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.executors {
		if ours(e.Pid()) {
			m.t.Errorf("the executor process %d still runs", e.Pid())
		}
	}
}

// checkedClient is a client that knows the contents of its objects: in each object all floats are equal.
type checkedClient struct {
	t           *testing.T
	d           *daemon
	name        string
	r           *rand.Rand
	values      map[string]float32
	ran, failed int64
}

const sized = 20_000 // floats per object: about 13 objects fit on the GPU

func (w *checkedClient) key() string { return fmt.Sprint("k", w.r.IntN(8)) }

// existingKey returns the key of an existing object, or "" if it finds none.
func (w *checkedClient) existingKey() string {
	for range 20 {
		if key := w.key(); w.hasKey(key) {
			return key
		}
	}
	return ""
}

func (w *checkedClient) hasKey(key string) bool { _, ok := w.values[key]; return ok }

// step performs one random operation and checks its result.
func (w *checkedClient) step() {
	x, y, z := w.existingKey(), w.existingKey(), w.key()
	if y == "" {
		y = x
	}
	volatile := ""
	if w.r.IntN(2) == 0 {
		volatile = `,"volatile":true`
	}
	var err error
	switch what := w.r.IntN(10); {
	case x == "" || what == 0:
		v := float32(w.r.IntN(100))
		if _, err = w.d.do(w.name, "PUT", object(z), floats(mibs1(sized, v))); err == nil {
			w.values[z] = v
		}
	case what < 5:
		w.ran++
		if _, err = w.d.run(w.name, sum(x, y, z, sized, volatile)); err == nil {
			w.values[z] = w.values[x] + w.values[y]
			w.wrap(z)
		}
	case what < 7 && x != y:
		w.ran++
		if _, err = w.d.run(w.name, add(1, x, y, sized)); err == nil {
			w.values[y] = w.values[y] + w.values[x]
			w.wrap(y)
		}
	case what == 7:
		if _, err = w.d.do(w.name, "DELETE", object(x), nil); err == nil {
			delete(w.values, x)
		}
	default:
		var data []byte
		if data, err = w.d.do(w.name, "GET", object(x), nil); err == nil {
			got := values(data)
			for i, v := range got {
				if len(got) != sized || v != w.values[x] {
					w.t.Errorf("object %s of %s: value %d of %d: got %v, want %v", x, w.name, i, len(got), v, w.values[x])
					return
				}
			}
		}
	}
	if err != nil {
		w.failed++
		w.excuse(err)
	}
}

// wrap replaces an object by small numbers if its numbers have become large, so that sums stay exact.
func (w *checkedClient) wrap(key string) {
	if w.values[key] < 1e6 {
		return
	}
	if _, err := w.d.do(w.name, "PUT", object(key), floats(mibs1(sized, 1))); err != nil {
		w.excuse(err)
		delete(w.values, key)
		return
	}
	w.values[key] = 1
}

// excuse checks that an error is acceptable: after a kill, volatile objects may be lost, and a request may
// fail because three executors died. A killed daemon does not answer, and its successor has no objects.
func (w *checkedClient) excuse(err error) {
	var p *problem
	if !errors.As(err, &p) && w.d.killed {
		eventually(w.t, "the killed daemon's successor answers", func() bool { _, err = w.d.do(w.name, "GET", "/v1/objects", nil); return err == nil })
	} else if p == nil || p.Code != "fault" && p.Code != "not-found" && p.Code != "internal" {
		w.t.Errorf("request of %s: got %v, want no error, fault, not-found or internal", w.name, err)
		return
	}
	// Only the listed objects still exist.
	var text []byte
	for again := true; again; again = err != nil && w.d.killed && !errors.As(err, &p) { // the daemon may be killed again
		text, err = w.d.do(w.name, "GET", "/v1/objects", nil)
	}
	if err != nil {
		w.t.Errorf("list the objects of %s: %v", w.name, err)
		return
	}
	var list struct{ Objects []kernel.Object }
	unmarshal(w.t, text, &list)
	listed := map[string]bool{}
	for _, o := range list.Objects {
		listed[o.Key] = true
		if !w.hasKey(o.Key) {
			w.t.Errorf("objects of %s: got %s, which no request stored", w.name, o.Key)
		}
	}
	for key := range w.values {
		if !listed[key] {
			delete(w.values, key)
		}
	}
}

// TestDaemonKills kills the daemon at random times under the same load. Its executors and their GPU memory
// must disappear with it. The next daemon must start at once, and leave nothing behind when it ends.
func TestDaemonKills(t *testing.T) {
	m := newExecutorPool(t, "count=2")
	dir, err := os.MkdirTemp("", "kerneld")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &daemon{t: t, m: m, dir: dir, client: clientOf(filepath.Join(dir, "kernel.sock")), killed: true}
	t.Cleanup(d.client.CloseIdleConnections)
	lib, err := filepath.Abs("../../../build")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(lib, "bin", "gfaas-kerneld")
	var stderr bytes.Buffer
	start := func() *exec.Cmd {
		t.Helper()
		stderr.Reset()
		cmd := exec.Command(program, "--gpu", "sim,sim:1", "--gpu-mem", "1MiB", "--host-mem", "64MiB", "--client", "c0", "--client", "c1:2")
		cmd.Env = append(m.env, "GFAAS_RUN_DIR="+dir, "GFAAS_LIB_DIR="+filepath.Join(lib, "lib"))
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	answers := func() bool { _, err := d.do("", "GET", "/v1/stats", nil); return err == nil }
	var stop atomic.Bool
	var clients sync.WaitGroup
	var steps, ran, failed atomic.Int64
	cmd := start()
	eventually(t, "the first daemon answers", answers)
	for i := range 4 {
		clients.Go(func() {
			w := &checkedClient{t: t, d: d, name: fmt.Sprint("c", i), r: rand.New(rand.NewPCG(2, uint64(i))), values: map[string]float32{}}
			for !stop.Load() && !t.Failed() {
				w.step()
				steps.Add(1)
			}
			ran.Add(w.ran)
			failed.Add(w.failed)
		})
	}
	defer func() {
		stop.Store(true)
		if t.Failed() {
			t.Logf("the output of the daemon:\n%s", stderr.Bytes())
			_ = cmd.Process.Kill()
		}
		clients.Wait()
	}()
	r := rand.New(rand.NewPCG(8, 8))
	for range kills(t) {
		if r.IntN(8) > 0 { // otherwise kill it while it starts
			enough := steps.Load() + r.Int64N(60)
			eventually(t, "the daemon answers and enough requests have run", func() bool { return steps.Load() >= enough && answers() })
		}
		time.Sleep(time.Duration(r.Int64N(int64(20 * time.Millisecond)))) // the test is about the time of the kill
		_ = cmd.Process.Signal(unix.SIGSTOP)
		eventually(t, "the daemon is stopped", func() bool { return state(cmd.Process.Pid) == 'T' }) // it starts no further executors
		executors := children(cmd.Process.Pid)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for _, pid := range executors {
			eventually(t, fmt.Sprintf("the executor process %d has ended", pid), func() bool { return !lives(pid) })
		}
		for gpu := range 2 { // the memory is freed with the last thread of a process
			eventually(t, fmt.Sprintf("no process has memory on GPU %d", gpu), func() bool {
				held, err := simgpu.ProcessMemory(m.sim, gpu)
				if err != nil {
					t.Error(err)
				}
				return len(held) == 0
			})
		}
		cmd = start()
	}
	eventually(t, "the last daemon answers", answers)
	stop.Store(true)
	clients.Wait()
	t.Logf("%d requests, %d failed", ran.Load(), failed.Load())
	if ran.Load() < 20 {
		t.Errorf("requests that ran: got %d, want at least 20", ran.Load())
	}
	executors := children(cmd.Process.Pid)
	if err := errors.Join(cmd.Process.Signal(unix.SIGTERM), cmd.Wait()); err != nil {
		t.Errorf("end of the daemon: %v\n%s", err, stderr.Bytes())
	}
	for _, pid := range executors {
		if lives(pid) {
			t.Errorf("the executor process %d still runs after the end of the daemon", pid)
		}
	}
	for _, folder := range []string{dir, m.sim} {
		if remaining, err := os.ReadDir(folder); err == nil && len(remaining) > 0 {
			t.Errorf("files in %s after the end: got %v, want none", folder, remaining)
		}
	}
}

// children returns the child processes of a process.
func children(pid int) (pids []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for _, word := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(word); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids
}

// state returns the state of a process as in /proc/PID/stat, or 0 if there is no such process.
func state(pid int) byte {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if _, after, _ := bytes.Cut(text, []byte(") ")); len(after) > 0 {
		return after[0]
	}
	return 0
}

// lives reports whether a process has not ended. A zombie has ended: with its parent dead, it may never be
// reaped.
func lives(pid int) bool { s := state(pid); return s != 0 && s != 'Z' && s != 'X' }

// On shutdown, the daemon ends as soon as the last running request has finished.
func TestShutdownDuringRequest(t *testing.T) {
	d := serve(t, newExecutorPool(t, ""), nil)
	var all sync.WaitGroup
	d.startRequest(&all, "", custom(slowPTX, "slow", 80*25)) // 0.5 s
	begin := time.Now()
	d.stop()
	if took := time.Since(begin); took > 9*time.Second { // the limit is 10 s
		t.Errorf("shutdown during a request of 0.5 s: took %v, want at most 9s", took)
	}
	all.Wait()
}

// After a shutdown nothing remains, and the next daemon starts at once, without objects.
func TestRestart(t *testing.T) {
	m := newExecutorPool(t, "")
	d := serve(t, m, nil)
	d.putObject("", "a", ramp(10, 0))
	d.mustRun("", sum("a", "a", "b", 10, ""))
	d.stop()
	m.checkNoneRunning()
	remaining, err := filepath.Glob(d.dir + "/*")
	if err != nil || len(remaining) > 0 {
		t.Errorf("run directory after the end: got the files %v and the error %v, want no files", remaining, err)
	}
	d = serve(t, m, nil)
	d.refused("", sum("a", "a", "b", 10, ""), "not-found", "/buffers/a/key")
}
