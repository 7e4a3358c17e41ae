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

	"github.com/gfaas/gfaas/pkg/adapter/detach"
	"github.com/gfaas/gfaas/pkg/adapter/logs"
	"github.com/gfaas/gfaas/pkg/command/cli"
	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// keepLog is the word that has gfaas keep a log; for no person to type.
const keepLog = "__keep-log"

// logDir is where the logs of a run directory's processes are: beside the state
// file, since a run directory may be in memory. Run directories of one state have
// one each, since each has instances of any id.
func logDir(runDir string) string { return besideState("logs", runDir) }

// besideState is a folder of a run directory's, beside the state file.
func besideState(what, runDir string) string {
	state := cli.StatePath()
	if path, err := filepath.Abs(state); err == nil {
		state = path
	}
	if path, err := filepath.Abs(runDir); err == nil {
		runDir = path
	}
	name := sha256.Sum256([]byte(runDir))
	return filepath.Join(filepath.Dir(state), what+"-"+hex.EncodeToString(name[:4]))
}

// FailedStart is the log of an instance whose start failed: the last of its function.
type FailedStart struct {
	Function, ID string
	dir          string
}

// between separates a function's name from an instance's id, in names of folders: it is in
// neither.
const between = "@"

// unfinished begins the names of folders of logs that are being saved.
const unfinished = "."

// FailedStarts returns those of a run directory whose logs are kept, by function.
func FailedStarts(runDir string) (out []FailedStart) {
	dir := besideState("failed", runDir)
	entries, _ := os.ReadDir(dir) // without it there are none
	for _, e := range entries {
		if function, id, ok := strings.Cut(e.Name(), between); ok && !strings.HasPrefix(function, unfinished) {
			out = append(out, FailedStart{function, id, filepath.Join(dir, e.Name())})
		}
	}
	return out
}

// Logs returns what the instance printed.
func (f FailedStart) Logs(ctx context.Context, o ports.LogOptions) ports.LogLines {
	o.Follow = false
	return logs.Read(ctx, f.dir, o)
}

// Remove removes the log.
func (f FailedStart) Remove() error { return logs.Remove(f.dir) }

// keepFailed keeps the log of an instance in place of the one of its function that is kept.
// The log appears as a whole.
func keepFailed(runDir string) func(function, id string, lines ports.LogLines) error {
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
		if errors.Is(err, fs.ErrNotExist) { // it printed nothing
			err = nil
		}
		return errors.Join(failed, err)
	}
}

// keeper is the command that keeps a log.
func keeper() ([]string, error) {
	program, err := detach.Find("gfaas")
	if err != nil {
		return nil, cli.Fail(cli.ExitUnavailable, "install gfaas as a whole", err)
	}
	return []string{program, keepLog}, nil
}

// KeepLog is the keeper, if the arguments of the program say so. It ends with
// those who print, so signals for all that there is are not for it.
func KeepLog(args []string) (status int, kept bool) {
	if len(args) != 2 || args[0] != keepLog {
		return 0, false
	}
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGTERM)
	if err := logs.Keep(os.Stdin, args[1]); err != nil {
		return cli.ExitFailure, true
	}
	return cli.ExitOK, true
}
