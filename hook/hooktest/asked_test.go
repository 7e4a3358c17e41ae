package hooktest

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// ends asks a program that waits for the GPU to end, and checks what it saw. It is
// asked more than once, since a signal of the moment before it sleeps goes unseen.
func (c *talk) ends(saw string) {
	c.h.t.Helper()
	c.h.eventually("it is asked and ends", func() bool {
		_ = c.p.cmd.Process.Signal(syscall.SIGTERM)
		return strings.Contains(c.p.out.String()[c.read:], "\n")
	})
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
	lost := func(c *talk) func() bool {
		return func() bool { return strings.Contains(c.p.errout.String(), "no gfaas-tokend") }
	}
	for first.says(); first.line(lost(first)) == "sent 0"; first.says() { // it has a moment to see it
	}
	second := &talk{h: h, p: h.run(env, "check/asked", "memory")}
	second.hears("ready")
	for _, c := range []*talk{first, second} {
		h.eventually("it says that it waits", lost(c))
	}
	first.ends("asked 46")
	second.ends("asked 2")
}
