package hooktest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/mps/mpstest"
)

// gpuCheck holds the folder of gpu-check, with the contents that make gives it, and the
// folder that the script may write to.
type gpuCheck struct{ dir, temp string }

// newGPUCheck creates the folders. The programs map gives scripts, by name, that
// replace check programs.
func newGPUCheck(t *testing.T, programs map[string]string) gpuCheck {
	t.Helper()
	dir, err := os.MkdirTemp("", "gc") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	g := gpuCheck{dir, filepath.Join(dir, "tmp")}
	links := map[string]string{"bin": "bin", "lib": "lib", "victim": "victim", "check": "check", "run.sh": "../hook/gpucheck/run.sh"}
	if programs != nil {
		delete(links, "check")
	}
	if programs["../victim/saturate"] != "" {
		delete(links, "victim")
	}
	for name, to := range links {
		if err := os.Symlink(filepath.Join(build, to), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, folder := range []string{g.temp, filepath.Join(dir, "check"), filepath.Join(dir, "victim")} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range programs {
		if err := os.WriteFile(filepath.Join(dir, "check", name), []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func (g gpuCheck) command(args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(g.dir, "run.sh"), append([]string{"--sim"}, args...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+g.temp)
	return cmd
}

// withMPS returns the script's command with a PATH on which MPS is installed.
func (g gpuCheck) withMPS(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	_, search := mpstest.Write(t)
	cmd := g.command(args...)
	cmd.Env = append(cmd.Env, "PATH="+search)
	return cmd
}

// checkExit checks the script's exit status, and that it leaves no processes and files
// behind.
func (g gpuCheck) checkExit(t *testing.T, err error, status int) {
	t.Helper()
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if got != status {
		t.Errorf("exit %d, want %d", got, status)
	}
	if leftovers, err := os.ReadDir(g.temp); err != nil || len(leftovers) != 0 {
		t.Errorf("temporary files at the end: got %v, %v; want none", leftovers, err)
	}
}

// TestGPUCheck runs the script on the simulated GPU.
func TestGPUCheck(t *testing.T) {
	t.Parallel()
	g := newGPUCheck(t, nil)
	out, err := g.command("routes").CombinedOutput()
	g.checkExit(t, err, 0)
	if n := strings.Count(string(out), "routes: "); n != len(variants) || strings.Contains(string(out), "FAILED") {
		t.Errorf("rows of routes: got %d, want %d and none failed:\n%s", n, len(variants), out)
	}
}

// TestGPUCheckKernels checks that the kernel daemon's rows have their figures, and that
// a wrong product is detected.
func TestGPUCheckKernels(t *testing.T) {
	t.Parallel()
	g := newGPUCheck(t, nil)
	out, err := g.command("kernels").CombinedOutput()
	g.checkExit(t, err, 0)
	for _, row := range []string{
		`kernels: sgemm 517 x 389 x 259 is right +ok`, `kernels: sgemm of 128, Gflop/s +[0-9.]+`, `kernels: of all that the card could do +[0-9.]+`,
		`kernels: 1 a request, of a bare loop +[0-9.]+`, `kernels: 100 a request, of a bare loop +[0-9.]+`,
		`kernels: second request of 16 MiB, of the first +[0-9.]+`,
	} {
		if !regexp.MustCompile(`(?m)^` + row + `$`).Match(out) {
			t.Errorf("report: got no row %s, want it, in\n%s", row, out)
		}
	}
	dir := t.TempDir()
	matrix := func(args ...string) (string, error) {
		cmd := exec.Command(filepath.Join(build, "check", "matrix"), append(args, dir)...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(build, "lib", "sim"))
		text, err := cmd.CombinedOutput()
		return string(text), err
	}
	if text, err := matrix("make", "2", "2", "2", "1"); err != nil {
		t.Fatalf("make the matrices: %v: %s", err, text)
	}
	if err := os.WriteFile(filepath.Join(dir, "C.bin"), make([]byte, 16), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := matrix("right", "2", "2", "2"); err == nil || !strings.HasPrefix(text, "not ok C is 0 at row 0, column 0, want ") {
		t.Errorf("wrong product: got %v, %s; want a failure that names the first wrong element", err, text)
	}
}

// TestGPUCheckModels checks the model daemon's rows, and that a write which is not
// refused would be detected.
func TestGPUCheckModels(t *testing.T) {
	t.Parallel()
	g := newGPUCheck(t, nil)
	out, err := g.command("models").CombinedOutput()
	g.checkExit(t, err, 0)
	for _, row := range []string{
		`models: 64 MiB to the GPU +ok`, `models: and back, byte for byte +ok`, `models: mapped by 4 processes at once +ok`,
		`models: a write to them +error [1-9][0-9]* for a copy, [1-9][0-9]* for a memset`, `models: which changed nothing +ok`,
		`models: beside --mem 16MiB +ok`, `models: mapped when the daemon is killed +ok`,
	} {
		if !regexp.MustCompile(`(?m)^` + row + `$`).Match(out) {
			t.Errorf("report: got no row %s, want it, in\n%s", row, out)
		}
	}
}

// TestGPUCheckSaysWhy checks that a failing program makes the script fail, with a full
// report of the failure.
func TestGPUCheckSaysWhy(t *testing.T) {
	t.Parallel()
	g := newGPUCheck(t, map[string]string{
		"sim_bad":    "echo 'not ok 2 - the sky is green'; echo '# sky.c:7'; echo 'ok 3 - grass'; echo 1..3; exit 1\n",
		"sim_crash":  "echo 'ok 1 - so far'; kill -SEGV $$\n",
		"sim_good":   "exit 0\n",
		"sim_lacks":  "exit 77\n",
		"sim_silent": "echo nothing works >&2; exit 3\n",
		"sim_other":  "echo 'ok 1 - cuX() gives 1'; echo '# differs: cuX() gives 1: 2 (TWO)'\n",
	})
	report := t.TempDir()
	cmd := g.command("driver")
	cmd.Env = append(cmd.Env, "OUT="+report)
	out, err := cmd.CombinedOutput()
	g.checkExit(t, err, 1)
	if text, err := os.ReadFile(filepath.Join(report, "gpu-check.md")); err != nil || string(text) != "# gpu-check\n\n```\n"+string(out)+"```\n" {
		t.Errorf("report in gpu-check.md: %v; want the output of the script, got\n%s", err, text)
	}
	if last := "\n\ngpu-check: 3 FAILED: driver: sim_bad; driver: sim_crash; driver: sim_silent\n"; !strings.HasSuffix(string(out), last) {
		t.Errorf("want %q at the end:\n%s", last, out)
	}
	for _, want := range []string{
		"driver: sim_bad FAILED: 2 - the sky is green\n", "driver: sim_crash FAILED: crashed\n", "driver: sim_good ok\n",
		"driver: sim_lacks not in this driver\n", "driver: sim_silent FAILED: nothing works\n",
		"driver: sim_other ok, 1 not as simulated\n", "may:\n driver: sim_other: cuX() gives 1: 2 (TWO)\n",
		"What was wrong:\n", "(status 1)\n not ok 2 - the sky is green\n # sky.c:7\n\n", "(status 139)\n ok 1 - so far\n",
	} {
		if !strings.Contains(collapseSpaces(string(out)), want) {
			t.Errorf("report: got no %q, want it, in\n%s", want, out)
		}
	}
}

// TestGPUCheckRoutes checks that a call that ends the program, in whatever way, does
// not hide the calls after it.
func TestGPUCheckRoutes(t *testing.T) {
	t.Parallel()
	g := newGPUCheck(t, map[string]string{"route": `
		[ "$1" = link ] || { echo done; exit 0; }
		case $2 in
		all) echo call one; echo ok one 5; echo call two; kill -SEGV $$ ;;
		after:two) echo call three; echo three is broken >&2; exit 1 ;;
		after:three) echo call four; echo not ok four: refused, error 9; echo call five; echo ok five 5; echo done; exit 1 ;;
		esac
	`})
	out, err := g.command("routes").CombinedOutput()
	g.checkExit(t, err, 1)
	text := collapseSpaces(string(out))
	for _, want := range []string{
		"routes: link FAILED: two: ended the program (status 139): \n", "not ok two: ended the program (status 139)",
		"not ok three: ended the program (status 1): three is broken\n", "not ok four: refused, error 9\n", "routes: dlsym 0 ok\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("report: got no %q, want it, in\n%s", want, out)
		}
	}
}

// TestGPUCheckFigures checks that shares are reported as medians of three rounds, and
// SM shares as the remaining throughput.
func TestGPUCheckFigures(t *testing.T) {
	t.Parallel()
	g := newGPUCheck(t, map[string]string{"../victim/saturate": `
		[ $# -eq 6 ] && ms=$((200 / CUDA_MPS_ACTIVE_THREAD_PERCENTAGE)) || ms=1
		n=$(ls "$0".turn.* 2>/dev/null | wc -l)
		: >"$0.turn.$$"
		echo "{\"launches\":$((n + 100)),\"kernel_ms\":$ms.000,\"share\":0.25000}"
	`, "memory": "echo 1024 of 1024 MiB\n"})
	out, err := g.withMPS(t, "shares", "mps").CombinedOutput()
	g.checkExit(t, err, 0)
	for _, want := range []string{
		`shares: alone, quota 0.3:0.8 +0.25000`, `shares: 0.1 and 0.9 +0\.(49|50)\d\d, 0\.(49|50)\d\d\n`,
		`shares: 0.2, 0.3 and 0.5 +0\.3\d\d\d, 0\.3\d\d\d, 0\.3\d\d\d\n`,
		`fill SMs at 100% +2.000 ms, 1.0000 of`, `fill SMs at 24% +8.000 ms, 0.2500 of`, `two at 60%, time of kernels per time +0.25000, 0.25000\n`,
	} {
		if !regexp.MustCompile(want).Match(out) {
			t.Errorf("report: got no %q, want it, in\n%s", want, out)
		}
	}
	if turns, _ := filepath.Glob(filepath.Join(g.dir, "victim/saturate.turn.*")); len(turns) != 2+3*(2+3)+4+2*2 {
		t.Errorf("runs of victim/saturate: got %d, want %d", len(turns), 2+3*(2+3)+4+2*2)
	}
}

// TestGPUCheckTorch checks that PyTorch's measurements count even if a later step
// failed, and that a feature which also fails without gfaas is not counted against
// gfaas.
func TestGPUCheckTorch(t *testing.T) {
	t.Parallel()
	g := newGPUCheck(t, map[string]string{"python": `
		case $* in
		*print*) echo 2.11 ;;
		*total) echo 8192 ;;
		*fill) [ -z "$PYTORCH_CUDA_ALLOC_CONF" ] && echo 4096 || echo 4097 ;;
		*right) echo right ;;
		*compile*) echo "RuntimeError: no Triton" >&2; echo compile:512 none ;;
		*) echo eager:512 100.0; echo graph:512 none; [ -z "$LD_PRELOAD" ] || exit 1 ;;
		esac
	`})
	cmd := g.command("torch")
	cmd.Env = append(cmd.Env, "GPU_CHECK_PYTHON=/nowhere/python "+filepath.Join(g.dir, "check/python"))
	out, err := cmd.CombinedOutput()
	g.checkExit(t, err, 1)
	text := collapseSpaces(string(out))
	for _, want := range []string{
		"torch 2.11\n", "OutOfMemoryError, default 4096\n", "OutOfMemoryError, expandable_segments:True FAILED", "pools: right ok\n",
		"torch: eager:512, products a second, bare 100.0\n", "torch: eager:512, kept under the library 1.0000\n",
		"torch: graph:512 does not work here, gfaas or not\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("report: got no %q, want it, in\n%s", want, out)
		}
	}
}

// TestGPUCheckHeadline checks that concurrent loads wait for each other, that the
// results of eight loads are added up, and that a failing load has no figure.
func TestGPUCheckHeadline(t *testing.T) {
	t.Parallel()
	g := newGPUCheck(t, map[string]string{"python": `
		[ "$1" != -c ] || { echo 2.11; exit; }
		load=$2 gate=$4 # loads.py LOAD SECONDS FOLDER
		: >"$gate/warm.$$"
		until [ -e "$gate/go" ]; do sleep 0.1; done
		echo "$(ls "$gate" | grep -c warm)" >>"$0.together"
		[ "$load" != bert ] || { echo no bert today >&2; exit 1; }
		[ "${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-100}" = 100 ] && echo $load 10.0 || echo $load 80.0
	`})
	cmd := g.withMPS(t, "headline")
	cmd.Env = append(cmd.Env, "GPU_CHECK_PYTHON="+filepath.Join(g.dir, "check/python"))
	out, err := cmd.CombinedOutput()
	g.checkExit(t, err, 1)
	text := collapseSpaces(string(out))
	for _, want := range []string{
		"resnet, one alone and bare, requests/s 10.0\n", "resnet, kept under the library 1.0000\n", "resnet, eight at quota 0.125 80.0\n",
		"resnet, eight at 12% of the SMs 640.0\n", "resnet, space over time 8.0000\n",
		"resnet, space over time, of the paper's 4.16 1.9231\n", "gnmt, space over time, of the paper's 1.52 5.2632\n", "bert, one alone and bare, requests/s FAILED: no bert today\n",
		"sum of all, space over time FAILED",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("report: got no %q, want it, in\n%s", want, out)
		}
	}
	together, err := os.ReadFile(filepath.Join(g.dir, "check/python.together"))
	if want := strings.Repeat("1\n", 2) + strings.Repeat("8\n", 16); err != nil || !strings.HasPrefix(string(together), want) {
		t.Errorf("programs side by side: got %q, %v; want %q first", together, err, want)
	}
}

// collapseSpaces replaces runs of spaces by single spaces.
func collapseSpaces(text string) string {
	for strings.Contains(text, "  ") {
		text = strings.ReplaceAll(text, "  ", " ")
	}
	return text
}

// TestGPUCheckTime checks that a check that does not fit into the remaining time is
// omitted, and is not an error.
func TestGPUCheckTime(t *testing.T) {
	t.Parallel()
	g := newGPUCheck(t, map[string]string{"sim_good": "exit 0\n"})
	cmd := g.command("driver", "routes", "shares", "cost")
	cmd.Env = append(cmd.Env, "GPU_CHECK_SECONDS=0")
	out, err := cmd.CombinedOutput()
	g.checkExit(t, err, 7)
	if rows := strings.Count(string(out), "not run: no time left"); rows != 1+len(variants)+4+3 || strings.Contains(string(out), "FAILED") {
		t.Errorf("checks without time: got %d, want %d and none failed, in\n%s", rows, 1+len(variants)+4+3, out)
	}
}

// TestGPUCheckStopped checks that a signal ends the script, the programs that it runs,
// and the daemons that these started, MPS included.
func TestGPUCheckStopped(t *testing.T) {
	t.Parallel()
	g := newGPUCheck(t, map[string]string{"sim_waits": `
		export CUDA_MPS_PIPE_DIRECTORY=$TMPDIR/pipe
		mkdir "$CUDA_MPS_PIPE_DIRECTORY"
		nvidia-cuda-mps-control -d
		sleep 600 &
		echo $! "$(cat "$CUDA_MPS_PIPE_DIRECTORY"/*.pid)" >"${0%/*}/pids.new"
		mv "${0%/*}/pids.new" "${0%/*}/pids"
		wait
	`})
	cmd := g.withMPS(t, "driver")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &host{t: t}
	var pids []string
	h.eventually("the script has started its program and MPS", func() bool {
		text, _ := os.ReadFile(filepath.Join(g.dir, "check/pids"))
		pids = strings.Fields(string(text))
		return len(pids) == 2
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	g.checkExit(t, cmd.Wait(), 143)
	t.Logf("after %v", time.Since(started))
	for _, pid := range pids {
		h.eventually("process "+pid+" has ended", func() bool {
			line, _ := os.ReadFile("/proc/" + pid + "/cmdline") // empty for a zombie
			return len(line) == 0
		})
	}
}
