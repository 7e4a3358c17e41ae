package tokend

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/adapter/tokend"
	"github.com/gfaas/gfaas/pkg/command/cli/clitest"
	"github.com/gfaas/gfaas/pkg/wire"
)

// patience limits how long a script waits for an event.
const patience = time.Minute

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"gfaas-tokend": func() { os.Exit(Main()) }})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			run, err := os.MkdirTemp("", "run") // the script's own folder may have too long a path for a socket
			if err != nil {
				return err
			}
			env.Values[clitest.Systemd{}] = &clitest.Systemd{}
			env.Setenv("GFAAS_RUN_DIR", filepath.Join(run, "gfaas"))
			env.Defer(func() {
				// A daemon that the script did not start itself would stay until its idle timeout.
				if err := end(filepath.Join(run, "gfaas")); err != nil {
					t.Error(err)
				}
				_ = os.RemoveAll(run)
			})
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "config"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": clitest.Exits, "await": clitest.Await, "register": register, "unregister": unregister, "ensure": ensure,
			"mode": mode, "window": window, "signal": clitest.Signal,
			"revive": revive, "kept": registrationKept, "notify": clitest.Notify, "notified": clitest.Notified,
		},
	})
}

// register implements register ID SM REQUEST LIMIT, which registers an instance on the simulated GPU.
func register(ts *testscript.TestScript, neg bool, args []string) {
	var n [3]float64
	for i := range n {
		var err error
		n[i], err = strconv.ParseFloat(args[i+1], 64)
		ts.Check(err)
	}
	_, err := tokend.Dial(ts.Getenv("GFAAS_RUN_DIR")).Register(context.Background(), wire.Registration{
		Instance: args[0], Function: "f", Secret: "s",
		Allocation: wire.Allocation{GPU: "sim", SMPct: n[0], QuotaRequest: n[1], QuotaLimit: n[2]},
	})
	if (err != nil) != neg {
		ts.Fatalf("register: %v", err)
	}
}

// unregister implements unregister ID, which removes the registration.
func unregister(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(tokend.Dial(ts.Getenv("GFAAS_RUN_DIR")).Unregister(context.Background(), args[0]))
}

// ensure implements ensure started|found|race. It finds or starts the daemon like gfaas run. With race, eight callers do
// so concurrently, and exactly one must start it.
func ensure(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(os.Setenv("PATH", ts.Getenv("PATH")))
	callers, want := 1, 1
	switch args[0] {
	case "found":
		want = 0
	case "race":
		callers = 8
	}
	var group errgroup.Group
	var starts atomic.Int32
	for range callers {
		group.Go(func() error {
			_, started, err := tokend.Ensure(context.Background(), ts.Getenv("GFAAS_RUN_DIR"))
			if started {
				starts.Add(1)
			}
			return err
		})
	}
	ts.Check(group.Wait())
	if int(starts.Load()) != want {
		ts.Fatalf("started %d times, want %d", starts.Load(), want)
	}
}

// revive implements revive ID. It registers an instance through a client whose daemon has just ended, which must start
// the daemon again.
func revive(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.Getenv("GFAAS_RUN_DIR")
	c, _, err := tokend.Ensure(context.Background(), dir)
	ts.Check(err)
	ts.Check(end(dir))
	_, err = c.Register(context.Background(), wire.Registration{
		Instance: args[0], Secret: "s",
		Allocation: wire.Allocation{GPU: "sim", SMPct: 1, QuotaRequest: 1, QuotaLimit: 1},
	})
	ts.Check(err)
}

// registrationKept implements the command kept ID. It registers an instance and kills the daemon, which its client
// supervises. The next daemon must know the instance.
func registrationKept(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.Getenv("GFAAS_RUN_DIR")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, _, err := tokend.Ensure(ctx, dir)
	ts.Check(err)
	answer, err := c.Register(ctx, wire.Registration{
		Instance: args[0], Secret: "s",
		Allocation: wire.Allocation{GPU: "sim", SMPct: 1, QuotaRequest: 1, QuotaLimit: 1},
	})
	ts.Check(err)
	if !answer.IdleExit {
		ts.Fatalf("registration: got %+v, want IdleExit true", answer)
	}
	restarted := make(chan error, 1)
	go c.Supervise(ctx, args[0], 10*time.Millisecond, func(err error) { restarted <- err })
	pid, err := daemonOf(dir)
	ts.Check(err)
	ts.Check(unix.Kill(pid, unix.SIGKILL))
	select {
	case err := <-restarted:
		ts.Check(err)
	case <-time.After(patience):
		ts.Fatalf("the daemon was not restarted within %v after SIGKILL, want a restart", patience)
	}
}

// daemonOf returns the PID of the daemon that serves a run directory.
func daemonOf(dir string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "token.lock"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// end ends the daemon of a run directory, if there is one, and waits until its socket has been removed.
func end(dir string) error {
	pid, err := daemonOf(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, unix.SIGTERM); err != nil && err != unix.ESRCH {
		return err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		if _, err := os.Stat(tokend.Socket(dir)); err != nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("daemon %d still serves %s %v after SIGTERM", pid, dir, patience)
		}
	}
}

// window implements window MS, which waits until the daemon's windows have that length.
func window(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.ParseFloat(args[0], 64)
	ts.Check(err)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		s, err := tokend.Dial(ts.Getenv("GFAAS_RUN_DIR")).Status(context.Background())
		if err == nil && s.WindowMS == want {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("window after %v: got %v ms, %v; want %v ms", patience, s.WindowMS, err, want)
		}
	}
}

// mode implements mode OCTAL FILE, which checks a file's permissions.
func mode(ts *testscript.TestScript, _ bool, args []string) {
	info, err := os.Stat(args[1])
	ts.Check(err)
	if got := strconv.FormatUint(uint64(info.Mode().Perm()), 8); got != args[0] {
		ts.Fatalf("%s has mode %s, want %s", args[1], got, args[0])
	}
}
