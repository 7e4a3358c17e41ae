package process_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/logs/logstest"
	"github.com/gfaas/gfaas/pkg/adapter/process"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// A Runtime of the same run directory in another process finds an instance whose handle was
// lost; other Runtimes do not.
func TestFind(t *testing.T) {
	config := process.Config{RunDir: t.TempDir(), Libs: buildLibs(t), Keeper: logstest.Keeper}
	handle, err := process.New(config).Start(t.Context(), instance.Spec{
		ID: "lost-0", Function: "lost", Command: []string{"sleep", "600"}, Dir: "/", GPUs: []string{"sim"}, Secret: "s",
		Slice: gpu.Slice{SMPct: 100, QuotaRequest: 1, QuotaLimit: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	later := process.New(config)
	defer func() {
		if err := later.Stop(t.Context(), handle, time.Minute); err != nil {
			t.Error(err)
		}
	}()
	// Until it executes sleep, it has the environment of this test.
	deadline := time.Now().Add(time.Minute)
	found, err := later.Find(t.Context(), "lost-0")
	for err == nil && len(found) == 0 && time.Now().Before(deadline) {
		found, err = later.Find(t.Context(), "lost-0")
	}
	if err != nil || len(found) != 1 || found[0].Handle.PID != handle.PID || found[0].Handle.StartTime != handle.StartTime {
		t.Fatalf("Find = %+v, %v; want %+v", found, err, handle)
	}
	if other, err := later.Find(t.Context(), "lost-1"); err != nil || len(other) != 0 {
		t.Errorf("Find of another id = %+v, %v; want none", other, err)
	}
	elsewhere := process.New(process.Config{RunDir: t.TempDir()})
	if other, err := elsewhere.Find(t.Context(), "lost-0"); err != nil || len(other) != 0 {
		t.Errorf("Find in another run directory = %+v, %v; want none", other, err)
	}
	if os.Geteuid() == 0 {
		stranger := exec.Command("sleep", "600")
		stranger.Env = []string{"GFAAS_INSTANCE=lost-1", "GFAAS_FUNCTION=lost", "GFAAS_SOCKET=" + filepath.Join(config.RunDir, "client", "token.sock"), "PORT=1"}
		stranger.Dir = "/"
		stranger.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if err := stranger.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
		for env := map[string]string{}; env["PORT"] == "" && time.Now().Before(deadline); {
			env, _ = procfs.Environ(stranger.Process.Pid)
		}
		if other, err := later.Find(t.Context(), ""); err != nil || len(other) != 1 || other[0].ID != "lost-0" {
			t.Errorf("Find where another user's process claims to be an instance: got %+v, %v; want lost-0 only", other, err)
		}
	}
	if err := later.Stop(t.Context(), found[0].Handle, time.Minute); err != nil {
		t.Fatal(err)
	}
	if found, err := later.Find(t.Context(), "lost-0"); err != nil || len(found) != 0 {
		t.Errorf("after Stop: %+v, %v; want none", found, err)
	}
}
