package tokend

import (
	"os"
	"path/filepath"

	"github.com/gfaas/gfaas/pkg/adapter/detach"
)

// MaxLog is the size in bytes beyond which a log is rotated.
const MaxLog = detach.MaxLog

// LogPath returns the path of the log of a daemon that Ensure started.
func LogPath(runDir string) string { return filepath.Join(runDir, "tokend.log") }

// OpenLog opens the log at LogPath for appending. It first renames a long one (detach.OpenLog).
func OpenLog(runDir string) (*os.File, error) { return detach.OpenLog(LogPath(runDir)) }
