package tokend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gfaas/gfaas/pkg/adapter/cuda"
	"github.com/gfaas/gfaas/pkg/adapter/preload"
	"github.com/gfaas/gfaas/pkg/adapter/simgpu"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/command/devices"
	"github.com/gfaas/gfaas/pkg/gpu"
)

// What the driver's checkpoints do with processes is done by a process of its own for
// each time: drivers have hung and crashed in it.

// mover is token.Mover: it runs "gfaas-tokend checkpoint".
type mover struct{ occupied *devices.Occupancy }

func (m mover) Free(device string) (gpu.Bytes, error) {
	free, _, err := m.occupied.Free(device)
	return free, err
}

func (m mover) Check(ctx context.Context, simulated bool) error {
	return run(ctx, simulated, "check", nil)
}

func (m mover) Out(ctx context.Context, simulated bool, pids []int) error {
	return run(ctx, simulated, "out", pids)
}

func (m mover) Back(ctx context.Context, simulated bool, pids []int) error {
	return run(ctx, simulated, "back", pids)
}

func run(ctx context.Context, simulated bool, do string, pids []int) error {
	library := cuda.Library
	if simulated {
		libs, err := preload.FindLibs()
		if err != nil {
			return err
		}
		library = filepath.Join(libs.SimDir, cuda.Library)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"checkpoint", do, library}
	for _, pid := range pids {
		args = append(args, strconv.Itoa(pid))
	}
	var said strings.Builder
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), "GFAAS_SIM_DIR="+simgpu.Dir(), "GFAAS_SIM_NOTED=1")
	cmd.Stderr = &said
	// A key that ends the daemon must not end it half-way; but without the daemon, whose
	// next one would not know of it, it must not go on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // whose end that would be, too
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	var exited *exec.ExitError
	if ctx.Err() == nil && errors.As(err, &exited) && exited.Exited() {
		_, why, _ := strings.Cut(said.String(), "error: ")
		why, _, _ = strings.Cut(why, "\ngfaas-tokend: hint:")
		return errors.New(strings.TrimSpace(why))
	}
	if err != nil {
		return fmt.Errorf("the driver's checkpoint (%s): %w", do, errors.Join(err, ctx.Err()))
	}
	return nil
}

// newCheckpoint is what the daemon runs.
func newCheckpoint() *cobra.Command {
	const fixed = 2 // arguments before the processes
	return &cobra.Command{
		Use:    "checkpoint check|out|back LIBRARY [PID...]",
		Short:  "Move what processes hold on GPUs to the host, or back",
		Hidden: true,
		Args:   cobra.MinimumNArgs(fixed),
		RunE: func(_ *cobra.Command, args []string) error {
			var pids []int
			for _, text := range args[fixed:] {
				pid, err := strconv.Atoi(text)
				if err != nil || pid <= 0 {
					return cli.Usagef("%q is no process", text)
				}
				pids = append(pids, pid)
			}
			if !cuda.MayCheckpoint() {
				return errors.New("it needs the capability CAP_SYS_PTRACE, which gfaas-tokend does not have")
			}
			p, err := cuda.OpenProcesses(args[1])
			switch {
			case err != nil || args[0] == "check":
				return err
			case args[0] == "out":
				return cuda.Park(p, pids)
			case args[0] == "back":
				return cuda.Unpark(p, pids)
			}
			return cli.Usagef("%q: expected check, out or back", args[0])
		},
	}
}
