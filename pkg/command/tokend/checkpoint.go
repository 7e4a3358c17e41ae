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

// Each use of the driver's checkpoints runs in a separate process, because drivers have hung and crashed
// in these calls.

// mover implements token.Mover by running "gfaas-tokend checkpoint".
type mover struct{ occupied *devices.Occupancy }

func (m mover) Free(device string) (gpu.Bytes, error) {
	free, _, err := m.occupied.Free(device)
	return free, err
}

func (m mover) Check(ctx context.Context, simulated bool) error {
	return run(ctx, simulated, "check", nil)
}

func (m mover) Park(ctx context.Context, simulated bool, pids []int) error {
	return run(ctx, simulated, "out", pids)
}

func (m mover) Unpark(ctx context.Context, simulated bool, pids []int) error {
	return run(ctx, simulated, "back", pids)
}

func run(ctx context.Context, simulated bool, operation string, pids []int) error {
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
	args := []string{"checkpoint", operation, library}
	for _, pid := range pids {
		args = append(args, strconv.Itoa(pid))
	}
	var stderr strings.Builder
	cmd := exec.CommandContext(ctx, self, args...)
	// GFAAS_SIM_NOTED suppresses the driver's note that the GPU is simulated. Otherwise the note would be
	// part of the error text.
	cmd.Env = append(os.Environ(), "GFAAS_SIM_DIR="+simgpu.Dir(), "GFAAS_SIM_NOTED=1")
	cmd.Stderr = &stderr
	// A signal from the terminal must not interrupt the operation, so it has its own process group. If the
	// daemon dies, the operation must die too, because the next daemon would not know about it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig also fires when the parent thread ends
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	var exited *exec.ExitError
	if ctx.Err() == nil && errors.As(err, &exited) && exited.Exited() {
		_, reason, _ := strings.Cut(stderr.String(), "error: ")
		reason, _, _ = strings.Cut(reason, "\ngfaas-tokend: hint:")
		return errors.New(strings.TrimSpace(reason))
	}
	if err != nil {
		return fmt.Errorf("run the driver's checkpoint operation %q: %w", operation, errors.Join(err, ctx.Err()))
	}
	return nil
}

// newCheckpoint returns the hidden command that mover runs.
func newCheckpoint() *cobra.Command {
	const fixed = 2 // arguments before the processes
	return &cobra.Command{
		Use:    "checkpoint check|out|back LIBRARY [PID...]",
		Short:  "Move the GPU memory of processes to the host, or back",
		Hidden: true,
		Args:   cobra.MinimumNArgs(fixed),
		RunE: func(_ *cobra.Command, args []string) error {
			var pids []int
			for _, text := range args[fixed:] {
				pid, err := strconv.Atoi(text)
				if err != nil || pid <= 0 {
					return cli.Usagef("invalid PID %q: expected a number above 0", text)
				}
				pids = append(pids, pid)
			}
			if !cuda.MayCheckpoint() {
				return errors.New("gfaas-tokend lacks the capability CAP_SYS_PTRACE")
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
