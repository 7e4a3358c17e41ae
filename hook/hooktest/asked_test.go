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

// ends asks a program that waits for the GPU to end, once, and checks what it saw.
func (c *talk) ends(saw string) {
	c.h.t.Helper()
	_ = c.p.cmd.Process.Signal(syscall.SIGTERM)
	c.hears(saw)
	if err := c.p.wait(); err != nil {
		c.h.t.Error(err)
	}
	if errout := c.p.errout.String(); strings.Count(errout, "asked to end") > 1 {
		c.h.t.Error(errout)
	}
}

// TestAsked has programs asked to end before a gate that stays shut: their handlers
// run, and what they decide happens.
func TestAsked(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"flag", "sync", "graph", "exit", "within", "other"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKeeper(t)
			h := &host{t: t}
			c := &talk{h: h, p: h.run(k.environ(), "check/asked", name)}
			c.hears("ready")
			h.eventually("it waits", k.waits)
			if name == "other" { // other signals, however many, end no wait
				for end := time.Now().Add(2500 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
					h.alive(c.p, name)
					_ = c.p.cmd.Process.Signal(syscall.SIGUSR1)
				}
				k.allow()
				c.hears("sent 0")
				k.shut()
				c.says()
				h.eventually("it waits again", k.waits)
			}
			c.ends("asked 46")
		})
	}
}

// TestAskedNoticed sends many signals at random instants to a thread that waits: the wait
// notices every one, on the thread's stack or on one of the handler's own, and beside other
// signals. What the program starts meanwhile has its signals as the program has them.
func TestAskedNoticed(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"plain", "stack", "others", "int", "fork"} {
		h := &host{t: t}
		p := h.run(append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Join(build, "lib/sim")), "check/noticed", mode, "1000")
		if err := p.wait(); err != nil || p.out.String() != "1000 handled, 0 missed, 0 false\n" {
			t.Errorf("%s: %v, %s", mode, err, p.out.String())
		}
	}
}

// TestAskedSays has a program asked to end that had another line to hear before: it
// hears both, and none where a file of its own is in the place of standard error.
func TestAskedSays(t *testing.T) {
	t.Parallel()
	static, file := filepath.Join(t.TempDir(), "static"), filepath.Join(t.TempDir(), "file")
	instancetest.Compile(t, static, []byte("int main(void) { return 0; }"), "-static")
	for _, with := range [][]string{{"start", static}, {"open", file}} {
		k := newKeeper(t)
		h := &host{t: t}
		c := &talk{h: h, p: h.run(k.environ(), "check/asked", "flag", with[0], with[1])}
		c.hears("ready")
		h.eventually("it waits", k.waits)
		c.ends("asked 46")
		said := c.p.errout.String()
		want := 0
		if with[0] == "start" {
			want = 1
		}
		if strings.Count(said, "statically linked") != want || strings.Count(said, "asked to end") != want {
			t.Errorf("%v: %s", with, said)
		}
	}
	if text, err := os.ReadFile(file); err != nil || len(text) > 0 {
		t.Errorf("its file has %q, %v", text, err)
	}
}

// waits says whether the program's first thread sleeps in the preload library until a
// gate opens, or blocks may be launched.
func (p *program) waits() bool { return waits(fmt.Sprintf("/proc/%d/syscall", p.cmd.Process.Pid)) }

// waiting is how many of its threads do.
func (p *program) waiting() (threads int) {
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", p.cmd.Process.Pid))
	for _, file := range all {
		if waits(file) {
			threads++
		}
	}
	return threads
}

// waits looks at a thread's system call: no other wait in the preload library or in the
// driver is for a word of several processes and a while.
func waits(file string) bool {
	doing, err := os.ReadFile(file)
	var word, op, value, timeout uint64
	n, _ := fmt.Sscanf(string(doing), fmt.Sprint(unix.SYS_FUTEX)+" 0x%x 0x%x 0x%x 0x%x", &word, &op, &value, &timeout)
	return err == nil && n == 4 && op == 0 && timeout != 0 // FUTEX_WAIT
}

// TestAskedAlone is the same where the daemon is gone, or was never there, for which
// memory is waited for too.
func TestAskedAlone(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	env := h.register("alone", whole)
	first := &talk{h: h, p: h.run(env, "check/asked", "flag")}
	first.hears("ready")
	first.hears("sent 0")
	h.kill()
	waits := func(c *talk) func() bool { return func() bool { return c.p.waits() } }
	for first.says(); first.line(waits(first)) == "sent 0"; first.says() { // it has a moment to see it
	}
	second := &talk{h: h, p: h.run(env, "check/asked", "memory")}
	second.hears("ready")
	for _, c := range []*talk{first, second} {
		h.eventually("it waits", waits(c))
		h.eventually("it says so", func() bool { return strings.Contains(c.p.errout.String(), "no gfaas-tokend") })
	}
	first.ends("asked 46")
	second.ends("asked 2")
}
