package hooktest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/mps/mpstest"
)

// gpuCheck is the folder of gpu-check, as make would fill it, and the folder
// that the script may write to.
type gpuCheck struct{ dir, temp string }

// newGPUCheck fills it; programs, by name, are scripts in place of the check
// programs.
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
	for name, to := range links {
		if err := os.Symlink(filepath.Join(build, to), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, folder := range []string{g.temp, filepath.Join(dir, "check")} {
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

// ends waits for the script and checks that it leaves nothing behind.
func (g gpuCheck) ends(t *testing.T, err error, status int) {
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
	if left, err := os.ReadDir(g.temp); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestGPUCheck runs the script on the simulated GPU.
func TestGPUCheck(t *testing.T) {
	g := newGPUCheck(t, nil)
	out, err := g.command("routes").CombinedOutput()
	g.ends(t, err, 0)
	if n := strings.Count(string(out), "routes: "); n != len(ways) || strings.Contains(string(out), "FAILED") {
		t.Errorf("%d rows, want %d:\n%s", n, len(ways), out)
	}
}

// TestGPUCheckSaysWhy: what fails makes the script fail, and it says all that
// there is to know about it.
func TestGPUCheckSaysWhy(t *testing.T) {
	g := newGPUCheck(t, map[string]string{
		"sim_bad":    "echo 'not ok 2 - the sky is green'; echo '# sky.c:7'; echo 'ok 3 - grass'; echo 1..3; exit 1\n",
		"sim_crash":  "echo 'ok 1 - so far'; kill -SEGV $$\n",
		"sim_good":   "exit 0\n",
		"sim_lacks":  "exit 77\n",
		"sim_silent": "echo nothing works >&2; exit 3\n",
	})
	out, err := g.command("driver").CombinedOutput()
	g.ends(t, err, 1)
	for _, want := range []string{
		"driver: sim_bad FAILED: 2 - the sky is green\n", "driver: sim_crash FAILED: crashed\n", "driver: sim_good ok\n",
		"driver: sim_lacks not in this driver\n", "driver: sim_silent FAILED: nothing works\n",
		"What was wrong:\n", "(status 1)\n not ok 2 - the sky is green\n # sky.c:7\n\n", "(status 139)\n ok 1 - so far\n",
	} {
		if !strings.Contains(squeezed(string(out)), want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
}

// squeezed has one space wherever there were several.
func squeezed(text string) string {
	for strings.Contains(text, "  ") {
		text = strings.ReplaceAll(text, "  ", " ")
	}
	return text
}

// TestGPUCheckTime: what does not fit into its time is left out, and not wrong.
func TestGPUCheckTime(t *testing.T) {
	g := newGPUCheck(t, map[string]string{"sim_good": "exit 0\n"})
	cmd := g.command("driver", "routes", "shares", "cost")
	cmd.Env = append(cmd.Env, "GPU_CHECK_SECONDS=0")
	out, err := cmd.CombinedOutput()
	g.ends(t, err, 7)
	if rows := strings.Count(string(out), "not run: no time left"); rows != 1+len(ways)+4+3 || strings.Contains(string(out), "FAILED") {
		t.Errorf("%d rows:\n%s", rows, out)
	}
}

// TestGPUCheckStopped: a signal ends the script, what it runs and the daemons
// that came of it, MPS too.
func TestGPUCheckStopped(t *testing.T) {
	mpstest.Install(t)
	g := newGPUCheck(t, map[string]string{"sim_waits": `
		export CUDA_MPS_PIPE_DIRECTORY=$TMPDIR/pipe
		mkdir "$CUDA_MPS_PIPE_DIRECTORY"
		nvidia-cuda-mps-control -d
		sleep 600 &
		echo $! "$(cat "$CUDA_MPS_PIPE_DIRECTORY"/*.pid)" >"${0%/*}/pids.new"
		mv "${0%/*}/pids.new" "${0%/*}/pids"
		wait
	`})
	cmd := g.command("driver")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &host{t: t}
	var pids []string
	h.eventually("it runs", func() bool {
		text, _ := os.ReadFile(filepath.Join(g.dir, "check/pids"))
		pids = strings.Fields(string(text))
		return len(pids) == 2
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	g.ends(t, cmd.Wait(), 143)
	t.Logf("after %v", time.Since(began))
	for _, pid := range pids {
		h.eventually("process "+pid+" is gone", func() bool {
			line, _ := os.ReadFile("/proc/" + pid + "/cmdline") // empty when nobody has asked how it ended
			return len(line) == 0
		})
	}
}
