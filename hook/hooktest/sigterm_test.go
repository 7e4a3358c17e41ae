package hooktest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gfaas/gfaas/pkg/instance/instancetest"
)

// terminate sends SIGTERM to a program that waits for the GPU, and checks its last line, which has
// the result of the call that waited.
func (c *talk) terminate(lastLine string) {
	c.h.t.Helper()
	_ = c.p.cmd.Process.Signal(syscall.SIGTERM)
	c.expect(lastLine)
	if err := c.p.wait(); err != nil {
		c.h.t.Error(err)
	}
	if errout := c.p.errout.String(); strings.Count(errout, "asked to end") > 1 {
		c.h.t.Errorf("got the note about the signal several times, want it at most once: %s", errout)
	}
}

// TestSIGTERMAtClosedGate sends SIGTERM to programs that wait at a closed gate. The signal handler
// of the program runs and may end the program, and the call that waited fails.
func TestSIGTERMAtClosedGate(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"flag", "sync", "graph", "exit", "within", "other"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKeeper(t)
			h := &host{t: t}
			c := &talk{h: h, p: h.run(k.environ(), "check/sigterm", name)}
			c.expect("ready")
			h.eventually("the program waits at the gate", k.waits)
			if name == "other" { // other signals never end a wait
				for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
					h.alive(c.p, name)
					_ = c.p.cmd.Process.Signal(syscall.SIGUSR1)
				}
				k.openGate()
				c.expect("sent 0")
				k.drain()
				c.sendLine()
				h.eventually("the program waits at the gate again", k.waits)
			}
			c.terminate("ended 46")
		})
	}
}

// TestSIGTERMIsNeverMissed sends many signals at random times to a waiting thread. Every one ends
// the wait, whether its handler runs on the thread's stack or on one of its own, and also among
// other signals. Programs started meanwhile do not inherit the signals that the wait blocks.
func TestSIGTERMIsNeverMissed(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"plain", "stack", "others", "int", "fork"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			h := &host{t: t}
			p := h.run(append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(build, "lib/sim")), "check/noticed", mode, "1000")
			const want = "1000 handled, 0 missed, 0 false\n"
			if err := p.wait(); err != nil || p.out.String() != want {
				t.Errorf("got %q, %v; want %q", p.out.String(), err, want)
			}
		})
	}
}

// TestSIGTERMIsNotedOnStandardError sends SIGTERM to a program to which the library has printed
// another message before. The library prints both messages, and none if the program has replaced
// its standard error by a file of its own.
func TestSIGTERMIsNotedOnStandardError(t *testing.T) {
	t.Parallel()
	static, file := filepath.Join(t.TempDir(), "static"), filepath.Join(t.TempDir(), "file")
	instancetest.Compile(t, static, []byte("int main(void) { return 0; }"), "-static")
	for _, with := range [][]string{{"start", static}, {"open", file}} {
		k := newKeeper(t)
		h := &host{t: t}
		c := &talk{h: h, p: h.run(k.environ(), "check/sigterm", "flag", with[0], with[1])}
		c.expect("ready")
		h.eventually("the program waits at the gate", k.waits)
		c.terminate("ended 46")
		output := c.p.errout.String()
		want := 0
		if with[0] == "start" {
			want = 1
		}
		if strings.Count(output, "statically linked") != want || strings.Count(output, "asked to end") != want {
			t.Errorf("%v: got %q, want each of the two messages %d times", with, output, want)
		}
	}
	if text, err := os.ReadFile(file); err != nil || len(text) > 0 {
		t.Errorf("file of the program: got %q, %v; want an empty file", text, err)
	}
}

// isWaiting reports whether the program's first thread sleeps in the preload library until
// a gate opens or until it may launch blocks.
func (p *program) isWaiting() bool {
	return isWaitingThread(fmt.Sprintf("/proc/%d/syscall", p.cmd.Process.Pid))
}

// waitingThreads returns how many of the program's threads sleep as isWaiting describes.
func (p *program) waitingThreads() (threads int) {
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", p.cmd.Process.Pid))
	for _, file := range all {
		if isWaitingThread(file) {
			threads++
		}
	}
	return threads
}

// isWaitingThread reports whether a thread waits for a shared futex word with a time limit. No other
// wait in the preload library or the driver is such a system call. file is the "syscall" file of the
// thread in /proc.
func isWaitingThread(file string) bool {
	call, err := os.ReadFile(file)
	var word, op, value, timeout uint64
	n, _ := fmt.Sscanf(string(call), fmt.Sprint(unix.SYS_FUTEX)+" 0x%x 0x%x 0x%x 0x%x", &word, &op, &value, &timeout)
	return err == nil && n == 4 && op == 0 && timeout != 0 // FUTEX_WAIT
}

// TestSIGTERMWithoutDaemon sends SIGTERM to programs whose daemon has been killed. Without a daemon,
// allocations wait as well.
func TestSIGTERMWithoutDaemon(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	env := h.register("alone", whole)
	first := &talk{h: h, p: h.run(env, "check/sigterm", "flag")}
	first.expect("ready")
	first.expect("sent 0")
	h.kill()
	waits := func(c *talk) func() bool { return func() bool { return c.p.isWaiting() } }
	for first.sendLine(); first.line(waits(first)) == "sent 0"; first.sendLine() { // it needs a moment to notice
	}
	second := &talk{h: h, p: h.run(env, "check/sigterm", "memory")}
	second.expect("ready")
	for _, c := range []*talk{first, second} {
		h.eventually("the program waits in the preload library", waits(c))
		h.eventually("the program prints that the daemon is missing", func() bool { return strings.Contains(c.p.errout.String(), "no gfaas-tokend") })
	}
	first.terminate("ended 46")
	second.terminate("ended 2")
}
