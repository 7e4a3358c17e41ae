package profile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/kerneld"
	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/daemon/token/tokentest"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/profile"
)

// patience limits every wait. No result depends on how long an operation takes.
const patience = 60 * time.Second

// real runs the gfaas-profile that make has built on the simulated GPU, in its own run directory.
type real struct {
	t      *testing.T
	build  string
	runDir string
	work   string
	daemon *exec.Cmd // nil: gfaas-profile starts a daemon
}

func newReal(t *testing.T) *real {
	t.Helper()
	build, err := filepath.Abs("../../../build")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"bin/gfaas-profile", "bin/gfaas-tokend", "lib/libgfaas.so", "lib/sim/libcuda.so.1", "examples/saxpy/saxpy", "victim/bad"} {
		if _, err := os.Stat(filepath.Join(build, path)); err != nil {
			t.Fatalf("%v: this test runs what make builds", err)
		}
	}
	runDir, err := os.MkdirTemp("", "gf") // a short path, for sockets
	if err != nil {
		t.Fatal(err)
	}
	r := &real{t: t, build: build, runDir: runDir, work: t.TempDir()}
	t.Cleanup(func() {
		if r.daemon != nil {
			_ = r.daemon.Process.Signal(syscall.SIGTERM)
			_ = r.daemon.Wait()
		}
		// A daemon that gfaas-profile has started ends by itself.
		r.eventually("the token daemon leaves", func() bool { return !r.daemonRuns() })
		os.RemoveAll(runDir)
	})
	return r
}

// daemonRuns reports whether a token daemon answers.
func (r *real) daemonRuns() bool {
	_, err := tokend.Dial(r.runDir).Status(context.Background())
	return err == nil
}

// serve starts the token daemon. Then the test need not wait until a daemon that gfaas-profile has started ends after
// its idle timeout.
func (r *real) serve() *real {
	r.t.Helper()
	r.daemon = exec.Command(filepath.Join(r.build, "bin/gfaas-tokend"))
	r.daemon.Env = r.env()
	if err := tokentest.StartWithPriority(r.daemon); err != nil {
		r.t.Fatal(err)
	}
	r.eventually("the token daemon answers", r.daemonRuns)
	return r
}

func (r *real) env() []string {
	return append(os.Environ(), "GFAAS_RUN_DIR="+r.runDir, "GFAAS_STATE="+filepath.Join(r.runDir, "state.db"), "GFAAS_SIM_DIR="+filepath.Join(r.runDir, "sim"),
		"GFAAS_LIB_DIR="+filepath.Join(r.build, "lib"), "XDG_CONFIG_HOME="+r.work,
		"GFAAS_PRECISION=0") // keeps trials short on a busy host
}

func (r *real) eventually(condition string, ok func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) { // poll
		if time.Now().After(deadline) {
			r.t.Fatalf("not within %v: %s", patience, condition)
		}
	}
}

// command returns gfaas-profile run for the example function.
func (r *real) command(args ...string) *exec.Cmd {
	return r.profile(filepath.Join(r.build, "examples/saxpy/function.yaml"), args...)
}

// profile returns gfaas-profile run for the functions in a file.
func (r *real) profile(file string, args ...string) *exec.Cmd {
	args = append([]string{"run", file, "--gpu", "sim"}, args...)
	cmd := exec.Command(filepath.Join(r.build, "bin/gfaas-profile"), args...)
	cmd.Env = append(os.Environ(), "GFAAS_RUN_DIR="+r.runDir, "GFAAS_STATE="+filepath.Join(r.runDir, "state.db"), "GFAAS_SIM_DIR="+filepath.Join(r.runDir, "sim"),
		"GFAAS_LIB_DIR="+filepath.Join(r.build, "lib"), "XDG_CONFIG_HOME="+r.work,
		"GFAAS_PRECISION=0", // keeps trials short on a busy host
		"GFAAS_PARK=false", "GFAAS_GOODPUT=false")
	cmd.Dir = r.work
	return cmd
}

// pids returns the processes that the token daemon knows.
func (r *real) pids() (pids []int) {
	status, err := tokend.Dial(r.runDir).Status(context.Background())
	if err != nil {
		return nil
	}
	for _, g := range status.GPUs {
		for _, c := range g.Clients {
			if c.PID > 0 {
				pids = append(pids, c.PID)
			}
		}
	}
	return pids
}

func exited(pid int) bool { return !procfs.Alive(pid) }

// TestProfileOfTheExample checks that throughput is proportional to the quota, and that it grows with the SM share
// according to the block rule: the example's 320 blocks need 16 rounds on 24% of 80 SMs (20), and 8 rounds on 50% (40).
//
// The simulated device determines the highest throughput, and a busy host can only reduce it. The test therefore uses
// the best of up to five runs for each row, and does not run in parallel with other tests.
func TestProfileOfTheExample(t *testing.T) {
	r := newReal(t).serve()
	var best []profile.Row
	var wrong []string
	for range 5 {
		rows, failed := r.profileExample()
		if failed != "" { // a busy host finished no request at a point
			wrong = []string{failed}
			continue
		}
		if best == nil {
			best = rows
		}
		for i, row := range rows {
			if row.ThroughputRPS > best[i].ThroughputRPS {
				best[i] = row
			}
		}
		if wrong = outOfProportion(best); len(wrong) == 0 {
			break
		}
	}
	for _, w := range wrong {
		t.Error(w)
	}
	if left, _ := filepath.Glob(filepath.Join(r.runDir, "profile-*")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
}

// profileExample measures the example at four points and checks each row. If no request finished at a point, it returns
// the failure.
func (r *real) profileExample() (rows []profile.Row, failed string) {
	r.t.Helper()
	cmd := r.command("--sm", "24,50", "--quota", "0.4,1", "--duration", "2s", "--warmup", "500ms", "--out-file", "p.csv", "-v")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	err := tokentest.StartWithPriority(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil && strings.Contains(stderr.String(), "no request finished") {
		return nil, stderr.String()
	}
	if err != nil {
		r.t.Fatalf("%v\n%s", err, &stderr)
	}
	if !strings.Contains(stderr.String(), "simulated") {
		r.t.Errorf("nothing says that the GPU is simulated:\n%s", &stderr)
	}
	rows, err = cli.Load(&cli.Env{}, filepath.Join(r.work, "p.csv"), profile.Read)
	if err != nil || len(rows) != 4 {
		r.t.Fatalf("%d rows, %v; want 4", len(rows), err)
	}
	for _, row := range rows {
		// The first request may run at once and leave its debt to later requests. A cold request can therefore be
		// faster than the mean warm request, but not faster than its own GPU time.
		if row.GPU != "sim" || row.Errors > 0 || row.GPUMemMiB <= 0 || row.ColdMS <= gpuMS(row) {
			r.t.Errorf("row %+v", row)
		}
	}
	return rows, ""
}

// gpuMS returns the GPU time of one request of the example: 5 kernels with 320 blocks of 0.5 ms on the row's share of
// 80 SMs.
func gpuMS(row profile.Row) float64 {
	return 5 * 0.5 * math.Ceil(320/math.Ceil(80*row.SMPct/100))
}

// outOfProportion returns the pairs of rows whose ratio differs from the ratio of their quotas and SM shares.
func outOfProportion(rows []profile.Row) (wrong []string) {
	ratio := func(what string, a, b profile.Row, want float64) {
		if got := a.ThroughputRPS / b.ThroughputRPS; math.Abs(got-want) > 0.1*want {
			wrong = append(wrong, fmt.Sprintf("%s: %v and %v rps are 1 to %.3f, want %.3f", what, b.ThroughputRPS, a.ThroughputRPS, got, want))
		}
	}
	ratio("quota at 24%", rows[1], rows[0], 1/0.4)
	ratio("quota at 50%", rows[3], rows[2], 1/0.4)
	ratio("SM share at quota 1", rows[3], rows[1], 2)
	return wrong
}

// TestNextRunEndsWhatAKilledOneLeft checks that a run stops the instance that a killed run has left behind.
func TestNextRunEndsWhatAKilledOneLeft(t *testing.T) {
	t.Parallel() // it uses a separate run directory
	r := newReal(t)
	first := r.command("--sm", "50", "--quota", "1", "--duration", "60s")
	first.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	r.eventually("an instance runs", func() bool { pids = r.pids(); return len(pids) > 0 })
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	out, err := r.command("--sm", "50", "--quota", "1", "--duration", "1s", "--warmup", "0s").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, pid := range pids {
		r.eventually("the old instance is gone", func() bool { return exited(pid) })
	}
}

func TestInterruptLeavesNothing(t *testing.T) {
	t.Parallel() // it uses a separate run directory
	r := newReal(t).serve()
	cmd := r.command("--sm", "50", "--quota", "1", "--duration", "60s", "--out-file", "p.csv")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	r.eventually("an instance runs", func() bool { pids = r.pids(); return len(pids) > 0 })
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 130 {
		t.Errorf("ended with %v, want 130", err)
	}
	for _, pid := range pids {
		if !exited(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
}

// TestLoadTimeOfParkedMemory checks load_ms, the time to move an instance's memory to the host and back: on the simulated
// GPU at 16 GB/s, 512 MiB take 33.6 ms.
func TestLoadTimeOfParkedMemory(t *testing.T) {
	t.Parallel() // it uses a separate run directory
	r := newReal(t).serve()
	file := filepath.Join(r.work, "holds.yaml")
	text := "name: holds\ncontract: http\ngpu_mem: 1GiB\nenv: {SAXPY_HOLDS: '512', SAXPY_LAUNCHES: '1'}\ncommand: [" +
		filepath.Join(r.build, "examples/saxpy/saxpy") + "]\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	// A busy host delays this measurement and its reference by random amounts. Repeat until the result is plausible.
	const least = 512 << 20 / 16e6 // ms
	for end := time.Now().Add(2 * time.Minute); ; {
		cmd := r.profile(file, "--park", "--sm", "50", "--quota", "0.5,1", "--duration", "3s", "--warmup", "0s", "--out-file", "p.csv")
		out, err := cmd.CombinedOutput()
		less := strings.Contains(string(out), "the difference is too small to measure") // a negative difference, by chance
		if err != nil || strings.Contains(string(out), "load_ms") && !less {
			t.Fatalf("%v\n%s", err, out)
		}
		rows, err := cli.Load(&cli.Env{}, filepath.Join(r.work, "p.csv"), profile.Read)
		if err != nil || len(rows) != 2 {
			t.Fatalf("%d rows, %v; want 2", len(rows), err)
		}
		for _, row := range rows {
			t.Logf("load_ms %v, warm_ms %v, cold_ms %v", row.LoadMS, row.WarmMS, row.ColdMS)
			if row.LoadMS != rows[0].LoadMS || row.GPUMemMiB < 512 {
				t.Errorf("row %+v, want LoadMS %v and GPUMemMiB at least 512", row, rows[0].LoadMS)
			}
		}
		if rows[0].LoadMS >= least/2 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("load_ms %v, want %v or more", rows[0].LoadMS, least/2)
		}
	}
}

// TestGoodputOfTheExample: each request of the example takes 20 ms of the GPU, so no rate keeps p95 within 1 ms. The
// goodput for 300 ms depends on the load of the host and may be unknown, but cannot exceed the throughput of the GPU.
func TestGoodputOfTheExample(t *testing.T) {
	t.Parallel() // it uses a separate run directory
	r := newReal(t).serve()
	for _, slo := range []string{"1ms", "300ms"} {
		cmd := r.command("--goodput", "--slo", slo, "--sm", "50", "--quota", "1", "--duration", "500ms", "--warmup", "0s", "--out-file", "p.csv", "-v")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		rows, err := cli.Load(&cli.Env{}, filepath.Join(r.work, "p.csv"), profile.Read)
		if err != nil || len(rows) != 1 {
			t.Fatalf("%d rows, %v; want 1", len(rows), err)
		}
		row := rows[0]
		t.Logf("goodput %v ± %v of %v rps within %v ms, at rest %v ms, unstable %v\n%s",
			row.GoodputRPS, row.GoodputCIRPS, row.ThroughputRPS, row.SLOMS, row.IdleP95MS, row.Unstable, out)
		most := 1000 / gpuMS(row)
		switch {
		case slo == "1ms" && (!row.GoodputKnown || row.GoodputRPS != 0 || row.SLOMS != 1):
			t.Errorf("within 1 ms: %+v", row)
		case row.IdleP95MS > 0 && row.IdleP95MS < gpuMS(row):
			t.Errorf("at rest: %+v", row)
		case row.GoodputKnown == (row.Unstable > 0), row.GoodputRPS > 1.2*most:
			t.Errorf("within %s: %+v", slo, row)
		}
	}
}

// TestGraphOfKernels: an executor of the kernel daemon runs a graph of kernels. It counts as part of the measured
// function, so that the GPU has no other users. For a function of another kind, it counts as another user, and so
// does another client of the daemon while the executor works for it.
func TestGraphOfKernels(t *testing.T) {
	t.Parallel() // each case uses a separate run directory
	for name, flags := range map[string][]string{"whole": nil, "slice": {"--sm", "100", "--quota", "1"}} {
		t.Run(name, func(t *testing.T) { testGraphOfKernels(t, flags) })
	}
}

func testGraphOfKernels(t *testing.T, flags []string) {
	r := newReal(t).serve()
	client := r.kernels(flags...)
	file := r.write("function.yaml", "name: spin\nkind: kernels\nrequest: request.json\ntenant: bench\n")
	const request = `{"version":1,"modules":{"m":{"ptx":"// gfaas-sim: spin block_us=1000\n.version 7.0\n.target sm_50\n.address_size 64\n.visible .entry spin()\n{\nret;\n}\n"}},"buffers":{},
"kernels":[{"module":"m","name":"spin","grid":[1,1,1],"block":[1,1,1],"args":[]}]}`
	r.write("request.json", request)
	args := []string{"--sm", "50", "--quota", "1", "--duration", "300ms", "--warmup", "0s", "--out-file", "p.csv"}
	out, err := r.profile(file, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	rows, err := cli.Load(&cli.Env{}, filepath.Join(r.work, "p.csv"), profile.Read)
	if err != nil || len(rows) != 1 || rows[0].Errors > 0 || rows[0].ThroughputRPS <= 0 {
		t.Fatalf("%+v, %v", rows, err)
	}
	out, err = r.command(args...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "cannot measure: other programs use the GPUs: ") {
		t.Errorf("another function beside the executor: %v\n%s", err, out)
	}

	ctx, leave := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		var answer any
		left <- client.Run(ctx, []byte(strings.Replace(request, `"version":1`, `"version":1,"iterations":1000000`, 1)), &answer)
	}()
	r.eventually("the other client's request runs", func() bool {
		var stats struct{ GPUs []struct{ Client string } }
		return client.Stats(t.Context(), &stats) == nil && len(stats.GPUs) == 1 && stats.GPUs[0].Client == "other"
	})
	out, err = r.profile(file, args...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "other programs use the GPUs: client other of the kernel daemon") {
		t.Errorf("a graph beside another client's: %v\n%s", err, out)
	}
	leave()
	<-left
}

// write writes a file in the command's working directory.
func (r *real) write(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.work, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// kernels starts the kernel daemon and returns a client of it.
func (r *real) kernels(flags ...string) *kerneld.Client {
	r.t.Helper()
	cmd := exec.Command(filepath.Join(r.build, "bin/gfaas-kerneld"), append([]string{"--gpu", "sim"}, flags...)...)
	cmd.Env = r.env()
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill() // without waiting for running work
		_ = cmd.Wait()
	})
	client := kerneld.Dial(kerneld.Socket(r.runDir), "other")
	r.t.Cleanup(client.Close)
	r.eventually("the kernel daemon answers", func() bool {
		var stats any
		return client.Stats(context.Background(), &stats) == nil
	})
	return client
}
