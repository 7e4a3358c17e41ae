package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/logs"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// keepLog is the internal argument that makes gfaas a log keeper.
const keepLog = "__keep-log"

// logDir returns the folder for the logs of a run directory's processes. It is next to the state file,
// because a run directory may be in memory. Each run directory has its own folder, because instances in
// different run directories can have the same ID.
func logDir(runDir string) string { return besideState("logs", runDir) }

// besideState returns a folder next to the state file, for one run directory.
func besideState(kind, runDir string) string {
	state := cli.StatePath()
	if path, err := filepath.Abs(state); err == nil {
		state = path
	}
	if path, err := filepath.Abs(runDir); err == nil {
		runDir = path
	}
	name := sha256.Sum256([]byte(runDir))
	return filepath.Join(filepath.Dir(state), kind+"-"+hex.EncodeToString(name[:4]))
}

// FailedStart is the stored log of the last failed start of a function's instance.
type FailedStart struct {
	Function, ID string
	dir          string
}

// between separates the function's name from the instance's ID in folder names. It occurs in neither.
const between = "@"

// unfinished is the prefix of folders with logs that are being written.
const unfinished = "."

// FailedStarts returns the stored logs of a run directory, sorted by function.
func FailedStarts(runDir string) (out []FailedStart) {
	dir := besideState("failed", runDir)
	entries, _ := os.ReadDir(dir) // empty if the folder does not exist
	for _, e := range entries {
		if function, id, ok := strings.Cut(e.Name(), between); ok && !strings.HasPrefix(function, unfinished) {
			out = append(out, FailedStart{function, id, filepath.Join(dir, e.Name())})
		}
	}
	return out
}

// Logs returns the instance's output.
func (f FailedStart) Logs(ctx context.Context, o ports.LogOptions) ports.LogLines {
	o.Follow = false
	return logs.Read(ctx, f.dir, o)
}

// Remove removes the log.
func (f FailedStart) Remove() error { return logs.Remove(f.dir) }

// storeFailedLog returns a function that stores the log of an instance and removes the previous one of the same
// function. The new log appears atomically.
func storeFailedLog(runDir string) func(function, id string, lines ports.LogLines) error {
	var mu sync.Mutex
	return func(function, id string, lines ports.LogLines) error {
		mu.Lock()
		defer mu.Unlock()
		dir := besideState("failed", runDir)
		saved := filepath.Join(dir, unfinished+function)
		failed := logs.Save(saved, lines)
		for _, f := range FailedStarts(runDir) {
			if f.Function == function {
				if err := f.Remove(); err != nil {
					return err
				}
			}
		}
		err := os.Rename(saved, filepath.Join(dir, function+between+id))
		if errors.Is(err, fs.ErrNotExist) { // there was no output
			err = nil
		}
		return errors.Join(failed, err)
	}
}

// KeepLog runs the log keeper if the program's arguments request it. The keeper ends when its input ends.
// It ignores signals that are sent to the whole process group.
func KeepLog(args []string) (status int, handled bool) {
	if len(args) != 2 || args[0] != keepLog {
		return 0, false
	}
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	if err := logs.Copy(os.Stdin, args[1]); err != nil {
		return cli.ExitFailure, true
	}
	return cli.ExitOK, true
}
