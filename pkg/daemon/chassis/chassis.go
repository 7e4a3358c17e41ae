// Package chassis is what every daemon stands on: a run directory that it alone
// serves, a control socket and a TCP address for monitors, health and metrics
// on both, settings that are read again, an end in order, and what systemd is
// told of all that.
//
// Open takes the run directory and opens the sockets, so that whoever is told
// that the daemon has started can connect; Serve runs what the daemon does:
//
//	c, err := chassis.Open(chassis.Config{Program: "gfaas-tokend", Socket: socket, Lock: "token.lock"})
//	…
//	err = c.Serve(ctx, chassis.Service{Run: run, Control: handler, Metrics: registry})
//
// Serve ends when its context does, as by SIGTERM; when the daemon has been of no
// use for long enough, or nobody can find it any more; or with an error of its
// own or of Run. It then goes in this order: /readyz says no and systemd is told;
// Drain ends what is under way while the sockets still answer; the sockets are
// closed and removed, and requests that are being answered get a second; Run's
// context ends and Run returns; the run directory is free for the next daemon.
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

// Config says where a daemon serves.
type Config struct {
	Program      string        // what it is called, in messages
	Socket       string        // control socket, which speaks HTTP, for the user and root; its folder is the run directory
	Lock         string        // file of the run directory that its one daemon holds
	Private      bool          // the run directory is ours alone: its mode becomes 0700
	Listen       string        // TCP address of /healthz, /readyz and /metrics; empty is none
	UIListen     string        // second TCP address, for people's browsers, which answers the same and UI; empty is none
	WebTimeout   time.Duration // for whoever asks at Listen to take the answer; 0 is 10 s
	Conns        int           // connections of a socket at once, as Bounded has it; 0 is no bound
	ExitWhenIdle time.Duration // leave after so long without use; 0 is never
	Sockets      SocketOption  // of the control socket
	// HTTP, if set, changes a server before it serves, such as its timeouts.
	HTTP func(*http.Server)
	// Conn, if set, wraps each accepted connection before the server uses it. It returns nil
	// for a connection that it has refused and closed.
	Conn func(net.Conn) net.Conn
	Log  *slog.Logger // nil is none
}

// Service is what a daemon does. Only Run must be there.
type Service struct {
	// Run does it until its context ends. When it returns earlier the daemon
	// ends, with its error.
	Run func(ctx context.Context) error

	// Control answers on the control socket what is not health or metrics.
	Control http.Handler
	// Web answers at Listen what is not health or metrics; nil answers nothing else.
	Web http.Handler
	// Guard, if set, stands before all that is answered at Listen.
	Guard func(http.Handler) http.Handler
	// UI and UIGuard are the same for UIListen.
	UI      http.Handler
	UIGuard func(http.Handler) http.Handler
	// Metrics are those of /metrics, in the format that the client accepts: OpenMetrics
	// unless it asks for another.
	Metrics prometheus.Gatherer
	// Ready says what the daemon still waits for, if anything: then /readyz is 503.
	Ready func() error
	// Reload reads the settings again, at SIGHUP. An error is logged: the old
	// ones go on.
	Reload func() error
	// Drain ends what is under way, at the daemon's end.
	Drain func()
	// Use says when the daemon was last of use, for ExitWhenIdle, and whether
	// somebody is connected, whom a daemon that nobody finds any more still
	// serves. It is asked at least once a second.
	Use func() (last time.Time, connected bool)
}

// Chassis has the run directory and the sockets of a daemon.
type Chassis struct {
	cfg      Config
	log      *slog.Logger
	lock     *lockfile.Lock
	folder   *os.File // the run directory; its lock tells systemd-tmpfiles that it is in use
	control  *Listener
	web      net.Listener // nil without Listen
	ui       net.Listener // nil without UIListen
	draining atomic.Bool
}

// lockPatience is how long a daemon that is ending may take.
const lockPatience = 8 * time.Second

// ServedError says that another daemon serves the run directory.
type ServedError struct {
	Program, RunDir string
	PID             int // 0 if that is not known
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

// Hint says what to do about it.
func (e *ServedError) Hint() string {
	return "end that one first, or set GFAAS_RUN_DIR to another folder"
}

// RunDirError says why the run directory cannot be made or used.
type RunDirError struct{ Err error }

func (e *RunDirError) Error() string { return "run directory: " + e.Err.Error() }
func (e *RunDirError) Unwrap() error { return e.Err }

// Unavailable marks the error for the exit status.
func (e *RunDirError) Unavailable() bool { return true }

// Hint names the variable that chooses another folder.
func (e *RunDirError) Hint() string { return owndir.Hint }

// Open makes the run directory, takes it for this daemon and opens the sockets.
// Serve or Close must follow. Where another daemon serves, the error is a
// *ServedError; where the run directory cannot be made, or is not the user's own,
// it is a *RunDirError.
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
		return nil, &RunDirError{err}
	}
	if cfg.Private {
		if err := os.Chmod(c.RunDir(), 0o700); err != nil {
			return nil, fmt.Errorf("run directory: %w", err)
		}
	}
	err := c.takeLock()
	if err == nil {
		if c.folder, err = os.Open(c.RunDir()); err == nil {
			_ = unix.Flock(int(c.folder.Fd()), unix.LOCK_SH|unix.LOCK_NB) // what is old in /tmp is removed elsewhere
			err = c.listen()
		}
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// RunDir is the run directory.
func (c *Chassis) RunDir() string { return filepath.Dir(c.cfg.Socket) }

// WebAddr is where Listen listens, or nil.
func (c *Chassis) WebAddr() net.Addr { return addrOf(c.web) }

// UIAddr returns the address of UIListen, or nil.
func (c *Chassis) UIAddr() net.Addr { return addrOf(c.ui) }

func addrOf(l net.Listener) net.Addr {
	if l == nil {
		return nil
	}
	return l.Addr()
}

// takeLock takes the run directory. A daemon that has it without answering is on
// its way in or out, and gets a moment. So does one that was killed: what it was
// starting has its lock, and its socket too, until it runs a program of its own.
func (c *Chassis) takeLock() (err error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(lockPatience); ; <-tick.C {
		var held *lockfile.HeldError
		c.lock, err = lockfile.Take(filepath.Join(c.RunDir(), c.cfg.Lock))
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

func (c *Chassis) listen() (err error) {
	if c.control, err = Listen("unix", c.cfg.Socket, 0o600, c.cfg.Sockets); err != nil {
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

// Close gives up what Open took, where Serve does not follow.
func (c *Chassis) Close() {
	c.closeSockets()
	_ = c.folder.Close() // a nil *os.File may be closed
	if c.lock != nil {
		_ = c.lock.Remove()
	}
}

// Serve runs the daemon, once.
func (c *Chassis) Serve(ctx context.Context, s Service) error {
	defer c.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	// Before anybody is answered: who was may send one at once.
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
		c.attend(ctx, stop, s, hup)
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

// attend reads the settings again when it is told to, and calls stop when it is
// time to leave, until the context ends.
func (c *Chassis) attend(ctx context.Context, stop func(), s Service, hup <-chan os.Signal) {
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
			now := time.Now() // before it is asked: who is of use now is so however long that takes
			if s.Use == nil {
				continue
			}
			if last, connected := s.Use(); c.useless(now.Sub(last), connected) {
				stop()
			}
		}
	}
}

// useless says whether it is time to leave, for a daemon that was last of use so long
// ago.
func (c *Chassis) useless(ago time.Duration, connected bool) bool {
	switch idle := c.cfg.ExitWhenIdle; {
	case idle > 0 && ago >= idle:
		c.log.Info("idle, leaving", "after", idle.String())
		return true
	case !connected && !c.lock.Current(): // as at a logout
		c.log.Error("the run directory was taken away: nobody finds this daemon any more, leaving", "run_dir", c.RunDir())
		return true
	}
	return false
}

func (c *Chassis) reload(read func() error) {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // by which systemd tells reloads apart
	c.notify(fmt.Sprintf("%s\nMONOTONIC_USEC=%d", systemd.SdNotifyReloading, now.Nano()/1000))
	if err := read(); err != nil {
		c.log.Error("settings not reloaded", "err", err)
	}
	c.notify(systemd.SdNotifyReady)
}

// notify tells systemd, if it asks to be told.
func (c *Chassis) notify(state string) {
	if _, err := systemd.SdNotify(false, state); err != nil {
		c.log.Warn("cannot tell systemd", "err", err)
	}
}
