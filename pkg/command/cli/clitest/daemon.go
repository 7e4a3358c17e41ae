package clitest

import (
	"net"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// patience is how long a script waits for a required event.
const patience = time.Minute

// Await implements the script command `await PROGRAM ARGS…`, which runs a program until it succeeds or, with !, until it fails.
func Await(ts *testscript.TestScript, neg bool, args []string) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); (Status(ts, ts.Exec(args[0], args[1:]...)) == 0) == neg; <-tick.C {
		if time.Now().After(end) {
			ts.Fatalf("await %v: after %v, success is %v, want %v", args, patience, neg, !neg)
		}
	}
}

// Signal implements the script command `signal NAME`, which sends a signal to the background processes.
func Signal(ts *testscript.TestScript, _ bool, args []string) {
	for _, cmd := range ts.BackgroundCmds() {
		ts.Check(cmd.Process.Signal(unix.SignalNum("SIG" + args[0])))
	}
}

// Systemd is the socket on which a script acts as systemd. A script that calls Notify needs a Systemd
// among its Values, under the key Systemd{}.
type Systemd struct{ conn *net.UnixConn }

// Notify implements the script command `notify`, which opens the script's Systemd.
func Notify(ts *testscript.TestScript, _ bool, _ []string) {
	path := ts.Getenv("GFAAS_RUN_DIR") + ".notify"
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	ts.Check(err)
	ts.Defer(func() { _ = conn.Close() })
	ts.Value(Systemd{}).(*Systemd).conn = conn
	ts.Setenv("NOTIFY_SOCKET", path)
}

// Notified implements the script command `notified TEXT`, which waits for a message that starts with TEXT.
func Notified(ts *testscript.TestScript, _ bool, args []string) {
	conn := ts.Value(Systemd{}).(*Systemd).conn
	ts.Check(conn.SetReadDeadline(time.Now().Add(patience)))
	buf := make([]byte, 256)
	n, err := conn.Read(buf)
	ts.Check(err)
	if got := string(buf[:n]); !strings.HasPrefix(got, args[0]) {
		ts.Fatalf("message for systemd: got %q, want %q", got, args[0])
	}
}
