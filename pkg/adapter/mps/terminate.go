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

// terminateTime bounds a Terminate: a control daemon that does not answer must not keep
// processes alive.
var terminateTime = 5 * time.Second // for tests to shorten

// Terminate ends the GPU work of processes that are about to be killed and are clients of
// an MPS daemon: of the private one of runDir, of the owner's, or of the one that a
// process's environment names. The driver does not clean up after a client that dies with
// work in flight: all other clients of the GPU may get errors, and later ones may hang.
//
// Terminate returns after 5 s at most. The error says that a daemon did not do it; the
// processes can be killed all the same. Where no MPS daemon runs, Terminate does nothing.
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
		if env, err := procfs.Environ(pid); err == nil && env[pipeVariable] != "" {
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

// drivers returns the processes that have loaded the driver, or may have: a client that
// is still initialising is in no list of the daemon's.
func drivers(pids []int) (found []int) {
	for _, pid := range pids {
		if mapped, err := procfs.Maps(pid); errors.Is(err, fs.ErrPermission) || strings.Contains(mapped, "/libcuda.so") {
			found = append(found, pid)
		}
	}
	return found
}

// terminate asks the daemon, which serves s.PipeDir, to end the work of clients, whichever
// of its servers they are with.
func (s Status) terminate(ctx context.Context, clients []int) error {
	const list = "get_server_list"
	text, err := ask(ctx, s.Program, s.PipeDir, list)
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
	_, err = ask(ctx, s.Program, s.PipeDir, strings.Join(commands, "\n"))
	return err
}
