package mps

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/procfs"
)

// terminateTime is the time limit of Terminate, so that a control daemon that does not
// answer cannot keep processes alive.
var terminateTime = 5 * time.Second // a variable for tests

// Terminate ends the GPU work of processes that are about to be killed and are clients of
// an MPS daemon: the private one of runDir, the administrator's, or the one in a process's
// environment. The driver does not clean up after a client that dies with work in flight:
// all other clients of the GPU may get errors, and later clients may hang.
//
// Terminate returns after at most 5 s. It returns an error if a daemon failed; the caller
// can kill the processes nevertheless. It has no effect without a running MPS daemon.
func Terminate(ctx context.Context, runDir string, pids []int) error {
	if len(pids) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), terminateTime)
	defer cancel()
	dirs := []string{Probe().PipeDir}
	if runDir != "" {
		dirs = append(dirs, PipeDir(runDir))
	}
	for _, pid := range pids {
		if env, err := procfs.Environ(pid, pipeVariable); err == nil && env[pipeVariable] != "" {
			dirs = append(dirs, env[pipeVariable])
		}
	}
	slices.Sort(dirs)
	var errs []error
	var clients []int
	for _, dir := range slices.Compact(dirs) {
		at := ProbeDir(dir)
		if !at.Running() || at.Program == "" {
			continue
		}
		if clients == nil {
			if clients = drivers(pids); len(clients) == 0 {
				return nil
			}
		}
		errs = append(errs, at.terminate(ctx, clients))
	}
	return errors.Join(errs...)
}

// drivers returns the processes that have loaded the driver, and processes that cannot be
// inspected. A client that is still initializing is missing from the daemon's lists.
func drivers(pids []int) (found []int) {
	for _, pid := range pids {
		if mapped, err := procfs.Maps(pid); errors.Is(err, fs.ErrPermission) || strings.Contains(mapped, "/libcuda.so") {
			found = append(found, pid)
		}
	}
	return found
}

// terminate ends the work of clients on all servers of the daemon at s.PipeDir.
func (s Status) terminate(ctx context.Context, clients []int) error {
	const list = "get_server_list"
	text, err := sendCommands(ctx, s.Program, s.PipeDir, list)
	if err != nil {
		return err
	}
	servers, err := parseNumbers(list, text)
	if err != nil {
		return err
	}
	var commands []string
	for _, server := range servers {
		for _, client := range clients {
			commands = append(commands, fmt.Sprintf("terminate_client %d %d", server, client))
		}
	}
	if len(commands) == 0 {
		return nil
	}
	_, err = sendCommands(ctx, s.Program, s.PipeDir, strings.Join(commands, "\n"))
	return err
}
