package tokend

import (
	"io"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli"
)

// logger returns the daemon's logger.
func logger(env *cli.Env, runDir string) *slog.Logger { return env.Logger(bounded(env.Err, runDir)) }

// ownLog writes to standard error if that is the run directory's log file, as for a daemon that gfaas run has
// started. It bounds the file, which no other program rotates. It is not safe for concurrent use; slog
// serializes its writes.
type ownLog struct {
	runDir string
	file   *os.File
	size   int64
}

// bounded returns an ownLog if err is the run directory's log file, and err otherwise.
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

// Write appends a record. It starts a new file when the current one is larger than tokend.MaxLog.
func (l *ownLog) Write(record []byte) (int, error) {
	if l.size > tokend.MaxLog {
		l.turn()
	}
	n, err := l.file.Write(record)
	l.size += int64(n)
	return n, err
}

// turn replaces the file behind the descriptor, so that the runtime's output in a crash also goes to the new
// file. If that fails, the old file continues, and turn runs again after another tokend.MaxLog bytes.
func (l *ownLog) turn() {
	l.size = 0
	reopened, err := tokend.OpenLog(l.runDir)
	if err != nil {
		return
	}
	defer reopened.Close()
	_ = unix.Dup3(int(reopened.Fd()), int(l.file.Fd()), 0)
}
