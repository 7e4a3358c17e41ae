package cli

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/gfaas/gfaas/pkg/owndir"
)

// RunDir returns the folder of the daemons' sockets. It uses, in this order: $GFAAS_RUN_DIR;
// $XDG_RUNTIME_DIR/gfaas, if that variable names another folder than the system's /run/user/UID; the
// user's default (see places.runDir). All processes of a user have the same default, whether
// XDG_RUNTIME_DIR is set or not. The result does not change during the life of the process.
func RunDir() string {
	if dir := os.Getenv("GFAAS_RUN_DIR"); dir != "" {
		return dir
	}
	session := os.Getenv("XDG_RUNTIME_DIR")
	dir, _ := runDirs.LoadOrStore(session, sync.OnceValue(func() string { return standard.runDir(session, os.Geteuid()) }))
	return dir.(func() string)()
}

// IsRunDir reports whether a folder, given as an absolute path, is the run directory. A daemon makes
// its run directory private, but not another folder that the user has named.
func IsRunDir(dir string) bool {
	run, err := filepath.Abs(RunDir())
	return err == nil && run == dir
}

// runDirs caches RunDir's default per value of XDG_RUNTIME_DIR, as func() string.
var runDirs sync.Map

// places holds the parent folders of default run directories.
type places struct {
	sessions string // contains a folder for each logged-in user, named by UID
	system   string // run directory of root and of the packaged services
	shared   string // writable by every user
}

var standard = places{sessions: "/run/user", system: "/run/gfaas", shared: "/tmp"}

// runDir chooses a candidate. A directory with a token daemon comes first, then one with another
// daemon, then one with registered instances, then the first candidate. Example: a shell in a login
// session uses the daemon of a cron job, although the job has no session.
func (p places) runDir(session string, uid int) string {
	if session != "" && filepath.Dir(filepath.Clean(session)) != p.sessions {
		return filepath.Join(session, "gfaas")
	}
	dirs := p.candidates(session, uid)
	best, rank := dirs[0], 0
	for _, dir := range dirs[1:] {
		if n := inUse(dir); n > rank {
			best, rank = dir, n
		}
	}
	if rank > 0 && inUse(dirs[0]) >= rank { // skipped if there is no alternative
		return dirs[0]
	}
	return best
}

// candidates returns the possible run directories of a user, the preferred one first. It omits the
// folder of another user's session, which sudo -E and su leave in the environment.
func (p places) candidates(session string, uid int) (dirs []string) {
	own := filepath.Join(p.sessions, strconv.Itoa(uid))
	if filepath.Clean(session) == own || isOwnFolder(own, uid) {
		dirs = append(dirs, filepath.Join(own, "gfaas"))
	}
	_, err := os.Lstat(p.system)
	switch {
	case uid == 0 && (err != nil || isOwnFolder(p.system, uid)):
		dirs = append(dirs, p.system)
	case uid != 0 && isOwnFolder(p.system, uid): // only root can have changed its owner
		dirs = append([]string{p.system}, dirs...)
	}
	return append(dirs, filepath.Join(p.shared, "gfaas-"+strconv.Itoa(uid)))
}

// isOwnFolder reports whether path is a folder owned by the user.
func isOwnFolder(path string, uid int) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir() && int(info.Sys().(*syscall.Stat_t).Uid) == uid
}

// inUse ranks the use of a run directory: 3 with an answering token daemon, 2 with another daemon,
// 1 with registered instances, and 0 if it is empty or other users can write to it.
func inUse(dir string) int {
	root, err := owndir.Open(dir)
	if err != nil {
		return 0
	}
	defer root.Close()
	if isListening(filepath.Join(dir, "token.sock")) {
		return 3
	}
	names, _ := fs.Glob(root.FS(), "*.sock") // the pattern is valid
	for _, name := range names {
		if isListening(filepath.Join(dir, name)) {
			return 2
		}
	}
	if records, _ := fs.Glob(root.FS(), "instances/*.json"); len(records) > 0 {
		return 1
	}
	return 0
}

// isListening reports whether a daemon listens at a Unix socket of either type.
func isListening(path string) bool {
	for _, network := range []string{"unix", "unixpacket"} {
		if conn, err := net.DialTimeout(network, path, time.Second); err == nil {
			_ = conn.Close()
			return true
		}
	}
	return false
}
