package process

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/logs/logstest"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
)

// The exit status of an instance is known until Stop and then forgotten, since a daemon
// starts any number of instances.
func TestStoppedChildIsForgotten(t *testing.T) {
	hook, simDir := instancetest.BuildLibs(t)
	r := New(Config{RunDir: t.TempDir(), Libs: preload.Libs{Hook: hook, SimDir: simDir}, Keeper: logstest.Keeper})
	for _, command := range [][]string{{"sleep", "600"}, {"sh", "-c", "exit 3"}} {
		h, err := r.Start(t.Context(), instance.Spec{
			ID: "f-0", Command: command, LogPath: filepath.Join(t.TempDir(), "log"), GPUs: []string{"sim"}, Slice: gpu.Slice{SMPct: 100},
		})
		if err != nil {
			t.Fatal(err)
		}
		if command[0] == "sh" {
			<-r.child(h).reaped
			if state, err := r.State(t.Context(), h); err != nil || state.ExitCode != 3 {
				t.Errorf("State = %+v, %v, want exit code 3", state, err)
			}
		}
		if err := r.Stop(t.Context(), h, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.children) != 0 {
		t.Errorf("children after the stop: got %d, want 0", len(r.children))
	}
}
