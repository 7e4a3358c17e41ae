package process_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/job"
	"github.com/gfaas/gfaas/pkg/adapter/logs/logstest"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/process"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/procfs"
	"github.com/gfaas/gfaas/pkg/procfs/procfstest"
)

// superviseJob is the first argument of the test binary as the supervisor of a job.
const superviseJob = "__supervise-job"

func TestMain(m *testing.M) {
	if len(os.Args) > 5 && os.Args[1] == superviseJob {
		restarts, err := strconv.Atoi(os.Args[3])
		if err != nil {
			panic(err)
		}
		os.Exit(job.Supervise(instance.Job{MaxRestarts: restarts}, os.Getenv(job.Variable), os.Args[2], os.Args[5:], os.Stderr))
	}
	os.Exit(logstest.Main(m))
}

func supervisor() ([]string, error) {
	self, err := os.Executable()
	return []string{self, superviseJob}, err
}

func TestConformance(t *testing.T) {
	program, libs, dir := instancetest.BuildProbe(t), buildLibs(t), t.TempDir()
	instancetest.Run(t, instancetest.Suite{
		New: func(*testing.T) ports.Runtime {
			return process.New(process.Config{RunDir: dir, Libs: libs, Keeper: logstest.Keeper, Supervisor: supervisor})
		},
		Spec: func(t *testing.T) instance.Spec {
			return instance.Spec{
				Command: []string{program}, GPUs: []string{"sim"}, Slice: gpu.Slice{SMPct: 24.5},
				LogPath: filepath.Join(t.TempDir(), "log"),
			}
		},
	})
}

// Stop leaves a process alone that has reused the PID.
func TestReusedPID(t *testing.T) {
	program, libs, dir := instancetest.BuildProbe(t), buildLibs(t), t.TempDir()
	r := process.New(process.Config{RunDir: dir, Libs: libs, Keeper: logstest.Keeper})
	h := start(t, r, program)
	stranger := h
	stranger.StartTime--
	if state, err := r.State(t.Context(), stranger); err != nil || state.Running {
		t.Errorf("State of an earlier process with that PID = %+v, %v, want not running", state, err)
	}
	if err := r.Stop(t.Context(), stranger, 0); err != nil {
		t.Errorf("Stop: %v", err)
	}
	if state, err := r.State(t.Context(), h); err != nil || !state.Running {
		t.Errorf("State of the process = %+v, %v, want running", state, err)
	}
	if err := r.Stop(t.Context(), instance.Handle{PID: 1}, 0); err == nil {
		t.Error("Stop of PID 1: got no error, want one")
	}
}

// Stop ends a worker although its leader has ended and its environment is empty because its
// title overwrote it.
func TestStopWithoutLeader(t *testing.T) {
	program := filepath.Join(t.TempDir(), "titled")
	instancetest.Compile(t, program, []byte(`
		#include <string.h>
		#include <unistd.h>
		extern char **environ;
		int main(void) {
			if (fork() == 0)
				for (char **at = environ; *at; at++)
					memset(*at, 0, strlen(*at));
			for (;;)
				pause();
		}`))
	r := process.New(process.Config{RunDir: t.TempDir(), Libs: buildLibs(t), Keeper: logstest.Keeper})
	h := start(t, r, program)
	var worker int
	for deadline := time.Now().Add(time.Minute); worker == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		all, err := procfs.Stats()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if env, err := procfs.Environ(s.PID); s.Session == h.PID && s.PID != h.PID && len(env) == 0 && err == nil {
				worker = s.PID
			}
		}
	}
	if worker == 0 {
		t.Fatal("the session has no process besides its leader after a minute, want the worker")
	}
	defer func() { _ = syscall.Kill(worker, syscall.SIGKILL) }()
	if err := syscall.Kill(h.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Wait(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(t.Context(), h, time.Minute); err != nil || procfs.Alive(worker) {
		t.Errorf("Stop: %v, and the worker is alive: %v; want neither an error nor a worker", err, procfs.Alive(worker))
	}
}

// A process that cannot be read for lack of a descriptor has not ended.
func TestWithoutFiles(t *testing.T) {
	self, err := procfs.Read(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	r := process.New(process.Config{RunDir: t.TempDir()})
	h := instance.Handle{Runtime: instance.Process, PID: self.PID, StartTime: self.Start}
	var errs [4]error
	procfstest.WithoutFiles(t, func() {
		_, errs[0] = r.State(t.Context(), h)
		_, errs[1] = r.Wait(t.Context(), h)
		errs[2] = r.Stop(t.Context(), h, 0)
		_, errs[3] = r.Find(t.Context(), "")
	})
	for n, err := range errs {
		if !errors.Is(err, syscall.EMFILE) {
			t.Errorf("operation %d without free descriptors: got the error %v, want %v", n, err, syscall.EMFILE)
		}
	}
}

func TestPrivateEnvironment(t *testing.T) {
	t.Setenv("GFAAS_SECRET", "the starter's")
	t.Setenv("NOTIFY_SOCKET", "/run/starter")
	t.Setenv("LD_LIBRARY_PATH", "/opt/mine")
	program, libs, dir := instancetest.BuildProbe(t), buildLibs(t), t.TempDir()
	r := process.New(process.Config{RunDir: dir, Libs: libs, Keeper: logstest.Keeper})
	h := start(t, r, program)
	for name, want := range map[string]string{
		"GFAAS_SECRET": "mine", "NOTIFY_SOCKET": "unset", "EXTRA": "1",
		"LD_LIBRARY_PATH": libs.SimDir + ":/opt/mine",
		"LD_PRELOAD":      libs.Hook + ":libc.so.6",
		"GFAAS_SOCKET":    filepath.Join(dir, "client", "token.sock"),
	} {
		if got := probeVariable(t, h.Address, name); got != want {
			t.Errorf("%s = %q in the instance, want %q", name, got, want)
		}
	}
}

func TestStartErrors(t *testing.T) {
	libs, dir := buildLibs(t), t.TempDir()
	program := instancetest.BuildProbe(t)
	slice := gpu.Slice{SMPct: 100}
	for name, c := range map[string]struct {
		libs preload.Libs
		spec instance.Spec
	}{
		"no command":     {libs, instance.Spec{ID: "a", GPUs: []string{"sim"}, Slice: slice}},
		"no GPU":         {libs, instance.Spec{ID: "a", Command: []string{program}, Slice: slice}},
		"mixed GPUs":     {libs, instance.Spec{ID: "a", Command: []string{program}, GPUs: []string{"0", "sim"}, Slice: slice}},
		"no hook":        {preload.Libs{}, instance.Spec{ID: "a", Command: []string{program}, GPUs: []string{"sim"}, Slice: slice}},
		"no log folder":  {libs, instance.Spec{ID: "a", Command: []string{program}, GPUs: []string{"sim"}, Slice: slice, LogPath: "/dev/null/log"}},
		"no simulation":  {preload.Libs{Hook: libs.Hook}, instance.Spec{ID: "a", Command: []string{program}, GPUs: []string{"sim"}, Slice: slice}},
		"no share of SM": {libs, instance.Spec{ID: "a", Command: []string{program}, GPUs: []string{"sim"}}},
	} {
		t.Run(name, func(t *testing.T) {
			r := process.New(process.Config{RunDir: dir, Libs: c.libs, Keeper: logstest.Keeper})
			if h, err := r.Start(t.Context(), c.spec); err == nil {
				_ = r.Stop(context.Background(), h, 0)
				t.Error("Start: got no error, want one")
			}
		})
	}
}

// A relative path of a command is relative to the starter's folder, not to the command's.
func TestFolder(t *testing.T) {
	program, dir := instancetest.BuildProbe(t), t.TempDir()
	t.Chdir(filepath.Dir(program))
	r := process.New(process.Config{RunDir: "run", Libs: buildLibs(t), Keeper: logstest.Keeper})
	h, err := r.Start(t.Context(), instance.Spec{
		ID: "folder", Command: []string{"./" + filepath.Base(program)}, Dir: dir,
		GPUs: []string{"sim"}, Slice: gpu.Slice{SMPct: 100},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop(context.Background(), h, time.Second) })
	if !filepath.IsAbs(h.LogPath) {
		t.Errorf("LogPath = %q, want an absolute path", h.LogPath)
	}
	if socket := probeVariable(t, h.Address, "GFAAS_SOCKET"); !filepath.IsAbs(socket) {
		t.Errorf("GFAAS_SOCKET = %q, want an absolute path", socket)
	}
	if got, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", h.PID)); err != nil || got != dir {
		t.Errorf("working directory of the instance: got %q, %v; want %q", got, err, dir)
	}
}

func start(t *testing.T, r *process.Runtime, program string) instance.Handle {
	t.Helper()
	h, err := r.Start(t.Context(), instance.Spec{
		ID: "one", Secret: "mine", Command: []string{program}, GPUs: []string{"sim"}, Slice: gpu.Slice{SMPct: 100},
		Env: map[string]string{"EXTRA": "1", "LD_PRELOAD": "libc.so.6"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop(context.Background(), h, time.Second) })
	return h
}
