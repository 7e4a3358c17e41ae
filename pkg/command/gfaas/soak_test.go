package gfaas

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/gateway"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/status"
)

// soakTime returns the duration of a test that can take any time: GFAAS_SOAK, or short if that is not set.
func soakTime(t *testing.T, short time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("GFAAS_SOAK")
	if text == "" {
		return short
	}
	long, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return long
}

// TestGatewaySoak kills instances, the token daemon and the gateway at random during calls. Each call must be answered or
// refused in time. At the end, the resources of the gateway, the state file and the run directory must be the same as
// at the start, and gfaas serve must leave nothing behind. GFAAS_SOAK sets the duration; make soak uses half an hour.
func TestGatewaySoak(t *testing.T) {
	t.Parallel()
	long := soakTime(t, 10*time.Second)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	s := &soak{killer: newKiller(t, rand.New(rand.NewPCG(seed, 0)), ""), results: map[string]int{}}
	s.functions()
	s.serve()
	defer func() { _ = s.cmd.Process.Kill(); _ = s.cmd.Wait() }()

	s.load(min(long/5, 10*time.Second), nil) // without faults
	before := s.measureResources()
	t.Logf("resources before the faults: %v", before)
	s.load(long*2/3, func() { s.fault(true) })
	s.load(long/3, func() { s.fault(false) }) // one gateway lives on while everything else dies
	var after resources
	s.until("the gateway uses about the same resources as at first", func() bool {
		after = s.measureResources()
		return after.descriptors <= before.descriptors+16 && after.threads <= before.threads+32 && after.residentMiB <= 2*before.residentMiB+32 &&
			after.stateKiB <= before.stateKiB+512 && after.files <= before.files+8
	})
	t.Logf("resources after the faults: %v, calls %v, killed %v", after, s.results, s.killed)
	if s.results["200"] == 0 {
		t.Errorf("outcomes of calls: got %v, want some with status 200", s.results)
	}
	for result := range s.results {
		switch result {
		case "200", "202", "429", "502", "503", "504", "no gateway", "cut":
		default:
			t.Errorf("outcomes of calls: got %v, want none with %s", s.results, result)
		}
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("end of the gateway: %v\n%s", err, s.logTail())
	}
	if all := s.instances(); len(all) > 0 {
		t.Errorf("processes of instances after the end of the gateway: got %v, want none", all)
	}
	s.checkNothingRemains()
}

// soak is a gateway under load and faults.
type soak struct {
	*killer
	cmd    *exec.Cmd
	client *gateway.Client

	mu      sync.Mutex
	results map[string]int // number of calls by outcome
}

func (s *soak) functions() {
	saxpy, err := filepath.Abs("../../../build/examples/saxpy/saxpy")
	if err != nil {
		s.Fatal(err)
	}
	text := fmt.Sprintf(`{name: plain, command: [%q], contract: http, gpu_mem: 64MiB, scale: {idle: 2s}}
---
{name: kept, command: [%q], contract: http, gpu_mem: 64MiB, scale: {min: 1, max: 3, idle: 2s}, restart: always}
---
{name: many, command: [%q], contract: http, gpu_mem: 64MiB, inflight: 4, restart: on-failure, scale: {idle: 1s}}
`, saxpy, saxpy, saxpy)
	file := filepath.Join(s.dir, "soak.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
	s.must("apply", "-f", file)
	s.client = gateway.Dial(s.run())
	s.Cleanup(s.client.Close)
}

// serve starts a gateway and waits until it is ready.
func (s *soak) serve() {
	log, err := os.OpenFile(filepath.Join(s.dir, "serve.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		s.Fatal(err)
	}
	defer log.Close()
	s.cmd = exec.Command(s.bin, "serve", "--listen", "", "--gpu", "sim", "--pool", "6", "--queue-timeout", "20s", "--drain", "20s")
	s.cmd.Env, s.cmd.Stderr = s.env, log
	if err := s.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.until("the gateway is ready", func() bool {
		answer, err := s.client.Send(context.Background(), http.MethodGet, "/readyz", nil, nil)
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
}

// load runs concurrent callers for the given time, with a fault about once per second, and waits until all calls have
// ended.
func (s *soak) load(long time.Duration, fault func()) {
	const callers = 6
	end := time.Now().Add(long)
	var all sync.WaitGroup
	var stuck atomic.Int32
	for n := range callers {
		random := rand.New(rand.NewPCG(s.Uint64(), uint64(n)))
		all.Go(func() {
			for time.Now().Before(end) {
				if !s.call(random) {
					stuck.Add(1)
				}
			}
		})
	}
	for fault != nil && time.Now().Before(end) && !s.Failed() {
		time.Sleep(time.Duration(s.Int64N(int64(2 * time.Second)))) // a random moment
		fault()
	}
	all.Wait()
	if n := stuck.Load(); n > 0 {
		s.Errorf("calls without an answer within a minute: got %d, want 0", n)
	}
	s.until("no call is queued or in flight", func() bool {
		stands, err := s.client.Status(context.Background())
		if err != nil {
			return false
		}
		for _, f := range stands.Functions {
			if *f.Waiting+*f.InFlight > 0 {
				return false
			}
		}
		return true
	})
}

// call makes a call. It returns false if the call has no outcome in time.
func (s *soak) call(random *rand.Rand) bool {
	ctx, cancel := withMinute()
	defer cancel()
	name, path := []string{"plain", "kept", "many"}[random.IntN(3)], "/function/"
	if random.IntN(50) == 0 {
		path = "/async-function/"
	}
	answer, err := s.client.Send(ctx, http.MethodPost, path+name, http.Header{"Content-Type": {"application/json"}}, strings.NewReader(`{"n": 64, "a": 2}`))
	result := "no gateway"
	if err == nil {
		result = strconv.Itoa(answer.StatusCode)
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			result = "cut"
		}
		_ = answer.Body.Close()
	} else {
		_ = sleep(ctx, 20*time.Millisecond)
	}
	s.mu.Lock()
	s.results[result]++
	s.mu.Unlock()
	return ctx.Err() == nil
}

// withMinute returns a context that ends after 600 waits of 100 ms. It tolerates that a virtual machine is paused for a
// minute.
func withMinute() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for n := 0; n < 600 && ctx.Err() == nil; n++ {
			_ = sleep(ctx, 100*time.Millisecond)
		}
		cancel()
	}()
	return ctx, cancel
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fault kills a random process, usually an instance.
func (s *soak) fault(gateways bool) {
	switch n := s.IntN(12); {
	case n == 0 && gateways:
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.killed["gateway"]++
		s.serve()
	case n == 1:
		if s.killDaemon() {
			s.killed["tokend"]++
		}
	default:
		all, err := procfs.Stats()
		if err != nil {
			s.Error(err)
		}
		var victims []int
		for _, p := range all {
			if env, _ := procfs.Environ(p.PID); !p.Exited() && strings.HasPrefix(env["GFAAS_SOCKET"], s.run()+"/") {
				victims = append(victims, p.PID)
			}
		}
		if len(victims) > 0 && unix.Kill(victims[s.IntN(len(victims))], unix.SIGKILL) == nil {
			s.killed["instance"]++
		}
	}
}

// resources holds the resources of a gateway and of its files.
type resources struct {
	descriptors, threads, files int
	residentMiB, stateKiB       int64
}

func (t resources) String() string {
	return fmt.Sprintf("%d descriptors, %d threads, %d MiB resident, %d KiB of state, %d files in the run directory", t.descriptors, t.threads, t.residentMiB, t.stateKiB, t.files)
}

// measureResources measures the resources when idle instances have stopped. One instance stays, unless its function is in the pause
// of a minute after too many failures.
func (s *soak) measureResources() (t resources) {
	s.until("idle instances have stopped", func() bool {
		stands, err := s.client.Status(context.Background())
		return err == nil && !slices.ContainsFunc(stands.Instances, func(i status.Instance) bool { return i.Function != "kept" || i.State != "idle" }) && len(stands.Instances) <= 1
	})
	proc := fmt.Sprintf("/proc/%d/", s.cmd.Process.Pid)
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		s.Fatal(err)
	}
	t.descriptors = len(fds)
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		s.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		n, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch key {
		case "VmRSS":
			t.residentMiB = n >> 10
		case "Threads":
			t.threads = int(n)
		}
	}
	info, err := os.Stat(filepath.Join(s.dir, "state.db"))
	if err != nil {
		s.Fatal(err)
	}
	t.stateKiB = info.Size() >> 10
	err = filepath.WalkDir(s.run(), func(_ string, _ os.DirEntry, err error) error {
		t.files++
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	return t
}

// logTail returns the end of the gateways' logs.
func (s *soak) logTail() string {
	text, _ := os.ReadFile(filepath.Join(s.dir, "serve.log"))
	return string(text[max(0, len(text)-4000):])
}
