package hooktest

import (
	"fmt"
	"strings"
	"testing"
)

// TestDescriptors has a program close the library's descriptors, and open files of its
// own that then have their numbers: the program launches on, and the library neither
// reads, writes nor closes what is not its own.
func TestDescriptors(t *testing.T) {
	h := newHost(t)
	h.start()
	for _, which := range []string{"socket", "epoll", "all"} {
		for _, kind := range []string{"closed", "file", "stream", "seqpacket", "pipe", "write", "event", "epoll", "timer"} {
			for _, when := range []string{"idle", "busy"} {
				name := which + "-" + kind + "-" + when
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					h := h.within(t)
					p := h.run(h.register(name, tenth), "check/descriptors", which, kind, when)
					if err := p.wait(); err != nil {
						t.Fatalf("%v: %s", err, p.errout.String())
					}
					if said := p.errout.String(); said != "" {
						t.Errorf("it says %q", said)
					}
					lowest := 0
					if _, err := fmt.Sscan(p.out.String(), &lowest); err != nil || lowest < 256 {
						t.Errorf("the library keeps descriptor %d (%v), want high numbers", lowest, err)
					}
				})
			}
		}
	}
}

// TestFewDescriptors: where a process may have few descriptors, the library's are
// still away from those of its standard streams.
func TestFewDescriptors(t *testing.T) {
	h := newHost(t)
	h.start()
	for _, limit := range []string{"24", "64", "1000000"} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			h := h.within(t)
			p := h.run(h.register("few-"+limit, tenth), "check/descriptors", "socket", "closed", "idle", limit)
			if err := p.wait(); err != nil {
				t.Fatalf("%v: %s", err, p.errout.String())
			}
			lowest := 0
			if _, err := fmt.Sscan(p.out.String(), &lowest); err != nil || lowest < 8 || lowest >= 1024 {
				t.Errorf("the library keeps descriptor %d (%v)", lowest, err)
			}
		})
	}
}

// TestDenied has a program forbid itself, as sandboxes do, the system calls by which
// the library talks to the daemon: it goes on, and one line says which call it may not
// make and why.
func TestDenied(t *testing.T) {
	h := newHost(t)
	h.start()
	for _, row := range []struct{ who, calls, want string }{
		{"thread", "sendto sendmsg", "may not call sendto (Operation not permitted)"},
		{"all", "sendto sendmsg", "may not call sendto (Operation not permitted)"},
		{"all", "recvmsg recvfrom", "may not call recvmsg (Operation not permitted)"},
		{"all", "sendto sendmsg recvmsg recvfrom", "(Operation not permitted)"},
		{"early", "sendto sendmsg", "may not call sendto (Operation not permitted)"},
		{"early", "epoll_ctl", ""},
		{"thread", "epoll_ctl", ""},
		{"all", "epoll_ctl", ""},
		{"all", "socket connect", ""},
	} {
		name := row.who + "-" + strings.ReplaceAll(row.calls, " ", "-")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := h.within(t)
			p := h.run(h.register(name, tenth), "check/denied", append([]string{row.who}, strings.Fields(row.calls)...)...)
			if err := p.wait(); err != nil {
				t.Fatalf("%v: %s", err, p.errout.String())
			}
			said := p.errout.String()
			if row.want == "" && said != "" || row.want != "" && (strings.Count(said, "\n") != 1 || !strings.Contains(said, row.want)) {
				t.Errorf("it says %q, want one line with %q", said, row.want)
			}
		})
	}
}

// TestDeniedConnection: without the system calls that make the connection the program
// waits, and the line names the call and not the daemon, which is there.
func TestDeniedConnection(t *testing.T) {
	h := newHost(t)
	h.start()
	for _, call := range []string{"socket", "connect", "recvmsg"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			h := h.within(t)
			p := h.run(h.register(call, tenth), "check/denied", "early", call)
			h.eventually("it says why it waits", func() bool { return strings.Contains(p.errout.String(), "\n") })
			h.alive(p, call)
			if said := p.errout.String(); !strings.Contains(said, "may not call "+call+" (Operation not permitted): GPU work waits") {
				t.Errorf("it says %q", said)
			}
		})
	}
}
