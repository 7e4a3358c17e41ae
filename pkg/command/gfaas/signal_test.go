package gfaas

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// trapping is a shell program that prints the signals that it receives, and ends with status 5 on SIGTERM.
const trapping = `for s in HUP INT QUIT USR1 USR2 ALRM VTALRM PWR WINCH CONT 35 64; do trap "echo $s" $s; done
trap "echo TERM; exit 5" TERM; echo ready; while :; do sleep 0.01; done`

// restoreSignals keeps signals from being ignored in the commands of a test, which inherit that from tests under nohup or in the
// background of a script.
func restoreSignals(t *testing.T) {
	heeded := make(chan os.Signal, 1)
	signal.Notify(heeded, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT)
	t.Cleanup(func() { signal.Stop(heeded) })
}

func TestRunPassesSignalsOn(t *testing.T) {
	p := newEnvironment(t)
	restoreSignals(t)
	cmd := p.command("run", "-q", "--", "sh", "-c", trapping)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-lines:
			if got != want {
				t.Fatalf("output of the command: got %q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("output of the command: got nothing within a minute, want %q", want)
		}
	}
	expect("ready")
	for _, s := range []syscall.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM,
		unix.SIGVTALRM, unix.SIGPWR, unix.SIGWINCH, unix.SIGCONT, 35, 64, unix.SIGTERM,
	} {
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		expect(cmp.Or(strings.TrimPrefix(unix.SignalName(s), "SIG"), strconv.Itoa(int(s))))
	}
	if got := exitStatus(cmd.Wait()); got != 5 {
		t.Errorf("exit status of gfaas run: got %d, want the command's 5", got)
	}
}

// TestRunKeepsIgnoredSignals checks that the command of gfaas run ignores the signals that gfaas run ignores. Some are
// ignored under nohup, in the background of scripts and under systemd.
func TestRunKeepsIgnoredSignals(t *testing.T) {
	p := newEnvironment(t)
	cmd := p.command()
	cmd.Path, cmd.Args = p.lookPath("sh"), []string{"sh", "-c", `trap "" HUP INT QUIT TERM USR1 PIPE TTOU; gfaas run -q -- grep SigIgn /proc/self/status`}
	text, err := cmd.Output()
	var mask uint64
	if _, scan := fmt.Sscanf(string(text), "SigIgn: %x", &mask); err != nil || scan != nil {
		t.Fatalf("read SigIgn of the command from %q: %v, %v", text, err, scan)
	}
	for _, s := range []syscall.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGPIPE, unix.SIGTTOU,
	} {
		if mask&(1<<(s-1)) == 0 {
			t.Errorf("ignored signals of the command: got %s, want %v among them", text, s)
		}
	}
}
