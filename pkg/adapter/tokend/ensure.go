package tokend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/gfaas/gfaas/pkg/adapter/detach"
	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/owndir"
)

const (
	idleExit  = "5s"
	startTime = 10 * time.Second
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

// start starts the daemon and waits until it answers.
func (c *Client) start(ctx context.Context, runDir string) error {
	return detach.Daemon{
		Program: "gfaas-tokend", Name: "token daemon", Args: []string{"--exit-when-idle", idleExit, "--socket", c.socket},
		Env: daemonEnv(os.Environ(), runDir), Socket: c.socket, Log: LogPath(runDir), Timeout: startTime,
	}.StartAndWait(ctx, c.answers)
}

// daemonEnv removes the variables that would make the daemon a client of itself, and those
// that are meant for another program, such as the gateway's address.
func daemonEnv(env []string, runDir string) []string {
	return append(detach.Without(env, "GFAAS_SOCKET", "GFAAS_INSTANCE", "GFAAS_SECRET", "GFAAS_RUN_DIR", "GFAAS_LISTEN",
		"LD_PRELOAD", "NOTIFY_SOCKET"), "GFAAS_RUN_DIR="+runDir)
}
