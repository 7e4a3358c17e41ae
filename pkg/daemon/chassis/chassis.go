// Package chassis provides the parts that all daemons share: exclusive use of a run
// directory, a control socket, an optional TCP address for monitoring and another for
// browsers, health and metrics on all of them, reloading of settings, orderly shutdown, and
// notifications to systemd.
//
// Open acquires the run directory and opens the sockets, so that clients can connect as
// soon as the daemon reports that it has started. Serve runs the daemon:
//
//	c, err := chassis.Open(chassis.Config{Program: "gfaas-tokend", Socket: socket, Lock: "token.lock"})
//	…
//	err = c.Serve(ctx, chassis.Service{Run: run, Control: handler, Metrics: registry})
//
// Serve ends when its context ends (as on SIGTERM), when the daemon has been idle for
// ExitWhenIdle, when the run directory was removed and no client is connected, when a
// server fails, or when Run returns. It shuts down in this order:
//
//  1. /readyz returns 503, and systemd learns that the daemon is stopping.
//  2. Drain ends the work in progress, while the sockets still answer.
//  3. The sockets are closed and removed. Requests in progress have 1 s to finish.
//  4. Run's context ends, and Run returns.
//  5. The run directory is released for the next daemon.
package chassis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/lockfile"
	"github.com/gfaas/gfaas/pkg/owndir"
	"github.com/gfaas/gfaas/pkg/procfs"
)

// Config describes where a daemon serves and with which limits.
type Config struct {
	Program      string        // the program's name in messages
	Socket       string        // path of the control socket (HTTP), for the daemon's own user and root; its folder is the run directory
	Lock         string        // lock file in the run directory, held by the running daemon
	Private      bool          // set the mode of the run directory to 0700
	Listen       string        // TCP address of /healthz, /readyz and /metrics; empty: none
	UIListen     string        // second TCP address, for browsers, which serves the same and UI; empty: none
	WebTimeout   time.Duration // time to write an answer at Listen and UIListen; 0 means 10 s
	Conns        int           // open connections per socket, see Bounded; 0 means no limit
	ExitWhenIdle time.Duration // exit after this time without use; 0 means never
	// HTTP, if set, adjusts each server before it serves, for example its timeouts.
	HTTP func(*http.Server)
	// Conn, if set, wraps each accepted connection before the server uses it. It returns
	// nil for a connection that it has refused and closed.
	Conn func(net.Conn) net.Conn
	Log  *slog.Logger // nil discards
}

// Service is the work of a daemon. Only Run is required.
type Service struct {
	// Run does the daemon's work until its context ends. If it returns earlier, the daemon
	// ends with its error.
	Run func(ctx context.Context) error

	// Control handles requests on the control socket, other than health and metrics.
	Control http.Handler
	// Web handles requests at Listen, other than health and metrics; nil means 404.
	Web http.Handler
	// Guard, if set, wraps the handler of all requests at Listen, for example to
	// authenticate clients.
	Guard func(http.Handler) http.Handler
	// UI and UIGuard correspond to Web and Guard, for UIListen.
	UI      http.Handler
	UIGuard func(http.Handler) http.Handler
	// Metrics is served at /metrics in the format that the client accepts: OpenMetrics
	// unless it asks for another.
	Metrics prometheus.Gatherer
	// Ready returns an error that names the missing condition while the daemon is not
	// ready; /readyz then returns 503.
	Ready func() error
	// Reload reads the settings again, on SIGHUP. If it fails, the error is logged, and the
	// daemon keeps the old settings.
	Reload func() error
	// Drain ends the work in progress, on shutdown.
	Drain func()
	// Use returns when the daemon was last used, for ExitWhenIdle, and whether a client is
	// connected. A daemon with a connected client keeps running after its run directory was
	// removed. Serve calls Use at least once a second.
	Use func() (last time.Time, connected bool)
}

// Chassis owns the run directory and the sockets of a daemon.
type Chassis struct {
	cfg      Config
	log      *slog.Logger
	lock     *lockfile.Lock
	folder   *os.File // the run directory; a shared lock on it tells systemd-tmpfiles that it is in use
	control  *Listener
	web      net.Listener // nil if Listen is empty
	ui       net.Listener // nil if UIListen is empty
	draining atomic.Bool
}

// lockPatience is how long Open waits for a previous daemon to finish.
const lockPatience = 8 * time.Second

// ServedError reports that another daemon serves the run directory.
type ServedError struct {
	Program, RunDir string
	PID             int // 0 if unknown
}

func (e *ServedError) Error() string {
	text := fmt.Sprintf("another %s serves %s", e.Program, e.RunDir)
	if e.PID != 0 {
		text += fmt.Sprintf(" (process %d)", e.PID)
	}
	return text
}

// Locked marks the error for the exit status.
func (e *ServedError) Locked() bool { return true }

// Hint implements the interface of errors with a hint for the user.
func (e *ServedError) Hint() string {
	return "stop that daemon first, or set GFAAS_RUN_DIR to another folder"
}

// Open creates the run directory, locks it for this daemon and opens the sockets. The
// caller must call Serve or Close afterwards. Open returns a *ports.UnavailableError if the
// socket's path is too long, an *owndir.RunDirError if the run directory cannot be created
// or belongs to another user, and a *ServedError if another daemon serves there.
func Open(cfg Config) (*Chassis, error) {
	if cfg.WebTimeout == 0 {
		cfg.WebTimeout = 10 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	c := &Chassis{cfg: cfg, log: cfg.Log}
	if err := CheckPath(cfg.Socket); err != nil {
		return nil, err
	}
	if err := owndir.Ensure(c.RunDir()); err != nil {
		return nil, &owndir.RunDirError{Err: err}
	}
	if cfg.Private {
		if err := os.Chmod(c.RunDir(), 0o700); err != nil {
			return nil, fmt.Errorf("run directory: %w", err)
		}
	}
	err := c.acquireLock()
	if err == nil {
		if c.folder, err = os.Open(c.RunDir()); err == nil {
			_ = unix.Flock(int(c.folder.Fd()), unix.LOCK_SH|unix.LOCK_NB) // keeps systemd-tmpfiles from removing old files of the directory
			err = c.listen()
		}
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// RunDir returns the folder of the control socket.
func (c *Chassis) RunDir() string { return filepath.Dir(c.cfg.Socket) }

// WebAddr returns the address of Listen, or nil.
func (c *Chassis) WebAddr() net.Addr { return addrOf(c.web) }

// UIAddr returns the address of UIListen, or nil.
func (c *Chassis) UIAddr() net.Addr { return addrOf(c.ui) }

func addrOf(l net.Listener) net.Addr {
	if l == nil {
		return nil
	}
	return l.Addr()
}

// acquireLock locks the run directory. If the holder does not answer at the socket, it is
// starting or ending, so acquireLock retries for lockPatience. It also retries if the socket
// answers but the holder is dead: children that a killed daemon was starting inherit its
// lock and its socket until they execute another program.
func (c *Chassis) acquireLock() (err error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(lockPatience); ; <-tick.C {
		var held *lockfile.HeldError
		c.lock, err = lockfile.Acquire(filepath.Join(c.RunDir(), c.cfg.Lock))
		switch {
		case err == nil:
			return nil
		case !errors.As(err, &held):
			return fmt.Errorf("run directory: %w", err)
		case Answers("unix", c.cfg.Socket) && (held.PID == 0 || procfs.Alive(held.PID)), time.Now().After(deadline):
			return &ServedError{c.cfg.Program, c.RunDir(), held.PID}
		}
	}
}

// listen opens the control socket and the TCP sockets.
func (c *Chassis) listen() (err error) {
	if c.control, err = Listen("unix", c.cfg.Socket, 0o600); err != nil {
		return err
	}
	c.control.Own(c.log)
	if c.cfg.Listen != "" {
		if c.web, err = net.Listen("tcp", c.cfg.Listen); err != nil {
			return fmt.Errorf("--listen: %w", err)
		}
	}
	if c.cfg.UIListen != "" {
		if c.ui, err = net.Listen("tcp", c.cfg.UIListen); err != nil {
			return fmt.Errorf("--ui-listen: %w", err)
		}
	}
	return nil
}

// closeSockets stops listening and removes the control socket.
func (c *Chassis) closeSockets() {
	if c.control != nil {
		_ = c.control.Close()
	}
	for _, l := range []net.Listener{c.web, c.ui} {
		if l != nil {
			_ = l.Close()
		}
	}
}

// Close releases the run directory and the sockets. Call it if Serve does not follow Open.
func (c *Chassis) Close() {
	c.closeSockets()
	_ = c.folder.Close() // a nil *os.File may be closed
	if c.lock != nil {
		_ = c.lock.Remove()
	}
}

// Serve runs the daemon and returns after shutdown, as the package comment describes. Call
// it at most once.
func (c *Chassis) Serve(ctx context.Context, s Service) error {
	defer c.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	// Catch SIGHUP before the first request is served: a client may send one at once.
	hup := make(chan os.Signal, 1)
	if s.Reload != nil {
		signal.Notify(hup, syscall.SIGHUP)
		defer signal.Stop(hup)
	}
	servers := []*http.Server{c.serveHTTP(group, c.control, c.handler(s, s.Control), 0)}
	for _, at := range []struct {
		listener net.Listener
		next     http.Handler
		guard    func(http.Handler) http.Handler
	}{{c.web, s.Web, s.Guard}, {c.ui, s.UI, s.UIGuard}} {
		if at.listener == nil {
			continue
		}
		handler := c.handler(s, at.next)
		if at.guard != nil {
			handler = at.guard(handler)
		}
		servers = append(servers, c.serveHTTP(group, at.listener, handler, c.cfg.WebTimeout))
	}
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error {
		defer stop()
		return s.Run(running)
	})
	group.Go(func() error {
		c.supervise(ctx, stop, s, hup)
		c.notify(systemd.SdNotifyStopping)
		c.draining.Store(true)
		if s.Drain != nil {
			s.Drain()
		}
		c.closeSockets()
		for _, server := range servers {
			shut(server)
		}
		end()
		return nil
	})
	return group.Wait()
}

// supervise reloads the settings on each SIGHUP and calls stop when the daemon is idle or
// cannot be found any more. It returns when ctx ends.
func (c *Chassis) supervise(ctx context.Context, stop func(), s Service, hup <-chan os.Signal) {
	every := time.Second
	if idle := c.cfg.ExitWhenIdle; idle > 0 {
		every = min(every, max(idle/10, time.Millisecond))
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	c.notify(systemd.SdNotifyReady)
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			c.reload(s.Reload)
		case <-tick.C:
			now := time.Now() // taken before Use, which may take long, so that a daemon in use does not count as idle
			if s.Use == nil {
				continue
			}
			if last, connected := s.Use(); c.shouldExit(now.Sub(last), connected) {
				stop()
			}
		}
	}
}

// shouldExit reports whether the daemon should exit, given the time since its last use and
// whether a client is connected.
func (c *Chassis) shouldExit(ago time.Duration, connected bool) bool {
	switch idle := c.cfg.ExitWhenIdle; {
	case idle > 0 && ago >= idle:
		c.log.Info("idle, exiting", "after", idle.String())
		return true
	case !connected && !c.lock.Current(): // as systemd does at logout
		c.log.Error("the run directory was removed, so clients can no longer find this daemon; exiting", "run_dir", c.RunDir())
		return true
	}
	return false
}

// reload calls read between the notifications that systemd's Type=notify-reload requires.
func (c *Chassis) reload(read func() error) {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // systemd matches a reload by this time
	c.notify(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", systemd.SdNotifyReloading, now.Nano()/1000))
	if err := read(); err != nil {
		c.log.Error("settings not reloaded", "err", err)
	}
	c.notify(systemd.SdNotifyReady)
}

// notify sends a state to systemd, if NOTIFY_SOCKET is set.
func (c *Chassis) notify(state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		c.log.Warn("cannot notify systemd", "err", err)
	}
}
