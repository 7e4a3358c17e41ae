package tokend

import (
	"io"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
)

// logger is the daemon's log.
func logger(env *cli.Env, runDir string) *slog.Logger { return env.Logger(bounded(env.Err, runDir)) }

// ownLog is standard error where it is the run directory's log, as it is of a
// daemon that gfaas run has started: nobody else keeps that from growing for as
// long as the daemon lives. slog writes one record at a time.
type ownLog struct {
	runDir string
	file   *os.File
	size   int64
}

// bounded is where to log, if err is standard error.
func bounded(err io.Writer, runDir string) io.Writer {
	f, ok := err.(*os.File)
	if !ok {
		return err
	}
	ours, gone := os.Stat(tokend.LogPath(runDir))
	open, bad := f.Stat()
	if gone != nil || bad != nil || !os.SameFile(ours, open) {
		return err
	}
	return &ownLog{runDir: runDir, file: f, size: open.Size()}
}

// Write goes on in a new file when there is enough in this one.
func (l *ownLog) Write(record []byte) (int, error) {
	if l.size > tokend.MaxLog {
		l.turn()
	}
	n, err := l.file.Write(record)
	l.size += int64(n)
	return n, err
}

// turn makes the descriptor that of a new file, so that what the runtime writes
// when the program crashes goes there too. If it cannot be had the old one goes
// on, and it is tried again as much later.
func (l *ownLog) turn() {
	l.size = 0
	fresh, err := tokend.OpenLog(l.runDir)
	if err != nil {
		return
	}
	defer fresh.Close()
	_ = unix.Dup3(int(fresh.Fd()), int(l.file.Fd()), 0)
}
