package detach

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/instance/ports"
)

// Daemon describes a daemon of gfaas, which a client starts if none answers.
type Daemon struct {
	Program string
	Name    string // for messages, such as "token daemon"
	Args    []string
	Env     []string
	Socket  string        // for messages
	Log     string        // path of its log, see OpenLog
	Timeout time.Duration // limit on the time until it answers
}

// pollInterval is the interval at which StartAndWait checks whether the daemon answers.
const pollInterval = 5 * time.Millisecond

// StartAndWait starts the daemon in a new session, and returns when answers returns true. If the program is missing or
// exits, the error is a *ports.UnavailableError. It fails when ctx ends or Timeout has passed; the daemon then goes on.
func (d Daemon) StartAndWait(ctx context.Context, answers func(context.Context) bool) error {
	path, err := Find(d.Program)
	if err != nil {
		return &ports.UnavailableError{Err: err, Remedy: "install all programs of gfaas, or start the daemon yourself"}
	}
	log, err := OpenLog(d.Log)
	if err != nil {
		return fmt.Errorf("start the %s: %w", d.Name, err)
	}
	defer log.Close()
	begin, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("start the %s: %w", d.Name, err)
	}
	cmd := exec.Command(path, d.Args...)
	cmd.Env, cmd.Dir, cmd.Stderr = d.Env, "/", log
	if err := Start(cmd); err != nil {
		return &ports.UnavailableError{Err: fmt.Errorf("start the %s: %w", d.Name, err)}
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for !answers(ctx) {
		select {
		case err := <-ended:
			if answers(ctx) { // another process's daemon was faster
				return nil
			}
			err = fmt.Errorf("%s exited immediately (%v): %s", d.Program, err, lastLine(d.Log, begin))
			return &ports.UnavailableError{Err: err}
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer at %s: %w", d.Program, d.Socket, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// Without returns a copy of an environment without the variables of the given names.
func Without(env []string, names ...string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(names, name)
	})
}

// MaxLog is the size in bytes beyond which OpenLog renames a log; run directories are usually in memory.
const MaxLog = 1 << 20

// OpenLog opens a daemon's log for appending. It first renames a log longer than MaxLog to PATH.old, replacing the
// previous one.
func OpenLog(path string) (*os.File, error) {
	if info, err := os.Lstat(path); err == nil && info.Size() > MaxLog {
		_ = os.Rename(path, path+".old") // on failure, the log grows further
	}
	return os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
}

// lastLine returns the last line of a log after an offset.
func lastLine(path string, offset int64) string {
	text, err := os.ReadFile(path)
	if err != nil || int64(len(text)) <= offset {
		return "its log is empty"
	}
	lines := bytes.Split(bytes.TrimSpace(text[offset:]), []byte("\n"))
	return string(lines[len(lines)-1])
}
