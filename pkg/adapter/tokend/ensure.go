package tokend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/detach"
	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/owndir"
)

const (
	program   = "gfaas-tokend"
	idleExit  = "5s"
	startTime = 10 * time.Second
	pollEvery = 5 * time.Millisecond
	ownRunDir = owndir.Hint
)

// Ensure finds the daemon of the run directory, or starts one that leaves when
// it has been idle for 5 s. Of several starters at once one starts it; started
// says whether it was this one. The daemon's log is that of OpenLog.
func Ensure(ctx context.Context, runDir string) (c *Client, started bool, err error) {
	c, err = Starting(runDir, nil)
	if err != nil {
		return nil, false, err
	}
	started, err = c.ensure(ctx, c.runDir)
	if err != nil {
		return nil, false, err
	}
	return c, started, nil
}

// Starting is a client of the run directory's daemon whose Register does as Ensure
// where none answers, and calls started, unless it is nil, when it has started one.
// A daemon that is there is asked no more than what it is to register.
func Starting(runDir string, started func()) (*Client, error) {
	runDir, err := filepath.Abs(runDir)
	if err != nil {
		return nil, err
	}
	c := Dial(runDir)
	c.revive = func(ctx context.Context) error {
		did, err := c.ensure(ctx, runDir)
		if did && started != nil {
			started()
		}
		return err
	}
	return c, nil
}

// maxMissed is how many times in a row Keep finds no daemon before it starts one:
// whoever ended it to start another has time for that.
const maxMissed = 10

// Keep looks after the daemon that Ensure found or started until the context
// ends: when it finds none 10 times in a row it starts one. It takes over the
// registrations, and programs that wait for it go on. Tell is told how it went,
// unless somebody else was faster. Where the run directory was taken away, with
// the registration of that instance, a daemon would be of no use.
func (c *Client) Keep(ctx context.Context, instance string, every time.Duration, tell func(error)) {
	runDir := filepath.Dir(c.socket)
	record := filepath.Join(runDir, "instances", instance+".json")
	tick := time.NewTicker(every)
	defer tick.Stop()
	for missed := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if conn, err := net.Dial("unix", c.socket); err == nil {
			_ = conn.Close()
			missed = 0
			continue
		}
		if missed++; missed < maxMissed {
			continue
		}
		missed = 0
		if _, err := os.Stat(record); err != nil {
			return
		}
		started, err := c.ensure(ctx, runDir)
		if ctx.Err() == nil && (started || err != nil) {
			tell(err)
		}
	}
}

func (c *Client) ensure(ctx context.Context, runDir string) (started bool, err error) {
	if err := CheckRunDir(runDir); err != nil { // or who knows who answers
		return false, err
	}
	if c.answers(ctx) {
		return false, nil
	}
	if err := owndir.Ensure(runDir); err != nil {
		return false, RunDirError(err)
	}
	one, err := lockfile.Await(ctx, filepath.Join(runDir, "tokend.start.lock"))
	if errors.Is(err, fs.ErrPermission) {
		// The file is another user's.
		return false, &Error{Err: err, Missing: true, Remedy: ownRunDir}
	}
	if err != nil {
		return false, fmt.Errorf("start the token daemon: %w", err)
	}
	defer one.Close()
	if c.answers(ctx) {
		return false, nil
	}
	return true, c.start(ctx, runDir)
}

// start runs the daemon in a session of its own and waits until it answers.
func (c *Client) start(ctx context.Context, runDir string) error {
	path, err := detach.Find(program)
	if err != nil {
		return &Error{Err: err, Missing: true, Remedy: "install gfaas as a whole, or start the daemon yourself"}
	}
	log, err := OpenLog(runDir)
	if err != nil {
		return fmt.Errorf("start the token daemon: %w", err)
	}
	defer log.Close()
	before, err := log.Seek(0, 2)
	if err != nil {
		return fmt.Errorf("start the token daemon: %w", err)
	}
	cmd := exec.Command(path, "--exit-when-idle", idleExit, "--socket", c.socket)
	cmd.Env = daemonEnv(os.Environ(), runDir)
	cmd.Dir = "/"
	cmd.Stderr = log
	if err := detach.Start(cmd); err != nil {
		return &Error{Err: fmt.Errorf("start the token daemon: %w", err), Missing: true}
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return c.awaitStart(ctx, ended, func() string { return logTail(log.Name(), before) })
}

func (c *Client) awaitStart(ctx context.Context, ended <-chan error, tail func() string) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !c.answers(ctx) {
		select {
		case err := <-ended:
			if c.answers(ctx) { // someone else's daemon was faster
				return nil
			}
			return &Error{Err: fmt.Errorf("%s ended at once (%v): %s", program, err, tail()), Missing: true}
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer at %s: %w", program, c.socket, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// daemonEnv takes out what would make the daemon a client of itself.
func daemonEnv(env []string, runDir string) []string {
	var out []string
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		switch name {
		case "GFAAS_SOCKET", "GFAAS_INSTANCE", "GFAAS_SECRET", "GFAAS_RUN_DIR", "LD_PRELOAD", "NOTIFY_SOCKET":
		default:
			out = append(out, kv)
		}
	}
	return append(out, "GFAAS_RUN_DIR="+runDir)
}

// logTail is the last line that was logged since.
func logTail(path string, since int64) string {
	text, err := os.ReadFile(path)
	if err != nil || int64(len(text)) <= since {
		return "it logged nothing"
	}
	lines := bytes.Split(bytes.TrimSpace(text[since:]), []byte("\n"))
	return string(lines[len(lines)-1])
}
