package tokend

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MaxLog is the size in bytes beyond which a log is rotated; run directories are usually in
// memory.
const MaxLog = 1 << 20

// LogPath returns the path of the log of a daemon that Ensure started.
func LogPath(runDir string) string { return filepath.Join(runDir, "tokend.log") }

// OpenLog opens that log for appending. It first renames a log longer than MaxLog to
// tokend.log.old, replacing the previous one.
func OpenLog(runDir string) (*os.File, error) {
	path := LogPath(runDir)
	if info, err := os.Lstat(path); err == nil && info.Size() > MaxLog {
		_ = os.Rename(path, path+".old") // on failure, the log grows further
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
}
