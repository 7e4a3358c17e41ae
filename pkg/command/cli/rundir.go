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

// RunDir returns the folder of the daemons' sockets: $GFAAS_RUN_DIR, else
// $XDG_RUNTIME_DIR/gfaas where that variable names another folder than the system's
// own /run/user/UID, else the user's default. All processes of a user have the same
// default, with XDG_RUNTIME_DIR or without: see places. The answer stays the same for
// the life of the process.
func RunDir() string {
	if dir := os.Getenv("GFAAS_RUN_DIR"); dir != "" {
		return dir
	}
	session := os.Getenv("XDG_RUNTIME_DIR")
	dir, _ := runDirs.LoadOrStore(session, sync.OnceValue(func() string { return standard.runDir(session, os.Geteuid()) }))
	return dir.(func() string)()
}

// runDirs has what RunDir has returned, as functions, by XDG_RUNTIME_DIR.
var runDirs sync.Map

// places are the folders that default run directories are in.
type places struct {
	sessions string // has a folder for each user who is logged in, named by the user's number
	system   string // the run directory of the packaged services, and of root
	shared   string // every user may make a folder there
}

var standard = places{sessions: "/run/user", system: "/run/gfaas", shared: "/tmp"}

// runDir chooses among the candidates: the one with a token daemon, else one with
// another daemon, else one with registered instances, else the first. So a shell joins
// the daemon that a cron job has started, though only the shell has a session.
func (p places) runDir(session string, uid int) string {
	if session != "" && filepath.Dir(filepath.Clean(session)) != p.sessions {
		return filepath.Join(session, "gfaas")
	}
	dirs := p.candidates(session, uid)
	best, most := dirs[0], 0
	for _, dir := range dirs[1:] {
		if n := inUse(dir); n > most {
			best, most = dir, n
		}
	}
	if most > 0 && inUse(dirs[0]) >= most { // not asked where no other could be chosen
		return dirs[0]
	}
	return best
}

// candidates returns the possible run directories of a user, the preferred one first.
// The folder of another user's session (sudo -E, su) is none of them.
func (p places) candidates(session string, uid int) (dirs []string) {
	own := filepath.Join(p.sessions, strconv.Itoa(uid))
	if filepath.Clean(session) == own || belongs(own, uid) {
		dirs = append(dirs, filepath.Join(own, "gfaas"))
	}
	_, err := os.Lstat(p.system)
	switch {
	case uid == 0 && (err != nil || belongs(p.system, uid)):
		dirs = append(dirs, p.system)
	case uid != 0 && belongs(p.system, uid): // only root can have given it to the user
		dirs = append([]string{p.system}, dirs...)
	}
	return append(dirs, filepath.Join(p.shared, "gfaas-"+strconv.Itoa(uid)))
}

// belongs reports whether path is a folder of that user.
func belongs(path string, uid int) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir() && int(info.Sys().(*syscall.Stat_t).Uid) == uid
}

// inUse returns how much a run directory is in use: 3 if it has a token daemon that
// answers, 2 if it has another daemon, 1 if it has registered instances, 0 if it has
// nothing or others than the user can write to it.
func inUse(dir string) int {
	root, err := owndir.Open(dir)
	if err != nil {
		return 0
	}
	defer root.Close()
	if answers(filepath.Join(dir, "token.sock")) {
		return 3
	}
	names, _ := fs.Glob(root.FS(), "*.sock") // the pattern is a good one
	for _, name := range names {
		if answers(filepath.Join(dir, name)) {
			return 2
		}
	}
	if records, _ := fs.Glob(root.FS(), "instances/*.json"); len(records) > 0 {
		return 1
	}
	return 0
}

// answers reports whether a daemon listens at a unix socket of any of our kinds.
func answers(path string) bool {
	for _, network := range []string{"unix", "unixpacket"} {
		if conn, err := net.DialTimeout(network, path, time.Second); err == nil {
			_ = conn.Close()
			return true
		}
	}
	return false
}
