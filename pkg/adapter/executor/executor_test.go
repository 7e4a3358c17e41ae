package executor_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/executor"
	"github.com/gfaas/gfaas/pkg/adapter/mps/mpstest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/kgraph"
	"github.com/gfaas/gfaas/pkg/kgraph/job"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for a required event.
const patience = time.Minute

func start(t testing.TB, host int64, env ...string) (*executor.Executor, *executor.Host) {
	t.Helper()
	lib, err := filepath.Abs("../../../build/lib")
	if err != nil {
		t.Fatal(err)
	}
	path, err := executor.Find(lib)
	if err != nil {
		t.Fatal(err)
	}
	h, err := executor.NewHost(host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	dir, err := os.MkdirTemp("/dev/shm", "executor")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	env = append(append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(lib, "sim"), "GFAAS_SIM_DIR="+dir), env...)
	e, hello, err := executor.Start(context.Background(), executor.Config{Path: path, Env: env, Host: h})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Kill)
	if !hello.Ready || hello.Arch < 50 || hello.MaxThreads != 1024 || hello.MaxGrid[1] != 65535 || hello.Total < 1<<30 {
		t.Fatalf("hello: got %+v, want Ready, at least compute capability 5.0 and 1 GiB, and the simulated GPU's limits", hello)
	}
	return e, h
}

func do(t testing.TB, e *executor.Executor, j *job.Job) job.Outcome {
	t.Helper()
	o, err := carryOut(e, j.Append(nil), j.ID, patience)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func le32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }

// vadd returns a job that adds two vectors of n floats, which are at the start of the host memory, and stores the
// result after them.
func vadd(id uint64, n, iterations int) *job.Job {
	size := int64(4 * n)
	return &job.Job{
		ID: id, Load: []job.Module{{Number: 3, PTX: (&kgraph.Module{Builtin: kgraph.Blas}).Code()}}, Limit: 1 << 30,
		Alloc:  []job.Block{{Number: 0, Size: size}, {Number: 1, Size: size}, {Number: 7, Size: size}},
		Upload: []job.Copy{{Block: 0, Offset: 0, Size: size}, {Block: 1, Offset: size, Size: size}},
		Zero:   []uint32{7}, Iterations: iterations,
		Kernels: []job.Kernel{{Module: 3, Name: "vadd", Grid: [3]int{(n + 255) / 256, 1, 1}, Block: [3]int{256, 1, 1},
			Args: []job.Arg{{Block: 0}, {Block: 1}, {Block: 7}, {Value: le32(uint32(n))}}}},
		Download: []job.Copy{{Block: 7, Offset: 2 * size, Size: size}},
	}
}

func fill(h *executor.Host, n int) {
	for i := range 2 * n {
		binary.LittleEndian.PutUint32(h.Bytes()[4*i:], math.Float32bits(float32(i%n)))
	}
}

func TestJobs(t *testing.T) {
	const n = 5000
	e, h := start(t, 1<<20)
	fill(h, n)
	if o := do(t, e, vadd(17, n, 300)); o.Code != 0 || o.GPU <= 0 || o.Allocated < 3*4*n || o.Allocated > 3*5*n {
		t.Fatalf("job: got %+v, want success, a GPU time, and %d to %d bytes allocated", o, 3*4*n, 3*5*n)
	}
	for i := range n {
		if got := math.Float32frombits(binary.LittleEndian.Uint32(h.Bytes()[4*(2*n+i):])); got != float32(2*i) {
			t.Fatalf("element %d of the result: got %v, want %v", i, got, float32(2*i))
		}
	}
	// Within the limit, the executor keeps free blocks for later blocks of the same footprint.
	const size = 4 * n
	o := do(t, e, &job.Job{ID: 18, Limit: 1 << 30, Free: []uint32{0, 1, 7}, Alloc: []job.Block{{Number: 5, Size: size - 30}}})
	if o.Code != 0 || o.Allocated != 3*job.Footprint(size) {
		t.Errorf("memory within the limit: got %+v, want success with %d allocated", o, 3*job.Footprint(size))
	}
	o = do(t, e, &job.Job{ID: 19, Limit: 50_000, Save: []job.Copy{{Block: 5, Offset: 0, Size: 100}}, Duplicate: nil})
	if o.Code != 0 || o.Allocated != 2*job.Footprint(size) {
		t.Errorf("memory above the limit: got %+v, want success with %d allocated", o, 2*job.Footprint(size))
	}
	if o := do(t, e, &job.Job{ID: 20, Limit: 50_000, Alloc: []job.Block{{Number: 6, Size: 49_000}}}); o.Code != job.CodeOutOfMemory || o.Step != job.Alloc || o.Fatal {
		t.Errorf("beyond the limit: %+v; want Code %v, Step %v, Fatal false", o, job.CodeOutOfMemory, job.Alloc)
	}
}

// After an invalid module or kernel, the executor runs the next job.
func TestRecoverableFailures(t *testing.T) {
	e, _ := start(t, 1<<20)
	load := func(text string) *job.Job {
		return &job.Job{ID: 1, Limit: 1 << 30, Load: []job.Module{{Number: 1, PTX: text}}}
	}
	o := do(t, e, load(".version 7.0\n.visible .entry x(.param .what y)"))
	if o.Code != job.CodeInvalidPTX || o.Step != job.Load || !strings.Contains(o.Text, "line 2") || o.Fatal {
		t.Errorf(`job with an invalid module: got %+v; want Code %v, Step %v, Text with "line 2", Fatal false`, o, job.CodeInvalidPTX, job.Load)
	}
	if o := do(t, e, load((&kgraph.Module{Builtin: kgraph.Blas}).Code())); o.Code != 0 {
		t.Fatalf("job: got %+v, want Code 0", o)
	}
	k := job.Kernel{Module: 1, Name: "nothing", Grid: [3]int{1, 1, 1}, Block: [3]int{1, 1, 1}}
	if o := do(t, e, &job.Job{ID: 2, Limit: 1 << 30, Iterations: 1, Kernels: []job.Kernel{k}}); o.Code != job.CodeNotFound || o.Step != job.Kernels || o.Index != 0 || o.Fatal {
		t.Errorf("job with a missing kernel: got %+v; want Code %v, Step %v, Index 0, Fatal false", o, job.CodeNotFound, job.Kernels)
	}
	if o := do(t, e, &job.Job{ID: 3, Limit: 1 << 30, Unload: []uint32{1}, Load: []job.Module{{Number: 1, PTX: (&kgraph.Module{Builtin: kgraph.Blas}).Code()}}}); o.Code != 0 {
		t.Errorf("next job: got %+v, want Code 0", o)
	}
}

// A kernel with an invalid access ends the executor, which reports the fault.
func TestFault(t *testing.T) {
	e, _ := start(t, 1<<20)
	j := vadd(4, 1000, 1)
	j.Kernels[0].Args[3].Value = le32(1 << 30)
	if o := do(t, e, j); o.Code != 700 || o.Step != job.Kernels || !o.Fatal {
		t.Errorf("job with an invalid access: got %+v; want Code 700, Step %v, Fatal true", o, job.Kernels)
	}
}

const slowPTX = `// gfaas-sim: slow block_us=100000
.version 7.0
.target sm_50
.address_size 64
.visible .entry slow() { ret; }
`

// A long job reports progress. A job without progress is a timeout.
func TestProgress(t *testing.T) {
	e, _ := start(t, 1<<20)
	slow := func(blocks, iterations int) *job.Job {
		return &job.Job{ID: 5, Limit: 1 << 30, Load: []job.Module{{Number: 0, PTX: slowPTX}}, Iterations: iterations,
			Kernels: []job.Kernel{{Name: "slow", Grid: [3]int{blocks, 1, 1}, Block: [3]int{32, 1, 1}}}}
	}
	j := slow(1, 20)
	o, err := carryOut(e, j.Append(nil), j.ID, time.Second)
	if err != nil || o.Code != 0 || o.GPU < 2*time.Second {
		t.Errorf("20 kernels of 100 ms: got %+v, %v; want success with at least 2s of GPU time", o, err)
	}
	j = slow(1<<30, 1)
	j.Unload = []uint32{0}
	if _, err := carryOut(e, j.Append(nil), j.ID, 200*time.Millisecond); !errors.Is(err, job.ErrTimeout) {
		t.Errorf("endless kernel: got the error %v, want a timeout", err)
	}
}

// A caller that checks late, after the deadline, still gets an outcome that has arrived.
func TestOutcomeAfterDeadline(t *testing.T) {
	var err error
	for delay := time.Second; delay < 20*time.Second; delay *= 4 { // the executor may be slow, too
		e, _ := start(t, 1<<20)
		j := &job.Job{ID: 5, Limit: 1 << 30, Load: []job.Module{{Number: 0, PTX: slowPTX}}, Iterations: 1,
			Kernels: []job.Kernel{{Name: "slow", Grid: [3]int{1, 1, 1}, Block: [3]int{32, 1, 1}}}}
		e.Send(j.Append(nil), 300*time.Millisecond)
		time.Sleep(delay)
		if _, err = e.Wait(j.ID, 300*time.Millisecond); err == nil {
			return
		}
	}
	t.Error(err)
}

// A caller that waits gets an error when the executor ends, for whatever reason.
func TestDeath(t *testing.T) {
	e, _ := start(t, 1<<20)
	j := &job.Job{ID: 5, Limit: 1 << 30, Load: []job.Module{{Number: 0, PTX: slowPTX}}, Iterations: 1,
		Kernels: []job.Kernel{{Name: "slow", Grid: [3]int{1 << 30, 1, 1}, Block: [3]int{32, 1, 1}}}}
	pid := e.Pid()
	time.AfterFunc(100*time.Millisecond, func() { _ = unix.Kill(pid, unix.SIGKILL) })
	var exit *executor.ExitError
	if _, err := carryOut(e, j.Append(nil), j.ID, patience); !errors.As(err, &exit) || !strings.Contains(exit.Status, "killed") {
		t.Errorf("killed executor: got the error %v, want one that says so", err)
	}
}

// Kill ends the GPU work of an executor that is an MPS client before it kills the process. It does not do so for
// an executor that has already ended.
func TestKillTerminatesClient(t *testing.T) {
	mpstest.Install(t)
	pipes := t.TempDir()
	t.Setenv("CUDA_MPS_PIPE_DIRECTORY", pipes)
	const server = 4<<20 + 1 // larger than any PID
	mpstest.Start(t, pipes, server)
	killed, _ := start(t, 1<<20)
	pid := killed.Pid()
	killed.Kill()
	killed.Kill()
	closed, _ := start(t, 1<<20)
	closed.Close()
	closed.Kill()
	want := []string{fmt.Sprint(server, " ", pid)}
	if got := mpstest.Terminated(t, pipes); !slices.Equal(got, want) {
		t.Errorf("terminated %q, want %q", got, want)
	}
}

// An executor ends with its daemon, even during a kernel.
func TestEndsWithItsDaemon(t *testing.T) {
	e, _ := start(t, 1<<20)
	j := &job.Job{ID: 5, Limit: 1 << 30, Load: []job.Module{{Number: 0, PTX: slowPTX}}, Iterations: 1,
		Kernels: []job.Kernel{{Name: "slow", Grid: [3]int{1 << 30, 1, 1}, Block: [3]int{32, 1, 1}}}}
	if _, err := carryOut(e, j.Append(nil), j.ID, 50*time.Millisecond); !errors.Is(err, job.ErrTimeout) {
		t.Fatal(err)
	}
	begin := time.Now()
	e.Close()
	if took := time.Since(begin); took > 1900*time.Millisecond {
		t.Errorf("end of the executor after its daemon's: got %v, want at most 1.9s, before it is killed", took)
	}
}

func TestNoDriver(t *testing.T) {
	path, err := executor.Find("../../../build/lib")
	if err != nil {
		t.Fatal(err)
	}
	h, err := executor.NewHost(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	var missing *ports.UnavailableError
	_, _, err = executor.Start(context.Background(), executor.Config{Path: path, Env: []string{"PATH=/nowhere", "LD_LIBRARY_PATH=/nowhere"}, Host: h})
	if !errors.As(err, &missing) || !strings.Contains(missing.Error(), "libcuda.so.1") {
		t.Errorf("start without a driver: got the error %v, want one that names libcuda.so.1", err)
	}
}

// A cancelled start returns at once, at whatever point it is cancelled.
func TestStartCancelled(t *testing.T) {
	h, err := executor.NewHost(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	silent := filepath.Join(t.TempDir(), "silent")
	if err := os.WriteFile(silent, []byte("#!/bin/sh\nexec sleep 60\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, after := range []time.Duration{0, 20 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		begin := time.Now()
		_, _, err := executor.Start(ctx, executor.Config{Path: silent, Env: os.Environ(), Host: h})
		cancel()
		if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || took > 20*time.Second {
			t.Errorf("start cancelled after %v: got %v after %v, want %v within 20s", after, err, took, context.DeadlineExceeded)
		}
	}
}

// BenchmarkOverhead measures jobs with 1, 100 and 10,000 launches of a small kernel.
func BenchmarkOverhead(b *testing.B) {
	for _, n := range []int{1, 100, 10000} {
		b.Run(map[int]string{1: "one", 100: "hundred", 10000: "ten-thousand"}[n], func(b *testing.B) {
			e, h := start(b, 1<<20)
			fill(h, 256)
			j := vadd(1, 256, n)
			do(b, e, j)
			j.Load, j.Alloc = nil, nil
			var text []byte
			for b.Loop() {
				text = j.Append(text[:0])
				if o, err := carryOut(e, text, 1, patience); err != nil || o.Code != 0 {
					b.Fatal(o, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "us/kernel")
		})
	}
}

// carryOut runs a job.
func carryOut(e *executor.Executor, text []byte, id uint64, patience time.Duration) (job.Outcome, error) {
	e.Send(text, patience)
	return e.Wait(id, patience)
}
