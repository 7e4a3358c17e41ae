package launch

import (
	"context"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/fnhttp"
	"github.com/gfaas/gfaas/pkg/adapter/logs"
	"github.com/gfaas/gfaas/pkg/adapter/logs/logstest"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/process"
	"github.com/gfaas/gfaas/pkg/function"
	"github.com/gfaas/gfaas/pkg/instance"
	"github.com/gfaas/gfaas/pkg/instance/instancetest"
	"github.com/gfaas/gfaas/pkg/instance/ports"
	"github.com/gfaas/gfaas/pkg/wire"
)

func TestMain(m *testing.M) { os.Exit(logstest.Main(m)) }

// TestConformance runs the conformance suite of ports.Starter on a Launcher with real processes.
func TestConformance(t *testing.T) {
	program := instancetest.BuildProbe(t)
	hook, simDir := instancetest.BuildLibs(t)
	instancetest.RunStarter(t, instancetest.StarterSuite{
		New: func(t *testing.T) func() ports.Starter {
			runDir, daemon := t.TempDir(), &fakeTokens{registered: map[string]wire.Registration{}}
			t.Setenv("GFAAS_SIM_DIR", t.TempDir())
			return func() ports.Starter {
				return New(Config{
					RunDir: runDir, Ready: fnhttp.WaitReady, Tokens: daemon, Device: device{}, RemoveLog: logs.Remove,
					Runtime: func(_ context.Context, name string) (ports.Runtime, error) {
						if name == instance.Docker {
							return instancetest.NewFake(name), nil
						}
						return process.New(process.Config{RunDir: runDir, Libs: preload.Libs{Hook: hook, SimDir: simDir}, Keeper: logstest.Keeper}), nil
					},
				})
			}
		},
		Function: func(*testing.T) function.Function {
			return function.Function{Name: "f", Command: []string{program}, Contract: "auto"}
		},
		Kill: func(t *testing.T, _ ports.Starter, r instance.Record) {
			if err := unix.Kill(r.Handle.PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
	})
}
