package gfaas

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal opens a new pseudo-terminal.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}

// onTerminal starts a command on its own terminal, which does not answer queries.
func onTerminal(t *testing.T, cmd *exec.Cmd) (keys *os.File, output *screen) {
	t.Helper()
	master, slave := terminal(t)
	if err := unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 120}); err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.Env = append(cmd.Env, "TERM=xterm-256color", "CI=") // libraries may omit terminal output in CI
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	output = &screen{}
	go func() { _, _ = io.Copy(output, master) }()
	return master, output
}

// screen is a buffer for concurrent reads and writes.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// TestRunOnTerminal checks that ^C reaches the command once: from the terminal, not also from gfaas run.
func TestRunOnTerminal(t *testing.T) {
	p := newEnvironment(t)
	restoreSignals(t)
	cmd := p.command("run", "-q", "--", "sh", "-c", `tty; `+trapping)
	keys, screen := onTerminal(t, cmd)
	eventually(t, "the command is ready", func() bool { return strings.Contains(screen.String(), "ready") })
	if !strings.Contains(screen.String(), "/dev/pts/") {
		t.Errorf("terminal of the command's standard input: got %q, want one in /dev/pts", screen)
	}
	if _, err := keys.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command has handled SIGINT", func() bool { return strings.Contains(screen.String(), "INT") })
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := exitStatus(cmd.Wait()); got != 5 {
		t.Errorf("exit status of gfaas run: got %d, want the command's 5", got)
	}
	if n := strings.Count(screen.String(), "INT"); n != 1 {
		t.Errorf("interrupts of the command: got %d, want 1: %q", n, screen)
	}
}

// TestNoEscapeSequencesOnTerminal checks that a command which only prints does not query the terminal. A query would
// delay the command for seconds on a terminal that does not answer.
func TestNoEscapeSequencesOnTerminal(t *testing.T) {
	cmd := newEnvironment(t).command("version")
	_, output := onTerminal(t, cmd)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "gfaas version has printed a line", func() bool { return strings.HasSuffix(output.String(), "\n") })
	if strings.Contains(output.String(), "\x1b") {
		t.Errorf("output of gfaas version: got %q, want no escape sequences", output)
	}
}

func TestTopOnTerminal(t *testing.T) {
	p := newEnvironment(t)
	run := p.command("run", "-q", "--name", "trainer", "--", "sh", "-c", trapping)
	_, output := onTerminal(t, run)
	eventually(t, "the command is ready", func() bool { return strings.Contains(output.String(), "ready") })
	top := p.command("top", "--interval", "10ms")
	keys, output := onTerminal(t, top)
	press := func(text string) {
		t.Helper()
		if _, err := keys.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "gfaas top shows the instance trainer", func() bool { return strings.Contains(output.String(), "trainer") })
	press("/tra")
	press("\x1b[200~iner\x1b[201~") // as pasted text
	eventually(t, "gfaas top shows the typed filter", func() bool { return strings.Contains(output.String(), "iner▏") })
	press("\rq")
	if err := top.Wait(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "gfaas top has restored the terminal", func() bool {
		return strings.LastIndex(output.String(), "\x1b[?1049l") > strings.LastIndex(output.String(), "\x1b[?1049h")
	})
}
