package tokend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
)

// Ensure returns a client of the run directory's daemon, after starting one if none
// answers; such a daemon exits after 5 s without use. Of several concurrent callers, one
// starts the daemon, and started reports whether it was this one. The daemon logs to the
// file of OpenLog.
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

// Starting returns a client of the run directory's daemon whose Register starts a daemon,
// as Ensure does, if none answers, and then calls started unless it is nil. If a daemon is
// running, Register sends it only the registration.
func Starting(runDir string, started func()) (*Client, error) {
	runDir, err := filepath.Abs(runDir)
	if err != nil {
		return nil, err
	}
	c := Dial(runDir)
	c.restart = func(ctx context.Context) error {
		isNew, err := c.ensure(ctx, runDir)
		if isNew && started != nil {
			started()
		}
		return err
	}
	return c, nil
}

// maxMissed is the number of consecutive failed checks before Supervise starts a daemon. It
// gives an operator time to restart the daemon.
const maxMissed = 10

// Supervise checks the daemon of Ensure at the given interval until ctx ends. After 10
// consecutive failures, it starts a new daemon, which takes over the registrations, so that
// waiting programs continue. Supervise then calls report with the result, unless another process
// started the daemon. It returns early if the instance's registration no longer exists, as
// when the run directory was removed.
func (c *Client) Supervise(ctx context.Context, instance string, every time.Duration, report func(error)) {
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
			report(err)
		}
	}
}

func (c *Client) ensure(ctx context.Context, runDir string) (started bool, err error) {
	if err := CheckRunDir(runDir); err != nil { // before trusting an answer
		return false, err
	}
	if c.answers(ctx) {
		return false, nil
	}
	if err := owndir.Ensure(runDir); err != nil {
		return false, &owndir.RunDirError{Err: err}
	}
	lock, err := lockfile.Await(ctx, filepath.Join(runDir, "tokend.start.lock"))
	if errors.Is(err, fs.ErrPermission) {
		// The file belongs to another user.
		return false, unavailable(err, owndir.Hint)
	}
	if err != nil {
		return false, fmt.Errorf("start the token daemon: %w", err)
	}
	defer lock.Close()
	if c.answers(ctx) {
		return false, nil
	}
	return true, c.start(ctx, runDir)
}

// start runs the daemon in a new session and waits until it answers.
func (c *Client) start(ctx context.Context, runDir string) error {
	path, err := detach.Find(program)
	if err != nil {
		return unavailable(err, "install all programs of gfaas, or start the daemon yourself")
	}
	log, err := OpenLog(runDir)
	if err != nil {
		return fmt.Errorf("start the token daemon: %w", err)
	}
	defer log.Close()
	end, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("start the token daemon: %w", err)
	}
	cmd := exec.Command(path, "--exit-when-idle", idleExit, "--socket", c.socket)
	cmd.Env = daemonEnv(os.Environ(), runDir)
	cmd.Dir = "/"
	cmd.Stderr = log
	if err := detach.Start(cmd); err != nil {
		return unavailable(fmt.Errorf("start the token daemon: %w", err), "")
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return c.awaitStart(ctx, ended, func() string { return logTail(log.Name(), end) })
}

func (c *Client) awaitStart(ctx context.Context, ended <-chan error, tail func() string) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !c.answers(ctx) {
		select {
		case err := <-ended:
			if c.answers(ctx) { // another process's daemon was faster
				return nil
			}
			return unavailable(fmt.Errorf("%s exited immediately (%v): %s", program, err, tail()), "")
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer at %s: %w", program, c.socket, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// daemonEnv removes the variables that would make the daemon a client of itself, and those
// that are meant for another program, such as the gateway's address.
func daemonEnv(env []string, runDir string) []string {
	removed := []string{"GFAAS_SOCKET", "GFAAS_INSTANCE", "GFAAS_SECRET", "GFAAS_RUN_DIR", "GFAAS_LISTEN",
		"LD_PRELOAD", "NOTIFY_SOCKET"}
	out := slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(removed, name)
	})
	return append(out, "GFAAS_RUN_DIR="+runDir)
}

// logTail returns the last line of the log after an offset.
func logTail(path string, offset int64) string {
	text, err := os.ReadFile(path)
	if err != nil || int64(len(text)) <= offset {
		return "its log is empty"
	}
	lines := bytes.Split(bytes.TrimSpace(text[offset:]), []byte("\n"))
	return string(lines[len(lines)-1])
}
