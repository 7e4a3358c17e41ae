package process_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/logs/logstest"
	"github.com/gfaas/gfaas/pkg/adapter/mps"
	"github.com/gfaas/gfaas/pkg/adapter/mps/mpstest"
	"github.com/gfaas/gfaas/pkg/adapter/process"
	"github.com/gfaas/gfaas/pkg/gpu"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// Stop ends the GPU work of an MPS client before the client dies by a signal, and only
// then: a client that handles SIGTERM ends undisturbed.
func TestStopTerminatesClients(t *testing.T) {
	const server = 4<<20 + 1 // beyond the range of PIDs
	program, libs := mpstest.Client(t), buildLibs(t)
	for name, c := range map[string]struct {
		sigterm   string // the client's reaction
		cancelled bool
		hangs     bool // the MPS daemon does not answer
		outside   bool // no MPS daemon is running
		want      int
	}{
		"ignores SIGTERM":                {sigterm: "ignore", want: 1},
		"catches SIGTERM":                {sigterm: "catch"},
		"waits for SIGTERM":              {sigterm: "block"},
		"dies of SIGTERM":                {sigterm: "default", want: 1},
		"ignores SIGTERM, without MPS":   {sigterm: "ignore", outside: true},
		"dies of SIGTERM, to be killed":  {sigterm: "default", cancelled: true, want: 1},
		"ignores SIGTERM, to be killed":  {sigterm: "ignore", cancelled: true, want: 1},
		"ignores SIGTERM, a hanging MPS": {sigterm: "ignore", hangs: true},
	} {
		t.Run(name, func(t *testing.T) {
			mpstest.Install(t)
			t.Setenv("CUDA_MPS_PIPE_DIRECTORY", t.TempDir())
			dir := t.TempDir()
			pipes := mps.PipeDir(dir)
			if !c.outside {
				mpstest.Start(t, pipes, server)
			}
			r := process.New(process.Config{RunDir: dir, Libs: libs, Keeper: logstest.Keeper})
			h, err := r.Start(t.Context(), instance.Spec{
				ID: "a", Command: []string{program, c.sigterm}, GPUs: []string{"sim"}, Slice: gpu.Slice{SMPct: 50}, MPSPipeDir: pipes,
			})
			if err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
				if text, err := ports.Text(r.Logs(t.Context(), h, ports.LogOptions{Tail: -1})); err == nil && bytes.Contains(text, []byte("ready")) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("the client is not ready before the deadline, want its message")
				}
			}
			if c.hangs {
				mpstest.Slow(t, pipes, 20*time.Second)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			grace := time.Minute // time for a client that ends by itself
			if c.sigterm == "ignore" {
				grace = 0
			}
			if c.cancelled {
				cancel()
			}
			if err := r.Stop(ctx, h, grace); err != nil || procfs.Alive(h.PID) {
				t.Errorf("Stop: %v, and the client is alive: %v; want neither an error nor a client", err, procfs.Alive(h.PID))
			}
			var want []string
			for range c.want {
				want = append(want, fmt.Sprint(server, " ", h.PID))
			}
			if got := mpstest.Terminated(t, pipes); !slices.Equal(got, want) {
				t.Errorf("terminated %q, want %q", got, want)
			}
		})
	}
}
