package tokend

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MaxLog is how many bytes a log may have and be appended to: run directories
// are in memory.
const MaxLog = 1 << 20

// LogPath is the log of a daemon that Ensure has started.
func LogPath(runDir string) string { return filepath.Join(runDir, "tokend.log") }

// OpenLog opens that log to append to. One longer than MaxLog is first put aside
// as tokend.log.old, in place of the one before.
func OpenLog(runDir string) (*os.File, error) {
	path := LogPath(runDir)
	if info, err := os.Lstat(path); err == nil && info.Size() > MaxLog {
		_ = os.Rename(path, path+".old") // or else it goes on
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
}
