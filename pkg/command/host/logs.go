package host

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/detach"
	"github.com/gfaas/gfaas/pkg/adapter/logs"
	"github.com/gfaas/gfaas/pkg/command/cli"
)

// keepLog is the word that has gfaas keep a log; for no person to type.
const keepLog = "__keep-log"

// logDir is where the logs of a run directory's processes are: beside the state
// file, since a run directory may be in memory. Run directories of one state have
// one each, since each has instances of any id.
func logDir(runDir string) string {
	state := cli.StatePath()
	if path, err := filepath.Abs(state); err == nil {
		state = path
	}
	name := sha256.Sum256([]byte(runDir))
	return filepath.Join(filepath.Dir(state), "logs-"+hex.EncodeToString(name[:4]))
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
